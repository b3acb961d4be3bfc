"""Tasks placed together: hints are used while they fit, and a solver that says nothing holds nobody up."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.state.effects import Effect, SolveWanted
from dray.core.lifecycle.state.events import HoldChanged
from dray.core.lifecycle.state.pass_events import HintsGiven, SolverTold
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.passes.batches import DEADLINE_MS, FEW
from dray.core.scheduling.solving.costs import Group, count_room
from dray.core.scheduling.solving.exchanges import solve_by_exchanges, solve_in_turn
from dray.hub.aside.min_cost import solve_by_flow

GB = 1 << 30
KINDS = ("k80", "v100", "a100")


@pytest.fixture
def mixed(cluster: Cluster) -> Cluster:
    """Three kinds of card with four each, on which jobs of two names differ in speed."""
    cluster.rule(placement={"strategy": "min_cost", "weights": {"performance": 5, "warmth": 0}})
    for kind in KINDS:
        cluster.join(kind, credit=1 << 20, gpus=4, gpu_type=kind, cpus=64, batch=64)
    # Everybody is fastest on an A100, but only one of them gains much by it.
    for name, times in {"wide": (1000.0, 900.0, 800.0), "deep": (8000.0, 3000.0, 800.0)}.items():
        for kind, took in zip(KINDS, times, strict=True):
            cluster.state.experience.runtimes[name, kind] = took, 5
    return cluster


def where(cluster: Cluster, *jobs: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for job in jobs:
        found[job] = sorted(cluster.attempt(uid).worker for uid in cluster.state.live_of.get(job, ()))
    return found


def hold_all(cluster: Cluster, *jobs: tuple[str, str, int]) -> None:
    for job, name, count in jobs:
        cluster.submit(job, name=name, gpu_count=1, array={"last": count - 1}, hold=True)


def test_a_few_tasks_are_exchanged_within_the_pass(mixed: Cluster) -> None:
    mixed.submit("full", gpu_count=4, gpu_type="v100")
    mixed.submit("busy", gpu_count=4, gpu_type="k80")
    # All at once in one turn: the first in line would take the A100s one by one.
    for job, name in (("first", "wide"), ("second", "deep")):
        mixed.submit(job, name=name, gpu_count=1, array={"last": 3})
    assert where(mixed, "first") == {"first": ["a100"] * 4}
    mixed.cancel("first")
    mixed.cancel("second")
    for job in ("full", "busy", "first"):
        for uid in list(mixed.state.live_of.get(job, ())):
            mixed.end(uid, "killed" if job == "first" else "succeeded")
    mixed.advance(2)
    hold_all(mixed, ("wide-1", "wide", 4), ("deep-1", "deep", 4))
    mixed.turn(HoldChanged("wide-1", False, "bob"), HoldChanged("deep-1", False, "bob"))
    found = where(mixed, "wide-1", "deep-1")
    assert found["deep-1"] == ["a100"] * 4, "who gains most by the fast cards has them"
    assert found["wide-1"] == ["v100"] * 4


def wanted(effects: list[Effect]) -> list[int]:
    return [effect.number for effect in effects if isinstance(effect, SolveWanted)]


@pytest.fixture
def large(cluster: Cluster) -> Cluster:
    """Room for many, and somebody to ask."""
    cluster.rule(placement={"strategy": "min_cost"})
    for name in ("w1", "w2"):
        cluster.join(name, credit=1 << 20, cpus=400, batch=400)
    cluster.turn(SolverTold(True))
    return cluster


def test_many_tasks_wait_for_their_hints_and_others_do_not(large: Cluster) -> None:
    [number] = wanted(large.submit("many", array={"last": 99}, cpu_milli=1000))
    assert where(large, "many") == {"many": []}
    large.submit("other", cpu_milli=500, memory_bytes=GB)
    assert len(where(large, "other")["other"]) == 1, "whoever is not of the batch starts at once"
    hints = tuple(("many", index, "w2" if index % 2 else "w1") for index in range(100))
    large.turn(HintsGiven(number, hints))
    placed = {large.attempt(uid).index: large.attempt(uid).worker for uid in large.state.live_of["many"]}
    assert placed == {index: worker for _, index, worker in hints}


def test_a_solver_that_says_nothing_holds_nobody_up(large: Cluster) -> None:
    [number] = wanted(large.submit("many", array={"last": 99}, cpu_milli=1000))
    large.advance(DEADLINE_MS / 1000 - 0.001)
    assert where(large, "many") == {"many": []}
    large.advance(0.001)
    assert len(where(large, "many")["many"]) == 100
    large.turn(HintsGiven(number, (("many", 0, "w1"),)))
    assert large.state.batch is not None
    assert not large.state.batch.hints, "an answer to a batch that is over is none"
    large.advance(1.001)
    assert large.state.batch is None


def test_hints_for_a_state_long_gone_do_no_harm(large: Cluster) -> None:
    [number] = wanted(large.submit("many", array={"last": 99}, cpu_milli=1000))
    hints = [("many", index, "w1") for index in range(100)]
    hints[3], hints[4], hints[5] = ("many", 3, "nobody"), ("gone", 0, "w1"), ("many", 500, "w1")
    large.leave("w1")
    large.turn(HintsGiven(number, tuple(hints)))
    assert where(large, "many") == {"many": ["w2"] * 100}


@pytest.mark.parametrize(("count", "ready"), [(FEW - 1, True), (200, False)])
def test_nobody_is_asked_about_few_or_where_there_is_no_solver(
    large: Cluster, count: int, ready: bool
) -> None:
    large.turn(SolverTold(ready))
    assert wanted(large.submit("some", array={"last": count - 1}, cpu_milli=1000)) == []
    assert len(where(large, "some")["some"]) == count


def test_other_strategies_have_no_batches(large: Cluster) -> None:
    large.rule()
    assert wanted(large.submit("many", array={"last": 99}, cpu_milli=1000)) == []
    assert len(where(large, "many")["many"]) == 100


def total(group: Group, rows: list[int]) -> int:
    held = np.bincount([row for row in rows if row >= 0], minlength=len(group.room))
    assert (held <= group.room).all()
    pairs = zip(group.kind_of.tolist(), rows, strict=True)
    return sum(int(group.costs[kind, row]) for kind, row in pairs if row >= 0)


@pytest.mark.parametrize("seed", range(12))
def test_exchanges_better_the_turn_and_flow_is_best(seed: int) -> None:
    rng = random.Random(seed)
    tasks, workers = rng.randint(2, 40), rng.randint(1, 12)
    room = np.array([rng.randint(0, 6) for _ in range(workers)], dtype=np.int64)
    costs = np.array([[rng.choice([-1, *range(0, 1000, 50)]) for _ in range(workers)] for _ in range(tasks)])
    group = Group([("job", number) for number in range(tasks)], np.arange(tasks), costs, room)
    in_turn, exchanged, best = (solve(group) for solve in (solve_in_turn, solve_by_exchanges, solve_by_flow))
    assert sum(row >= 0 for row in exchanged) == sum(row >= 0 for row in in_turn)
    assert total(group, exchanged) <= total(group, in_turn)
    placed = [sum(row >= 0 for row in rows) for rows in (in_turn, best)]
    assert placed[1] >= placed[0]
    if placed[0] == placed[1]:
        assert total(group, best) <= total(group, exchanged)
    assert all(row < 0 or costs[number, row] >= 0 for number, row in enumerate(best))


def test_room_is_counted_as_tasks_would_find_it(mixed: Cluster) -> None:
    mixed.submit("half", gpu_count=1, gpu_milli=500)
    mixed.submit("whole", gpu_count=1, hold=True)
    mixed.submit("part", gpu_count=1, gpu_milli=300, hold=True)
    whole, part = (mixed.state.asks(mixed.job(name).shape)[0] for name in ("whole", "part"))
    rooms = Rooms(mixed.state)
    assert int(count_room(rooms, whole).sum()) == 11
    assert int(count_room(rooms, part).sum()) == 11 * 3 + 1
    row = mixed.state.columns.row_of["a100"]
    devices = rooms.fit(row, whole)
    assert devices is not None
    before = int(count_room(rooms, part)[row])
    rooms.claim(row, whole, devices)
    assert int(count_room(rooms, whole).sum()) == 10
    assert before - int(count_room(rooms, part)[row]) == 3
