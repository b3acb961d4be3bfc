"""Which card for which job: a published stream of training jobs on 36 cards of each of three kinds.

The stream's jobs have one card each and known speeds on every kind. The measure is the mean time from arrival to end of
the thousand jobs 4000 to 4999, all of them done, by how many arrive in an hour. Moves cost a restart each. What is
known of speeds is told beforehand, told wrongly, or learnt from what jobs say of their steps.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dray.core.lifecycle.state.service_events import MovesDecided
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.check import check_policy
from dray.core.scheduling.rebalancing.proposals import PERFORMANCE
from dray.core.scheduling.rebalancing.scene import Scene
from dray.core.scheduling.rebalancing.strategies import STRATEGIES
from dray.sim.traces.workload import Node, TraceJob
from dray.sim.traces.world import World

STREAM, THROUGHPUTS = "gavel/gavel_continuous_single_seed0.csv.gz", "gavel/throughputs.csv"
KINDS, CARDS = ("v100", "p100", "k80"), 36
FIRST, LAST = 4000, 5000
RATES = (4.0, 4.8, 5.2, 5.6)
RESTART_S = 300.0
LOOK_MS = 300_000
PUBLISHED = {4.0: 16.82, 4.8: 18.97, 5.2: 21.96, 5.6: 25.32}
MOVED, FREE, UNMOVED, LEARNT, WRONG = "moved", "moved free", "unmoved", "learnt", "wrong"


class AllDone(Exception):
    """Every job that is measured has ended."""


def read_speeds(traces: Path) -> dict[str, dict[str, float]]:
    """Steps a second of each type of job on each kind of card, alone on one."""
    found: dict[str, dict[str, float]] = {}
    with (traces / THROUGHPUTS).open() as file:
        for row in csv.DictReader(file):
            if row["gpus"] == "1" and row["consolidated"] == "1":
                found.setdefault(row["job_type"], {})[row["gpu_model"]] = float(row["steps_per_s"])
    return found


def read_stream(traces: Path, rate: float, restart_s: float, by_itself: bool) -> list[TraceJob]:
    """The jobs, so many of them an hour. `by_itself`: each has a name of its own."""
    speeds, jobs = read_speeds(traces), []
    with gzip.open(traces / STREAM, "rt") as file:
        for number, row in enumerate(csv.DictReader(file)):
            of_type, steps = speeds[row["job_type"]], float(row["total_steps"])
            best = max(of_type.values())
            jobs.append(
                TraceJob(
                    id=f"{number:05d}",
                    arrival_ms=round(float(row["unit_arrival"]) * 3_600_000 / rate),
                    duration_ms=round(steps / best * 1000),
                    gpus=1,
                    again_ms=round(restart_s * 1000),
                    speeds={kind: one / best for kind, one in of_type.items()},
                    steps=steps,
                    name=f"{number:05d}" if by_itself else row["job_type"],
                )
            )
    return jobs


def advise_by(strategy: str) -> Callable[[State], list[MovesDecided]]:
    """What a strategy proposes, whatever of it wins more than it costs twice over."""

    def advise(state: State) -> list[MovesDecided]:
        return [
            MovesDecided(found.moves, found.cause, "", found.gain, found.cost, found.unit, found.why)
            for found in STRATEGIES[strategy].propose(Scene(state))
            if found.gain >= 2 * found.cost
        ]

    return advise


def tell_speeds(world: World, jobs: Sequence[TraceJob], sigma: float = 0.0, seed: int = 0) -> None:
    """Let what is known of speeds be the truth, or the truth times e to a normal draw for each job and kind."""
    draw, told = random.Random(seed), set()
    for job in jobs:
        if job.name not in told:
            told.add(job.name)
            whole = job.steps / job.duration_ms * 1000
            for kind, one in job.speeds.items():
                rate = whole * one * (math.exp(draw.gauss(0, sigma)) if sigma else 1.0)
                world.state.experience.speeds.learn(job.name, kind, rate, 8, 0.0)


def replay(
    traces: Path,
    rule: str,
    rate: float,
    order: str = "sjf",
    restart_s: float = RESTART_S,
    sigma: float = 0.0,
    seed: int = 0,
    last: int = LAST,
) -> dict[str, Any]:
    """One run to the end of the jobs that are measured."""
    jobs = read_stream(traces, rate, 0.0 if rule == FREE else restart_s, by_itself=rule == WRONG)
    first = FIRST if last == LAST else last // 2
    measured = range(first, last)
    nodes = [
        Node(name=f"{kind}-{number:02d}", gpus=1, model=kind, cpu_milli=64_000, memory_bytes=1 << 40)
        for kind in KINDS
        for number in range(CARDS)
    ]
    policy = check_policy(
        {
            "queues": {"default": {"order": order, "protect_after_s": 0}},
            "preemption": {"strategy": "none"},
            "placement": {"weights": {"performance": 5}},
        }
    )

    def look(world: World) -> None:
        if world.ledger.ended >= len(measured) and all(world.ledger.ended_ms[one] >= 0 for one in measured):
            raise AllDone

    advice = None if rule == UNMOVED else advise_by(PERFORMANCE)
    world = World(nodes, policy, look=look, rebalance=advice, look_ms=LOOK_MS)
    if rule != LEARNT:
        tell_speeds(world, jobs, sigma, seed)
    began = time.process_time()
    with contextlib.suppress(AllDone):
        world.run(jobs)
    spent_s = time.process_time() - began
    times = [(world.ledger.ended_ms[one] - jobs[one].arrival_ms) / 3.6e6 for one in measured]
    moved = sum(world.ledger.preempted[one] for one in measured)
    return {
        "rule": rule,
        "rate": rate,
        "order": order,
        "restart_s": 0.0 if rule == FREE else restart_s,
        "sigma": sigma,
        "seed": seed,
        "jct_h": sum(times) / len(times),
        "moves": moved / len(times),
        "turns": world.turns,
        "cpu_s": spent_s,
    }


class Part(NamedTuple):
    """One line of the table: which rule, in which order, what a move costs, how wrong speeds are told; its bar."""

    name: str
    rule: str
    rates: tuple[float, ...]
    order: str = "sjf"
    restart_s: float = RESTART_S
    sigma: float = 0.0
    seeds: tuple[int, ...] = (0,)
    bars: tuple[float, ...] = ()


ENDS = (RATES[0], RATES[-1])
PARTS = (
    Part("x1", MOVED, RATES, bars=(16.2, 17.2, 18.2, 20.4)),
    Part("x1a", FREE, RATES, bars=(16.0, 16.9, 17.9, 19.7)),
    Part("x1b", UNMOVED, RATES),
    Part("x1c", LEARNT, RATES),
    *(Part("x1d", WRONG, ENDS, "fifo", sigma=sigma, seeds=(1, 2, 3, 4, 5)) for sigma in (0.2, 0.5, 1.0)),
    Part("x1d", UNMOVED, ENDS, "fifo"),
    *(Part("x1e", MOVED, (RATES[-1],), "fifo", restart_s) for restart_s in (60.0, 900.0, 1800.0)),
)


def calls(traces: Path, names: Collection[str]) -> list[tuple[Any, ...]]:
    """All runs of these parts; an empty choice means all of them."""
    return [
        (traces, part.name, part.rule, rate, part.order, part.restart_s, part.sigma, seed)
        for part in PARTS
        if not names or part.name in names
        for rate in part.rates
        for seed in part.seeds
    ]


def run(traces: Path, name: str, *asked: Any) -> dict[str, Any]:
    """One run of a part."""
    return {"part": name, **replay(traces, *asked)}


def bar_of(run: dict[str, Any]) -> str:
    """What is to be reached, where there is such a thing."""
    for part in PARTS:
        if part.name == run["part"] and part.bars:
            return f"<= {part.bars[part.rates.index(run['rate'])]}"
    return ""
