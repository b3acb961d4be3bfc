"""What a turn costs where many users wait with one shape: one task ends, the next is placed, all others go on waiting.

The core alone, as in `core_passes`, and in CPU time. `due`: all of them have waited for so long that they are due for a
reservation. Each user has one job in line; the figures of one user and of
thousands stand beside each other, under several policies, since each has its own way of saying whose turn it is. Beside
that of thousands stands what it costs to put all of them in order anew in each pass.
"""

from __future__ import annotations

import gc
import statistics
import time
from unittest.mock import patch

from msgspec.structs import replace

from benchmarks.core_cluster import CLOCK, CoreCluster, pack
from benchmarks.figures import Bar, Figure
from benchmarks.progress import tell
from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import Clock, PolicyChanged
from dray.core.lifecycle.state.pass_events import TurnBegan
from dray.core.lifecycle.timers import due as find_due
from dray.core.model.policies.policy import (
    Budget,
    Cap,
    FairShare,
    Pace,
    Pacing,
    Policy,
    Queue,
    Quota,
    pack_policy,
)
from dray.hub.engine.garbage import leave_out_what_is_there, take_over_collector

WORKERS = 200
TURNS = 101
_QUOTAS = (Quota(user="*", tasks=1_000, gpus=8, gpu_hours=Budget(soft=10**6, hard=10**7)),)
_PACE = Pacing(starts=(Pace(user="*", per_minute=10**6, burst=10**5),))
_FAIR = {"default": Queue(order="fair_share")}
MANY = 5_000
# By these all of them are looked at, and so all are protected.
LONG_WAITS = ("fifo", "priority", "edf")
PROTECT_S = 5
# Turns that take long are told by a few of them.
LONGEST_MS = 2_000
POLICIES = {
    "fifo": None,
    "priority": Policy(queues={"default": Queue(order="priority")}),
    "edf": Policy(queues={"default": Queue(order="edf")}),
    "fair": Policy(queues=_FAIR, fair_share=FairShare(half_life_s=3600)),
    "fair_quotas": Policy(queues=_FAIR, fair_share=FairShare(half_life_s=3600), quotas=_QUOTAS, pacing=_PACE),
    # Gates that shut and open in every turn: that of a queue, and a cap on a label that all of them have.
    "queue_quota": Policy(quotas=(Quota(queue="default", tasks=WORKERS),)),
    "cap": Policy(pacing=Pacing(running=(Cap(label="sweep", most=WORKERS),))),
}


def measure(quick: bool) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name, policy in POLICIES.items():
        for users in (1, 20) if quick else (1, 1_000, MANY):
            spans = _turns(policy, users, 5 if quick else TURNS)
            middle = statistics.median(spans)
            floors = {}
            if users == MANY:
                with patch("dray.core.scheduling.turns.rosters.FEW_LINES", 10**9):
                    floors["all of them in order anew"] = statistics.median(_turns(policy, users, TURNS))
            tell(f"core: {users:,} users wait with one shape, {name}: {middle:.3f} ms")
            figures[f"{name}_{users}"] = Figure(
                f"core: one task ends, the next is placed, {users:,} users wait with one shape, {name}",
                "ms",
                middle,
                floors=floors,
                bars=[Bar(at_most=1.0)] if users == MANY else [],
                note=f"worst of {len(spans)}: {max(spans):.2f} ms",
            )
        if name in LONG_WAITS:
            users = 20 if quick else MANY
            spans = _turns(_protecting(policy), users, 5 if quick else TURNS, due=True)
            middle = statistics.median(spans)
            tell(f"core: {users:,} users have waited for long, {name}: {middle:.3f} ms")
            figures[f"{name}_{users}_due"] = Figure(
                f"core: one task ends, the next is placed, {users:,} users are due for a reservation, {name}",
                "ms",
                middle,
                bars=[Bar(at_most=1.0)],
                note=f"worst of {len(spans)}: {max(spans):.2f} ms",
            )
    return figures


def _protecting(policy: Policy | None) -> Policy:
    policy = policy or Policy()
    queue = replace(policy.queue("default"), protect_after_s=PROTECT_S)
    return replace(policy, queues={**policy.queues, "default": queue})


def _turns(policy: Policy | None, users: int, turns: int, *, due: bool = False) -> list[float]:
    cluster = CoreCluster(WORKERS, slots=1)
    if policy is not None:
        apply(cluster.state, PolicyChanged(pack_policy(policy)), CLOCK)
    spec = pack(cpu_milli=100, labels={"sweep": "a"})
    cluster.submit([spec] * WORKERS, [f"early{place:04d}" for place in range(WORKERS)])
    if (filled := cluster.fill()) != WORKERS:
        raise RuntimeError(f"{filled} tasks were placed on {WORKERS} slots")
    cluster.start_all()
    # As many jobs as turns take, at least: somebody must be left to wait.
    waiting = max(users, turns + 1)
    cluster.submit([spec] * waiting, [f"user{place % users:05d}" for place in range(waiting)])
    cluster.run_pass()
    if due:
        later = Clock(CLOCK.now_ms + PROTECT_S * 1000, CLOCK.at_ms + PROTECT_S * 1000)
        for event in find_due(cluster.state, later, str, frozenset):
            apply(cluster.state, event, later)
        if len(cluster.state.unprotected) != waiting:
            raise RuntimeError(f"{len(cluster.state.unprotected)} of {waiting} are due for a reservation")
        # Who is due is put in order once.
        cluster.fold(TurnBegan())
        cluster.run_pass()
    take_over_collector()
    leave_out_what_is_there(again=True)
    spans = []
    for uid in list(cluster.state.attempts)[:turns]:
        began = time.process_time()
        placed = cluster.end_one(uid)
        spans.append((time.process_time() - began) * 1000)
        if placed != 1:
            raise RuntimeError(f"{placed} tasks were placed on the one free slot")
        if len(spans) >= 5 and sum(spans) > LONGEST_MS:
            break
    gc.unfreeze()
    return spans
