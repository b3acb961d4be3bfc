"""A site with several hubs on one database: one leads, the others stand by; each has a machine, a home and a process.

Workers and clients know all addresses. Whom they ask and who does not lead sends them on; who does not answer at all is
left for the next one.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.errors import EpochLost
from dray.hub.engine.clock import find_shift, spell_base
from dray.hub.engine.follower import Follower
from dray.hub.engine.recovery import recover
from dray.hub.housekeeping import note_lost_epoch
from dray.hub.store.base import Position
from dray.hub.store.leading import Seen, Timings, Vigil, further
from dray.hub.store.memory import MemoryFile, MemoryStore
from dray.sim.faults.gateways.end import LeaderEnd
from dray.sim.faults.gateways.node import GatewayNode
from dray.sim.faults.gateways.watch import GatewayWatch
from dray.sim.faults.gateways.wire import Wire
from dray.sim.faults.leads.database import Database, Link, SharedFile, SharedStore, copy_file
from dray.sim.faults.leads.standby import Standby, Taken
from dray.sim.faults.nodes.hub import Backup, HubNode
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.site import Start
from dray.sim.faults.world.network import Connection, Weather
from dray.sim.faults.world.process import Process
from dray.sim.faults.world.world import World

HOUR_MS = 3_600_000
WANDERING = 0.1


class HubMachine:
    """One machine. `known` is in its home, and outlives its processes; so does what is wrong with its network."""

    def __init__(self, group: HubGroup, place: int) -> None:
        self._group, self.place, self.id = group, place, f"hub{place}"
        self.known: Position | None = None
        self.weather = Weather()
        self.ahead_ms = group.rng.choice([0, 0, HOUR_MS, -HOUR_MS])
        self.up = self.resigning = False
        self.standby: Standby | None = None
        self.life: HubLife | None = None
        self._signatures = 0
        self.process = Process(group.world)
        self.link = Link(self.process, group.database, group.timings)
        # As a gateway, where hubs are that; and what is wrong on its ways to other hubs.
        self.node: GatewayNode | None = None
        self.end: LeaderEnd | None = None
        self.cut_from_hubs = False

    @property
    def leads(self) -> bool:
        """Whether it believes so."""
        return self.life is not None and self.life.up

    @property
    def takes_in(self) -> bool:
        """Whether workers may come in here while another one leads."""
        return self.node is not None and not self.leads and self.node.is_linked

    def start(self, at_once: bool = False) -> None:
        """Start the hub's process."""
        if self.up:
            return
        self.up, self.resigning = True, False
        cut, group = self.link.cut, self._group
        self.process = Process(group.world)
        self.link = Link(self.process, group.database, group.timings)
        self.link.cut = cut
        self.node = GatewayNode(group, self.id, self) if group.has_gateways else None
        self.stand_by(again=False)
        if at_once and self.standby is not None:
            self.standby.take_at_once()

    def stand_by(self, again: bool = True) -> None:
        """Wait for the lead; `again`: the process has had it before."""
        if not self.up:
            return
        group = self._group
        self._signatures += 1
        store = SharedStore(group.database, f"{self.id}.{self._signatures}", self.place)
        patience_s = group.timings.lease_s if self.resigning else 0.0
        vigil = partial(Vigil, group.timings.lease_s, "" if again else f"{self.id}.", patience_s)
        self.life, self.end, self.resigning = None, None, False
        self.standby = Standby(
            self.link, store, group.rules, group.timings, vigil, self, group.rng, self._lead, self.stand_by
        )

    def _lead(self, standby: Standby, taken: Taken) -> None:
        self.standby = None
        self.life = life = self._group.begin(self, taken)
        if self.node is not None and life.up:
            self.end = life.end = LeaderEnd(life, self.node, self.place, taken.lead.store.holder)
            self.node.lead(self.end)

    @property
    def heard_epoch(self) -> int:
        """As the process's gateway has heard."""
        return self.node.gateway.max_epoch if self.node is not None else 0

    def saw(self, seen: Seen) -> None:
        """It stands by, and somebody leads."""
        if self.node is not None and seen.holder:
            self.node.follow(seen.url, seen.holder)

    def keep_warm(self, follower: Follower) -> bool:
        """As a gateway, which is told of turns."""
        if self.node is None:
            return False
        self.node.keep_warm(follower, self._note_seen)
        return True

    def _note_seen(self, seen: Position) -> None:
        self.known = further(self.known, seen)

    def took(self) -> None:
        """It will lead."""
        if self.node is not None:
            self.node.drop()

    @property
    def answers(self) -> bool:
        """Whether a hub that dials finds one that leads here."""
        return self.leads and self.end is not None

    def kill(self, why: str) -> None:
        """kill -9."""
        if self.leads:
            assert self.life is not None
            self.life.die(why)
        elif self.up:
            self._group.world.tell(f"{self.id}, which stands by, dies: {why}")
            self.fall()

    def fall(self) -> None:
        """The process is gone; whoever manages the service starts another."""
        self.up, self.life, self.end = False, None, None
        # What was to happen to it never does.
        self.process.stop()
        if self.node is not None:
            self.node.kill()
        if self.standby is not None:
            self.standby.over, self.standby = True, None
        self._group.disturb()
        self._group.world.at(self._group.rng.randint(50, 8000), self.start)

    def resign(self) -> None:
        """Hand over, as an operator asks."""
        life = self.life
        if life is not None and life.up and life.lead is not None and not self.process.stopped:
            self.resigning = True
            life.lead.resign()
            life.step_down("it was asked to hand over")


class HubGroup(HubNode):
    """All hubs of a site; `life` is the one that took the lead last."""

    def __init__(self, world: World, rules: Rules, has_gateways: bool = False) -> None:
        self.rng = random.Random(f"hubs of {world.seed}")  # a simulation's chance, no secret
        # Drawn apart: worlds without gateways stay as they were.
        self.gateway_rng = random.Random(f"gateways of {world.seed}")  # as above
        self.has_gateways = has_gateways
        self.wires: list[Wire] = []
        self.connections: dict[str, Connection] = {}
        self.watch = GatewayWatch(world, self.last_heeded_ms)
        self.database = Database(world)
        self.timings = Timings(self.rng.choice([3.0, 3.0, 10.0]))
        super().__init__(world, rules)
        self.machines = [HubMachine(self, place) for place in range(self.rng.choice([2, 2, 3]))]
        self.disturbed_ms = 0
        self._places: dict[str, int] = {}
        self._machine_of: dict[int, HubMachine] = {}
        self._truth: State | None = None

    @property
    def lease_ms(self) -> int:
        return round(self.timings.lease_s * 1000)

    @property
    def file(self) -> SharedFile:  # the database's, which may be replaced
        return self.database.file

    @file.setter
    def file(self, file: MemoryFile) -> None:
        """It is the database's."""

    @property
    def slow_store(self) -> bool:  # the database's too
        return self.database.slow

    @slow_store.setter
    def slow_store(self, slow: bool) -> None:
        self.database.slow = slow

    @property
    def failing_store(self) -> bool:  # an answer that is none
        return any(machine.link.mute for machine in self.machines)

    @failing_store.setter
    def failing_store(self, failing: bool) -> None:
        for machine in getattr(self, "machines", ()):
            machine.link.mute = failing and machine.leads

    @property
    def up(self) -> bool:
        """Whether the newest leader is there, and knows what is so."""
        return self.life is not None and self.life.up and not self.life.astray

    @property
    def state(self) -> State:
        """That of the newest leader; of a database that has lost turns, what is left until somebody leads there."""
        return self._truth if self._truth is not None else self.now.state

    def disturb(self) -> None:
        """Something happened that may keep everybody from leading for a while."""
        self.disturbed_ms = self.world.now_ms

    def note_troubles(self) -> None:
        """What is wrong now counts as if it had just begun."""
        database = self.database
        troubled = database.down or database.lags or database.slow
        if troubled or any(m.link.cut or m.link.mute or m.process.stopped or not m.up for m in self.machines):
            self.disturb()

    # --- their lives ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Have all of them up; the first time one leads at once."""
        if self.life is None:
            self.machines[0].start(at_once=True)
        for machine in self.machines:
            delay_ms = self.rng.randint(0, 3000)
            self.world.at(delay_ms if self.lives == 1 else 0, machine.start)

    def begin(self, machine: HubMachine, taken: Taken) -> HubLife:
        """A machine has taken the lead, and read what there is."""
        if self.life is not None and self.life.up:
            self.stale.append(self.life)
            self.life.replaced_ms = self.world.now_ms
        self.stale = [life for life in self.stale if life.up]
        self.lives += 1
        self.world.counts[f"lead taken: {taken.led.why}"] += 1
        lead, recovered, now_ms = taken.lead, taken.recovered, self.world.now_ms
        store = lead.store
        shift_ms = find_shift(recovered, machine.id, now_ms)
        machine.known = Position(store.epoch, store.last_seq)
        try:
            store.save_clock(now_ms + shift_ms, now_ms, spell_base(machine.id, shift_ms, store.epoch))
        except EpochLost:
            self.world.tell(f"{machine.id} has lost the lead before it began")
        self.witness.took(self.lives, machine, taken)
        start = Start(
            store, store.epoch, recovered, machine.process, shift_ms, lead, machine.ahead_ms, store.last_seq
        )
        self._truth = None
        self._machine_of[self.lives] = machine
        self.life = life = HubLife(self, self.lives, start)
        return life

    def machine_of(self, life: HubLife) -> HubMachine:
        """Where a hub runs."""
        return self._machine_of[life.number]

    def weather_of(self, life: HubLife | None) -> Weather:
        """That of its machine."""
        return super().weather_of(life) if life is None else self.machine_of(life).weather

    def ended(self, life: HubLife) -> None:
        """Its process is gone."""
        self.die_at_step = 0
        self.machine_of(life).fall()

    def stepped_down(self, life: HubLife) -> None:
        """It stands by in the same process."""
        self.disturb()
        machine = self.machine_of(life)
        machine.life = None
        machine.end = None
        machine.process.at(self.rng.randint(0, 300), machine.stand_by)

    def noted(self, life: HubLife, seq: int) -> None:
        """As the witness in its home does. Who commits leads: a failover may have lost that another one took over."""
        if life is not self.life:
            self._lead_again(life)
        self.machine_of(life).known = Position(life.store.epoch, seq)

    def _lead_again(self, life: HubLife) -> None:
        """That another one took over is lost: the other has yet to find out."""
        if self.life is not None and self.life.up:
            self.stale.append(self.life)
            self.life.replaced_ms = self.world.now_ms
        self.stale = [stale for stale in self.stale if stale.up and stale is not life]
        self.life, self._truth, life.replaced_ms = life, None, -1

    def die(self, why: str) -> None:
        """kill -9 of the one that leads."""
        if self.life is not None and self.life.up:
            self.life.die(why)

    def start_second(self) -> None:
        """The leader is stopped for so long that another one takes over."""
        if self.life is not None and self.life.up:
            self.stop(self.machine_of(self.life), self.rng.randint(self.lease_ms, 4 * self.lease_ms))

    def stop(self, machine: HubMachine, duration_ms: int) -> None:
        """SIGSTOP, and SIGCONT some time later."""
        process = machine.process
        if not machine.up or process.stopped:
            return
        self.world.tell(f"{machine.id} is stopped for {duration_ms} ms")
        process.stop()
        self.disturb()
        self.world.at(duration_ms, self._go_on, machine, process)

    def _go_on(self, machine: HubMachine, process: Process) -> None:
        if machine.up and machine.process is process and process.stopped:
            self.world.tell(f"{machine.id} goes on")
            self.disturb()
            if machine.life is not None:
                machine.life.steady_ms = self.world.now_ms
            process.go_on()

    def let_go(self) -> None:
        """Nobody runs anything any more."""
        super().let_go()
        for machine in self.machines:
            if machine.node is not None:
                machine.node.kill()

    def calm(self) -> None:
        """Everything comes back."""
        self.disturb()
        self.database.down = self.database.slow = False
        self.database.catch_up()
        for machine in self.machines:
            machine.weather.up_lost = machine.weather.down_lost = False
            machine.weather.rough_ms = self.world.now_ms
            machine.link.cut = machine.link.mute = False
            self.reconnect(machine)
            self._go_on(machine, machine.process)

    # --- how they are found -----------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether somebody who believes to lead answers."""
        return any((m.leads or m.takes_in) and not m.process.stopped for m in self.machines)

    def connect(self, connection: Connection) -> bool:
        """Take a new socket, if somebody is found."""
        machine = self._reach(connection.owner)
        if machine is None:
            return False
        connection.far = machine.weather
        if machine.life is not None and machine.life.up:
            machine.life.connect(connection)
        elif machine.node is not None:
            machine.node.connect(connection)
        return True

    def at_place(self, place: int) -> HubMachine:
        """Whose address that is."""
        return self.machines[place]

    def send_on(self, who: str) -> None:
        """Have somebody ask the next hub first."""
        self._places[who] = (self._places.get(who, 0) + 1) % len(self.machines)

    def break_links(self, machine: HubMachine) -> None:
        """Its links to other hubs break, both ways."""
        for wire in self.wires:
            wire.break_off(machine.process)

    def reconnect(self, machine: HubMachine) -> None:
        """What waited on its links goes on."""
        machine.cut_from_hubs = False
        for wire in self.wires:
            if not wire.is_cut():
                wire.mend()

    def last_heeded_ms(self, worker: str) -> int:
        """When a hub last took in that a worker is there."""
        return self.heeded_ms.get(worker, -1)

    def _reach(self, who: str) -> HubMachine | None:
        many = len(self.machines)
        place = self._places.get(who, 0)
        if self.has_gateways and who not in self._places:
            place = self.gateway_rng.randrange(many)
        if self.rng.random() < WANDERING:
            place = self.rng.randrange(many)
        for _ in range(2 * many):
            self._places[who] = place
            machine = self.machines[place]
            hint = -1
            if machine.up and not machine.weather.cut and not machine.process.stopped:
                if machine.leads or machine.takes_in:
                    return machine
                hint = machine.standby.hint if machine.standby is not None else -1
            place = hint if 0 <= hint != place else (place + 1) % many
        return None

    # --- the store --------------------------------------------------------------------------------------------------

    def back_up(self, account: Any) -> Backup:
        """Copy what is durable."""
        return Backup(self.world.now_ms, copy_file(self.database.durable), account)

    def restore(self, backup: Backup) -> None:
        """Put an older database in place of the present one; all hubs were stopped for it."""
        for machine in self.machines:
            machine.kill("stopped for a restore")
        self.stale.clear()
        self.database.put_in_place(backup.file)
        self.die_at_step = 0
        self._truth = None
        self.rng.choice(self.machines).start(at_once=True)

    def fail_over(self) -> None:
        """The database's standby is promoted. It may lack a take that was not answered yet: whoever led before goes on
        to lead, also where there is nothing to write, and is no stale hub.
        """
        self.database.fail_over()
        for machine in self.machines:
            life = machine.life
            if life is None or life is self.life or life.lead is None or not life.up or life.astray:
                continue
            if (self.file.epoch, self.file.holder) == (life.lead.epoch, life.lead.store.holder):
                self._lead_again(life)

    def go_back(self, backup: Backup) -> None:
        """Another server takes the place that lacks the last turns; the hubs go on, and have yet to notice."""
        self.database.put_in_place(backup.file)
        self.disturb()
        for machine in self.machines:
            life = machine.life
            if life is not None:
                # The row may be its own once more.
                life.replaced_ms = -1
            if life is not None and life.lead is not None and life.lead.stored_seq > self.file.last_seq:
                life.astray = True
                self.world.at(self.rng.randint(200, 15_000), life.post, note_lost_epoch)
        if not self.up:
            self._truth = recover(MemoryStore(self.database.file), self.rules).state
