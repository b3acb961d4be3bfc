"""A TCP connection as one end of a stream: what it reads goes into the stream, what comes out of that is written to it.

Reading stops while the stream is full, and the peer's window opens only by what the socket has taken, so neither side
holds more than a window of the other's bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from dray.wire.streams.frames import CLOSED_WORDS, PIECE_BYTES, Bytes
from dray.wire.streams.mux import Stream, Taker

# Enough for most of what people say; bulk gets more.
FIRST_BYTES = 4 << 10
# To be closed by a reset.
RESETS = struct.pack("ii", 1, 0)


class SocketEnd(asyncio.BufferedProtocol, Taker):
    """One connection, `over` when it is closed. What comes before it stands is kept, a window at most. `told` hears
    why it was broken off. `accepts`: the peer is told when it does.
    """

    def __init__(
        self, stream: Stream, accepts: bool = False, told: Callable[[str], None] = lambda reason: None
    ) -> None:
        self._stream, self._accepts, self._told_end = stream, accepts, told
        self._transport: asyncio.Transport | None = None
        # One for all reads: fresh memory for each costs more than the read itself.
        self._read = memoryview(bytearray(FIRST_BYTES))
        self._early: list[Bytes] = []
        self._early_eof = self._paused = False
        self._unwritten = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- the connection's calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(PIECE_BYTES)
        if self._stream.ended:
            self._transport.abort()
            return
        early, self._early = self._early, []
        if self._accepts:
            # Who has sent something with the opening waits for an answer to that, and not for this.
            self._stream.accept(hurries=not early)
        for data in early:
            self._pass_on(data)
        if self._early_eof:
            self._write_eof(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self._stream.write(bytes(self._read[:nbytes]))
        if nbytes == len(self._read) < PIECE_BYTES:
            self._read = memoryview(bytearray(PIECE_BYTES))
        if self._stream.is_full and self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._stream.finish()
        # The other direction goes on.
        return True

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        amount, self._unwritten = self._unwritten, 0
        self._stream.credit(amount)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._leave()
        self._stream.reset(f"{CLOSED_WORDS}: {exc}" if exc is not None else CLOSED_WORDS)

    # --- the stream's calls -------------------------------------------------------------------------------------------

    def data(self, data: bytes) -> None:
        self._pass_on(data)

    def view(self, view: memoryview) -> None:
        self._pass_on(view)

    def _pass_on(self, data: Bytes) -> None:
        if self._transport is None:
            self._early.append(data)
            return
        self._transport.write(data)
        if self._paused:
            self._unwritten += len(data)
        else:
            self._stream.credit(len(data))

    def eof(self) -> None:
        if self._transport is None:
            self._early_eof = True
        else:
            self._write_eof(self._transport)

    def room(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def ended(self, reason: str) -> None:
        self._early = []
        if self._transport is None:
            self._leave()
        elif reason:
            self._told_end(reason)
            # What is not whole must not look so: the peer sees a reset and no end.
            if (sock := self._transport.get_extra_info("socket")) is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
            self._transport.abort()
        else:
            self._transport.close()

    def _leave(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _write_eof(self, transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.write_eof()
