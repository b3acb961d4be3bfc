"""One peer of the hub: what it has said of itself, and the way to it. A port: its socket is here, or at a gateway.

Messages queue until the turn that they belong to has been told. The outbox has a bound: a peer that does not read is
closed (1013) instead of eating the hub's memory. Small frames go straight into the socket where it offers that; a task
writes all that has to wait, in the same order.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Send
from dray.hub.workers.frames import Departures
from dray.wire.messages.codec import Codec

BAD_INPUT, TOKEN_GONE, OVERLOADED, GOING_AWAY = 4400, 4401, 1013, 1001
FRAME_MESSAGES, FRAME_BYTES = 256, 1 << 20
CALLS = "calls_assign"
# Hears up to where each stream of an attempt is filed; None where it could not be.
Filed = Callable[[dict[str, dict[str, int]] | None], None]


class Limits:
    """Sizes a connection must keep to."""

    def __init__(
        self,
        text_bytes: int,
        binary_bytes: int,
        queue_messages: int,
        queue_bytes: int,
        workers: int = 20_000,
        epoch_jump: int = 4096,
        heartbeat_s: float = 10.0,
    ) -> None:
        self.text_bytes, self.binary_bytes = text_bytes, binary_bytes
        self.queue_messages, self.queue_bytes = queue_messages, queue_bytes
        self.workers, self.epoch_jump, self.heartbeat_s = workers, epoch_jump, heartbeat_s


class Frames(Protocol):
    """The short way in and out of a socket."""

    def take_frames(self, take: Callable[[bytes], bool]) -> None: ...
    def write_frame(self, frame: bytes) -> bool: ...
    def abort_in(self, delay_s: float) -> None: ...


class Session(ABC):
    """`worker` is empty until it has registered; `reading`: a frame is being taken step by step. `prints`: it has sent
    output, and whoever reads its frames is to wait for the disk.
    """

    # Where the leader is, for peers that are connected to another hub; and whether whoever reads them waits for disks.
    leader = ""
    near = True

    def __init__(self, number: int, caller: Caller, codec: Codec) -> None:
        self.number, self.caller, self.codec = number, caller, codec
        self.worker = ""
        self.lists = self.calls = self.knows_answers = False
        # What the owner of its worker should know, told when it has registered.
        self.notes: list[str] = []
        # Whether frames of this peer may hold lists: in msgpack always, in JSON once it has named them.
        self.may_list = codec.binary
        self.bad_in_a_row = 0
        self.reading = self.prints = False
        self.closing: tuple[int, str] | None = None

    def name(self, worker: str, features: tuple[str, ...]) -> None:
        """It says who it is, and what it knows of the protocol."""
        self.worker = worker
        self.lists = self.codec.binary and "list" in features
        self.may_list = self.codec.binary or "list" in features
        self.calls = "calls" in features
        self.knows_answers = bool(features)

    @abstractmethod
    def push(self, envelope: dict[str, Any]) -> None:
        """Queue one message; too many unread ones end the session."""

    @abstractmethod
    def close(self, code: int, reason: str) -> None:
        """End the session after what is queued; later messages are dropped."""

    @abstractmethod
    def end(self, why: str) -> None:
        """End the session because its token has ended: nothing that is queued leaves any more, and nothing is taken."""

    def registered(self, incarnation: str, at_ms: int) -> None:  # noqa: B027 - most have nothing to do
        """Its registration is on record."""

    def awaits_filing(self, tell: Filed) -> Filed:
        """Who is told that a piece of its output is filed; `filing` follows where that will come to pass."""
        return tell

    def filing(self) -> None:  # noqa: B027 - as above
        """A piece of its output is on its way to the disk."""


class SocketSession(Session):
    """One socket of this hub. `deaf`: nothing can be written to it any more; what it said before still counts."""

    def __init__(
        self,
        number: int,
        caller: Caller,
        codec: Codec,
        send: Send,
        limits: Limits,
        departures: Departures,
        frames: Frames | None = None,
    ) -> None:
        super().__init__(number, caller, codec)
        self.deaf = False
        self._send, self._limits, self._departures = send, limits, departures
        # Text frames are rare enough for the long way.
        self._direct = frames if codec.binary else None
        self._flushing = False
        self._outbox: list[dict[str, Any]] = []
        self._plain = 0
        self._in_flight = 0
        self._flying_bytes = 0
        self._wake = asyncio.Event()

    def push(self, envelope: dict[str, Any]) -> None:
        """Queue one message; too many unread ones end the session."""
        if self.closing is not None or self.deaf:
            return
        # Calls are left out of the count: what a lane may have outstanding bounds them.
        calls = envelope["type"] == CALLS
        if (
            self._in_flight
            and not calls
            and (self._plain >= self._limits.queue_messages or self._flying_bytes > self._limits.queue_bytes)
        ):
            self.close(OVERLOADED, "this peer does not read what it is sent")
            return
        self._outbox.append(envelope)
        self._plain += not calls
        if self._direct is None or self._in_flight:
            self._wake.set()
        elif not self._flushing:
            self._flushing = True
            self._departures.add(self._flush)

    def _flush(self) -> None:
        """Write what is queued at once if it is one frame and the socket takes it; else the pump sends it."""
        self._flushing = False
        if not self._outbox or self.closing is not None or self._in_flight or self._direct is None:
            self._wake.set()
            return
        first, *more = cut_frames(self._outbox, self.lists)
        if not more and self._direct.write_frame(self.codec.encode(first)):
            self._outbox, self._plain = [], 0
        else:
            self._wake.set()

    def close(self, code: int, reason: str) -> None:
        """End the session after what is queued; later messages are dropped."""
        if self.closing is None:
            self.closing = (code, reason)
            self._wake.set()

    def end(self, why: str) -> None:
        """End the session because its token has ended: nothing that is queued leaves any more, and nothing is taken."""
        self._outbox, self._plain = [], 0
        self.close(TOKEN_GONE, why)

    async def pump(self) -> None:
        """Send what is queued until the session ends; a socket that broke is the reader's to notice.

        The reader comes to it when it has read what arrived before: a worker may say how a task ended and then goodbye,
        and be gone before an earlier message of its is answered.
        """
        try:
            await self._send_all()
        except (OSError, RuntimeError):
            # A runtime error is the server's word for a socket that it has closed itself, over text that is not UTF-8.
            self._outbox, self._plain, self.deaf = [], 0, True

    async def _send_all(self) -> None:
        """Send in lists where the peer takes them."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._outbox, self._plain = self._outbox, [], 0
            for group in cut_frames(batch, self.lists):
                frame = self.codec.encode(group)
                calls = any(envelope["type"] == CALLS for envelope in group)
                self._in_flight, self._flying_bytes = 1, 0 if calls else len(frame)
                body = {"bytes": frame} if self.codec.binary else {"text": frame.decode()}
                await self._send({"type": "websocket.send", **body})
            self._in_flight = self._flying_bytes = 0
            if self.closing is not None and not self._outbox:
                code, reason = self.closing
                await self._send(
                    {
                        "type": "websocket.close",
                        "code": code,
                        "reason": reason.encode()[:120].decode(errors="ignore"),
                    }
                )
                return


def cut_frames(batch: list[dict[str, Any]], lists: bool) -> Iterator[list[dict[str, Any]]]:
    """Cut what is queued into frames: one message each unless the peer takes lists."""
    group: list[dict[str, Any]] = []
    size = 0
    most = FRAME_MESSAGES if lists else 1
    for envelope in batch:
        weight = sum(map(len, envelope["payload"]["args"])) if envelope["type"] == CALLS else 0
        if group and (len(group) >= most or size + weight > FRAME_BYTES):
            yield group
            group, size = [], 0
        group.append(envelope)
        size += weight
    if group:
        yield group
