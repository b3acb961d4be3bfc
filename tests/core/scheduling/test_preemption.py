"""Who is stopped for whom, how often, and what becomes of both."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.holding.receipts import receipts
from dray.core.lifecycle.state.events import HoldChanged, JobsSubmitted, NewJob
from dray.core.model.policies.policy import FairShare, Limits, PreemptionPolicy, Queue
from dray.core.model.records.ledger import Receipt
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec

BANDS = Queue(order="priority", ageing_s=0, protect_after_s=0)


def govern(cluster: Cluster, queue: Queue = BANDS, **preemption: Any) -> None:
    given = {"min_run_s": 0, **preemption}
    cluster.rule(queues={"default": queue, "other": queue}, preemption=PreemptionPolicy(**given))


def run(cluster: Cluster, job: str, index: int = 0, **spec: Any) -> str:
    """Submit a job and let it run; gives its uid."""
    if job not in cluster.state.jobs:
        cluster.submit(job, **spec)
    uid = cluster.current(job, index)
    cluster.run(uid)
    return uid


def only(cluster: Cluster) -> Receipt:
    (found,) = receipts(cluster.state)
    return found


def stopping(cluster: Cluster) -> list[str]:
    return sorted(a.job_id for a in cluster.state.attempts.values() if a.cancel == "preempted")


def test_a_higher_band_stops_a_lower_one_and_takes_its_room(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, batch=1)
    uid = run(cluster, "low", priority=1)
    cluster.advance(7)
    cluster.submit("high", priority=5)
    assert stopping(cluster) == ["low"]
    receipt = only(cluster)
    assert (receipt.status, receipt.job_id, receipt.rule) == ("open", "high", "priority")
    (victim,) = receipt.victims
    assert (victim.uid, victim.ran_ms, victim.lost_ms, victim.grace_s) == (uid, 7000, 7000, 30)
    assert not cluster.current("high")
    cluster.end(uid, "preempted")
    assert cluster.current("high")
    assert only(cluster).status == "served"
    assert only(cluster).gone == (uid,)
    task = cluster.task("low")
    assert (task.queued, task.failures, task.losses, task.preemptions) == (True, 0, 0, 1)


def test_a_victim_heads_its_band_only(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, batch=1)
    cluster.submit("first", priority=1)
    uid = run(cluster, "first")
    cluster.submit("second", priority=1)
    cluster.submit("high", priority=5)
    cluster.submit("between", priority=3)
    cluster.end(uid, "killed")
    assert cluster.serve_all() == ["high", "between", "first", "second"]


@pytest.mark.parametrize("priority", [1, 0])
def test_an_equal_or_lower_band_stops_nobody(cluster: Cluster, priority: int) -> None:
    govern(cluster, by_tier=True)
    cluster.join("w1", credit=100, batch=1)
    run(cluster, "low", priority=1)
    cluster.submit("other", priority=priority)
    assert stopping(cluster) == []


def test_a_band_that_comes_from_the_tier_stops_nobody_unless_told(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, batch=1)
    run(cluster, "low", priority=-5)
    cluster.submit("tiered", job_tier="training")
    assert stopping(cluster) == []
    govern(cluster, by_tier=True)
    assert stopping(cluster) == ["low"]


def test_the_lowest_band_falls_first_then_what_loses_least(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, batch=3)
    run(cluster, "middle", priority=2)
    run(cluster, "old", priority=1)
    cluster.advance(50)
    run(cluster, "young", priority=1)
    cluster.advance(5)
    cluster.submit("high", priority=5)
    assert stopping(cluster) == ["young"]


def test_no_more_victims_than_it_takes(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, cpus=8)
    run(cluster, "a", priority=1, cpu_milli=1000)
    run(cluster, "b", priority=1, cpu_milli=1000)
    cluster.advance(5)
    run(cluster, "c", priority=1, cpu_milli=6000)
    cluster.submit("high", priority=5, cpu_milli=6000)
    assert stopping(cluster) == ["c"]


def test_one_cheap_worker_goes_before_a_dear_one(cluster: Cluster) -> None:
    govern(cluster)
    for name in ("w1", "w2"):
        cluster.join(name, credit=100, batch=1)
    run(cluster, "dear", priority=2)
    run(cluster, "cheap", priority=1)
    cluster.submit("high", priority=5)
    assert stopping(cluster) == ["cheap"]


def test_nobody_is_stopped_right_after_its_start(cluster: Cluster) -> None:
    govern(cluster, min_run_s=20)
    cluster.join("w1", credit=100, batch=1)
    run(cluster, "low", priority=1)
    cluster.submit("high", priority=5)
    assert stopping(cluster) == []
    cluster.advance(19)
    assert stopping(cluster) == []
    cluster.advance(6)  # looked at every few seconds
    assert stopping(cluster) == ["low"]


def test_it_waits_before_it_asks_for_victims(cluster: Cluster) -> None:
    govern(cluster, wait_s=10)
    cluster.join("w1", credit=100, batch=1)
    run(cluster, "low", priority=1)
    cluster.submit("high", priority=5)
    cluster.advance(9)
    assert stopping(cluster) == []
    cluster.advance(2)
    assert stopping(cluster) == ["low"]


@pytest.mark.parametrize("limits", [Limits(per_job=1), Limits(per_user=1), Limits(cluster=1)])
def test_limits_hold_within_one_decision(cluster: Cluster, limits: Limits) -> None:
    govern(cluster, limits=limits)
    cluster.join("w1", credit=100, cpus=8)
    cluster.submit("low", priority=1, cpu_milli=4000, array={"last": 1})
    for index in (0, 1):
        run(cluster, "low", index)
    cluster.submit("high", priority=5, cpu_milli=8000)
    assert stopping(cluster) == []


def test_limits_hold_over_a_window(cluster: Cluster) -> None:
    govern(cluster, limits=Limits(per_job=1, window_s=60))
    cluster.join("w1", credit=100, batch=1)
    uid = run(cluster, "low", priority=1)
    cluster.submit("high-1", priority=5)
    cluster.end(uid, "preempted")
    cluster.end(run(cluster, "high-1"))
    run(cluster, "low")
    cluster.submit("high-2", priority=5)
    cluster.advance(30)
    assert stopping(cluster) == ["low"]  # the first time only
    cluster.advance(40)
    assert stopping(cluster) == ["low", "low"]


def test_what_may_start_once_only_is_never_stopped(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, batch=1)
    run(cluster, "low", priority=1, at_most_once=True)
    cluster.submit("high", priority=5)
    assert stopping(cluster) == []


def test_the_room_of_victims_is_not_given_to_others(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, cpus=8)
    first = run(cluster, "a", priority=1, cpu_milli=4000)
    second = run(cluster, "b", priority=1, cpu_milli=4000)
    cluster.submit("high", priority=5, cpu_milli=8000)
    cluster.submit("small", priority=3, cpu_milli=1000, queue="other")
    cluster.end(first, "preempted")
    assert not cluster.current("small")
    cluster.end(second, "preempted")
    assert cluster.current("high")
    assert not cluster.current("small")


def test_two_preemptors_on_one_worker_do_not_share_room(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, cpus=8)
    uids = [run(cluster, name, priority=1, cpu_milli=4000) for name in ("a", "b")]
    cluster.submit("high-1", priority=5, cpu_milli=4000)
    cluster.submit("high-2", priority=5, cpu_milli=4000, queue="other")
    assert stopping(cluster) == ["a", "b"]
    assert {victim.uid for receipt in receipts(cluster.state) for victim in receipt.victims} == set(uids)
    for uid in uids:
        cluster.end(uid, "preempted")
    assert cluster.current("high-1")
    assert cluster.current("high-2")


def test_a_preemptor_behind_another_line_of_its_shape_gets_its_room(cluster: Cluster) -> None:
    """Both ask for the same; the one without a right to it is asked first, and must not park the other."""
    cluster.rule(
        queues={"default": BANDS, "first": Queue(weight=100, protect_after_s=0)},
        preemption=PreemptionPolicy(min_run_s=0),
    )
    cluster.join("w1", credit=100, batch=1)
    uid = run(cluster, "low", priority=1)
    cluster.submit("fifo", queue="first")
    cluster.submit("high", priority=5)
    assert stopping(cluster) == ["low"]
    cluster.end(uid, "preempted")
    assert cluster.current("high")


def test_a_cancelled_preemptor_leaves_the_room_to_others(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, batch=1)
    uid = run(cluster, "low", priority=1)
    cluster.submit("high", priority=5)
    cluster.submit("next", priority=4)
    cluster.cancel("high")
    assert only(cluster).status == "rolled_back"
    cluster.end(uid, "preempted")
    assert cluster.current("next")


def test_a_cancelled_task_of_an_array_gives_its_receipt_up(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, batch=2)
    uid = run(cluster, "low", priority=1)
    cluster.submit("high", priority=5, array={"last": 1})
    run(cluster, "high", 0)
    assert stopping(cluster) == ["low"]
    cluster.cancel("high", 1)
    assert only(cluster).status == "rolled_back"
    cluster.end(uid, "preempted")
    assert cluster.current("low")


def test_a_preemption_that_leads_nowhere_is_given_up(cluster: Cluster) -> None:
    govern(cluster)
    for name in ("w1", "w2"):
        cluster.join(name, credit=100, batch=1)
    run(cluster, "first", priority=1)
    cluster.advance(5)
    run(cluster, "second", priority=1)
    cluster.submit("high", priority=5)
    assert stopping(cluster) == ["second"]
    cluster.advance(95)  # its grace of 30 s and a minute more
    assert [receipt.status for receipt in receipts(cluster.state)] == ["open", "lapsed"]
    assert stopping(cluster) == ["first", "second"]


def test_a_gang_finds_victims_for_those_members_only_that_need_them(cluster: Cluster) -> None:
    govern(cluster)
    for name in ("w1", "w2"):
        cluster.join(name, credit=100, batch=1)
    uid = run(cluster, "low", priority=1)
    cluster.submit("gang", priority=5, node_count=2)
    receipt = only(cluster)
    assert len(receipt.workers) == 2
    assert [victim.uid for victim in receipt.victims] == [uid]
    cluster.submit("small", priority=3, queue="other")
    assert not cluster.current("small")
    cluster.end(uid, "preempted")
    assert cluster.current("gang", 0)
    assert cluster.current("gang", 1)


def test_a_preemptor_that_starts_beside_a_gangs_room_leaves_none_to_others(cluster: Cluster) -> None:
    """Both have room kept on one worker; what the first takes is no longer free beside what the gang still keeps."""
    govern(cluster)
    cluster.join("w2", credit=100, batch=1)
    slow = run(cluster, "slow", priority=1)
    cluster.join("w1", credit=100, batch=2)
    quick = run(cluster, "quick", priority=1)
    cluster.submit("gang", priority=5, node_count=2)
    cluster.submit("high", priority=9)
    assert [receipt.job_id for receipt in cluster.state.receipts.values()] == ["gang", "high"]
    assert stopping(cluster) == ["quick", "slow"]
    cluster.submit("small", priority=3, queue="other")
    cluster.end(quick, "preempted")
    assert cluster.current("high")
    assert not cluster.current("small")
    cluster.end(slow, "preempted")
    assert cluster.current("gang", 0)
    assert cluster.current("gang", 1)


def test_a_gang_is_stopped_whole(cluster: Cluster) -> None:
    govern(cluster)
    for name in ("w1", "w2"):
        cluster.join(name, credit=100, batch=1)
    cluster.submit("gang", priority=1, node_count=2)
    uids = [cluster.current("gang", index) for index in (0, 1)]
    for uid in uids:
        cluster.accept(uid)
    for uid in uids:
        cluster.start(uid)
    cluster.submit("high", priority=5)
    (victim,) = only(cluster).victims
    cluster.end(victim.uid, "preempted")
    (left,) = [uid for uid in uids if uid != victim.uid]
    assert cluster.attempt(left).cancel == "gang"
    cluster.end(left, "killed")
    assert cluster.job("gang").requeued == 2
    assert [cluster.task("gang", index).failures for index in (0, 1)] == [0, 0]
    assert cluster.current("high")


def test_by_shares_only_who_has_much_more_gives(cluster: Cluster) -> None:
    cluster.rule(
        queues={"default": Queue(order="fair_share", protect_after_s=0)},
        preemption=PreemptionPolicy(strategy="fair_share", min_run_s=0, fair_margin=1.5),
        fair_share=FairShare(entry_charge_s=0),
    )
    cluster.join("w1", credit=100, cpus=4)
    cluster.submit("a", user="ann", cpu_milli=1000, array={"last": 3})
    for index in range(4):
        run(cluster, "a", index)
    cluster.submit("b", user="bob", cpu_milli=1000, array={"last": 3})
    assert len(stopping(cluster)) == 1
    cluster.end(receipts(cluster.state)[0].victims[0].uid, "preempted")
    run(cluster, "b", 0)
    # Three against one: after another, two against two would be even, and three is not more than 1.5 times two.
    assert len(stopping(cluster)) == 1


def test_by_shares_several_victims_together_leave_a_user_its_share(cluster: Cluster) -> None:
    cluster.rule(
        queues={"default": Queue(order="fair_share", protect_after_s=0)},
        preemption=PreemptionPolicy(strategy="fair_share", min_run_s=0, fair_margin=1.5),
        fair_share=FairShare(entry_charge_s=0),
    )
    cluster.join("w1", credit=100, cpus=6)
    cluster.submit("a", user="ann", cpu_milli=2000, array={"last": 2})
    for index in range(3):
        run(cluster, "a", index)
    cluster.submit("b", user="bob", cpu_milli=3000)  # would take two of them: ann had two cores, bob three
    assert stopping(cluster) == []


@pytest.mark.parametrize(("weight", "victims"), [(100, ["a"]), (1, [])])
def test_by_shares_what_a_user_got_before_its_turn_counts(
    cluster: Cluster, weight: float, victims: list[str]
) -> None:
    """Whichever of bob's jobs has its turn first in a pass: his share is what he has by then."""
    cluster.rule(
        queues={
            "default": Queue(order="fair_share", protect_after_s=0, weight=weight),
            "other": Queue(protect_after_s=0),
        },
        preemption=PreemptionPolicy(strategy="fair_share", min_run_s=0, fair_margin=1.0),
        fair_share=FairShare(entry_charge_s=0),
    )
    cluster.join("w1", credit=100, cpus=7)
    cluster.submit("a", user="ann", cpu_milli=3000, array={"last": 1})
    for index in range(2):
        run(cluster, "a", index)
    run(cluster, "rest", user="ann", cpu_milli=1000, queue="other")
    cluster.join("w2", credit=100, cpus=2)
    cluster.submit("big", user="bob", cpu_milli=3000, hold=True)
    cluster.submit("small", user="bob", cpu_milli=2000, queue="other", hold=True)
    cluster.turn(HoldChanged("big", False, "bob"), HoldChanged("small", False, "bob"))
    assert cluster.current("small")
    assert stopping(cluster) == victims


def test_by_shares_what_is_only_promised_to_a_user_is_not_his_to_lose(cluster: Cluster) -> None:
    """Others leave for bob's big job, which has not started: his small one is all that he has."""
    cluster.rule(
        queues={"default": Queue(order="fair_share", protect_after_s=0)},
        preemption=PreemptionPolicy(strategy="fair_share", min_run_s=0, wait_s=0, fair_margin=1.0),
        fair_share=FairShare(entry_charge_s=0),
    )
    cluster.join("w1", credit=100, cpus=8, memory_gb=8)
    cluster.submit("a", user="ann", cpu_milli=1000, array={"last": 7})
    for index in range(8):
        run(cluster, "a", index)
    cluster.join("w2", credit=100, cpus=1, memory_gb=64)
    run(cluster, "small", user="bob", cpu_milli=1000)
    cluster.submit("big", user="bob", cpu_milli=3000, hold=True)
    cluster.submit("c", user="cy", cpu_milli=1000, memory_bytes=32 << 30, hold=True)
    cluster.turn(HoldChanged("big", False, "bob"), HoldChanged("c", False, "cy"))
    assert stopping(cluster) == ["a", "a", "a"]


def test_the_shorter_service_stops_the_longer(cluster: Cluster) -> None:
    govern(cluster, Queue(order="srsf", protect_after_s=0))
    cluster.join("w1", credit=100, batch=1)
    run(cluster, "long", expected_runtime_s=1000)
    cluster.submit("longer", expected_runtime_s=2000)
    assert stopping(cluster) == []
    cluster.submit("short", expected_runtime_s=10)
    assert stopping(cluster) == ["long"]


def test_whoever_comes_after_a_served_preemptor_looks_for_victims_too(cluster: Cluster) -> None:
    """The room of the first was kept for it, so its line was not walked: its entry is not in the way of the next."""
    govern(cluster, Queue(order="srsf", protect_after_s=0))
    cluster.join("w1", credit=100, batch=2)
    run(cluster, "long", expected_runtime_s=1000)
    run(cluster, "longer", expected_runtime_s=2000)
    cluster.submit("short", expected_runtime_s=10)
    assert stopping(cluster) == ["longer"]
    cluster.end(cluster.current("longer"), "preempted")
    assert cluster.current("short")
    cluster.run(cluster.current("short"))
    cluster.submit("next", expected_runtime_s=20)
    assert "long" in stopping(cluster)


def test_victims_by_service_are_sought_beside_work_that_goes_before(cluster: Cluster) -> None:
    """The worker that could be had whole is left so, though the one with most left to do runs there."""
    govern(cluster, Queue(order="srsf", protect_after_s=0))
    cluster.join("w1", credit=100, gpus=2)
    run(cluster, "shorter", expected_runtime_s=10, gpu_count=1)
    run(cluster, "long", expected_runtime_s=1000, gpu_count=1)
    cluster.join("w2", credit=100, gpus=2)
    run(cluster, "longest", expected_runtime_s=5000, gpu_count=1)
    run(cluster, "longer", expected_runtime_s=2000, gpu_count=1)
    cluster.submit("short", expected_runtime_s=50, gpu_count=1)
    assert stopping(cluster) == ["long"]


def test_several_of_one_shape_find_victims_in_one_pass(cluster: Cluster) -> None:
    govern(cluster, Queue(order="srsf", protect_after_s=0))
    cluster.join("w1", credit=100, batch=2)
    run(cluster, "long", expected_runtime_s=1000)
    run(cluster, "longer", expected_runtime_s=2000)
    spec = pack_spec(check_spec({"command": ["true"], "expected_runtime_s": 10}))
    cluster.turn(JobsSubmitted((NewJob("one", "ann", spec), NewJob("two", "ann", spec))))
    assert stopping(cluster) == ["long", "longer"]


def test_without_pressure_nobody_is_stopped(cluster: Cluster) -> None:
    govern(cluster, strategy="pressure", pressure_share=0.9)
    cluster.join("w1", credit=100, cpus=8)
    run(cluster, "low", priority=1, cpu_milli=4000)
    cluster.submit("high", priority=5, cpu_milli=6000)
    assert stopping(cluster) == []
    run(cluster, "more", priority=1, cpu_milli=4000)
    cluster.advance(6)
    assert stopping(cluster) == ["low", "more"]


def test_where_the_policy_says_none_nobody_is_stopped(cluster: Cluster) -> None:
    govern(cluster, strategy="none")
    cluster.join("w1", credit=100, batch=1)
    run(cluster, "low", priority=1)
    cluster.submit("high", priority=50)
    assert stopping(cluster) == []


def test_a_protected_task_keeps_its_room_against_a_preemptor(cluster: Cluster) -> None:
    cluster.rule(
        queues={"default": BANDS, "patient": Queue(protect_after_s=10)},
        preemption=PreemptionPolicy(min_run_s=0),
    )
    cluster.join("w1", credit=100, cpus=8)
    uid = run(cluster, "low", priority=1, cpu_milli=8000, max_runtime_s=60)
    cluster.submit("patient", queue="patient", cpu_milli=8000, max_runtime_s=60)
    cluster.advance(10)
    assert cluster.state.reservations["patient"].job_id == "patient"
    cluster.submit("high", priority=5, cpu_milli=8000, max_runtime_s=1000)
    cluster.end(uid)
    assert cluster.current("patient")
