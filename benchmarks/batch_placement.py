"""A batch that fills the room, placed one by one and together: what it costs, and how long the answer takes.

The core alone, and the solver's own work as its process does it: a scene packed, taken apart, costed and solved. Jobs
of a hundred names whose speed differs from card to card; the policy counts speed. Five seeds: the cards' speeds are
drawn.
"""

from __future__ import annotations

import random
import statistics
import time

from benchmarks.core_cluster import CLOCK, CoreCluster
from benchmarks.figures import Bar, Figure
from benchmarks.progress import tell
from dray.core.lifecycle.state.events import (
    CreditSet,
    PolicyChanged,
    SessionOpened,
    WorkerRegistered,
)
from dray.core.lifecycle.state.pass_events import SolverTold
from dray.core.lifecycle.state.state import State
from dray.core.model.capability import Capability, Slots
from dray.core.model.policies.policy import PlacementPolicy, Policy, Weights, pack_policy
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec
from dray.core.scheduling.passes.snapshot import first_waiting, pack_scene
from dray.core.scheduling.solving.costs import Group, assign
from dray.core.scheduling.solving.exchanges import solve_by_exchanges

KINDS, NAMES, CARDS = 20, 100, 5
SEEDS = 5


def measure(quick: bool) -> dict[str, Figure]:
    from dray.hub.aside.min_cost import solve, solve_by_flow

    tasks, workers = (100, 20) if quick else (1_000, 200)
    ratios, small, answers, passes = [], [], [], []
    for seed in range(2 if quick else SEEDS):
        cluster = _cluster(workers, tasks, seed)
        state = cluster.state
        prices = _prices(state, tasks)
        began = time.perf_counter()
        solved = solve([*pack_scene(state, CLOCK, tasks, learned=True)], lambda: True)
        answers.append((time.perf_counter() - began) * 1000)
        together = _total(prices, {(job, index): worker for job, index, worker in solved.hints})
        few = first_waiting(state, 49)
        exchanged, best = (
            _total(prices, {(job, index): worker for job, index, worker in assign(state, few, way)})
            for way in (solve_by_exchanges, solve_by_flow)
        )
        small.append(exchanged / best if best else 1.0)
        began = time.perf_counter()
        cluster.fill()
        passes.append((time.perf_counter() - began) * 1000)
        in_turn = _total(prices, {(one.job_id, one.index): one.worker for one in state.attempts.values()})
        assert len(solved.hints) == len(state.attempts) == tasks
        ratios.append(together / in_turn)
    tell(f"batches: {tasks} tasks on {workers} workers: {statistics.median(ratios):.2f} of the cost in turn")
    what = f"{tasks:,} tasks that fill {workers} workers"
    return {
        "cost": Figure(
            f"min_cost: cost of {what}, by that of placing them in turn",
            "ratio",
            statistics.median(ratios),
            runs=ratios,
            bars=[Bar(at_most=0.7)],
        ),
        "answer": Figure(
            f"min_cost: scene, costs and solution of {what}",
            "ms",
            statistics.median(answers),
            runs=answers,
            bars=[Bar(at_most=200)],
        ),
        "few": Figure(
            "min_cost: cost of 49 tasks by exchanges within the pass, by the best there is",
            "ratio",
            statistics.median(small),
            runs=small,
        ),
        "in_turn": Figure(
            f"greedy: passes that place {what} in turn", "ms", statistics.median(passes), runs=passes
        ),
    }


def _cluster(workers: int, tasks: int, seed: int) -> CoreCluster:
    rng = random.Random(seed)
    cluster = CoreCluster(0, slots=CARDS)
    weights = Weights(performance=5)
    # Hints are asked for here, not by the pass: that one is to place in turn.
    policy = Policy(placement=PlacementPolicy(strategy="min_cost", weights=weights))
    cluster.fold(PolicyChanged(pack_policy(policy)))
    cluster.fold(SolverTold(False))
    for number in range(workers):
        _join(cluster, f"w{number:04d}", f"k{number % KINDS}", number + 1)
    for name in range(NAMES):
        for kind in range(KINDS):
            cluster.state.experience.runtimes[f"n{name}", f"k{kind}"] = rng.uniform(1, 10) ** 2 * 60, 9
    specs = [{"command": ["true"], "gpu_count": 1, "name": f"n{rng.randrange(NAMES)}"} for _ in range(tasks)]
    cluster.submit([pack_spec(check_spec(spec)) for spec in specs])
    return cluster


def _join(cluster: CoreCluster, worker: str, kind: str, session: int) -> None:
    capability = Capability(gpu_backend="nvidia", gpu_count=CARDS, gpu_type=kind, cpu_count=64, memory_gb=256)
    slots = Slots(batch_total=CARDS)
    cluster.fold(SessionOpened(worker, session, ""))
    cluster.fold(WorkerRegistered(worker, session, capability, slots=slots, features=("list",), base=False))
    cluster.fold(CreditSet(worker, CARDS, slots))
    cluster.state.polls.clear()


def _prices(state: State, tasks: int) -> dict[tuple[str, int], dict[str, int]]:
    """What each task would cost on each worker, as the solver counts it."""
    found: dict[tuple[str, int], dict[str, int]] = {}

    def note(group: Group) -> list[int]:
        for key, kind in zip(group.keys, group.kind_of.tolist(), strict=True):
            found[key] = dict(zip(state.columns.worker_of, group.costs[kind].tolist(), strict=True))
        return [-1] * len(group.keys)

    assign(state, first_waiting(state, tasks), note)
    return found


def _total(prices: dict[tuple[str, int], dict[str, int]], placed: dict[tuple[str, int], str]) -> int:
    return sum(prices[key][worker] for key, worker in placed.items())
