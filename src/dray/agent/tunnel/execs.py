"""Processes beside tasks, and terminals of tasks, as ends of streams: asked of the supervisor, which hands descriptors
over.

Bytes go straight between those and the stream. Reading stops while the stream is full, so that a program whose output
nobody reads waits as it would for any pipe. When a stream ends, however it does, its line to the supervisor closes: a
process beside a task is hung up by that, a task itself goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from dray.agent.decide.attempts import Running
from dray.agent.supervisor.exec_line import ExecLine, ExecRefused, open_exec
from dray.agent.supervisor.processes.output import STREAMS, read_output
from dray.agent.supervisor.processes.stdio import set_size
from dray.agent.supervisor.records.owned_files import Place
from dray.agent.tasks.aside import Aside
from dray.agent.tunnel.inputs import Input
from dray.wire.streams import parcels
from dray.wire.streams.frames import RESIZE, SIGNAL, AttachTarget, ExecTarget
from dray.wire.streams.mux import Stream, Taker

ANSWER_S = 10.0
READ_BYTES = 32 << 10
# How long what a process has left behind may hold its output open after its end.
DRAIN_S = 1.0
# What somebody who comes to a terminal is shown of what it showed before.
SHOWN_AGAIN_BYTES = 64 << 10
THREADS = 4


class Execs:
    """One agent's. `running` gives the attempts that it answers for, by uid; `home` is the supervisor's."""

    def __init__(self, home: str, running: Callable[[], Mapping[str, Running]]) -> None:
        self._home, self._running = home, running
        self._opening: set[asyncio.Task[None]] = set()
        self._aside = Aside(THREADS, "dray-exec")

    def open(self, stream: Stream, target: ExecTarget) -> None:
        """Start a process beside a task, or refuse it with a sentence."""
        request: dict[str, Any] = {
            "uid": target.attempt,
            "argv": list(target.command),
            "env": dict(target.env),
            "tty": target.terminal,
            "rows": target.rows,
            "columns": target.columns,
        }
        self._ask(stream, ExecEnd(stream), "exec", request)

    def attach(self, stream: Stream, target: AttachTarget) -> None:
        """Go to the terminal of a task, or refuse it with a sentence."""
        place = Place(os.path.join(self._home, "attempts", target.attempt))
        end = AttachEnd(stream, place, (target.rows, target.columns))
        self._ask(stream, end, "attach", {"uid": target.attempt})

    def _ask(self, stream: Stream, end: LineEnd, op: str, request: dict[str, Any]) -> None:
        attempt = self._running().get(request["uid"])
        if attempt is None or attempt.phase != "running":
            stream.refuse("it does not run on this worker any more")
            return
        stream.taker = end
        task = asyncio.get_running_loop().create_task(self._start(stream, end, op, request))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _start(self, stream: Stream, end: LineEnd, op: str, request: dict[str, Any]) -> None:
        try:
            line = await self._aside.do(open_exec, self._home, request, ANSWER_S, op)
        except ExecRefused as refusal:
            stream.refuse(str(refusal))
            return
        stream.accept()
        end.begin(line)


class LineEnd(Taker):
    """One line to the supervisor and what came with it. What comes before it stands is kept, a window at most."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._line: ExecLine | None = None
        self._input = Input(stream)
        self._heard = b""

    def begin(self, line: ExecLine) -> None:
        """It stands."""
        self._line = line
        for fd in line.fds:
            os.set_blocking(fd, False)
        line.sock.setblocking(False)
        if self._stream.ended:
            self._close()
            return
        self._loop.add_reader(line.sock.fileno(), self._hear)
        self._input.begin(line.fds[0], self._is_terminal)
        self._begun(line)

    @property
    def _is_terminal(self) -> bool:
        return self._line is not None and len(self._line.fds) == 1

    def _begun(self, line: ExecLine) -> None:
        raise NotImplementedError

    def _said(self, event: dict[str, Any]) -> None:
        """The supervisor has said something."""
        raise NotImplementedError

    def _hear(self) -> None:
        assert self._line is not None  # it is its line that speaks
        try:
            data = self._line.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._stream.reset("the supervisor of this worker has ended it")
            self._close()
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._said(json.loads(line))

    def data(self, data: bytes) -> None:
        self._input.take(data)

    def eof(self) -> None:
        self._input.end()

    def told(self, kind: int, payload: bytes) -> None:
        line = self._line
        if line is None:
            return
        if kind == RESIZE and self._is_terminal and len(payload) == parcels.SIZE.size:
            with contextlib.suppress(OSError):
                set_size(line.fds[0], *parcels.SIZE.unpack(payload))
        elif kind == SIGNAL and len(payload) == parcels.NUMBER.size:
            request = {"op": "signal", "number": payload[0]}
            with contextlib.suppress(OSError):
                line.sock.send(json.dumps(request).encode() + b"\n")

    def ended(self, reason: str) -> None:
        self._close()

    def _finish(self, ended: parcels.Ended) -> None:
        self._stream.finish(parcels.write_ended(ended))
        self._close()

    def _close(self) -> None:
        """Let go of everything."""
        line, self._line = self._line, None
        if line is None:
            return
        is_terminal = len(line.fds) == 1
        self._input.close()
        self._loop.remove_reader(line.sock.fileno())
        line.sock.close()
        for fd in line.fds[0 if is_terminal else 1 :]:
            self._loop.remove_reader(fd)
            os.close(fd)


class ExecEnd(LineEnd):
    """A process beside a task: its output comes by its descriptors, its end by the line."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._outputs: dict[int, int] = {}
        self._paused = False
        self._over: parcels.Ended | None = None
        self._draining: asyncio.TimerHandle | None = None

    def _begun(self, line: ExecLine) -> None:
        which = (parcels.OUTPUT, parcels.ERRORS)
        outputs = line.fds if self._is_terminal else line.fds[1:]
        self._outputs = dict(zip(outputs, which, strict=False))
        self._listen()

    def _listen(self) -> None:
        self._paused = False
        for fd in self._outputs:
            self._loop.add_reader(fd, self._read, fd)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal that nobody holds any more
        if data:
            self._stream.write(parcels.pack(self._outputs[fd], data))
            if self._stream.is_full:
                self._paused = True
                for each in self._outputs:
                    self._loop.remove_reader(each)
            return
        self._loop.remove_reader(fd)
        del self._outputs[fd]
        self._conclude()

    def room(self) -> None:
        if self._line is not None and self._paused:
            self._listen()

    def _said(self, event: dict[str, Any]) -> None:
        self._over = parcels.Ended(int(event["code"]), str(event["error"]))
        if self._line is not None:
            self._loop.remove_reader(self._line.sock.fileno())
        self._draining = self._loop.call_later(DRAIN_S, self._drained)
        self._conclude()

    def _drained(self) -> None:
        if self._paused:
            # Whoever reads it is slow, and gets the rest.
            self._draining = self._loop.call_later(DRAIN_S, self._drained)
        else:
            self._outputs = {}
            self._conclude()

    def _conclude(self) -> None:
        if self._over is not None and not self._outputs:
            self._finish(self._over)

    def _close(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
        super()._close()


class AttachEnd(LineEnd):
    """The terminal of a task: what is typed goes into it, and what it shows is read where all output of tasks lies."""

    def __init__(self, stream: Stream, place: Place, size: tuple[int, int]) -> None:
        super().__init__(stream)
        self._place, self._size = place, size
        self._offset = -1
        self._over: parcels.Ended | None = None

    def _begun(self, line: ExecLine) -> None:
        with contextlib.suppress(OSError):
            set_size(line.fds[0], *self._size)
        _, _, total = read_output(self._place, STREAMS[0], 0, 0)
        self._offset = max(0, total - SHOWN_AGAIN_BYTES)
        self._show()

    def _said(self, event: dict[str, Any]) -> None:
        if event["ev"] == "ended":
            self._over = parcels.Ended(int(event["code"]), str(event["error"]))
            if self._line is not None:
                self._loop.remove_reader(self._line.sock.fileno())
        self._show()

    def room(self) -> None:
        self._show()

    def _show(self) -> None:
        while self._line is not None and not self._stream.is_full:
            data, begin, _ = read_output(self._place, STREAMS[0], self._offset, READ_BYTES)
            if not data:
                if self._over is not None:
                    self._finish(self._over)
                return
            self._offset = begin + len(data)
            self._stream.write(parcels.pack(parcels.OUTPUT, data))
