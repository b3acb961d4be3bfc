"""Which server has which slot: one server has them all, the masters of a cluster share them.

Learned by asking any server that answers. The driver's own client of clusters runs a pipeline at a tenth of the speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dray.hub.mirror.connection import Address, Away, Connection
from dray.hub.mirror.keys import SLOTS


class Place(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Map:
    """Who has which slot."""

    def __init__(self, owners: list[Place | None]) -> None:
        self._owners = owners
        self.places = frozenset(owner for owner in owners if owner is not None)
        self.single = len(self.places) == 1 and None not in owners

    def find(self, slot: int) -> Place | None:
        """The server of a slot; None where nobody serves it."""
        return self._owners[slot]


async def learn(address: Address, known: Iterable[Place]) -> Map:
    """Ask the first server that answers."""
    seed = Place(address.host, address.port)
    words = ""
    for place in dict.fromkeys((seed, *known)):
        connection = Connection(address, *place)
        try:
            await connection.open()
            told = await connection.ask("CLUSTER", "SLOTS")
        except Away as error:
            words = words or str(error)
            continue
        finally:
            await connection.close()
        if isinstance(told, Exception):
            # A server by itself: it knows of no cluster, or keeps the question to its admins.
            return Map([place] * SLOTS)
        if found := _read_slots(told, place):
            return found
        words = words or f"{place} knows of no master"
    raise Away(words)


def _read_slots(told: list[Any], asked: Place) -> Map | None:
    owners: list[Place | None] = [None] * SLOTS
    for first, last, master, *_ in told:
        host = master[0].decode() if isinstance(master[0], bytes) else master[0]
        # A server that does not know its own name is where it was asked.
        owner = Place(host if host and host != "?" else asked.host, int(master[1]))
        owners[int(first) : int(last) + 1] = [owner] * (int(last) - int(first) + 1)
    return Map(owners) if any(owners) else None
