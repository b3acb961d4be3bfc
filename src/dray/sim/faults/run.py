"""One seed, one history: build the world, let things go wrong, stop, and see that every promise held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from dray.core.lifecycle.rules import Rules
from dray.sim.faults.checker import Checker
from dray.sim.faults.clients import Clients
from dray.sim.faults.hub_node import HubNode
from dray.sim.faults.worker_node import Execution, WorkerNode
from dray.sim.faults.world import CALM_MS, Size, World


class Outcome(NamedTuple):
    """What a clean history was like."""

    seed: int
    steps: int
    virtual_s: float
    faults: Counter[str]
    runs: int


class History:
    """A world with its people, machines and troubles."""

    def __init__(self, seed: int, size: Size, skipped: frozenset[int] = frozenset()) -> None:
        self.world = World(seed, size)
        self.executions: list[Execution] = []
        self.hub = HubNode(self.world, Rules())
        self.checker = Checker(self.world, self.hub, self.executions)
        self.clients = Clients(self.world, self.hub, self.checker)
        names = [f"w{number}" for number in range(size.workers)]
        self.workers = [
            WorkerNode(self.world, self.hub, name, self.executions, self.clients.behave) for name in names
        ]
        self.hub.start()
        for worker in self.workers:
            self.world.at(self.world.rng.randint(0, 5000), worker.start)
        self._plan_faults(skipped)

    def _plan_faults(self, skipped: frozenset[int]) -> None:
        rng, size = self.world.rng, self.world.size
        for number in range(size.faults):
            when, kind, draw = rng.randint(0, size.span_ms), rng.choice(list(FAULTS)), rng.getrandbits(32)
            if number not in skipped:
                self.world.at(when, self._fault, kind, draw)

    def _fault(self, kind: str, draw: int) -> None:
        if not self.world.faulty:
            return
        worker = self.workers[draw % len(self.workers)]
        self.world.counts[kind] += 1
        self.world.tell(f"fault: {kind} ({worker.name})")
        FAULTS[kind](self, worker, draw >> 8)

    def run(self) -> Outcome:
        """Faults for a while, then calm until everything has ended."""
        world = self.world
        while world.now_ms < world.size.span_ms and world.step():
            pass
        self._calm()
        deadline = world.now_ms + CALM_MS
        while world.now_ms < deadline and world.step():
            if world.steps % 20 == 0 and self._over():
                break
        if not self._over():
            left = (
                [job.id for job in self.hub.state.jobs.values() if not job.state.final]
                if self.hub.up
                else ["hub down"]
            )
            world.fail(
                f"stuck: {self.clients.unanswered} submits unanswered, jobs without an end: {left[:8]}"
            )
        self.checker.final()
        return Outcome(world.seed, world.steps, world.now_ms / 1000, world.counts, len(self.executions))

    def _over(self) -> bool:
        return self.hub.up and not self.hub.busy and not self.clients.unanswered and self.checker.all_ended()

    def _calm(self) -> None:
        """The faults stop, everything comes back."""
        self.world.faulty = False
        self.world.tell("the faults stop")
        self.hub.slow_store = self.hub.failing_store = False
        self.hub.die_at_step = 0
        self.hub.start()
        for worker in self.workers:
            weather = worker.weather
            weather.up_lost = weather.down_lost = weather.slow = weather.doubled = weather.shuffled = False
            worker.start()


def _while(history: History, duration_ms: int, on: Callable[[], None], off: Callable[[], None]) -> None:
    on()
    history.world.at(duration_ms, off)


def _flag(history: History, target: object, name: str, duration_ms: int) -> None:
    _while(history, duration_ms, lambda: setattr(target, name, True), lambda: setattr(target, name, False))


def _break(worker: WorkerNode) -> None:
    if worker.connection is not None:
        worker.connection.break_off()


def _cut(history: History, worker: WorkerNode, duration_ms: int) -> None:
    for way in ("up_lost", "down_lost"):
        _flag(history, worker.weather, way, duration_ms)


def _span(draw: int) -> int:
    """Mostly short, sometimes past every timer."""
    return 500 + draw % 20_000 if draw % 3 else 30_000 + draw % 170_000


FAULTS: dict[str, Callable[[History, WorkerNode, int], None]] = {
    "hub killed": lambda history, worker, draw: history.hub.die("killed"),
    "hub killed within a turn": lambda history, worker, draw: setattr(
        history.hub, "die_at_step", 1 + draw % 4
    ),
    "commit fails": lambda history, worker, draw: _flag(history, history.hub, "failing_store", 50),
    "slow store": lambda history, worker, draw: _flag(
        history, history.hub, "slow_store", 2000 + draw % 20_000
    ),
    "agent killed": lambda history, worker, draw: worker.die(),
    "agent says goodbye": lambda history, worker, draw: worker.leave(),
    "supervisor killed": lambda history, worker, draw: worker.supervisor_dies(),
    "host rebooted": lambda history, worker, draw: worker.reboot(wiped=False),
    "host reinstalled": lambda history, worker, draw: worker.reboot(wiped=True),
    "socket broken": lambda history, worker, draw: _break(worker),
    "partition": lambda history, worker, draw: _cut(history, worker, _span(draw)),
    "one-way loss up": lambda history, worker, draw: _flag(history, worker.weather, "up_lost", _span(draw)),
    "one-way loss down": lambda history, worker, draw: _flag(
        history, worker.weather, "down_lost", _span(draw)
    ),
    "messages late": lambda history, worker, draw: _flag(history, worker.weather, "slow", _span(draw)),
    "messages doubled": lambda history, worker, draw: _flag(history, worker.weather, "doubled", _span(draw)),
    "messages shuffled": lambda history, worker, draw: _flag(
        history, worker.weather, "shuffled", _span(draw)
    ),
    "wall clock jumps": lambda history, worker, draw: setattr(
        history.world, "wall_shift_ms", history.world.wall_shift_ms + (draw % 7_200_000) - 3_600_000
    ),
}


def run_seed(seed: int, size: Size, skipped: frozenset[int] = frozenset()) -> Outcome:
    """Live through one history; raises `Failure` where a promise broke."""
    return History(seed, size, skipped).run()
