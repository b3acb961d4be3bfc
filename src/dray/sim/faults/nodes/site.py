"""What a simulated hub finds around it: its site, who judges it, and what it begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dray.core.lifecycle.state.events import Fact
from dray.core.lifecycle.state.timings import Rules
from dray.hub.engine.recovery import Recovered
from dray.hub.store.base import Turn
from dray.hub.store.memory import MemoryFile, MemoryStore
from dray.sim.faults.leads.lead import Lead
from dray.sim.faults.nodes.sockets import SimSession
from dray.sim.faults.world.network import Message
from dray.sim.faults.world.process import Process
from dray.sim.faults.world.world import World

if TYPE_CHECKING:
    from dray.sim.faults.nodes.hub_life import HubLife


class Witness(Protocol):
    """Whoever judges what a hub does."""

    def sent(self, life: HubLife, session: SimSession, envelope: Message) -> None: ...
    def logged(self, life: HubLife, facts: list[Fact]) -> None: ...
    def committed(self, life: HubLife) -> None: ...
    def turned(self, life: HubLife) -> None: ...
    def alarmed(self, life: HubLife, text: str) -> None: ...
    def took(self, number: int, machine: Any, taken: Any) -> None: ...
    def leaves(self, life: HubLife) -> None: ...
    def kept(self, life: HubLife, turn: Turn) -> None: ...


class LinksEnd(Protocol):
    """The leader's end of links to gateways."""

    holder: str
    number: int

    def inside(self, work: Callable[[], None]) -> None:
        """Do something on the loop of the process."""

    def tell_turn(self, turn: Turn) -> None:
        """A turn is committed, and nothing of it has left."""

    def close(self, why: str) -> None: ...


class LeasesEnd(Protocol):
    """The hub's end of leases."""

    def close(self, why: str) -> None: ...


class Start(NamedTuple):
    """What a hub begins with. `lead`: where several share a store; `ahead_ms`: how far off its wall clock is."""

    store: MemoryStore
    epoch: int
    recovered: Recovered
    process: Process
    shift_ms: int
    lead: Lead | None = None
    ahead_ms: int = 0
    least_seq: int = 0


class Site(Protocol):
    """What hubs on one machine share."""

    world: World
    rules: Rules
    file: MemoryFile
    slow_store: bool
    failing_store: bool
    low_space: bool
    die_at_step: int
    shift_ms: int
    turn_work: int
    witness: Witness
    heeded_ms: dict[str, int]
    lease_ends: list[LeasesEnd]
    registered: dict[str, int]

    def ended(self, life: HubLife) -> None: ...
    def stepped_down(self, life: HubLife) -> None: ...
    def noted(self, life: HubLife, seq: int) -> None: ...
