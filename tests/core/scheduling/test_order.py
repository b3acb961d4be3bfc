"""Whose turn it is: each order of a queue, shares of queues and users, and where a stopped task goes back to."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.core.harness import Cluster

from dray.core.model.policies.policy import Budget, FairShare, Policy, Queue, Quota
from dray.core.scheduling.turns.order import waiting_in_order


def crowd(cluster: Cluster, queue: Queue, **more: object) -> None:
    """One worker with one slot, taken, under a queue's rules."""
    cluster.rule(queues={"default": queue}, **more)
    cluster.join("w1", credit=1000, batch=1, gpus=4)
    cluster.submit("first", user="zed")


def test_first_come_first_served(cluster: Cluster) -> None:
    crowd(cluster, Queue())
    for name, priority in (("a", 1), ("b", 50), ("c", -3)):
        cluster.submit(name, priority=priority)
    assert cluster.serve_all() == ["first", "a", "b", "c"]


def test_the_higher_band_goes_first_and_within_a_band_the_older(cluster: Cluster) -> None:
    crowd(cluster, Queue(order="priority", ageing_s=0))
    for name, priority in (("a", 1), ("b", 5), ("c", 5), ("d", 9)):
        cluster.submit(name, priority=priority)
    assert cluster.serve_all() == ["first", "d", "b", "c", "a"]


def test_waiting_counts_as_priority(cluster: Cluster) -> None:
    crowd(cluster, Queue(order="priority", ageing_s=10, protect_after_s=0))
    cluster.run(cluster.current("first"))
    cluster.submit("old", priority=0)
    cluster.advance(31)
    cluster.submit("higher", priority=2)
    cluster.submit("highest", priority=4)
    assert cluster.serve_all() == ["first", "highest", "old", "higher"]


def test_the_shorter_goes_first_as_told_else_by_its_limit(cluster: Cluster) -> None:
    crowd(cluster, Queue(order="sjf"))
    cluster.submit("long", expected_runtime_s=100)
    cluster.submit("limited", max_runtime_s=50)
    cluster.submit("short", expected_runtime_s=5, max_runtime_s=1000)
    cluster.submit("unknown")
    assert cluster.serve_all() == ["first", "short", "limited", "long", "unknown"]


def test_the_nearer_deadline_goes_first(cluster: Cluster) -> None:
    crowd(cluster, Queue(order="edf"))
    cluster.submit("none")
    cluster.submit("late", deadline="2031-01-01T00:00:00Z")
    cluster.submit("soon", deadline="2030-01-01T00:00:00Z")
    assert cluster.serve_all() == ["first", "soon", "late", "none"]


def test_the_least_service_goes_first_time_times_gpus(cluster: Cluster) -> None:
    crowd(cluster, Queue(order="srsf", protect_after_s=0))
    cluster.submit("wide", expected_runtime_s=100, gpu_count=4)
    cluster.submit("long", expected_runtime_s=300, gpu_count=1)
    cluster.submit("small", expected_runtime_s=100, gpu_count=1)
    assert cluster.serve_all() == ["first", "small", "long", "wide"]


def test_who_has_used_less_goes_first(cluster: Cluster) -> None:
    crowd(cluster, Queue(order="fair_share"), fair_share=FairShare(entry_charge_s=0))
    (uid,) = cluster.held("w1")
    cluster.run(uid)
    cluster.submit("again", user="zed")
    cluster.advance(100)
    cluster.submit("other", user="ann")
    assert cluster.serve_all() == ["first", "other", "again"]


def test_usage_halves_with_time(cluster: Cluster) -> None:
    """What zed used long ago weighs less than what ann used just now."""
    crowd(cluster, Queue(order="fair_share"), fair_share=FairShare(half_life_s=100, entry_charge_s=0))
    (uid,) = cluster.held("w1")
    cluster.run(uid)
    cluster.advance(400)
    cluster.end(uid)
    cluster.advance(600)  # six halvings: 400 s count as some 6 s
    cluster.submit("ann-1", user="ann")
    cluster.run(cluster.current("ann-1"))
    cluster.submit("zed-2", user="zed")
    cluster.submit("ann-2", user="ann")
    cluster.advance(60)
    assert cluster.serve_all() == ["ann-1", "zed-2", "ann-2"]


def test_a_start_is_charged_at_once_so_bursts_take_turns(cluster: Cluster) -> None:
    cluster.rule(queues={"default": Queue(order="fair_share")}, fair_share=FairShare(entry_charge_s=60))
    cluster.submit("many", user="ann", array={"last": 9})
    cluster.submit("few", user="bob", array={"last": 9})
    cluster.join("w1", credit=1000, batch=6)
    assert Counter(cluster.attempt(uid).job_id for uid in cluster.held("w1")) == {"many": 3, "few": 3}


def test_a_user_of_more_weight_gets_more(cluster: Cluster) -> None:
    share = FairShare(entry_charge_s=60, weights={"ann": 3})
    cluster.rule(queues={"default": Queue(order="fair_share")}, fair_share=share)
    cluster.submit("a", user="ann", array={"last": 19})
    cluster.submit("b", user="bob", array={"last": 19})
    cluster.join("w1", credit=1000, batch=8)
    assert Counter(cluster.attempt(uid).job_id for uid in cluster.held("w1")) == {"a": 6, "b": 2}


def test_queues_share_what_runs_by_their_weights(cluster: Cluster) -> None:
    cluster.rule(queues={"default": Queue(weight=1), "big": Queue(weight=3)})
    cluster.submit("a", array={"last": 99})
    cluster.submit("b", queue="big", array={"last": 99})
    cluster.join("w1", credit=1000, batch=8)
    running = Counter(cluster.attempt(uid).job_id for uid in cluster.held("w1"))
    assert running == {"a": 2, "b": 6}
    for _ in range(12):
        uid = cluster.held("w1")[0]
        cluster.run(uid)
        cluster.end(uid)
    running = Counter(cluster.attempt(uid).job_id for uid in cluster.held("w1"))
    assert running == {"a": 2, "b": 6}


def test_a_queue_alone_takes_all_there_is(cluster: Cluster) -> None:
    cluster.rule(queues={"default": Queue(weight=1), "big": Queue(weight=9)})
    cluster.submit("a", array={"last": 99})
    cluster.join("w1", credit=1000, batch=8)
    assert len(cluster.held("w1")) == 8


def test_over_its_soft_budget_work_goes_behind_everybody_elses(cluster: Cluster) -> None:
    quota = Quota(user="ann", gpu_hours=Budget(soft=10 / 3600, per_s=1000))
    crowd(cluster, Queue(order="priority", ageing_s=0, protect_after_s=0), quotas=(quota,))
    (uid,) = cluster.held("w1")
    cluster.run(uid)
    cluster.end(uid)
    cluster.submit("use", user="ann", gpu_count=1)
    cluster.run(cluster.current("use"))
    cluster.submit("late", user="ann", gpu_count=1, priority=50)
    cluster.submit("early", user="bob", priority=0)
    assert waiting_in_order(cluster.state, "default", 5) == [("late", -1), ("early", -1)]
    cluster.advance(20)
    assert waiting_in_order(cluster.state, "default", 5) == [("early", -1), ("late", -1)]
    assert cluster.serve_all() == ["use", "early", "late"]


def test_a_retry_keeps_its_place(cluster: Cluster) -> None:
    crowd(cluster, Queue())
    cluster.submit("a", retries=1)
    cluster.submit("b")
    (uid,) = cluster.held("w1")
    cluster.run(uid)
    cluster.end(uid)
    uid = cluster.current("a")
    cluster.run(uid)
    cluster.end(uid, "failed")
    assert cluster.serve_all() == ["a", "b"]


@pytest.mark.parametrize("order", ["fifo", "priority", "sjf", "edf", "srsf", "fair_share"])
def test_no_order_lets_what_does_not_fit_block_the_rest(cluster: Cluster, order: str) -> None:
    cluster.rule(queues={"default": Queue(order=order, protect_after_s=0)})
    cluster.submit("huge", cpu_milli=64_000, priority=50, expected_runtime_s=1)
    cluster.submit("small", cpu_milli=1000)
    cluster.join("w1", credit=10)
    assert cluster.current("small")
    assert not cluster.current("huge")


def test_a_queue_that_is_not_listed_behaves_like_the_default_one() -> None:
    policy = Policy(queues={"default": Queue(order="sjf")})
    assert policy.queue("other").order == "sjf"
    assert not policy.admits("other")


def test_what_was_cancelled_at_the_front_of_a_full_line_is_walked_over_once(cluster: Cluster) -> None:
    crowd(cluster, Queue())
    for number in range(200):
        cluster.submit(f"j{number}")
    for number in range(150):
        cluster.cancel(f"j{number}")
    # Something changes about the line, so that the next pass looks at it and finds no room again.
    cluster.submit("last")
    cluster.run(cluster.current("first"))
    cluster.state.backlog.wake(cluster.state.jobs["last"].shape)
    cluster.turn()
    (bucket,) = cluster.state.backlog.buckets.values()
    assert bucket.entries[bucket.head].job_id == "j150", "no pass walks over the others again"
