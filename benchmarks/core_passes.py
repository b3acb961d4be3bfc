"""The scheduler's own cost law, without store or sockets: passes over very many workers and very much waiting work.

Measured in CPU time: nothing here waits for anything, and what else the machine does is not the core's.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

from benchmarks.core_cluster import MIB, CoreCluster, pack, shapes
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.progress import tell
from dray.hub.engine.garbage import leave_out_what_is_there, take_over_collector

GIB = 1 << 30
COLD = 1_000


def measure(quick: bool) -> dict[str, Figure]:
    workers, waiting, placed, distinct = (
        (50, 500, 500, 200) if quick else (10_000, 1_000_000, 100_000, 100_000)
    )
    figures = _measure_full(workers, waiting)
    gc.unfreeze()
    figures |= _measure_fill(workers, placed, runs=1 if quick else 3)
    figures |= _measure_distinct(workers, distinct)
    return figures


def _measure_full(workers: int, waiting: int) -> dict[str, Figure]:
    """A full cluster with `waiting` single jobs of 100 shapes behind it."""
    cluster = CoreCluster(workers, slots=4)
    kinds = shapes(100)
    cluster.submit([kinds[place % 100] for place in range(workers * 4)])
    filled = cluster.fill()
    if filled != workers * 4:
        raise RuntimeError(f"{filled} tasks were placed on {workers * 4} slots")
    cluster.start_all()
    cluster.submit([kinds[place % 100] for place in range(waiting)])
    _freeze()
    cold = _span(lambda: _expect(cluster.run_pass(), 0))
    tell(f"core: {workers:,} workers, {waiting:,} tasks waiting")
    idle = [_span(lambda: _expect(cluster.run_pass(), 0)) for _ in range(101)]
    beats = [_after_beat(cluster, f"w{number:05d}") for number in range(min(workers, 51))]
    uids = list(cluster.state.attempts)
    step = max(1, len(uids) // 101)
    ends = [_end_one(cluster, uid) for uid in uids[::step][:101]]
    where = f"{workers:,} workers, {waiting:,} tasks waiting in 100 shapes"
    return {
        "idle_pass": Figure(
            f"core: pass with nothing to do, {where}", "ms", _middle(idle), bars=[Bar(at_most=1.0)]
        ),
        "beat_pass": Figure(f"core: pass after a heartbeat, {where}", "ms", _middle(beats)),
        "cold_pass": Figure(f"core: first pass that parks everything, {where}", "ms", cold),
        "next_task": Figure(
            f"core: one task ends, the next is placed, {where}",
            "ms",
            _middle(ends),
            bars=[Bar(at_most=2.0)],
            note=f"worst of {len(ends)}: {max(ends):.2f} ms",
        ),
    }


def _measure_fill(workers: int, tasks: int, runs: int) -> dict[str, Figure]:
    slots = max(1, tasks // workers)
    figures = {}
    for name, what in (("fill_jobs", "single jobs"), ("fill_arrays", "tasks in 100 arrays")):
        rates = []
        for _ in range(runs):
            cluster = CoreCluster(workers, slots)
            if name == "fill_jobs":
                kinds = shapes(100)
                cluster.submit([kinds[place % 100] for place in range(tasks)])
            else:
                cluster.submit(shapes(100, array={"first": 0, "last": tasks // 100 - 1}))
            _freeze()
            span_ms = _span(lambda cluster=cluster: _expect(cluster.fill(), tasks))  # type: ignore[misc]  # bound now
            rates.append(tasks / span_ms * 1000)
            gc.unfreeze()
        tell(f"core: {workers:,} workers filled with {tasks:,} {what}: {statistics.median(rates):.0f}/s")
        figures[name] = median_figure(
            f"core: {workers:,} empty workers filled with {tasks:,} {what} of 100 shapes, plan and apply",
            "placements/s",
            rates,
            bars=[Bar(at_least=50_000)],
        )
    figures["fill_jobs"].floors["bare loop over the same"] = _bare_loop(workers, tasks)
    return figures


def _measure_distinct(workers: int, count: int) -> dict[str, Figure]:
    """As many shapes as jobs, none of which fits anywhere: each wants more memory than any worker has."""
    cluster = CoreCluster(workers, slots=4)
    colds = []
    for first in range(0, count, COLD):
        shapes_now = range(first, min(first + COLD, count))
        cluster.submit([pack(memory_bytes=512 * GIB + place * MIB) for place in shapes_now])
        colds.append(_span(lambda: _expect(cluster.run_pass(), 0)))
    _freeze()
    passes = []
    for number in range(min(workers, 11)):
        cluster.free_one_slot(f"w{number:05d}")
        passes.append(_span(lambda: _expect(cluster.run_pass(), 0)))
    gc.unfreeze()
    cold = _middle(colds)
    tell(f"core: {count:,} distinct shapes: {_middle(passes):.1f} ms; {cold:.0f} ms for {COLD:,} new ones")
    where = f"{count:,} distinct shapes, nothing fits, {workers:,} workers"
    return {
        "distinct": Figure(
            f"core: {where}: pass after a worker offers room", "ms", _middle(passes), bars=[Bar(at_most=20.0)]
        ),
        "distinct_cold": Figure(
            f"core: {where}: pass that meets {COLD:,} new shapes",
            "ms",
            cold,
            note=f"{sum(colds) / 1000:.1f} s for all of them, submitted {COLD:,} at a time",
        ),
    }


def _bare_loop(workers: int, tasks: int) -> float:
    """The least that a placement can be: take room from one dict, write the task into another."""
    room = {f"w{number:05d}": max(1, tasks // workers) for number in range(workers)}
    held: dict[int, str] = {}
    began = time.process_time()
    names = iter(list(room))
    name = next(names)
    for task in range(tasks):
        if not room[name]:
            name = next(names)
        room[name] -= 1
        held[task] = name
    return tasks / (time.process_time() - began)


def _after_beat(cluster: CoreCluster, worker: str) -> float:
    cluster.beat(worker)
    return _span(lambda: _expect(cluster.run_pass(), 0))


def _end_one(cluster: CoreCluster, uid: str) -> float:
    return _span(lambda: _expect(cluster.end_one(uid), 1))


def _expect(placed: int, wanted: int) -> None:
    if placed != wanted:
        raise RuntimeError(
            f"a pass placed {placed} tasks instead of {wanted}: this is not the case to be timed"
        )


def _span(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def _freeze() -> None:
    """As a hub does after it has loaded: what is there for good is no matter for the collector."""
    take_over_collector()
    leave_out_what_is_there(again=True)


def _middle(spans: list[float]) -> float:
    return statistics.median(spans)
