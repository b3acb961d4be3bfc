"""What rules cost: filling a cluster under the full policy stack beside plain first come, first served.

The core alone, as in `core_passes`. The full stack: fair share, quotas, paces, caps, reservations and preemption, all
in force and none of them biting, so that both fills place the same tasks. The sizes are those for which Iris has
published what a match and a tick take: 100-task jobs, ten tasks per worker. What a tick of theirs holds is not said:
two figures stand beside it, all it takes to place everything, and one turn of a full cluster with as many waiting.
"""

from __future__ import annotations

import gc
import statistics
import time

from benchmarks.core_cluster import CLOCK, CoreCluster, pack
from benchmarks.figures import Bar, Figure
from benchmarks.progress import tell
from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import PlanDecided, PolicyChanged
from dray.core.model.policies.policy import (
    Budget,
    Cap,
    FairShare,
    Pace,
    Pacing,
    Policy,
    PreemptionPolicy,
    Queue,
    Quota,
    pack_policy,
)
from dray.core.scheduling.passes.planning import plan, settle_plan
from dray.core.scheduling.passes.turn import answer_polls

PER_JOB = 100
# Published of Iris, in seconds: what one match and one whole tick take at these sizes.
IRIS = {(1_000, 10_000): (0.064, 0.65), (10_000, 100_000): (5.0, 66.0)}
STACK = Policy(
    queues={"default": Queue(order="fair_share", protect_after_s=60)},
    fair_share=FairShare(half_life_s=3600),
    quotas=(
        Quota(user="*", gpus=1_000_000, gpu_hours=Budget(soft=10**6, hard=10**7)),
        Quota(queue="default", gpus=10**6),
    ),
    pacing=Pacing(
        starts=(Pace(user="*", per_minute=10**9, burst=10**7),), running=(Cap(label="team", most=10**7),)
    ),
    preemption=PreemptionPolicy(strategy="fair_share"),
)


def measure(quick: bool) -> dict[str, Figure]:
    sizes = [(20, 200)] if quick else list(IRIS)
    figures: dict[str, Figure] = {}
    for workers, tasks in sizes:
        figures |= _fill_both(workers, tasks)
    return figures


def _fill_both(workers: int, tasks: int) -> dict[str, Figure]:
    plain_match_s, plain_s = _fill(workers, tasks, None)
    _, stack_s = _fill(workers, tasks, STACK)
    where = f"{workers:,} workers, {tasks:,} tasks in {PER_JOB}-task jobs"
    tell(f"core: {where}: plain {plain_s:.2f} s, full stack {stack_s:.2f} s")
    tick_s = _tick(workers, tasks)
    match_bars, tick_bars, note = [], [], ""
    if (workers, tasks) in IRIS:
        theirs_match_s, theirs_s = IRIS[workers, tasks]
        note = f"Iris publishes {theirs_match_s} s for a match and {theirs_s} s for a tick of this size"
        tick_bars = [Bar(at_most=theirs_s / 20)]
        match_bars = [Bar(at_most=theirs_match_s / 5)] if workers == 10_000 else []
    name = f"{workers}x{tasks}"
    match_what = f"core: plan of all passes that place everything, {where}"
    tick_what = f"core: one turn of a full cluster (a task ends, the next is placed), {where} waiting"
    stack_what = f"core: full policy stack over first come first served, per placement, {where}"
    stack_bars = [] if workers < 1_000 else [Bar(at_most=3.0)]
    return {
        f"match_{name}": Figure(match_what, "s", plain_match_s, bars=match_bars, note=note),
        f"fill_{name}": Figure(f"core: plan, apply and settle of the same, {where}", "s", plain_s, note=note),
        f"tick_{name}": Figure(tick_what, "s", tick_s, bars=tick_bars, note=note),
        f"stack_{name}": Figure(stack_what, "x", stack_s / plain_s, bars=stack_bars),
    }


def _tick(workers: int, tasks: int) -> float:
    """The middle of some turns in which a task ends and the next is placed, with all tasks waiting."""
    cluster = CoreCluster(workers, slots=1)
    cluster.submit([pack(cpu_milli=100)] * workers)
    cluster.fill()
    cluster.start_all()
    cluster.submit([pack(cpu_milli=200, array={"last": PER_JOB - 1})] * (tasks // PER_JOB))
    cluster.run_pass()
    spans = []
    for uid in list(cluster.state.attempts)[:51]:
        began = time.perf_counter()
        placed = cluster.end_one(uid)
        spans.append(time.perf_counter() - began)
        if placed != 1:
            raise RuntimeError(f"{placed} tasks were placed on the one free slot")
    return statistics.median(spans)


def _fill(workers: int, tasks: int, policy: Policy | None) -> tuple[float, float]:
    """Seconds of planning alone and of everything, to place all tasks."""
    cluster = CoreCluster(workers, slots=tasks // workers)
    if policy is not None:
        apply(cluster.state, PolicyChanged(pack_policy(policy)), CLOCK)
    spec = pack(cpu_milli=100, array={"last": PER_JOB - 1}, labels={"team": "bench"})
    cluster.submit([spec] * (tasks // PER_JOB))
    gc.collect()
    gc.freeze()
    planning, placed, began = 0.0, 0, time.perf_counter()
    while placed < tasks:
        at = time.perf_counter()
        decided = plan(cluster.state)
        planning += time.perf_counter() - at
        if not decided.placements:
            raise RuntimeError(f"{placed} of {tasks} tasks were placed")
        cluster.fold(decided.began)
        cluster.fold(PlanDecided(decided.placements, decided.preemptions))
        cluster.fold(settle_plan(cluster.state, decided))
        answer_polls(cluster.state, cluster.fold)
        placed += len(decided.placements)
    whole = time.perf_counter() - began
    gc.unfreeze()
    return planning, whole
