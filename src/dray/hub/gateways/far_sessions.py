"""A worker whose socket another hub holds, as the leader knows it: what it is told travels by that hub's link."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

from dray.hub.access.caller import Caller
from dray.hub.gateways.frames import Close, Registered
from dray.hub.workers.session import TOKEN_GONE, Filed, Session
from dray.wire.messages.codec import Codec


class Way(Protocol):
    """What a session needs of the link that it goes by."""

    url: str

    def speak(self, session: FarSession) -> None:
        """Something waits for a session."""

    def tell(self, make: Callable[[int], Registered | Close]) -> None:
        """Send a frame of this epoch behind all that waits."""

    def awaits_filing(self, tell: Filed) -> Filed: ...
    def filing(self) -> None: ...


class FarSession(Session):
    """`no` is its number at the gateway; `number` that of this hub, which no other session ever has."""

    near = False

    def __init__(self, number: int, no: int, caller: Caller, codec: Codec, way: Way) -> None:
        super().__init__(number, caller, codec)
        self.no, self._way = no, way
        self.leader = way.url
        self.outbox: list[dict[str, Any]] = []
        self.lease = ExitStack()

    def push(self, envelope: dict[str, Any]) -> None:
        if self.closing is None:
            self.outbox.append(envelope)
            self._way.speak(self)

    def close(self, code: int, reason: str) -> None:
        self._close(code, reason, at_once=False)

    def end(self, why: str) -> None:
        self.outbox.clear()
        self._close(TOKEN_GONE, why, at_once=True)

    def _close(self, code: int, reason: str, at_once: bool) -> None:
        if self.closing is None:
            self.closing = (code, reason)
            self._way.tell(lambda epoch: Close(epoch, self.no, code, reason, at_once))

    def registered(self, incarnation: str, at_ms: int) -> None:
        self._way.tell(lambda epoch: Registered(epoch, self.no, self.worker, incarnation, at_ms))

    def awaits_filing(self, tell: Filed) -> Filed:
        return self._way.awaits_filing(tell)

    def filing(self) -> None:
        self._way.filing()
