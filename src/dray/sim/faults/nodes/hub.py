"""The machine of the hub: one store, the hubs that own it one after another, and backups of it.

Two hubs may run at once for a while: the newer one owns the store, the older one does not know yet.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.hub.engine.recovery import recover
from dray.hub.store.memory import MemoryFile, MemoryStore
from dray.sim.faults.leads.database import copy_file
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.site import LeasesEnd, Start, Witness
from dray.sim.faults.world.network import FAIR, Connection, Weather
from dray.sim.faults.world.process import Process
from dray.sim.faults.world.world import World

NARROW, LOST_WAY = 0.25, 0.3


class Backup(NamedTuple):
    """The store as it was, and what the world's own account said then."""

    at_ms: int
    file: MemoryFile
    account: Any


class HubNode:
    """Where clients and workers find the hub: always its newest life."""

    def __init__(self, world: World, rules: Rules) -> None:
        self.world, self.rules = world, rules
        self.file = MemoryFile()
        self.lives = 0
        self.life: HubLife | None = None
        self.stale: list[HubLife] = []
        self.slow_store = self.failing_store = self.low_space = False
        self.die_at_step = 0
        self.shift_ms = 0
        # When a hub last took in that a worker is there.
        self.heeded_ms: dict[str, int] = {}
        # The socket that each worker was last told it has registered by.
        self.registered: dict[str, int] = {}
        # In some worlds so little that a hub is behind with its work whenever its store is slow.
        self._chance = random.Random(f"two hubs {world.seed}")  # chance, no secret, here as below
        narrow = random.Random(f"how much a turn takes {world.seed}").random() < NARROW
        self.turn_work = 3 if narrow else 64
        self.lease_ends: list[LeasesEnd] = []
        self.witness: Witness

    @property
    def up(self) -> bool:
        return self.life is not None and self.life.up

    @property
    def now(self) -> HubLife:
        """The newest hub, which owns the store."""
        assert self.life is not None, "the hub was never started"
        return self.life

    @property
    def state(self) -> State:
        return self.now.state

    @property
    def store(self) -> MemoryStore:
        return self.now.store

    @property
    def open(self) -> bool:
        """Whether a worker that dials may find somebody."""
        return self.up

    @property
    def found(self) -> HubLife:
        """The hub that whoever asks finds."""
        return self.now

    def weather_of(self, life: HubLife | None) -> Weather:
        """What is wrong with the network of a hub."""
        return FAIR

    @property
    def busy(self) -> bool:
        return self.now.busy

    def start(self) -> None:
        """Come (back) up from what is committed."""
        if not self.up:
            self._begin()

    def _begin(self) -> None:
        self.lives += 1
        store = MemoryStore(self.file)
        # In the order of the product: what an older hub may still commit is in what is read, or nowhere.
        epoch = store.begin_epoch()
        recovered = recover(store, self.rules)
        self.shift_ms = max(self.shift_ms, recovered.now_ms + 1 - self.world.now_ms)
        start = Start(store, epoch, recovered, Process(self.world), self.shift_ms)
        self.life = HubLife(self, self.lives, start)

    def start_second(self) -> None:
        """Somebody starts another hub on the same store: it takes over, the first one has yet to find out."""
        if self.up:
            self.stale.append(self.now)
            self.now.replaced_ms = self.world.now_ms
            self._begin()

    def ended(self, life: HubLife) -> None:
        """Its service manager starts the hub again, unless another one runs."""
        self.die_at_step = 0
        if life is self.life:
            self.world.at(self.world.rng.randint(50, 8000), self.start)

    def stepped_down(self, life: HubLife) -> None:
        """One that has its store alone ends with it."""

    def noted(self, life: HubLife, seq: int) -> None:
        """What it committed is in its store."""

    def let_go(self) -> None:
        """The world is over."""
        for end in self.lease_ends:
            end.close("the world is over")

    def die(self, why: str) -> None:
        """kill -9."""
        if self.up:
            self.now.die(why)

    def connect(self, connection: Connection) -> bool:
        """Take a new socket; while a hub that lost its store goes on, some still find that one."""
        stale = next((life for life in self.stale if life.up), None)
        if stale is not None and self._chance.random() < LOST_WAY:
            stale.connect(connection)
        else:
            self.now.connect(connection)
        return True

    def back_up(self, account: Any) -> Backup:
        """Copy the store as a file-level backup does; rows are never changed in place, so their tables are enough."""
        return Backup(self.world.now_ms, copy_file(self.file), account)

    def restore(self, backup: Backup) -> None:
        """Put an older store in place of the present one; the hub was stopped for it."""
        last, self.life = self.now, None
        for life in (*self.stale, last):
            life.die("replaced by a backup")
        self.stale.clear()
        self.file = copy_file(backup.file)
        self.die_at_step = 0
        self._begin()
