"""Order and preemption on the Philly traces: a published simulation repeated, and the product's own policies beside it.

`replay_published` is the published rule and exists to check reader and measure: it empties the cluster at every event
and charges restarts to jobs that were never moved, which no scheduler should. The product's policies go through the
core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dray.core.model.policies.check import check_policy
from dray.sim.traces.figures import measure
from dray.sim.traces.readers import parse_cluster, read_jobs
from dray.sim.traces.workload import TraceJob
from dray.sim.traces.world import World

NODES, GPUS = 8, 8
TRACES = ("t1", "t1'", "t3", "t3'")
PUBLISHED = {
    "srtf": {"t1": 1370.6, "t1'": 2303.5, "t3": 193.1, "t3'": 844.4},
    "srsf": {"t1": 980.1, "t1'": 1801.9, "t3": 185.0, "t3'": 798.1},
    "fifo": {"t1": 5787.0, "t3": 520.6},
    "sjf": {"t1": 1962.5, "t3": 247.7},
}
PUBLISHED["srsf_moves"] = PUBLISHED["srsf"]
_NO_BOUND = 10**9
POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {
        "queues": {"default": {"order": "fifo", "protect_after_s": 0}},
        "placement": {"strategy": "first_fit"},
        "preemption": {"strategy": "none"},
    },
    "sjf": {
        "queues": {"default": {"order": "sjf", "protect_after_s": 0}},
        "placement": {"strategy": "first_fit"},
        "preemption": {"strategy": "none"},
    },
    "srsf": {
        "queues": {"default": {"order": "srsf", "protect_after_s": 0}},
        "preemption": {
            "min_run_s": 0,
            "limits": {"per_job": _NO_BOUND, "per_user": _NO_BOUND, "cluster": _NO_BOUND},
        },
    },
    "srsf_moves": {
        "queues": {"default": {"order": "srsf", "protect_after_s": 0}},
        "preemption": {
            "min_run_s": 0,
            "limits": {"per_job": _NO_BOUND, "per_user": _NO_BOUND, "cluster": _NO_BOUND},
            "moves": _NO_BOUND,
        },
    },
}


def read(traces: Path, name: str) -> list[TraceJob]:
    """A trace by its name; with a prime all jobs arrive at once."""
    jobs = read_jobs(traces / f"jobs/philly_{name.rstrip(chr(39))}.csv")
    if name.endswith("'"):
        jobs = [msgspec.structs.replace(job, arrival_ms=0) for job in jobs]
    return jobs


def _srtf(job: TraceJob, left_ms: int) -> int:
    return left_ms


def _srsf(job: TraceJob, left_ms: int) -> int:
    return left_ms * job.gpus


KEYS: dict[str, Callable[[TraceJob, int], int]] = {"srtf": _srtf, "srsf": _srsf}


def replay_published(jobs: Sequence[TraceJob], key: Callable[[TraceJob, int], int]) -> float:
    """Mean completion time in thousand seconds by the published rule."""
    left = [job.duration_ms for job in jobs]
    open_jobs: list[int] = []
    running: list[int] = []
    now_ms = place = total_ms = 0
    while place < len(jobs) or open_jobs:
        # The last stretch is free of a restart: only whoever runs on through an event is charged for it.
        ends_ms = min((now_ms + left[one] for one in running), default=1 << 60)
        next_ms = min(ends_ms, jobs[place].arrival_ms if place < len(jobs) else 1 << 60)
        done = [one for one in running if now_ms + left[one] == next_ms]
        for one in running:
            left[one] -= max(next_ms - now_ms - jobs[one].restart_ms, 0)
        now_ms = next_ms
        while place < len(jobs) and jobs[place].arrival_ms <= now_ms:
            open_jobs.append(place)
            place += 1
        total_ms += sum(now_ms - jobs[one].arrival_ms for one in done)
        gone = set(done)
        open_jobs = [one for one in open_jobs if one not in gone]
        # In place: among equals the order of the last event stands.
        open_jobs.sort(key=lambda one: key(jobs[one], left[one]))
        running = _refill(jobs, open_jobs)
    return total_ms / len(jobs) / 1e6


def _refill(jobs: Sequence[TraceJob], order: Sequence[int]) -> list[int]:
    """Fill an empty cluster in this order, skipping what does not fit."""
    free = [GPUS] * NODES
    chosen: list[int] = []
    for one in order:
        wanted = jobs[one].gpus
        if sum(free) < wanted:
            continue
        if wanted <= GPUS:
            node = next((number for number, idle in enumerate(free) if idle >= wanted), None)
            if node is not None:
                free[node] -= wanted
                chosen.append(one)
            continue
        whole = [number for number, idle in enumerate(free) if idle == GPUS]
        if len(whole) >= -(-wanted // GPUS):
            for number in whole[: wanted // GPUS]:
                free[number] = 0
            chosen.append(one)
        if not any(free):
            break
    return chosen


def replay_product(jobs: list[TraceJob], policy: str) -> dict[str, Any]:
    """Mean completion time in thousand seconds by the product's own policy."""
    began = time.process_time()
    world = World(parse_cluster(f"{NODES}x{GPUS}"), check_policy(POLICIES[policy]))
    figures = measure(world.run(jobs))
    return {
        "jct_ks": figures["jct_s"]["mean"] / 1000,
        "unfinished": figures["unfinished"],
        "preemptions": figures["preemptions"],
        "moved": world.moved,
        "cpu_s": time.process_time() - began,
    }
