"""Jobs that run at other speeds on other kinds of cards, tell of their steps, and are moved where they are faster."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.state.service_events import MovesDecided
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.check import check_policy
from dray.core.scheduling.rebalancing.performance import faster_places
from dray.core.scheduling.rebalancing.scene import Scene
from dray.sim.traces.figures import measure
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


def advise(state: State) -> Sequence[MovesDecided]:
    return [
        MovesDecided(found.moves, found.cause, "", found.gain, found.cost)
        for found in faster_places(Scene(state))
    ]


def replay(jobs: Sequence[TraceJob], each: int, *, moves: bool = False, told: bool = False) -> World:
    policy = check_policy(
        {"queues": {"default": {"order": "sjf", "protect_after_s": 0}}, "preemption": {"strategy": "none"}}
    )
    world = World(nodes(each), policy, rebalance=advise if moves else None)
    for name, speeds in SPEEDS.items() if told else ():
        for kind, speed in speeds.items():
            world.state.experience.speeds.learn(name, kind, 10 * speed, 8, 0.0)
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


def test_two_that_sit_on_each_others_card_change_places_and_pay_for_it() -> None:
    """Both come at once, and nothing tells the first which card is the fast one; the other would hardly notice."""
    jobs = [job(0, "steep", 9.0, again_ms=300_000), job(1, "even", 9.0, again_ms=300_000)]
    unmoved = replay(jobs, 1, told=True)
    assert max(unmoved.ledger.ended_ms) > 80 * HOUR_MS
    world = replay(jobs, 1, moves=True, told=True)
    assert world.ledger.preempted[0] == 1
    # The other may have the fast card again when the first has done with it.
    assert 1 <= world.ledger.preempted[1] <= 2
    assert world.ledger.ended_ms[0] == 9 * HOUR_MS + 300_000
    assert world.ledger.ended_ms[1] < 11 * HOUR_MS
    assert (
        replay(
            [job(0, "steep", 0.02), job(1, "even", 0.02)], 1, moves=True, told=True
        ).ledger.preempted.count(0)
        == 2
    )


@pytest.mark.parametrize("told", [True, False])
def test_jobs_end_sooner_where_they_are_moved_whether_speeds_are_told_or_learnt(told: bool) -> None:
    draw, jobs, at_ms = random.Random(5), [], 0
    for number in range(120):
        at_ms += round(draw.expovariate(1 / 1.1) * HOUR_MS)
        name = draw.choice(("even", "steep"))
        jobs.append(job(number, name, draw.uniform(0.5, 12), at_ms, again_ms=300_000))
    moved = replay(jobs, 4, moves=True, told=told)
    unmoved = replay(jobs, 4, told=told)
    means = [measure(world.ledger)["jct_s"]["mean"] for world in (moved, unmoved)]
    assert means[0] < 0.7 * means[1]
    assert sum(moved.ledger.preempted) < 2 * len(jobs)
