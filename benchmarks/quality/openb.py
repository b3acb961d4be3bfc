"""Placement on the openb cluster: how much GPU stays unallocated when as much was asked for as there is.

The published protocol: pods shuffled by a seed and inflated to 1.3 times the cluster, submitted one by one, none ever
ends, what fits nowhere is dropped. The measure is the mean over the arrivals at which the asked share rounds to 100 %.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.quality.strategies import enter
from dray.core.model.policies.policy import Limits, PlacementPolicy, Policy, PreemptionPolicy
from dray.core.model.specs.resources import WHOLE, Asks, asks_of_packed
from dray.sim.traces.readers import read_jobs, read_nodes
from dray.sim.traces.workload import Node, TraceJob, cut, make_spec
from dray.sim.traces.world import World

NODES = "openb/openb_node_list_gpu_node.csv"
VARIANTS = ("default", "multigpu30", "gpushare40", "gpuspec20", "cpu100")
SEEDS = range(42, 52)
RULES = (
    "random",
    "dot_product",
    "best_fit",
    "fgd",
    "fgd_learnt",
    "fgd_moves",
    "foresight",
    "foresight_learnt",
    "foresight_moves",
)
# Rules that go by what is usually asked for: they meet the bars of the published one of their kind.
KNOWING = ("fgd", "foresight")
TARGET, MOVED_SHARE = 1.3, 0.05
FOR_EVER_MS = 1 << 45
PUBLISHED: dict[str, dict[str, float]] = {
    "default": {
        "random": 13.70,
        "dot_product": 9.38,
        "best_fit": 7.14,
        "fgd": 4.77,
        "pass": 4.85,
        "beat": 4.55,
    },
    "multigpu30": {
        "random": 13.37,
        "dot_product": 6.89,
        "best_fit": 5.43,
        "fgd": 3.64,
        "pass": 3.78,
        "beat": 3.50,
    },
    "gpushare40": {
        "random": 15.14,
        "dot_product": 10.70,
        "best_fit": 8.56,
        "fgd": 6.04,
        "pass": 6.15,
        "beat": 5.85,
    },
    "gpuspec20": {
        "random": 14.10,
        "dot_product": 11.71,
        "best_fit": 11.54,
        "fgd": 5.34,
        "pass": 5.55,
        "beat": 5.15,
    },
    "cpu100": {
        "random": 12.56,
        "dot_product": 8.27,
        "best_fit": 6.74,
        "fgd": 4.79,
        "pass": 4.95,
        "beat": 4.60,
    },
}


def strategy_of(rule: str) -> str:
    """The strategy of a rule: its name may end in what else is different."""
    return rule.removesuffix("_learnt").removesuffix("_moves")


def published_of(variant: str, rule: str) -> float:
    """The published figure that a rule stands beside."""
    name = strategy_of(rule)
    return PUBLISHED[variant]["fgd" if name in KNOWING else name]


def asked_of(job: TraceJob) -> int:
    """GPU milli that a pod asks for in all."""
    return job.gpus * job.gpu_milli if job.gpus else 0


def inflate(pods: Sequence[TraceJob], capacity: int, seed: int) -> list[TraceJob]:
    """Shuffle the pods and bring what they ask for to the target, by the published rule."""
    draw = random.Random(seed)
    chosen = list(pods)
    draw.shuffle(chosen)
    asked, target = sum(map(asked_of, chosen)), TARGET * capacity
    enough = asked >= target
    while asked > target:
        asked -= asked_of(chosen.pop(draw.randrange(len(chosen))))
    while not enough:
        pod = pods[draw.randrange(len(pods))]
        if asked + (pod.gpu_milli if pod.gpus else 0) > target:
            break
        asked += asked_of(pod)
        chosen.append(pod)
    return [
        msgspec.structs.replace(
            pod, id=f"p{place:06d}", arrival_ms=place * 1000, duration_ms=FOR_EVER_MS, restart_ms=0
        )
        for place, pod in enumerate(chosen)
    ]


def in_order(nodes: Sequence[Node], seed: int) -> list[Node]:
    """Name the nodes so that ties go by an order fixed per seed."""
    order = list(nodes)
    random.Random(seed).shuffle(order)
    return [msgspec.structs.replace(node, name=f"n{rank:05d}-{node.name}") for rank, node in enumerate(order)]


def typical_of(pods: Sequence[TraceJob], most_gpus: int) -> dict[Asks, int]:
    """What the pods ask for, counted before inflation; memory plays no part."""
    counts: Counter[tuple[int, int, int, tuple[str, ...]]] = Counter(
        (pod.cpu_milli, pod.gpus, pod.gpu_milli if pod.gpus else 0, pod.models) for pod in pods
    )
    found: dict[Asks, int] = {}
    for (cpu, gpus, milli, models), count in counts.most_common():
        pod = TraceJob(
            id="",
            arrival_ms=0,
            duration_ms=1,
            cpu_milli=cpu,
            gpus=gpus,
            gpu_milli=milli or WHOLE,
            models=models,
        )
        found[asks_of_packed(make_spec(pod, cut(pod, most_gpus)))] = count
    return found


def preemption_of(rule: str, pods: int) -> PreemptionPolicy:
    """Nobody is stopped; by rules with moves some may be moved aside, once each, within a budget for the whole run."""
    if not rule.endswith("_moves"):
        return PreemptionPolicy(strategy="none")
    no_bound = 10**9
    limits = Limits(per_job=no_bound, per_user=no_bound, cluster=no_bound, window_s=no_bound)
    return PreemptionPolicy(strategy="none", min_run_s=0, limits=limits, moves=math.floor(MOVED_SHARE * pods))


def until_counted(jobs: Sequence[TraceJob], capacity: int) -> list[TraceJob]:
    """Leave out what arrives after the last arrival that the measure is taken at."""
    asked = 0
    for place, job in enumerate(jobs):
        asked += asked_of(job)
        if round(100 * asked / capacity) > 100:
            return list(jobs[:place])
    return list(jobs)


def measure(traces: Path, variant: str, rule: str, seed: int) -> dict[str, Any]:
    """One run. By rules that learn typical shapes are what has arrived so far, else the trace's own, as published.

    With moves it ends when nothing more is measured: looking for them in vain is most of the time spent.
    """
    enter(seed)
    pods = read_jobs(traces / f"openb/openb_pod_list_{variant}.csv")
    nodes = in_order(read_nodes(traces / NODES), seed)
    capacity = sum(node.gpus for node in nodes) * WHOLE
    jobs = inflate(pods, capacity, seed)
    if rule.endswith("_moves"):
        jobs = until_counted(jobs, capacity)
    asked = 0
    shares: list[float] = []

    def look(world: World, place: int) -> None:
        nonlocal asked
        asked += asked_of(jobs[place])
        if round(100 * asked / capacity) == 100:
            # Of what truly holds its place: whoever was moved must have come back.
            shares.append(100 - 100 * sum(asked_of(by_id[name]) for name in world.runs) / capacity)

    by_id = {job.id: job for job in jobs}
    policy = Policy(
        placement=PlacementPolicy(strategy=strategy_of(rule)),
        preemption=preemption_of(rule, len(pods)),
    )
    world = World(nodes, policy, keep=False, watch=look)
    if not rule.endswith("_learnt"):
        world.state.experience.pin_typical(typical_of(pods, max(node.gpus for node in nodes)))
    began = time.process_time()
    world.run(jobs)
    return {
        "variant": variant,
        "strategy": rule,
        "seed": seed,
        "arrivals": len(jobs),
        "placed": len(world.runs),
        "moved": world.moved,
        "unallocated": sum(shares) / len(shares),
        "cpu_s": time.process_time() - began,
    }
