"""Sockets of a simulated hub, as the product's effect runner knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dray.hub.workers.frames import Departures
from dray.sim.faults.world.network import Connection, Message
from dray.wire.messages.worker import Register

if TYPE_CHECKING:
    from dray.sim.faults.nodes.hub_life import HubLife


class SimSession:
    """A socket as the effect runner knows it."""

    leader = ""

    def __init__(self, life: HubLife, connection: Connection) -> None:
        self.number, self.connection, self.worker = connection.number, connection, ""
        self.notes: list[str] = []
        self._life = life

    def name(self, body: Register) -> None:
        """It says who it is."""
        self.worker = body.id

    def push(self, envelope: Message) -> None:
        """Send a message."""
        self._life.site.witness.sent(self._life, self, envelope)
        self.connection.send_down(envelope)

    def registered(self, incarnation: str, at_ms: int) -> None:
        """Its registration is on record."""
        if not self._life.astray:
            self._life.site.registered[self.worker] = self.connection.number

    def close(self, code: int, reason: str) -> None:
        """End it."""
        self.connection.break_off(code)

    def break_off(self, code: int) -> None:
        """The hub is gone."""
        self.connection.break_off(code)


class SimSessions:
    """All sockets of one hub."""

    def __init__(self) -> None:
        self.open: dict[int, SimSession] = {}
        self.departures = Departures()


class SilentFeed:
    """Nobody reads the public feed here."""

    def publish(self, seq: int, at_ms: int, notes: Sequence[Any]) -> None:
        """Notes are checked through the log."""
