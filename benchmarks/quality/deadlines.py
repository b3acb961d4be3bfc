"""Deadlines missed by order of the queue, on clusters from one that is large enough down to one far too small.

Two weeks of Philly-derived jobs, each with its deadline; and two traces without any, for which they are drawn: a job is
to be done within its run time, a share of it more, and a while beside that. The first cluster for the former
is one that misses next to nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dray.core.model.policies.check import check_policy
from dray.sim.traces.figures import measure
from dray.sim.traces.readers import parse_cluster, read_jobs
from dray.sim.traces.workload import TraceJob
from dray.sim.traces.world import World

TRACE = "jobs/philly_deadlines_slo.csv.gz"
GPUS, NODES = 8, (200, 160, 120, 80, 40)
OTHERS = {"jobs/philly_t1.csv": (40, 32, 24, 16, 8), "jobs/philly_t3.csv": (20, 16, 12, 8, 4)}
SEEDS = range(1, 6)
ORDERS = ("fifo", "sjf", "edf")
BARE = ("sjf", "edf")
SLACK, LEEWAY_S = (0.1, 3.0), 3600.0


def draw_deadlines(jobs: Sequence[TraceJob], seed: int) -> list[TraceJob]:
    """Give each job of a trace without deadlines one."""
    draw = random.Random(seed)
    return [
        msgspec.structs.replace(
            job,
            deadline_ms=job.arrival_ms
            + round(
                (job.duration_ms + job.restart_ms) * (1 + draw.uniform(*SLACK))
                + draw.random() * LEEWAY_S * 1000
            ),
        )
        for job in jobs
    ]


def replay(jobs: Sequence[TraceJob], order: str, nodes: int) -> dict[str, Any]:
    """One order of the queue on so many nodes, nothing preempted."""
    policy = check_policy(
        {
            "queues": {"default": {"order": order, "protect_after_s": 0}},
            "preemption": {"strategy": "none"},
        }
    )
    began = time.process_time()
    figures = measure(World(parse_cluster(f"{nodes}x{GPUS}"), policy).run(jobs))
    return {
        "rule": order,
        "nodes": nodes,
        "missed": figures["deadline_misses"],
        "deadlines": figures["deadlines"],
        "share": figures["deadline_misses"] / figures["deadlines"],
        "jct_s": figures["jct_s"]["mean"],
        "unfinished": figures["unfinished"],
        "cpu_s": time.process_time() - began,
    }


def run(traces: Path, name: str, nodes: int, order: str, seed: int) -> dict[str, Any]:
    """One replay; `seed` 0: with the trace's own deadlines."""
    jobs = read_jobs(traces / name)
    found = replay(draw_deadlines(jobs, seed) if seed else jobs, order, nodes)
    return {"trace": Path(name).name.partition(".")[0], "seed": seed, **found}


def calls(traces: Path) -> list[tuple[Path, str, int, str, int]]:
    """All replays of the table."""
    own = [(traces, TRACE, nodes, order, 0) for nodes in NODES for order in ORDERS]
    drawn = [
        (traces, name, nodes, order, seed)
        for name, sizes in OTHERS.items()
        for nodes in sizes
        for order in BARE
        for seed in SEEDS
    ]
    return [*own, *drawn]
