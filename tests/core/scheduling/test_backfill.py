"""Reservations: a task that has waited too long gets a start, and only work that does not delay it may pass."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster

from dray.core.model.policies.policy import Cap, Pacing, PlacementPolicy, Queue
from dray.core.scheduling.placement.placer import STRATEGIES

PROTECTED = Queue(protect_after_s=10)


def crowd(cluster: Cluster, **policy: object) -> str:
    """Six of eight cores are taken for 100 s; `big` wants all eight and waits. Gives the uid of what runs."""
    cluster.rule(**({"queues": {"default": PROTECTED}} | policy))
    cluster.join("w1", credit=1000, cpus=8)
    cluster.submit("running", cpu_milli=6000, max_runtime_s=100)
    uid = cluster.current("running")
    cluster.run(uid)
    cluster.submit("big", cpu_milli=8000, max_runtime_s=60)
    return uid


def test_a_blocked_task_is_promised_the_end_of_what_runs(cluster: Cluster) -> None:
    uid = crowd(cluster)
    assert not cluster.state.reservations
    cluster.advance(10)
    kept = cluster.state.reservations["default"]
    assert kept.job_id == "big"
    assert kept.start_ms == kept.promised_ms == cluster.attempt(uid).started_ms + 100_000


def test_short_work_passes_and_long_work_does_not(cluster: Cluster) -> None:
    crowd(cluster)
    cluster.advance(10)
    cluster.submit("long", cpu_milli=1000, max_runtime_s=1000)
    cluster.submit("short", cpu_milli=1000, max_runtime_s=50)
    assert cluster.current("short")
    assert not cluster.current("long")


def test_calls_pass_only_if_their_lane_is_gone_in_time(cluster: Cluster) -> None:
    """A lane is fed for a second before its last call has its limit: 89 and a half are too long with 90 s left."""
    crowd(cluster)
    cluster.advance(10)
    cluster.map("long", count=1, cpu_milli=1000, max_runtime_s=89.5)
    assert not cluster.lanes("long")
    cluster.map("short", count=1, cpu_milli=1000, max_runtime_s=50)
    assert cluster.lanes("short")


def test_nobody_is_kept_out_before_the_time(cluster: Cluster) -> None:
    crowd(cluster)
    cluster.advance(9)
    cluster.submit("long", cpu_milli=1000, max_runtime_s=1000)
    assert cluster.current("long")


def test_work_that_leaves_enough_beside_may_pass(cluster: Cluster) -> None:
    cluster.rule(queues={"default": PROTECTED})
    cluster.join("w1", credit=1000, cpus=8)
    cluster.submit("running", cpu_milli=6000, max_runtime_s=100)
    cluster.run(cluster.current("running"))
    cluster.submit("big", cpu_milli=6000, max_runtime_s=60)
    cluster.advance(10)
    cluster.submit("beside", cpu_milli=2000, max_runtime_s=10_000)
    assert cluster.current("beside")
    cluster.submit("too-much", cpu_milli=100, max_runtime_s=10_000)
    assert not cluster.current("too-much")


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@pytest.mark.parametrize("share", [500, 1000])
def test_long_work_takes_cards_beside_those_that_are_kept(
    cluster: Cluster, strategy: str, share: int
) -> None:
    """The first card is promised together with cores that are taken now: the second does for whoever comes by."""
    cluster.rule(queues={"default": PROTECTED}, placement=PlacementPolicy(strategy=strategy))
    cluster.join("w1", credit=1000, cpus=8, gpus=2)
    cluster.submit("running", cpu_milli=6000, max_runtime_s=100)
    cluster.run(cluster.current("running"))
    cluster.submit("big", cpu_milli=8000, gpu_count=1, max_runtime_s=60)
    cluster.advance(10)
    ((_, _, _, kept),) = cluster.state.reservations["default"].spots
    cluster.submit("beside", gpu_count=1, gpu_milli=share, max_runtime_s=10_000)
    assert cluster.current("beside")
    assert cluster.attempt(cluster.current("beside")).devices != kept
    cluster.submit("too-much", gpu_count=1, max_runtime_s=10_000)
    assert not cluster.current("too-much")


def test_the_protected_task_starts_by_its_promise(cluster: Cluster) -> None:
    uid = crowd(cluster)
    cluster.advance(10)
    promised_ms = cluster.state.reservations["default"].promised_ms
    for number in range(40):
        cluster.submit(f"small-{number}", cpu_milli=1000, max_runtime_s=20 + 10 * number)
    passed = 0
    while cluster.now_ms < promised_ms:
        for held in cluster.held("w1"):
            attempt = cluster.attempt(held)
            if held != uid and not attempt.started:
                cluster.run(held)
                passed += 1
            elif held != uid and cluster.now_ms >= attempt.started_ms + attempt.limit_ms:
                cluster.end(held)
        cluster.advance(1)
    for held in cluster.held("w1"):
        cluster.end(held)
    assert passed > 2
    assert not [held for held in cluster.held("w1") if cluster.attempt(held).job_id != "big"]
    assert cluster.current("big")
    assert cluster.attempt(cluster.current("big")).assigned_ms <= promised_ms


def test_an_early_end_brings_an_early_start(cluster: Cluster) -> None:
    uid = crowd(cluster)
    cluster.advance(10)
    cluster.end(uid)
    assert cluster.current("big")
    assert not cluster.state.reservations


def test_whoever_stands_before_the_owner_does_not_get_its_room(cluster: Cluster) -> None:
    uid = crowd(cluster, queues={"default": Queue(order="priority", ageing_s=0, protect_after_s=10)})
    cluster.advance(10)
    cluster.submit("higher", cpu_milli=8000, max_runtime_s=60, priority=50)
    cluster.end(uid)
    assert cluster.current("big")
    assert not cluster.current("higher")


def test_a_cancelled_owner_leaves_its_room_to_others(cluster: Cluster) -> None:
    crowd(cluster)
    cluster.advance(10)
    cluster.submit("long", cpu_milli=1000, max_runtime_s=1000)
    assert not cluster.current("long")
    cluster.cancel("big")
    assert cluster.current("long")


def test_two_queues_are_not_promised_the_same_room(cluster: Cluster) -> None:
    uid = crowd(cluster, queues={"default": PROTECTED, "other": PROTECTED})
    cluster.submit("rival", queue="other", cpu_milli=8000, max_runtime_s=60)
    cluster.advance(15)
    assert list(cluster.state.reservations) == ["default"]
    cluster.end(uid)
    assert cluster.current("big")
    cluster.run(cluster.current("big"))
    cluster.advance(45)
    assert cluster.state.reservations["other"].job_id == "rival"


def test_room_is_not_kept_for_what_a_rule_holds_back(cluster: Cluster) -> None:
    policy = {"queues": {"default": PROTECTED}, "pacing": Pacing(running=(Cap(label="x", most=1),))}
    cluster.rule(**policy)
    cluster.join("w1", credit=1000, cpus=8)
    cluster.submit("capping", cpu_milli=1000, labels={"x": "1"}, max_runtime_s=10_000)
    cluster.run(cluster.current("capping"))
    cluster.submit("running", cpu_milli=6000, max_runtime_s=100)
    cluster.run(cluster.current("running"))
    cluster.submit("capped", cpu_milli=7000, labels={"x": "2"}, max_runtime_s=60)
    cluster.advance(60)
    assert not cluster.state.reservations
    cluster.submit("long", cpu_milli=1000, max_runtime_s=1000)
    assert cluster.current("long")


def test_room_is_not_kept_for_an_array_at_its_own_limit(cluster: Cluster) -> None:
    cluster.rule(queues={"default": PROTECTED})
    cluster.join("w1", credit=1000, cpus=8)
    cluster.submit("one-by-one", cpu_milli=4000, max_runtime_s=1000, array={"last": 3, "limit": 1})
    cluster.run(cluster.current("one-by-one"))
    cluster.submit("filler", cpu_milli=4000, max_runtime_s=100)
    cluster.run(cluster.current("filler"))
    cluster.advance(60)
    assert not cluster.state.reservations


@pytest.mark.parametrize("protect_after_s", [0, 600])
def test_a_policy_may_end_protection(cluster: Cluster, protect_after_s: float) -> None:
    crowd(cluster)
    cluster.advance(5)
    cluster.rule(queues={"default": Queue(protect_after_s=protect_after_s)})
    cluster.advance(30)
    assert not cluster.state.reservations
    cluster.submit("long", cpu_milli=1000, max_runtime_s=1000)
    assert cluster.current("long")


def test_a_policy_may_bring_protection_forward(cluster: Cluster) -> None:
    crowd(cluster, queues={"default": Queue(protect_after_s=600)})
    cluster.advance(15)
    cluster.rule(queues={"default": PROTECTED})
    cluster.advance(31)
    assert cluster.state.reservations["default"].job_id == "big"


def test_a_worker_that_goes_takes_its_promise_along(cluster: Cluster) -> None:
    """The next worker promises a later start."""
    crowd(cluster)
    cluster.submit("there", cpu_milli=6000, max_runtime_s=300)
    cluster.join("w2", credit=1000, cpus=7)
    cluster.run(cluster.current("there"))
    cluster.advance(10)
    assert [spot[1] for spot in cluster.state.reservations["default"].spots] == [0]
    cluster.break_socket("w1")
    assert not cluster.state.reservations
    cluster.join("w3", credit=1000, cpus=8)
    assert cluster.current("big")


def test_the_next_in_line_is_watched_when_the_first_is_cancelled(cluster: Cluster) -> None:
    crowd(cluster)
    cluster.submit("next", cpu_milli=8000, max_runtime_s=60)
    cluster.advance(5)
    cluster.cancel("big")
    cluster.advance(10)
    assert cluster.state.reservations["default"].job_id == "next"


def test_a_gang_is_promised_room_for_all_its_members(cluster: Cluster) -> None:
    cluster.rule(queues={"default": PROTECTED})
    for number, limit_s in ((1, 50), (2, 200)):
        cluster.join(f"w{number}", credit=1000, cpus=8)
        cluster.submit(f"running-{number}", cpu_milli=6000, max_runtime_s=limit_s)
        cluster.run(cluster.current(f"running-{number}"))
    cluster.submit("gang", node_count=2, cpu_milli=8000, max_runtime_s=60)
    cluster.advance(10)
    kept = cluster.state.reservations["default"]
    assert sorted(spot[1] for spot in kept.spots) == [0, 1]
    cluster.submit("long", cpu_milli=1000, max_runtime_s=10_000, array={"last": 3})
    assert not cluster.current("long")
    cluster.end(cluster.current("running-1"))
    assert not cluster.current("gang")
    cluster.end(cluster.current("running-2"))
    assert cluster.current("gang", 0)
    assert cluster.current("gang", 1)


def test_one_that_finds_no_start_is_looked_at_again(cluster: Cluster) -> None:
    """Nothing that runs has a limit: there is no promise yet, and the next look is timed."""
    cluster.rule(queues={"default": PROTECTED})
    cluster.join("w1", credit=1000, cpus=8, service=8)
    cluster.submit("endless", type="service", cpu_milli=6000)
    uid = cluster.current("endless")
    cluster.run(uid)
    cluster.submit("big", cpu_milli=8000, max_runtime_s=60)
    cluster.advance(20)
    assert not cluster.state.reservations
    cluster.submit("limited", cpu_milli=1000, max_runtime_s=100)
    cluster.run(cluster.current("limited"))
    cluster.cancel("endless")
    cluster.advance(40)
    assert cluster.state.reservations["default"].job_id == "big"


def test_a_job_that_is_moved_to_another_queue_gives_its_promise_up(cluster: Cluster) -> None:
    """Each queue keeps room for one of its own: the next of the old one is protected, and the job by the new one."""
    crowd(cluster, queues={"default": PROTECTED, "other": Queue(protect_after_s=30), "third": PROTECTED})
    cluster.submit("next", cpu_milli=7000, max_runtime_s=60)
    cluster.advance(11)
    assert cluster.state.reservations["default"].job_id == "big"
    cluster.edit("big", queue="other")
    assert [kept.job_id for kept in cluster.state.reservations.values()] == ["next"]
    cluster.cancel("next")
    cluster.advance(10)
    assert not cluster.state.reservations
    cluster.advance(10)
    assert {queue: kept.job_id for queue, kept in cluster.state.reservations.items()} == {"other": "big"}
    cluster.edit("big", queue="third")
    assert {queue: kept.job_id for queue, kept in cluster.state.reservations.items()} == {"third": "big"}


def test_a_job_that_asks_for_something_else_is_promised_that(cluster: Cluster) -> None:
    cluster.join("w2", credit=1000, cpus=16)
    cluster.submit("there", cpu_milli=16_000, max_runtime_s=200)
    cluster.run(cluster.current("there"))
    crowd(cluster)
    cluster.advance(10)
    cluster.submit("long", cpu_milli=1000, max_runtime_s=1000)
    assert not cluster.current("long")
    cluster.edit("big", cpu_milli=16_000)
    ((_, row, _, _),) = cluster.state.reservations["default"].spots
    assert cluster.state.columns.worker_of[row] == "w2"
    assert cluster.current("long")


def test_what_is_asked_to_stop_makes_room_beside_a_reservation_at_once(cluster: Cluster) -> None:
    """What had no limit will be gone by the promised start now: others need not wait until it is."""
    cluster.rule(queues={"default": PROTECTED})
    cluster.join("w1", credit=1000, cpus=8)
    cluster.submit("running", cpu_milli=5000, max_runtime_s=100)
    cluster.submit("endless", cpu_milli=1000, max_runtime_s=100_000)
    for job_id in ("running", "endless"):
        cluster.run(cluster.current(job_id))
    cluster.submit("big", cpu_milli=7000, max_runtime_s=60)
    cluster.advance(10)
    cluster.submit("long", cpu_milli=1000, max_runtime_s=1000)
    assert not cluster.current("long")
    leaving = cluster.current("endless")
    cluster.cancel("endless", grace_s=30)
    assert leaving in cluster.held("w1")
    assert cluster.current("long")


def test_the_next_promise_goes_to_whoever_is_first_in_turn(cluster: Cluster) -> None:
    """Of those who wait for the queue's one reservation the earliest gets it, at once, whoever was found due first."""
    uid = crowd(cluster)
    cluster.submit("second", cpu_milli=7000, max_runtime_s=60)
    cluster.submit("third", cpu_milli=5000, max_runtime_s=60)
    cluster.advance(10)
    cluster.state.unprotected = {"third": None, "second": None}
    cluster.end(uid)
    assert cluster.current("big")
    assert cluster.state.reservations["default"].job_id == "second"


def test_a_burst_does_not_keep_others_from_a_promise(cluster: Cluster) -> None:
    """In a queue by fair share the reservation goes to whoever has had less, not to whoever came first."""
    cluster.rule(queues={"default": Queue(order="fair_share", protect_after_s=10)})
    cluster.join("w1", credit=1000, cpus=8)
    cluster.submit("running", user="burst", cpu_milli=8000, max_runtime_s=100)
    cluster.run(cluster.current("running"))
    cluster.submit("more", user="burst", cpu_milli=8000, max_runtime_s=100)
    cluster.submit("other", user="ada", cpu_milli=7000, max_runtime_s=100)
    cluster.advance(10)
    assert cluster.state.reservations["default"].job_id == "other"
