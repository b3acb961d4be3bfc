"""Where tasks go: strategies, alternatives, gangs, guards, named resources, and batches."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, assigned

from dray.core.lifecycle.state.events import PolicyChanged
from dray.core.model.capability import Device
from dray.core.model.policies.policy import MIN_COST, PLACERS, PlacementPolicy, Policy, Weights, pack_policy
from dray.core.model.specs.resources import Ask
from dray.core.scheduling.capacity.matching import Room
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement.placer import STRATEGIES, Placer, make_placer

GPU: dict[str, Any] = {"gpus": 2, "vram_gb": 80}


def set_placement(cluster: Cluster, strategy: str = "greedy", **more: Any) -> None:
    policy = Policy(placement=PlacementPolicy(strategy=strategy, **more))
    cluster.turn(PolicyChanged(pack_policy(policy)))


def placer(cluster: Cluster, *asks: Ask) -> tuple[Placer, int]:
    """A placer of the policy in force and the number of a shape with these alternatives."""
    return make_placer(cluster.state, Rooms(cluster.state)), cluster.state.shapes.take(asks)


def names(cluster: Cluster, spots: Any) -> list[str]:
    return [cluster.state.columns.worker_of[spot.row] for spot in spots]


def test_every_strategy_a_policy_may_name_is_there() -> None:
    assert tuple(STRATEGIES) == (*PLACERS, MIN_COST)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("greedy", ["b-small", "b-small", "a-large"]),
        ("best_fit", ["b-small", "b-small", "a-large"]),
        ("first_fit", ["a-large", "a-large", "a-large"]),
        ("spread", ["a-large", "a-large", "a-large"]),
    ],
)
def test_each_strategy_chooses_by_its_own_rule(cluster: Cluster, strategy: str, expected: list[str]) -> None:
    set_placement(cluster, strategy)
    cluster.join("a-large", credit=8, cpus=64, memory_gb=64)
    cluster.join("b-small", credit=8, cpus=4, memory_gb=64)
    found, shape = placer(cluster, Ask(cpu_milli=2000))
    assert names(cluster, found.place(shape, 3)) == expected


def test_spread_takes_turns_between_equal_workers(cluster: Cluster) -> None:
    set_placement(cluster, "spread")
    for worker in ("a", "b", "c"):
        cluster.join(worker, credit=8)
    found, shape = placer(cluster, Ask(cpu_milli=1000))
    assert names(cluster, found.place(shape, 6)) == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_what_one_shape_claims_the_next_one_sees(cluster: Cluster, strategy: str) -> None:
    set_placement(cluster, strategy)
    cluster.join("only", credit=8, cpus=4)
    found, small = placer(cluster, Ask(cpu_milli=1000))
    large = cluster.state.shapes.take((Ask(cpu_milli=3000),))
    assert len(found.place(large, 1)) == 1
    assert len(found.place(small, 5)) == 1
    assert found.place(large, 1) == []


def test_an_exact_strategy_scores_what_others_claimed_again(cluster: Cluster) -> None:
    set_placement(cluster, "spread")
    cluster.join("a", credit=8)
    cluster.join("b", credit=8)
    found, one = placer(cluster, Ask(cpu_milli=1000))
    two = cluster.state.shapes.take((Ask(cpu_milli=1500),))
    spots = [spot for shape in (one, two, one, two) for spot in found.place(shape, 1)]
    assert names(cluster, spots) == ["a", "b", "a", "b"]


def test_fewer_spots_than_asked_for_means_no_more_room(cluster: Cluster) -> None:
    cluster.join("a", credit=2)
    cluster.join("b", credit=3)
    found, shape = placer(cluster, Ask())
    assert len(found.place(shape, 9)) == 5
    assert found.place(shape, 1) == []


def test_the_score_decides_between_alternatives_and_the_order_breaks_ties(cluster: Cluster) -> None:
    cluster.join("cpu", credit=1)
    cluster.join("gpu", credit=1, **GPU)
    on_gpu, on_cpu = Ask(gpus=2), Ask(cpu_milli=8000)
    found, shape = placer(cluster, on_gpu, on_cpu)
    spots = found.place(shape, 3)
    assert sorted(
        (spot.variant, worker) for spot, worker in zip(spots, names(cluster, spots), strict=True)
    ) == [
        (0, "gpu"),
        (1, "cpu"),
    ]
    found, alike = placer(cluster, Ask(cpu_milli=1000), Ask(cpu_milli=1000, limit_bucket=3))
    assert found.place(alike, 1)[0].variant == 0


def test_an_alternative_that_fits_is_enough(cluster: Cluster) -> None:
    cluster.join("cpu", credit=1)
    found, shape = placer(cluster, Ask(gpus=1), Ask(cpu_milli=64_000), Ask(cpu_milli=1000))
    assert [spot.variant for spot in found.place(shape, 1)] == [2]


# --- gangs ------------------------------------------------------------------------------------------------------------

GANG: dict[str, Any] = {"nodes": 2, "features": ("gang",)}


def test_a_gang_takes_distinct_workers_or_none(cluster: Cluster) -> None:
    cluster.join("a", credit=8)
    found, shape = placer(cluster, Ask(**GANG))
    assert found.place_gang(shape) is None
    assert not found.rooms.claimed
    cluster.join("b", credit=8)
    found, shape = placer(cluster, Ask(**GANG))
    spots = found.place_gang(shape)
    assert spots is not None
    assert sorted(names(cluster, spots)) == ["a", "b"]


def test_a_gang_keeps_to_one_backend_unless_told_otherwise(cluster: Cluster) -> None:
    cluster.join("a", credit=8, gpus=1, backend="nvidia")
    cluster.join("b", credit=8, gpus=1, backend="vulkan")
    found, shape = placer(cluster, Ask(gpus=1, **GANG))
    assert found.place_gang(shape) is None
    found, mixed = placer(cluster, Ask(gpus=1, mixed_backends=True, **GANG))
    assert len(found.place_gang(mixed) or ()) == 2


def test_a_gang_avoids_a_worker_only_while_it_can(cluster: Cluster) -> None:
    for worker in ("a", "b", "c"):
        cluster.join(worker, credit=8)
    found, shape = placer(cluster, Ask(**GANG))
    assert sorted(names(cluster, found.place_gang(shape, avoid=("a",)))) == ["b", "c"]
    found, shape = placer(cluster, Ask(nodes=3, features=("gang",)))
    assert sorted(names(cluster, found.place_gang(shape, avoid=("a", "gone")))) == ["a", "b", "c"]


def test_only_workers_that_know_gangs_are_members(cluster: Cluster) -> None:
    cluster.join("a", credit=8, base=True)
    cluster.join("b", credit=8)
    found, shape = placer(cluster, Ask(**GANG))
    assert found.place_gang(shape) is None


# --- guards -----------------------------------------------------------------------------------------------------------


class Reserved:
    """Keeps a worker for one job."""

    def __init__(self, owner: str) -> None:
        self.owner, self.asked = owner, 0

    def admits(self, ask: Ask, room: Room, devices: tuple[int, ...], owner: str) -> bool:
        self.asked += 1
        return owner == self.owner

    def crowd(self, used: dict[int, int], owner: str) -> dict[int, int]:
        return used


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@pytest.mark.parametrize("ask", [Ask(cpu_milli=1000), Ask(gpus=1)])
def test_a_guarded_worker_is_kept_for_its_owner(cluster: Cluster, strategy: str, ask: Ask) -> None:
    set_placement(cluster, strategy)
    cluster.join("a", credit=1, **GPU)
    cluster.join("b", credit=1, **GPU)
    found, shape = placer(cluster, ask)
    guard = found.rooms.guards[cluster.state.columns.row_of["a"]] = Reserved("mine")
    assert names(cluster, found.place(shape, 2, "other")) == ["b"]
    assert guard.asked
    assert names(cluster, found.place(shape, 1, "mine")) == ["a"]


# --- named resources and cards ----------------------------------------------------------------------------------------


def test_named_resources_are_counted(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, resources={"license": 2})
    for number in range(3):
        cluster.submit(f"j{number}", resources={"license": 1})
    assert [bool(cluster.current(f"j{number}")) for number in range(3)] == [True, True, False]
    assert cluster.blockers("j2") == [("resource", "1 license", "0 free of 2 license")]
    cluster.submit("never", resources={"license": 3})
    assert cluster.blockers("never") == [("resource", "3 license", "2 license")]
    cluster.run(cluster.current("j0"))
    cluster.end(cluster.current("j0"))
    assert cluster.current("j2")


def test_a_worker_that_comes_back_with_less_is_believed(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, resources={"license": 2})
    cluster.submit("one", resources={"license": 1})
    cluster.run(cluster.current("one"))
    cluster.register("w1", active=[cluster.active(cluster.current("one"))], resources={"license": 1})
    cluster.poll("w1", 9)
    assert assigned(cluster.submit("two", resources={"license": 1})) == []
    cluster.end(cluster.current("one"))
    assert cluster.current("two")


def test_shares_go_where_a_card_has_room_for_them(cluster: Cluster) -> None:
    cards = (Device(0, vram_bytes=10**9), Device(1, vram_bytes=40 * 10**9, healthy=False))
    cluster.join("sick", credit=9, gpus=2, devices=cards)
    found, shape = placer(cluster, Ask(gpus=1, gpu_milli=500, vram_each_bytes=2 * 10**9))
    assert found.rooms.candidates(cluster.state.asks(shape)[0]).tolist() == []
    found, shape = placer(cluster, Ask(gpus=1, gpu_milli=400))
    assert [spot.devices for spot in found.place(shape, 9)] == [(0,), (0,)]


# --- what a policy may weigh ------------------------------------------------------------------------------------------


def test_tasks_of_a_job_are_kept_apart_by_label(cluster: Cluster) -> None:
    set_placement(cluster, weights=Weights(spread=5), spread_label="rack")
    for worker, rack in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        cluster.join(worker, credit=4, labels={"rack": rack})
    cluster.submit("job", array={"first": 0, "last": 3})
    racks = [cluster.attempt(cluster.current("job", index)).worker[0] for index in range(4)]
    assert racks == ["a", "b", "a", "b"]
