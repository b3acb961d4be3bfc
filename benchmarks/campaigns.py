"""What workloads cost: turns with many that run against none, the pause of a million tasks, a list of thousands.

The core alone, as in `core_passes`, and in CPU time. What a turn costs with workloads stands beside what it costs
without, both measured in turns of one run.
"""

from __future__ import annotations

import gc
import statistics
import time

from benchmarks.core_cluster import CLOCK, CoreCluster, pack
from benchmarks.figures import Bar, Figure
from benchmarks.progress import tell
from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.workload_events import WorkloadMade, WorkloadSwitched
from dray.core.model.records.workload import Terms
from dray.hub.documents.workloads import workload_document
from dray.hub.engine.garbage import leave_out_what_is_there, take_over_collector

WORKERS, TURNS = 200, 101
RUNNING, LISTED = 1_000, 10_000
ARRAYS, TASKS = 100, 10_000


def measure(quick: bool) -> dict[str, Figure]:
    running, listed, tasks = (20, 100, 100) if quick else (RUNNING, LISTED, TASKS)
    plain, ours = _turns(0, 5 if quick else TURNS), _turns(running, 5 if quick else TURNS)
    bound = _turns(running, 5 if quick else TURNS, Terms(width=1_000))
    pause, begin = _pause(tasks)
    lists = _list(listed)
    tell(
        f"core: {running:,} running workloads {ours:.3f} ms a turn, none {plain:.3f}; a pause {pause:.3f} ms"
    )
    return {
        "turn": Figure(
            f"core: one task ends, the next is placed, {running:,} running workloads without bounds",
            "ms",
            ours,
            floors={"no workload": plain},
            bars=[Bar(at_most=1.1, of="no workload")],
            note=f"{ours / plain:.2f} x; with widths that are not reached {bound:.3f} ms",
        ),
        "pause": Figure(
            f"core: a workload of {ARRAYS * tasks:,} tasks is paused, and the next pass",
            "ms",
            pause,
            bars=[Bar(at_most=5.0)],
            note=f"its start again {begin:.2f} ms",
        ),
        "list": Figure(f"core: the documents of {listed:,} workloads", "ms", lists, bars=[Bar(at_most=50.0)]),
    }


def _turns(workloads: int, turns: int, terms: Terms | None = None) -> float:
    """The middle turn, where each of so many workloads has a task that waits."""
    cluster = CoreCluster(WORKERS, slots=1)
    for number in range(workloads):
        apply(cluster.state, WorkloadMade(f"w{number:05d}", "bench", terms or Terms(), True), CLOCK)
    cluster.submit([pack(cpu_milli=100)] * WORKERS)
    cluster.fill()
    cluster.start_all()
    names = [f"w{place % workloads:05d}" if workloads else "" for place in range(max(RUNNING, turns + 1))]
    cluster.submit([pack(cpu_milli=100, workload=name) for name in names])
    cluster.run_pass()
    take_over_collector()
    leave_out_what_is_there(again=True)
    spans = []
    for uid in list(cluster.state.attempts)[:turns]:
        began = time.process_time()
        cluster.end_one(uid)
        spans.append((time.process_time() - began) * 1000)
    gc.unfreeze()
    return statistics.median(spans)


def _pause(tasks: int) -> tuple[float, float]:
    """A pause and a start of a workload that nothing bounded before, each with the pass behind it."""
    cluster = CoreCluster(WORKERS, slots=1)
    apply(cluster.state, WorkloadMade("large", "bench", Terms(), True), CLOCK)
    array = {"first": 0, "last": tasks - 1}
    cluster.submit([pack(cpu_milli=100 + place, workload="large", array=array) for place in range(ARRAYS)])
    cluster.fill()
    spans = []
    for verb in ("pause", "start"):
        began = time.process_time()
        apply(cluster.state, WorkloadSwitched("large", verb, "bench"), CLOCK)
        cluster.run_pass()
        spans.append((time.process_time() - began) * 1000)
    return spans[0], spans[1]


def _list(workloads: int) -> float:
    cluster = CoreCluster(1, slots=1)
    for number in range(workloads):
        apply(cluster.state, WorkloadMade(f"w{number:05d}", "bench", Terms(labels={"a": "b"}), True), CLOCK)
    began = time.process_time()
    for tally in cluster.state.workloads.values():
        workload_document(tally, cluster.state.now_ms)
    return (time.process_time() - began) * 1000
