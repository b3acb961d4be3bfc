"""Placing with foresight: rare room is kept, gaps are filled, and what is kept follows what changes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.state.events import PolicyChanged
from dray.core.model.policies.policy import PlacementPolicy, Policy, pack_policy
from dray.core.model.specs.resources import WHOLE, Ask, Asks
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement.foresight import MOST_UNSEEN, foresight_of
from dray.core.scheduling.placement.placer import Placer, make_placer

ONE = Ask(gpus=1, cpu_milli=1000)


@pytest.fixture(autouse=True)
def _far(cluster: Cluster) -> None:
    cluster.turn(PolicyChanged(pack_policy(Policy(placement=PlacementPolicy(strategy="foresight")))))


def join(cluster: Cluster, name: str, cards: int, cpus: int = 64, **labels: str) -> None:
    cluster.join(name, credit=50, cpus=cpus, gpus=cards, batch=50, labels=labels)


def take_up(cluster: Cluster, *usual: tuple[Ask, int]) -> Placer:
    """A placer of a site that usually asks for this."""
    shapes: dict[Asks, int] = {(ask,): count for ask, count in usual}
    cluster.state.experience.pin_typical(shapes)
    return make_placer(cluster.state, Rooms(cluster.state))


def place(cluster: Cluster, placer: Placer, ask: Ask) -> tuple[str, tuple[int, ...]]:
    (spot,) = placer.place(cluster.state.shapes.take((ask,)), 1)
    return cluster.state.columns.worker_of[spot.row], spot.devices


def test_cards_that_others_name_are_left_to_them(cluster: Cluster) -> None:
    join(cluster, "a-rare", 2, zone="rare")
    join(cluster, "b-plain", 2, zone="plain")
    named = Ask(gpus=1, cpu_milli=1000, require=("zone=rare",))
    placer = take_up(cluster, (named, 50), (ONE, 50))
    assert place(cluster, placer, ONE)[0] == "b-plain"
    assert place(cluster, placer, named)[0] == "a-rare"


def test_cards_that_nobody_names_are_taken_in_order(cluster: Cluster) -> None:
    join(cluster, "a", 2, zone="rare")
    join(cluster, "b", 2, zone="plain")
    placer = take_up(cluster, (ONE, 50))
    assert place(cluster, placer, ONE)[0] == "a"


def test_a_gap_is_filled_by_what_leaves_nothing_over(cluster: Cluster) -> None:
    join(cluster, "a", 2)
    half, rest = Ask(gpus=1, gpu_milli=550), Ask(gpus=1, gpu_milli=450)
    placer = take_up(cluster, (half, 10), (rest, 10), (ONE, 10))
    assert place(cluster, placer, half) == ("a", (0,))
    assert place(cluster, placer, rest) == ("a", (0,))


def test_whole_workers_are_kept_for_wide_work(cluster: Cluster) -> None:
    join(cluster, "a", 4)
    join(cluster, "b", 4)
    wide = Ask(gpus=4, cpu_milli=1000)
    placer = take_up(cluster, (ONE, 4), (wide, 1))
    workers = [place(cluster, placer, ONE)[0] for _ in range(4)]
    assert len(set(workers)) == 1
    assert place(cluster, placer, wide)[0] not in workers


def test_work_without_cards_goes_where_cores_are_over(cluster: Cluster) -> None:
    join(cluster, "a-tight", 4, cpus=16)
    join(cluster, "b-rich", 2, cpus=64)
    placer = take_up(cluster, (Ask(gpus=1, cpu_milli=4000), 10))
    assert place(cluster, placer, Ask(cpu_milli=8000))[0] == "b-rich"


def test_a_worker_with_more_cards_than_any_before_may_join_at_any_time(cluster: Cluster) -> None:
    join(cluster, "a", 1, zone="old")
    wide = Ask(gpus=16, cpu_milli=1000)
    placer = take_up(cluster, (ONE, 10), (wide, 1))
    assert place(cluster, placer, ONE)[0] == "a"
    join(cluster, "b", 16, zone="new")
    later = make_placer(cluster.state, Rooms(cluster.state))
    assert place(cluster, later, wide) == ("b", tuple(range(16)))


def test_the_usual_work_is_lined_up_anew_when_as_much_again_was_placed(cluster: Cluster) -> None:
    join(cluster, "a", 1)
    experience = cluster.state.experience
    experience.learn_placed((ONE,), 100)
    first = foresight_of(cluster.state)
    experience.learn_placed((Ask(gpus=1, gpu_milli=WHOLE // 2),), 90)
    assert foresight_of(cluster.state) is first
    experience.learn_placed((Ask(gpus=1, gpu_milli=WHOLE // 2),), 20)
    second = foresight_of(cluster.state)
    assert second is not first
    assert second.placed == 210


def test_a_site_with_a_long_history_still_learns(cluster: Cluster) -> None:
    join(cluster, "a", 1)
    experience = cluster.state.experience
    experience.learn_placed((ONE,), 10 * MOST_UNSEEN)
    first = foresight_of(cluster.state)
    experience.learn_placed((Ask(gpus=1, gpu_milli=WHOLE // 2),), MOST_UNSEEN)
    assert foresight_of(cluster.state) is not first


def test_a_site_that_knows_nothing_yet_takes_workers_in_order(cluster: Cluster) -> None:
    join(cluster, "a", 1)
    join(cluster, "b", 1)
    placer = make_placer(cluster.state, Rooms(cluster.state))
    asked: list[Any] = [place(cluster, placer, ONE)[0] for _ in range(2)]
    assert asked == ["a", "b"]
