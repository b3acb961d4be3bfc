"""One seed, one history: build the world, let things go wrong, stop, and see that every promise held."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from dray.core.lifecycle.state.timings import Rules
from dray.sim.faults.hub_troubles import GATEWAY_TROUBLES, HUB_TROUBLES, MOVES
from dray.sim.faults.hubs.group import HubGroup
from dray.sim.faults.hubs.watch import LeadWatch
from dray.sim.faults.leasing.executor import ExecutorNode
from dray.sim.faults.nodes.foreign import ForeignNode
from dray.sim.faults.nodes.hub import Backup, HubNode
from dray.sim.faults.nodes.runs import Runs
from dray.sim.faults.nodes.worker import WorkerNode
from dray.sim.faults.people.callers import Callers
from dray.sim.faults.people.clients import Clients
from dray.sim.faults.people.services import Keepers
from dray.sim.faults.settlement import Settlement
from dray.sim.faults.troubles import (
    ABSENCES,
    BREAKDOWNS,
    BY_NAME,
    DISABILITIES,
    FAULTS,
    HUB_ENDS,
    LAST_WORDS,
    RESTARTS,
    STEERING,
    WEIGHTS,
)
from dray.sim.faults.watches.checker import Checker
from dray.sim.faults.world.market import QUICK, has_providers
from dray.sim.faults.world.shares import has_leases
from dray.sim.faults.world.world import CALM_MS, Size, World

FOREIGN_EVERY, EXECUTOR_EVERY = 4, 2
SEVERAL_HUBS, SEVERAL_FROM = 1 / 3, 10**9
GATEWAYS, MOVED_SHARE = 0.4, 0.5
DISABLED_SHARE, RESTARTED_SHARE = 0.4, 0.15
STEERED_SHARE, BROKEN_SHARE, UNTOLD_SHARE = 0.15, 0.2, 0.1
# So long after the faults somebody looks at what a restored hub does not know.
SORTED_OUT_MS = 30_000
# Which worlds is of no account: these leave those alone that are kept because they show rare bugs.
PATIENT_WORLDS = (0.06, 0.2)


class Outcome(NamedTuple):
    """What a clean history was like."""

    seed: int
    steps: int
    virtual_s: float
    faults: Counter[str]
    runs: int


def draw_rules(seed: int) -> Rules:
    """In some worlds tasks that take seconds are short: they stand behind others, some for longer than they may."""
    draw = random.Random(f"what counts as short {seed}")  # chance, no secret
    rules = Rules()
    if PATIENT_WORLDS[0] < draw.random() < PATIENT_WORLDS[1]:
        rules = Rules(ahead_ms=draw.choice([8_000, 60_000]), behind_ms=draw.choice([1_000, 5_000, 20_000]))
    return replace(rules, **QUICK) if has_providers(seed) else rules


def has_several_hubs(seed: int) -> bool:
    """Whether in this world several hubs share a store; in none of those that are kept because they showed a bug before
    there were such worlds. The number is chosen for that.
    """
    drawn = random.Random(f"several hubs 5109529 in {seed}").random()  # chance, no secret
    return seed >= SEVERAL_FROM and drawn < SEVERAL_HUBS


def has_gateways(seed: int) -> bool:
    """Whether hubs of this world that stand by are gateways; in none of those that are kept. As above."""
    drawn = random.Random(f"gateways 357486 in {seed}").random()  # chance, no secret
    return has_several_hubs(seed) and drawn < GATEWAYS


class History:
    """A world with its people, machines and troubles."""

    world: World
    hub: HubNode

    def __init__(self, seed: int, size: Size, skipped: frozenset[int] = frozenset()) -> None:
        self.world = World(seed, size)
        rules = draw_rules(seed)
        self.hub = HubNode(self.world, rules)
        if has_several_hubs(seed):
            self.hub = HubGroup(self.world, rules, has_gateways(seed))
        self.runs = Runs(self.world, self.hub)
        self.checker = Checker(self.world, self.hub, self.runs)
        if isinstance(self.hub, HubGroup):
            self.checker.hubs = LeadWatch(self.world, self.hub)
        self.clients = Clients(self.world, self.hub, self.checker)
        self.callers = Callers(self.world, self.hub, self.checker, self.clients, self.runs)
        self.keepers = Keepers(self.world, self.hub, self.checker, self.clients, self.runs)
        self.backups: list[Backup] = []
        self.drained: dict[str, None] = {}
        self.restored = False
        self.rewinds = 0
        self.workers: list[WorkerNode | ForeignNode | ExecutorNode] = []
        self.checker.machines = self.keepers.machines = self.workers
        self._twins = 0
        for number in range(size.workers):
            is_foreign = number % FOREIGN_EVERY == FOREIGN_EVERY - 1
            kind: type[WorkerNode | ForeignNode | ExecutorNode] = ForeignNode if is_foreign else WorkerNode
            if has_leases(seed) and number % EXECUTOR_EVERY:
                kind = ExecutorNode
            self.workers.append(
                kind(self.world, self.hub, f"w{number}", self.runs, self.clients.behave, self.callers)
            )
        self.callers.trouble([worker for worker in self.workers if isinstance(worker, WorkerNode)])
        self.hub.start()
        for worker in self.workers:
            self.world.at(self.world.rng.randint(0, 5000), worker.start)
        self._plan_faults(skipped)

    def _plan_faults(self, skipped: frozenset[int]) -> None:
        rng, size = self.world.rng, self.world.size
        kinds = self._draw_kinds()
        weights = [WEIGHTS.get(kind, 1.0) for kind in kinds]
        for number in range(size.faults):
            when, (kind,), draw = (
                rng.randint(0, size.span_ms),
                rng.choices(kinds, weights),
                rng.getrandbits(40),
            )
            if number not in skipped:
                self.world.at(when, self._fault, number, kind, draw)
        self._plan_disabilities(skipped)
        self._plan_restart(skipped, kinds)
        self._plan_steering(skipped)
        self._plan_breakdowns(skipped)
        self._plan_last_words(skipped)
        if isinstance(self.hub, HubGroup):
            self._plan_some(skipped, 6, "hubs", 1.0, list(HUB_TROUBLES), 3)
            if self.hub.has_gateways:
                self._plan_some(skipped, 7, "gateways", 1.0, list(GATEWAY_TROUBLES), 4)
                # Drawn apart: worlds without them stay as they were.
                self._plan_some(skipped, 8, "moves 54", MOVED_SHARE, list(MOVES), 4)

    def _plan_steering(self, skipped: frozenset[int]) -> None:
        # By this number none of the worlds is drawn that are kept because they showed a bug: they stay as they were.
        self._plan_some(skipped, 3, "steering 80", STEERED_SHARE, list(STEERING))

    def _plan_breakdowns(self, skipped: frozenset[int]) -> None:
        self._plan_some(skipped, 4, "breakdowns", BROKEN_SHARE, list(BREAKDOWNS))

    def _plan_last_words(self, skipped: frozenset[int]) -> None:
        # The number as above.
        self._plan_some(skipped, 5, "last words 45227", UNTOLD_SHARE, list(LAST_WORDS))

    def _plan_disabilities(self, skipped: frozenset[int]) -> None:
        self._plan_some(skipped, 1, "disabilities", DISABLED_SHARE, list(DISABILITIES))

    def _plan_some(
        self, skipped: frozenset[int], place: int, draws: str, share: float, kinds: list[str], part: int = 6
    ) -> None:
        """Plan troubles of a kind that only a share of the worlds has, by draws of their own."""
        size, chance = self.world.size, random.Random(f"{draws} {self.world.seed}")  # no secret
        most = size.faults // part if chance.random() < share else 0
        for number in range(place * size.faults, place * size.faults + most):
            when, kind = chance.randint(0, size.span_ms), chance.choice(kinds)
            draw = chance.getrandbits(40)
            if number not in skipped:
                self.world.at(when, self._fault, number, kind, draw)

    def _plan_restart(self, skipped: frozenset[int], kinds: list[str]) -> None:
        size, chance = self.world.size, random.Random(f"restart {self.world.seed}")  # no secret
        number = 2 * size.faults
        drawn = chance.random() < RESTARTED_SHARE
        if drawn and not set(kinds) & set(HUB_ENDS) and number not in skipped:
            when, (kind,) = chance.randint(20_000, size.span_ms // 3), RESTARTS
            self.world.at(when, self._fault, number, kind, chance.getrandbits(40))

    def _draw_kinds(self) -> list[str]:
        """Not everything goes wrong in every world: a hub that dies all the time never gives a worker up."""
        rng = self.world.rng
        share, steady = rng.choice([0.3, 0.6, 1.0]), rng.random() < 0.35
        steady = steady or self.clients.site.steady
        kinds = [kind for kind in FAULTS if rng.random() < share and not (steady and kind in HUB_ENDS)]
        if self.clients.site.steady:
            kinds = [kind for kind in kinds if kind not in ABSENCES or rng.random() < 0.3]
        return kinds or ["partition"]

    def _fault(self, number: int, kind: str, draw: int) -> None:
        if not self.world.faulty:
            return
        worker = self.workers[draw % len(self.workers)]
        self.world.counts[kind] += 1
        self.world.tell(f"fault {number}: {kind} ({worker.machine_name})")
        (BY_NAME | HUB_TROUBLES | GATEWAY_TROUBLES | MOVES)[kind](self, worker, draw >> 8)

    # --- troubles that need the whole world ---------------------------------------------------------------------------

    def back_up(self) -> None:
        """Copy the store, and with it what the world knows to be in it."""
        self.backups.append(self.hub.back_up(self.checker.account.copy()))

    def restore(self, backup: Backup) -> None:
        """Go back to a backup."""
        self._go_back_to(backup, self.hub.restore)

    def lose_turns(self, backup: Backup, rewinds: int) -> None:
        """The database fails over to a server that lacks its last turns, under hubs that go on."""
        if self.world.faulty and isinstance(self.hub, HubGroup) and rewinds == self.rewinds:
            self._go_back_to(backup, self.hub.go_back)

    def _go_back_to(self, backup: Backup, put: Callable[[Backup], None]) -> None:
        self.restored = True
        self.rewinds += 1
        self.backups = [kept for kept in self.backups if kept.at_ms <= backup.at_ms]
        put(backup)
        self.checker.rewind(backup.account)
        for worker in self.workers:
            if isinstance(worker, WorkerNode):
                # What it told the lost future does not bind it towards a hub that never heard it.
                worker.supervisor.denied.clear()
        self.clients.rewind()
        self.callers.rewind()

    def add_twin(self, node: WorkerNode) -> WorkerNode:
        """Set up another machine under a name that is taken."""
        self._twins += 1
        self.checker.shared_names[node.name] = None
        for other in self.workers:
            if isinstance(other, WorkerNode) and other.name == node.name:
                other.shared = True
        twin = WorkerNode(
            self.world,
            self.hub,
            node.name,
            self.runs,
            self.clients.behave,
            self.callers,
            self._twins,
        )
        twin.start()
        self.workers.append(twin)
        return twin

    def resume(self, name: str) -> None:
        """End a drain; asked again until a hub has heard it."""
        if name not in self.drained:
            return
        worker = self.hub.state.workers.get(name) if self.hub.up else None
        if worker is not None and not worker.draining:
            del self.drained[name]
            return
        if worker is not None:
            self.hub.now.drain(name, False)
        self.world.at(3000, self.resume, name)

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self, calm_ms: int = CALM_MS) -> Outcome:
        """Faults for a while, then calm until everything has ended, for so long at most."""
        try:
            return self._run(calm_ms)
        finally:
            self.hub.let_go()

    def _run(self, calm_ms: int) -> Outcome:
        world = self.world
        while world.now_ms < world.size.span_ms and world.step():
            pass
        self._calm()
        deadline = world.now_ms + calm_ms
        while world.now_ms < deadline and world.step():
            if world.steps % 20 == 0 and self._over():
                break
        if not self._over():
            self._fail_stuck()
        Settlement(world, self.hub, self.runs, self.checker, self.restored).settle(
            self.clients.organisers.reader
        )
        return Outcome(world.seed, world.steps, world.now_ms / 1000, world.counts, len(self.runs.all))

    def _fail_stuck(self) -> None:
        left = ["hub down"]
        if self.hub.up:
            left = [job.id for job in self.hub.state.jobs.values() if not job.state.final]
        self.world.fail(
            f"stuck: {self.clients.unanswered} submits unanswered, jobs without an end: {left[:8]}"
        )

    def _over(self) -> bool:
        answered = not (self.clients.unanswered or self.callers.unanswered or self.keepers.unanswered)
        answered = answered and not self.keepers.users.unanswered
        answered = answered and not (self.hub.up and self.clients.organisers.unsettled)
        return self.hub.up and not self.hub.busy and answered and self.checker.all_ended()

    def _calm(self) -> None:
        """The faults stop, everything comes back; machines that double another's name are switched off."""
        self.world.faulty = False
        self.world.tell("the faults stop")
        hub = self.hub
        hub.slow_store = hub.failing_store = hub.low_space = False
        hub.die_at_step = 0
        if isinstance(hub, HubGroup):
            hub.calm()
        hub.start()
        for worker in self.workers:
            if worker.machine_name != worker.name and isinstance(worker, WorkerNode):
                worker.retire()
        for worker in self.workers:
            weather = worker.weather
            if not weather.calm:
                weather.rough_ms = self.world.now_ms
            weather.up_lost = weather.down_lost = weather.slow = weather.doubled = weather.shuffled = False
            worker.full = False
            if isinstance(worker, WorkerNode):
                worker.childless = worker.stalled = worker.broken = False
            worker.start()
            if worker.name not in self.drained:
                self.drained[worker.name] = None
                self.world.at(1000, self.resume, worker.name)
        self.world.at(SORTED_OUT_MS, self._sort_out)

    def _sort_out(self) -> None:
        """Somebody reads what a restored hub lists as unknown to it and ends it by hand: nobody else ever does."""
        self.clients.close_strays()
        for worker in self.workers:
            if isinstance(worker, WorkerNode):
                worker.supervisor.end_strangers()
