"""One tenant bursts a thousand jobs: what the others notice of it, by the order of the queue.

Ten tenants submit alike, at random moments; a day in, one of them submits a thousand jobs more at once. The same trace
is replayed without those. A tenant's slowdown is the mean of its jobs' bounded slowdowns, and what counts is the tenant
whom the burst hurts most. Everything is drawn from a seed; estimates are exact.
"""

from __future__ import annotations

import random
import time
from typing import Any

from dray.core.model.policies.check import check_policy
from dray.sim.traces.figures import measure
from dray.sim.traces.readers import parse_cluster
from dray.sim.traces.workload import TraceJob
from dray.sim.traces.world import World

CLUSTER, ALL_GPUS = "8x8", 64
SEEDS = (1, 2, 3)
TENANTS, EACH = 10, 300
LOADS = (0.5, 0.7)
BURST_AT_S, BURST_JOBS, BURSTER = 86_400, 1_000, "t00"
WIDTHS, SHARES = (1, 2, 4, 8), (0.7, 0.15, 0.1, 0.05)
MEDIAN_S, SIGMA = 900.0, 1.0
POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {"queues": {"default": {"order": "fifo"}}},
    "fair_share": {"queues": {"default": {"order": "fair_share"}}},
}


def draw_jobs(seed: int, load: float, burst: bool) -> list[TraceJob]:
    """The trace, sorted by arrival. The burst is drawn apart: without it all else is the same."""
    draw = random.Random(seed)
    drawn = [
        (f"t{tenant:02d}", draw.choices(WIDTHS, SHARES)[0], _run_time(draw))
        for tenant in range(TENANTS)
        for _ in range(EACH)
    ]
    span_s = sum(width * ran_s for _, width, ran_s in drawn) / (ALL_GPUS * load)
    rows = [(draw.uniform(0, span_s), *row) for row in drawn]
    if burst:
        more = random.Random(f"burst {seed}")
        rows += [(BURST_AT_S, BURSTER, 1, _run_time(more)) for _ in range(BURST_JOBS)]
    rows.sort(key=lambda row: row[0])
    return [
        TraceJob(
            id=f"{place:05d}",
            arrival_ms=round(at_s * 1000),
            duration_ms=round(ran_s * 1000),
            estimate_ms=round(ran_s * 1000),
            user=tenant,
            gpus=width,
        )
        for place, (at_s, tenant, width, ran_s) in enumerate(rows)
    ]


def _run_time(draw: random.Random) -> float:
    return max(10.0, MEDIAN_S * draw.lognormvariate(0, SIGMA))


def replay(seed: int, load: float, rule: str, burst: bool) -> dict[str, float]:
    """Each tenant's mean bounded slowdown."""
    jobs = draw_jobs(seed, load, burst)
    figures = measure(World(parse_cluster(CLUSTER), check_policy(POLICIES[rule])).run(jobs))
    return {user: found["bounded_slowdown"] for user, found in figures["users"].items()}


def run(seed: int, load: float, rule: str) -> dict[str, Any]:
    """With the burst against without it."""
    began = time.process_time()
    calm, pressed = replay(seed, load, rule, False), replay(seed, load, rule, True)
    ratios = {user: pressed[user] / calm[user] for user in calm if user != BURSTER}
    worst = max(ratios, key=lambda user: ratios[user])
    return {
        "seed": seed,
        "load": load,
        "rule": rule,
        "worst": worst,
        "calm": calm[worst],
        "pressed": pressed[worst],
        "ratio": ratios[worst],
        "burster": pressed[BURSTER],
        "cpu_s": time.process_time() - began,
    }
