"""Backfill on one machine of 256 processors: first come first served, with and without letting short work pass.

The workload is drawn from a seed and written as a CSV, which the generic reader reads: widths and run times are
heavy-tailed, estimates are exact. `replay_fcfs` lets nobody pass, which no queue of the product does; it is what the
gain is measured against.
"""

from __future__ import annotations

import csv
import heapq
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dray.core.model.policies.check import check_policy
from dray.sim.traces.figures import BOUND_S, measure
from dray.sim.traces.readers import parse_cluster, read_jobs
from dray.sim.traces.workload import Node, TraceJob
from dray.sim.traces.world import START_MS, World

PROCESSORS = 256
JOBS = 5_000
LOADS = (0.4, 0.6, 0.8)
SEEDS = (1, 2, 3)
FCFS = "fcfs"
# Bounded Pareto run times: half of them end within a minute, a few take ten hours.
SHORTEST_S, LONGEST_S, TAIL = 30.0, 36_000.0, 1.0
# The share of widths falls by this factor with every doubling.
NARROWING = 0.7
POLICIES: dict[str, dict[str, Any]] = {
    # Nobody waits long enough to be protected: whatever fits passes.
    "skip": {"queues": {"default": {"order": "fifo", "protect_after_s": 0}}},
    # The first that is blocked is protected at once.
    "easy": {"queues": {"default": {"order": "fifo", "protect_after_s": 0.001}}},
}


def write_workload(path: Path, seed: int, load: float) -> None:
    """Draw the jobs; arrivals are spaced so that the load is what was asked for."""
    draw = random.Random(seed)
    widths = [1 << power for power in range(9)]
    shares = [NARROWING**power for power in range(9)]
    drawn = [(draw.choices(widths, shares)[0], _run_time(draw)) for _ in range(JOBS)]
    gap_s = sum(width * ran_s for width, ran_s in drawn) / (JOBS * PROCESSORS * load)
    at_s = 0.0
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["arrival", "duration", "estimate", "cpus"])
        for width, ran_s in drawn:
            rows.writerow([f"{at_s:.3f}", f"{ran_s:.3f}", f"{ran_s:.3f}", width])
            at_s += draw.expovariate(1 / gap_s)


def _run_time(draw: random.Random) -> float:
    """One draw of the bounded Pareto distribution, by inversion."""
    low, high, u = SHORTEST_S**-TAIL, LONGEST_S**-TAIL, draw.random()
    return float((low - u * (low - high)) ** (-1 / TAIL))


def read(seed: int, load: float) -> list[TraceJob]:
    """The workload of a seed, through its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "backfill.csv"
        write_workload(path, seed, load)
        return read_jobs(path)


def replay_fcfs(jobs: Sequence[TraceJob]) -> dict[str, Any]:
    """Everybody starts in the order of arrival, and nobody before whoever came earlier."""
    ends: list[tuple[int, int]] = []
    free, now_ms, slowdowns, waits = PROCESSORS, 0, 0.0, []
    for job in jobs:
        width = job.cpu_milli // 1000
        now_ms = max(now_ms, job.arrival_ms)
        while ends and (ends[0][0] <= now_ms or free < width):
            end_ms, given_back = heapq.heappop(ends)
            now_ms, free = max(now_ms, end_ms), free + given_back
        free -= width
        heapq.heappush(ends, (now_ms + job.duration_ms, width))
        waits.append((now_ms - job.arrival_ms) / 1000)
        ran_s = job.duration_ms / 1000
        slowdowns += max(1.0, (waits[-1] + ran_s) / max(ran_s, BOUND_S))
    return {"slowdown": slowdowns / len(jobs), "longest_wait_s": max(waits)}


def replay_product(jobs: list[TraceJob], rule: str) -> dict[str, Any]:
    """The product's own queue; `late` counts protected jobs that started after the first promise they were given."""
    promised_ms: dict[str, int] = {}

    def look(world: World) -> None:
        for kept in world.state.reservations.values():
            promised_ms.setdefault(kept.job_id, kept.promised_ms - START_MS)

    began = time.process_time()
    ledger = World(_machine(), check_policy(POLICIES[rule]), look=look).run(jobs)
    spent_s = time.process_time() - began
    figures = measure(ledger)
    late_ms = [
        ledger.first_ms[number] - promised_ms[job.id]
        for number, job in enumerate(jobs)
        if job.id in promised_ms
    ]
    return {
        "slowdown": figures["bounded_slowdown"]["mean"],
        "longest_wait_s": figures["queueing_s"]["max"],
        "unfinished": figures["unfinished"],
        "protected": len(promised_ms),
        "late": sum(1 for gap_ms in late_ms if gap_ms > 0),
        "latest_s": max([0, *late_ms]) / 1000,
        "cpu_s": spent_s,
    }


def _machine() -> list[Node]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nodes.csv"
        path.write_text(f"name,cpus,memory\nmachine,{PROCESSORS},1t\n")
        return parse_cluster(str(path))


def run(seed: int, load: float, rule: str) -> dict[str, Any]:
    """One rule on one workload."""
    jobs = read(seed, load)
    found = replay_fcfs(jobs) if rule == FCFS else replay_product(jobs, rule)
    return {"seed": seed, "load": load, "rule": rule, **found}
