"""Jobs that run at other speeds on other kinds of cards, and tell of their steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dray.core.lifecycle.invariants import problems
from dray.core.model.policies.check import check_policy
from dray.sim.traces.workload import Node, TraceJob
from dray.sim.traces.world import World

HOUR_MS = 3_600_000
SPEEDS = {"even": {"v100": 1.0, "k80": 0.9}, "steep": {"v100": 1.0, "k80": 0.1}}


def nodes(each: int) -> list[Node]:
    return [
        Node(name=f"{kind}-{number}", gpus=1, model=kind, cpu_milli=8000, memory_bytes=1 << 40)
        for kind in ("v100", "k80")
        for number in range(each)
    ]


def job(number: int, name: str, hours: float, arrival_ms: int = 0, again_ms: int = 0) -> TraceJob:
    return TraceJob(
        id=f"{number:04d}",
        arrival_ms=arrival_ms,
        duration_ms=round(hours * HOUR_MS),
        gpus=1,
        speeds=SPEEDS[name],
        steps=hours * 36_000,
        name=name,
        again_ms=again_ms,
    )


def replay(jobs: Sequence[TraceJob], each: int) -> World:
    policy = check_policy(
        {"queues": {"default": {"order": "sjf", "protect_after_s": 0}}, "preemption": {"strategy": "none"}}
    )
    world = World(nodes(each), policy)
    world.run(jobs)
    assert problems(world.state) == []
    return world


def test_a_job_takes_as_long_as_its_kind_of_card_takes() -> None:
    """The first has the slow card, for nothing tells it which that is, and the fast one is left to the second."""
    world = replay([job(0, "even", 9.0), job(1, "steep", 9.0)], 1)
    assert list(world.ledger.ended_ms) == [10 * HOUR_MS, 9 * HOUR_MS]
    world = replay([job(0, "steep", 9.0), job(1, "even", 9.0)], 1)
    assert list(world.ledger.ended_ms) == [90 * HOUR_MS, 9 * HOUR_MS]


def test_what_jobs_tell_of_their_steps_is_how_fast_they_are_on_each_kind() -> None:
    world = replay([job(number, "steep", 2.0, number * 1000) for number in range(6)], 1)
    relative = world.state.experience.speeds.relative("steep")
    assert relative["v100"] == 1.0
    assert relative["k80"] == pytest.approx(0.1, rel=0.01)
    assert world.state.experience.speeds.error_of("steep", ("v100", "k80")) < 0.01
