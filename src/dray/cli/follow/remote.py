"""A process elsewhere, shown here: what is typed or piped in goes there, its output comes here, and so does its end.

Nothing piles up: input is read when the stream has room, and output is taken as fast as it can be written. Output is
written by a thread, since whoever reads this command's own may be slow, while keys and the connection go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

from dray.cli.follow.terminal import Escapes, RawTerminal, read_size
from dray.client.reach.discovery import Target
from dray.client.reach.forwarding import open_streams, read_refused
from dray.client.reach.sockets import dial_hub
from dray.errors import HubUnavailable, InvalidInput
from dray.wire.streams import parcels
from dray.wire.streams.frames import (
    EXIT,
    FORWARD_PATH,
    PIECE_BYTES,
    RESIZE,
    SIGNAL,
    SUBPROTOCOL_STREAMS,
    write_target,
)
from dray.wire.streams.joints import Opening
from dray.wire.streams.mux import Stream, Taker

READ_BYTES = 32 << 10
PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LEAVES = (signal.SIGTERM, signal.SIGHUP)


class Left(Exception):
    """The command was told to end before the process did: `number` is the signal; 0 is the escape."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Sink:
    """Writes what comes, piece by piece; `written` hears how much of the stream that was."""

    def __init__(self, written: Callable[[int], None], broken: Callable[[], None]) -> None:
        self._written, self._broken = written, broken
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[list[tuple[int, bytes]], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dray-output", daemon=True)
        self._thread.start()

    def write(self, pieces: list[tuple[int, bytes]], amount: int) -> None:
        self._queue.put((pieces, amount))

    async def close(self) -> None:
        """Wait until everything is written."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            pieces, amount = item
            try:
                for fd, piece in pieces:
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(fd, view) :]
            except OSError:
                self._tell(self._broken)
                return
            self._tell(self._written, amount)

    def _tell(self, call: Callable[..., None], *words: Any) -> None:
        # A loop that has ended wants to hear nothing more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *words)


class RemoteProcess(Taker):
    """One process. `over` gives how it ended; it raises `HubUnavailable` where that never came, `Left` where nobody
    waited for it.
    """

    def __init__(self, stream: Stream, raw: RawTerminal | None) -> None:
        self._stream, self._raw = stream, raw
        self._loop = asyncio.get_running_loop()
        self._escapes = Escapes() if raw is not None else None
        self._parcels = parcels.Parcels()
        self._ended: parcels.Ended | None = None
        self._listening = -1
        self.sink = Sink(stream.credit, lambda: self.leave(signal.SIGPIPE))
        self.over: asyncio.Future[parcels.Ended] = self._loop.create_future()

    # --- what comes -------------------------------------------------------------------------------------------------

    def data(self, data: bytes) -> None:
        try:
            self.sink.write(list(self._parcels.open(data)), len(data))
        except InvalidInput as fault:
            self._fail(fault.message)

    def told(self, kind: int, payload: bytes) -> None:
        if kind == EXIT:
            try:
                self._ended = parcels.read_ended(payload)
            except InvalidInput as fault:
                self._fail(fault.message)

    def eof(self) -> None:
        if self._ended is None:
            self._fail("its output ended, and how it ended was not told")
        elif not self.over.done():
            self.over.set_result(self._ended)

    def ended(self, reason: str) -> None:
        self._fail(reason or "the connection was closed")

    def _fail(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_exception(HubUnavailable(reason))

    # --- what goes there ----------------------------------------------------------------------------------------------

    def send_from(self, fd: int) -> None:
        """Send what can be read there until it ends."""
        self._listening = fd
        try:
            self._loop.add_reader(fd, self._read)
        except PermissionError:
            # A file: it can be read at any time, and is, as far as there is room.
            self._loop.call_soon(self._read_file)

    def _read(self) -> None:
        self._take(os.read(self._listening, READ_BYTES))
        if self._listening >= 0 and self._stream.is_full:
            self._loop.remove_reader(self._listening)

    def _read_file(self) -> None:
        while self._listening >= 0 and not self._stream.is_full:
            self._take(os.read(self._listening, READ_BYTES))

    def room(self) -> None:
        if self._listening >= 0:
            self.send_from(self._listening)

    def _take(self, data: bytes) -> None:
        left = False
        if not data:
            self.stop_reading()
            self._stream.finish()
            return
        if self._escapes is not None:
            data, left = self._escapes.read(data)
        self._stream.write(data)
        if left:
            self.leave(0)

    def stop_reading(self) -> None:
        fd, self._listening = self._listening, -1
        if fd >= 0:
            with contextlib.suppress(PermissionError):
                self._loop.remove_reader(fd)

    def send_no_input(self) -> None:
        self._stream.finish()

    def pass_on(self, number: int) -> None:
        """A signal of this command is the other one's."""
        if self.over.done():
            self.leave(number)
        self._stream.tell(SIGNAL, parcels.NUMBER.pack(number))

    def resize(self) -> None:
        self._stream.tell(RESIZE, parcels.SIZE.pack(*read_size()))

    def go_on(self) -> None:
        """This command was stopped, and its terminal was the shell's meanwhile."""
        if self._raw is not None:
            self._raw.take()
        self.resize()

    def leave(self, number: int) -> None:
        """End without waiting for it."""
        if not self.over.done():
            self.over.set_exception(Left(number))


async def run_remote(
    target: Target, asked: Any, stdin: int | None, raw: RawTerminal | None, terminal: bool
) -> parcels.Ended:
    """Have a process started elsewhere and show it here until it ends. Raises what it is refused with, `Left` where the
    command was told to leave, `HubUnavailable` where the connection was cut.
    """
    payload = write_target(asked)
    if len(payload) > PIECE_BYTES:
        raise InvalidInput(
            f"the command and its variables take {len(payload)} bytes, of {PIECE_BYTES} that can be sent: use a file"
        )
    hub = await dial_hub(target, FORWARD_PATH, SUBPROTOCOL_STREAMS)
    try:
        opening = Opening()
        stream = open_streams(hub).open(payload, opening)
        if fault := await opening.answer:
            raise read_refused(fault)
        process = RemoteProcess(stream, raw)
        with contextlib.ExitStack() as stack:
            if raw is not None:
                stack.enter_context(raw)
            stack.callback(process.stop_reading)
            _listen_to_signals(process, raw is not None, terminal)
            opening.hand_over(stream, process)
            if stdin is None:
                process.send_no_input()
            else:
                process.send_from(stdin)
            try:
                return await process.over
            finally:
                if not _is_left(process.over):
                    await process.sink.close()
    finally:
        await hub.close()


def _is_left(over: asyncio.Future[parcels.Ended]) -> bool:
    return not over.done() or over.cancelled() or isinstance(over.exception(), Left)


def _listen_to_signals(process: RemoteProcess, raw: bool, terminal: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in PASSED_ON:
        loop.add_signal_handler(number, process.pass_on, number)
    for number in LEAVES:
        loop.add_signal_handler(number, process.leave, number)
    if terminal:
        loop.add_signal_handler(signal.SIGWINCH, process.resize)
    if raw:
        loop.add_signal_handler(signal.SIGCONT, process.go_on)
