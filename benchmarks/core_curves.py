"""How the scheduler's cost grows along each axis: workers, waiting tasks, distinct shapes, and by strategy.

The core alone, as in `core_passes`. A flat line is what the cost law promises for everything but the number of workers
of interest to a shape.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

from benchmarks.core_cluster import CLOCK, MIB, CoreCluster, pack, shapes
from benchmarks.figures import Figure
from benchmarks.progress import tell
from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import PolicyChanged
from dray.core.model.policies.policy import PLACERS, PlacementPolicy, Policy, pack_policy

GIB = 1 << 30
KINDS = 100


def measure(quick: bool) -> dict[str, Figure]:
    workers = (20, 50) if quick else (1_000, 3_000, 10_000)
    waiting = (100, 500) if quick else (1_000, 10_000, 100_000, 1_000_000)
    distinct = (10, 100) if quick else (10, 1_000, 10_000, 100_000)
    figures: dict[str, Figure] = {}
    for count in workers:
        figures |= _fill(count)
    for count in waiting:
        figures |= _step(workers[-1], count)
    for count in distinct:
        figures |= _offer(workers[-1], count)
    for strategy in PLACERS:
        figures |= _strategy(workers[0], strategy)
    return figures


def _fill(workers: int) -> dict[str, Figure]:
    """Ten slots each, filled with single jobs of 100 shapes."""
    tasks = workers * 10
    cluster = CoreCluster(workers, slots=10)
    kinds = shapes(KINDS)
    cluster.submit([kinds[place % KINDS] for place in range(tasks)])
    rate = _rate(cluster, tasks)
    tell(f"core: {workers:,} workers filled with {tasks:,} single jobs: {rate:,.0f}/s")
    what = f"core: {workers:,} workers filled with {tasks:,} single jobs of {KINDS} shapes"
    return {f"fill_{workers}": Figure(what, "placements/s", rate)}


def _step(workers: int, waiting: int) -> dict[str, Figure]:
    """A full cluster with `waiting` tasks behind it: a pass with nothing to do, and one task after another."""
    cluster = CoreCluster(workers, slots=4)
    kinds = shapes(KINDS)
    cluster.submit([kinds[place % KINDS] for place in range(workers * 4)])
    cluster.fill()
    cluster.start_all()
    cluster.submit([kinds[place % KINDS] for place in range(waiting)])
    cluster.run_pass()
    _freeze()
    idle = _middle([_span(cluster.run_pass) for _ in range(51)])
    uids = list(cluster.state.attempts)[:: max(1, workers * 4 // 51)][:51]
    next_task = _middle([_span(lambda uid=uid: cluster.end_one(uid)) for uid in uids])  # type: ignore[misc]  # bound now
    gc.unfreeze()
    where = f"{workers:,} workers, {waiting:,} tasks waiting"
    tell(f"core: {where}: idle pass {idle:.3f} ms, next task {next_task:.3f} ms")
    return {
        f"idle_{waiting}": Figure(f"core: pass with nothing to do, {where}", "ms", idle),
        f"next_{waiting}": Figure(f"core: one task ends, the next is placed, {where}", "ms", next_task),
    }


def _offer(workers: int, distinct: int) -> dict[str, Figure]:
    """As many shapes as jobs, none of which fits: a worker offers room."""
    cluster = CoreCluster(workers, slots=4)
    for first in range(0, distinct, 1_000):
        some = range(first, min(first + 1_000, distinct))
        cluster.submit([pack(memory_bytes=512 * GIB + place * MIB) for place in some])
        cluster.run_pass()
    _freeze()
    passes = []
    for number in range(min(workers, 21)):
        cluster.free_one_slot(f"w{number:05d}")
        passes.append(_span(cluster.run_pass))
    gc.unfreeze()
    tell(f"core: {distinct:,} distinct shapes that fit nowhere: {_middle(passes):.3f} ms after an offer")
    what = f"core: a worker offers room, {distinct:,} distinct shapes wait, none fits, {workers:,} workers"
    return {f"offer_{distinct}": Figure(what, "ms", _middle(passes))}


def _strategy(workers: int, strategy: str) -> dict[str, Figure]:
    tasks = workers * 10
    cluster = CoreCluster(workers, slots=10)
    policy = Policy(placement=PlacementPolicy(strategy=strategy))
    apply(cluster.state, PolicyChanged(pack_policy(policy)), CLOCK)
    kinds = shapes(KINDS)
    cluster.submit([kinds[place % KINDS] for place in range(tasks)])
    rate = _rate(cluster, tasks)
    tell(f"core: strategy {strategy}: {rate:,.0f}/s")
    what = f"core: {workers:,} workers filled with {tasks:,} single jobs by {strategy}"
    return {f"strategy_{strategy}": Figure(what, "placements/s", rate)}


def _rate(cluster: CoreCluster, tasks: int) -> float:
    _freeze()
    began = time.perf_counter()
    placed = cluster.fill()
    spent_s = time.perf_counter() - began
    gc.unfreeze()
    if placed != tasks:
        raise RuntimeError(f"{placed} of {tasks} tasks were placed: this is not the case to be timed")
    return tasks / spent_s


def _span(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def _middle(spans: list[float]) -> float:
    return statistics.median(spans)
