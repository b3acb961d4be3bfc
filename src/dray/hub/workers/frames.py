"""WebSockets of the hub: uvicorn's protocol, with a short way for the frames that nearly all traffic is made of.

A whole binary frame goes straight to whoever takes frames of its socket, and a written one straight to the transport:
through the general parser, a queue and two tasks a small frame costs the loop more than what it says. Everything else
(the handshake, text, fragments, control frames, a peer that does not read, a taker that is busy) goes the long way,
whose parser only ever sees whole frames until the first one that is none of these; from there on it sees all.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from dray.hub.access.connections import Connections, ReaderWatch

try:
    from websockets.speedups import apply_mask
except ImportError:  # where no compiled part is installed
    from websockets.utils import apply_mask

EXTENSION = "dray.frames"
# What a connection is told once its caller is known.
ADMIT = "dray.admit"
_BINARY = 0x82
_CONTROL = (0x88, 0x89, 0x8A)
_MASKED = 0x80
_MASK_BYTES = 4
# From so many bytes on a copy costs more than a second buffer.
_BULK_BYTES = 16 << 10
_SHORT, _TWO_BYTES, _EIGHT_BYTES = 125, 126, 127
Take = Callable[[bytes], bool]


class Departures:
    """When queued frames leave: with the turn that is being told, else at the end of this step of the loop.

    Either way all that is said meanwhile to one peer shares a frame. Whoever waits for an answer is served before those
    who are only told that theirs was heard.
    """

    def __init__(self) -> None:
        self._held: list[Callable[[], None]] | None = None
        self._awaited: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None], awaited: bool = False) -> None:
        """Have what is queued written, once; whoever adds it again before that pays for it twice."""
        if self._held is None:
            asyncio.get_running_loop().call_soon(flush)
        elif awaited:
            self._awaited.append(flush)
        else:
            self._held.append(flush)

    def hold(self) -> None:
        """Let nothing leave before `release`: a turn is about to be told."""
        self._held = []

    def release(self) -> Iterator[Callable[[], None]]:
        """Give what is to be written now, in order."""
        held, awaited = self._held or [], self._awaited
        self._held, self._awaited = None, []
        yield from awaited
        yield from held


class ServerConfig(uvicorn.Config):
    """What every connection finds of its server."""

    connections: Connections


class FrameSocket(WebSocketsSansIOProtocol):
    """One connection. An application finds it under `EXTENSION` in its scope."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.config: ServerConfig
        self._rest = bytearray()
        self._long_way = False
        self._spoke = False
        self._take: Take | None = None
        self._resumed: Callable[[], None] | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._reader = ReaderWatch(self.loop, transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader.resumed()
        if self._resumed is not None:
            self._resumed()

    def take_frames(self, take: Take) -> None:
        """Offer whole binary frames to `take` first; one that it refuses comes by `receive`, as do those behind it."""
        self._take = take

    def tell_room(self, resumed: Callable[[], None]) -> None:
        """Have `resumed` called when `has_room` is true again after it was not, because the peer reads on."""
        self._resumed = resumed

    def has_room(self) -> bool:
        """Whether a frame could be written now."""
        return (
            self.handshake_complete
            and not self.close_sent
            and not self.disconnected
            and self.conn.state is State.OPEN
            and self.writable.is_set()
            and not self.transport.is_closing()
        )

    def write_frame(self, frame: bytes) -> bool:
        """Write one binary frame now; False where it must wait or the connection is on its way out."""
        if not self.has_room():
            return False
        self.transport.write(_head(len(frame)) + frame)
        return True

    def write_frames(self, frames: Sequence[tuple[bytes, bytes | memoryview]]) -> None:
        """Write binary frames of two parts each at once, of which a large second one is not copied; none to one that
        is on its way out. Whether there is room is for the caller to ask.
        """
        if self.close_sent or self.transport.is_closing():
            return
        parts: list[bytes | memoryview] = []
        for head, rest in frames:
            start = _head(len(head) + len(rest)) + head
            parts += (start + rest,) if len(rest) < _BULK_BYTES else (start, rest)
        self.transport.write(parts[0]) if len(parts) == 1 else self.transport.writelines(parts)

    def abort_in(self, delay_s: float) -> None:
        """Break the connection off unless it has ended by then: a peer that does not read hears no goodbye."""
        self.loop.call_later(delay_s, self.transport.abort)

    def send_keepalive_ping(self) -> None:
        """Ask a peer whether it is there, unless it has said something since it was last to be asked."""
        if self._spoke:
            self._spoke = False
            self.schedule_ping()
        else:
            super().send_keepalive_ping()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: Any = self.scope["extensions"]
            extensions[EXTENSION] = self
            connections, transport = self.config.connections, self.transport
            extensions[ADMIT] = lambda token_id: connections.admit(transport, token_id)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._reader.resumed()
        self.config.connections.leave(self.transport)
        # Whatever refers to itself stays in memory until everything is looked at.
        self._take = self._resumed = None
        if self.handshake_initiated and (extensions := getattr(self, "scope", {}).get("extensions")):
            extensions.pop(EXTENSION, None)

    def data_received(self, data: bytes) -> None:
        if not self.handshake_complete:
            # Frames before the answer to the handshake: nobody can tell where the parser stands after them.
            self._long_way = self._long_way or self.handshake_initiated
        if self._long_way or not self.handshake_complete:
            super().data_received(data)
            return
        rest = self._rest
        rest += data
        while (size := self._frame_bytes()) > 0:
            if rest[0] == _BINARY:
                body = self._unmask(size)
                del rest[:size]
                self._deliver(body)
            else:
                frame = bytes(rest[:size])
                del rest[:size]
                super().data_received(frame)
        if size < 0:
            self._long_way, self._rest = True, bytearray()
            super().data_received(bytes(rest))

    def _frame_bytes(self) -> int:
        """The size of the whole frame that stands first; 0 while it is not whole, -1 where it takes the long way."""
        rest = self._rest
        if len(rest) < 2:
            return 0
        if not rest[1] & _MASKED or rest[0] not in (_BINARY, *_CONTROL):
            return -1
        length, head = rest[1] & ~_MASKED, 2
        if length > _SHORT:
            head += 2 if length == _TWO_BYTES else 8
            if rest[0] != _BINARY:
                return -1
            if len(rest) < head:
                return 0
            length = int.from_bytes(rest[2:head], "big")
            if length > (self.config.ws_max_size or 0):
                return -1
        size = head + _MASK_BYTES + length
        return size if len(rest) >= size else 0

    def _unmask(self, size: int) -> bytes:
        """The body of the frame that stands first, copied once: fresh pages for a megabyte take milliseconds to get."""
        rest = self._rest
        length = rest[1] & ~_MASKED
        head = 2 if length <= _SHORT else 4 if length == _TWO_BYTES else 10
        whole = memoryview(rest)
        masked = whole[head + _MASK_BYTES : size]
        try:
            return apply_mask(masked, bytes(rest[head : head + _MASK_BYTES]))
        finally:
            masked.release()
            whole.release()

    def _deliver(self, body: bytes) -> None:
        if self.conn.state is not State.OPEN or self.close_sent:
            return
        self._spoke = True
        if self._take is not None and self.queue.empty() and self._take(body):
            return
        self.curr_msg_data_type, self.frames = "bytes", [body]
        self.send_receive_event_to_app()


def _head(length: int) -> bytes:
    if length <= _SHORT:
        return bytes((_BINARY, length))
    if length < 1 << 16:
        return struct.pack("!BBH", _BINARY, _TWO_BYTES, length)
    return struct.pack("!BBQ", _BINARY, _EIGHT_BYTES, length)
