"""Deadlines on two weeks of Philly-derived jobs: how many are missed on a cluster that is a little too small.

The cluster is the first, going down from one that misses next to nothing, on which `fifo` misses at least a tenth.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dray.core.model.policies.check import check_policy
from dray.sim.traces.figures import measure
from dray.sim.traces.readers import parse_cluster, read_jobs
from dray.sim.traces.workload import TraceJob
from dray.sim.traces.world import World

TRACE = "jobs/philly_deadlines_slo.csv.gz"
GPUS, LARGEST, STEP = 8, 200, 10
LEAST_MISSED, MOST_MISSED = 0.10, 0.20
OTHERS = ("sjf", "edf")


def replay(jobs: list[TraceJob], order: str, nodes: int) -> dict[str, Any]:
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


def run(traces: Path) -> list[dict[str, Any]]:
    """Find the cluster, then compare the orders on it."""
    jobs = read_jobs(traces / TRACE)
    nodes, found = LARGEST, replay(jobs, "fifo", LARGEST)
    while found["share"] < LEAST_MISSED:
        nodes -= STEP
        found = replay(jobs, "fifo", nodes)
    if found["share"] > MOST_MISSED:
        raise RuntimeError(f"on {nodes} nodes fifo misses {found['share']:.0%}: take smaller steps")
    return [found, *(replay(jobs, order, nodes) for order in OTHERS)]
