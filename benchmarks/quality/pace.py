"""How fast replays go: CPU seconds of one core, event by event, nothing folded together."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from benchmarks.quality import openb
from dray.core.model.policies.policy import Policy
from dray.sim.traces.figures import measure
from dray.sim.traces.readers import parse_cluster, read_jobs
from dray.sim.traces.workload import Node, TraceJob
from dray.sim.traces.world import World

MANY, WORKERS, CORES = 1_000_000, 1_000, 8
LOAD, MEAN_S = 0.9, 60.0


def draw_short_jobs(count: int, seed: int = 1) -> list[TraceJob]:
    """Jobs of a core and about a minute each, at random moments, so many that the cluster is nearly full."""
    draw = random.Random(seed)
    rate = WORKERS * CORES * LOAD / MEAN_S
    at_s, found = 0.0, []
    for place in range(count):
        at_s += draw.expovariate(rate)
        ran_ms = max(1, round(draw.expovariate(1 / MEAN_S) * 1000))
        found.append(
            TraceJob(id=f"j{place:07d}", arrival_ms=round(at_s * 1000), duration_ms=ran_ms, cpu_milli=1000)
        )
    return found


def replay_short_jobs(count: int = MANY) -> dict[str, Any]:
    """The default policy on plain workers."""
    jobs = draw_short_jobs(count)
    nodes = [
        Node(name=f"n{place:04d}", cpu_milli=CORES * 1000, memory_bytes=1 << 36) for place in range(WORKERS)
    ]
    began = time.process_time()
    figures = measure(World(nodes, Policy()).run(jobs))
    spent_s = time.process_time() - began
    return {
        "replay": f"{count:,} short jobs on {WORKERS:,} workers",
        "jobs": figures["ended"],
        "cpu_s": spent_s,
    }


def replay_philly(traces: Path) -> dict[str, Any]:
    """A whole virtual cluster of Philly, default policy."""
    jobs = read_jobs(traces / "jobs/philly_t1.csv")
    began = time.process_time()
    figures = measure(World(parse_cluster("8x8"), Policy()).run(jobs))
    spent_s = time.process_time() - began
    return {"replay": "Philly t1 on 8x8", "jobs": figures["ended"], "cpu_s": spent_s}


def replay_openb(traces: Path, variant: str, rule: str) -> dict[str, Any]:
    """One placement run."""
    found = openb.measure(traces, variant, rule, 42)
    name = f"openb {variant}, {found['strategy']}"
    return {"replay": name, "jobs": found["arrivals"], "cpu_s": found["cpu_s"]}
