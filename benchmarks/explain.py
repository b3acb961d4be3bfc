"""What answers cost: why a job waits, what would start it, what would become of one, and a reason for each in a list.

At the core's own level on a mixed cluster that is full, and through a hub whose workers go on beating meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.core_cluster import CLOCK, MIB, pack
from benchmarks.figures import Bar, Figure, quantile
from benchmarks.fleet import running_fleet
from benchmarks.mixed_cluster import GPU_KINDS, MixedCluster
from benchmarks.progress import tell
from benchmarks.specs import true_spec
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.model.specs.check import check_spec
from dray.core.scheduling.explain.explain import View, headline
from dray.hub.documents.why_and_plan import plan_steps, why_steps

ASKERS = 2
PAUSE_S = 0.1
# More than any worker has: only another ask would start it, and that one is looked for among all of them.
TOO_MUCH = 20_000
RUNS = 21
JOBS: dict[str, dict[str, Any]] = {
    "cards": {"gpu_count": 4, "gpu_type": "H100", "cpu_milli": 1000},
    "gang": {"gpu_count": 4, "node_count": 8, "cpu_milli": 1000},
    "memory": {"memory_bytes": 400 << 30, "cpu_milli": 1000},
    "label": {"require": ["zone=moon"], "cpu_milli": 1000},
    "priority": {"gpu_count": 8, "gpu_type": "A100", "cpu_milli": 64_000, "queue": "ranked", "priority": 9},
}
POLICY = {
    "queues": {"default": {"order": "fifo"}, "ranked": {"order": "priority"}},
    "quotas": [{"user": "*", "gpus": 10**6}],
    "preemption": {"min_run_s": 0},
}


class Spans(NamedTuple):
    """How long an answer took in all, and its longest slice."""

    total_ms: float
    slice_ms: float


def measure(quick: bool) -> dict[str, Figure]:
    workers, listed = (60, 50) if quick else (10_000, 1_000)
    figures = _measure_core(workers, listed)
    gc.unfreeze()
    figures |= _measure_hub(*((20, 0.5, 0.2) if quick else (10_000, 12.0, 10.0)))
    return figures


# --- the core alone -----------------------------------------------------------------------------------------------


def _measure_core(workers: int, listed: int) -> dict[str, Figure]:
    cluster = MixedCluster(workers, POLICY)
    cluster.submit([pack(gpu_count=3, cpu_milli=1000, max_runtime_s=3600, array=_array(2 * workers))])
    cluster.submit([pack(cpu_milli=20_000, memory_bytes=60 << 30, max_runtime_s=7200, array=_array(workers))])
    cluster.fill()
    cluster.start_all()
    state = cluster.state
    waiting = {name: cluster.submit_as(name, **spec) for name, spec in JOBS.items()}
    shapes = [pack(cpu_milli=50_000, memory_bytes=(300 << 30) + place * MIB) for place in range(listed)]
    cluster.submit(shapes)
    cluster.fill()
    gc.collect()
    gc.freeze()
    tell(f"explain: {workers:,} workers, {len(state.attempts):,} tasks on them, {len(state.jobs):,} jobs")
    where = f"{workers:,} workers of {len(GPU_KINDS)} kinds, full"
    fast = [_worst(lambda job=job: _why(state, job, fix=False)) for job in waiting.values()]  # type: ignore[misc]
    slow = [_worst(lambda job=job: _why(state, job, fix=True)) for job in waiting.values()]  # type: ignore[misc]
    plans = [_worst(lambda spec=spec: _plan(state, spec)) for spec in JOBS.values()]  # type: ignore[misc]
    lists = [_span(lambda: _list(state, listed)) for _ in range(5)]
    return {
        "why": _figure(f"core: why, no fix looked for, {where}", fast, 50.0),
        "why_fix": _figure(f"core: why with the smallest change that helps, {where}", slow, 150.0),
        "plan": _figure(f"core: plan, {where}", plans, 100.0),
        "reasons": Figure(
            f"core: a reason for each of {listed:,} waiting jobs of as many shapes, {where}",
            "ms",
            statistics.median(lists),
            bars=[Bar(at_most=200.0)],
        ),
    }


def _figure(what: str, spans: list[Spans], bar_ms: float) -> Figure:
    worst = max(spans)
    told = ", ".join(f"{name} {span.total_ms:.1f}" for name, span in zip(JOBS, spans, strict=True))
    longest = max(span.slice_ms for span in spans)
    note = f"the worst of {told}; longest slice {longest:.1f} ms"
    return Figure(what, "ms", worst.total_ms, bars=[Bar(at_most=bar_ms)], note=note)


def _why(state: State, job: Job, fix: bool) -> Iterator[Any]:
    return why_steps(state, lambda _: job, lambda user: True, fix, 0)


def _plan(state: State, fields: dict[str, Any]) -> Iterator[Any]:
    spec = check_spec({"command": ["true"], "user_id": "bench", **fields})
    return plan_steps(state, spec, CLOCK, lambda user: True)


def _list(state: State, count: int) -> None:
    view = View(state)
    jobs = [job for job in state.jobs.values() if job.waiting][-count:]
    if not all(headline(state, job, view) for job in jobs):
        raise RuntimeError("a waiting job has no reason")


def _worst(begin: Callable[[], Iterator[Any]]) -> Spans:
    """The median time of an answer, and of its longest slice: slices end where a hub may let others in."""
    totals, longest = [], []
    for _ in range(RUNS):
        steps, work = [0.0], begin()
        while True:
            began = time.perf_counter()
            said = next(work, None)
            steps.append((time.perf_counter() - began) * 1000)
            if said is None:
                break
        totals.append(sum(steps))
        longest.append(max(steps))
    return Spans(statistics.median(totals), statistics.median(longest))


def _span(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _array(count: int) -> dict[str, int]:
    return {"first": 0, "last": count - 1}


# --- through a hub ------------------------------------------------------------------------------------------------


def _measure_hub(workers: int, span_s: float, beat_s: float) -> dict[str, Figure]:
    # Spans are taken by a few workers in a process of their own: the many would time how busy their own process is.
    timed = max(1, workers // 50)
    with (
        running_cluster() as cluster,
        running_fleet(cluster, workers - timed, slots=2, beat_s=beat_s) as crowd,
        running_fleet(cluster, timed, slots=2, beat_s=beat_s / 10, first=workers - timed) as fleet,
    ):
        crowd.ask("connect")
        fleet.ask("connect")
        cluster.request("POST", "/jobs", true_spec(id="blocked", cpu_milli=TOO_MUCH))
        fleet.ask("reset")
        time.sleep(span_s)
        quiet = fleet.ask("report")
        fleet.ask("reset")
        spans = asyncio.run(_ask_on(cluster, span_s))
        seen = fleet.ask("report")
    where = f"hub with {workers:,} workers, {ASKERS} askers"
    asked = sum(map(len, spans.values()))
    return {
        "beat_p99": Figure(
            f"heartbeat answered, p99, while why and plan are asked: {where}",
            "ms",
            seen["beat_p99_ms"],
            floors={"quiet hub": quiet["beat_p99_ms"]},
            bars=[Bar(at_most=50.0)],
            note=f"{asked:,} answers in {span_s:g} s; {seen['beats']:,} heartbeats, p50 {seen['beat_p50_ms']:.1f} ms",
        ),
        **{
            f"hub_{name}": Figure(
                f"{name} over HTTP, median: {where}",
                "ms",
                statistics.median(found),
                note=f"p99 {quantile(found, 0.99):.1f} ms",
            )
            for name, found in spans.items()
        },
    }


async def _ask_on(cluster: Cluster, span_s: float) -> dict[str, list[float]]:
    """Ask one question after another, a few askers at once; gives how long each kind of answer took."""
    spans: dict[str, list[float]] = {"why": [], "plan": []}
    until = time.perf_counter() + span_s

    def ask() -> None:
        while time.perf_counter() < until:
            for name, method, path, body in (
                ("why", "GET", "/jobs/blocked/why", None),
                ("plan", "POST", "/plan", true_spec(cpu_milli=TOO_MUCH)),
            ):
                began = time.perf_counter()
                cluster.request(method, path, body)
                spans[name].append((time.perf_counter() - began) * 1000)
                time.sleep(PAUSE_S)

    await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(ASKERS)))
    return spans
