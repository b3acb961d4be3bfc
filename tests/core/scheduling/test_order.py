"""Whose turn it is: each order of a queue, shares of queues and users, and where a stopped task goes back to."""

from __future__ import annotations

import copy
from collections import Counter
from datetime import UTC, datetime

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.recovery import load, wake_up
from dray.core.lifecycle.state.events import AttemptSaved, AttemptsLost, Clock, PolicyChanged
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.timers import due
from dray.core.model.policies.policy import Budget, FairShare, Policy, Queue, Quota, pack_policy
from dray.core.scheduling.explain.explain import explain
from dray.core.scheduling.explain.reason import Place, tell_place
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


def in_s(cluster: Cluster, seconds: float) -> str:
    """A moment so many seconds from now, as people write it."""
    at = datetime.fromtimestamp(cluster.clock.at_ms / 1000 + seconds, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_what_cannot_meet_its_deadline_goes_behind_all_that_can_the_shortest_first(cluster: Cluster) -> None:
    crowd(cluster, Queue(order="edf", protect_after_s=0))
    cluster.submit("none")
    cluster.submit("lost", deadline=in_s(cluster, 50), expected_runtime_s=100)
    cluster.submit("lost too", deadline=in_s(cluster, 60), expected_runtime_s=90)
    cluster.submit("tight", deadline=in_s(cluster, 70), expected_runtime_s=60)
    cluster.submit("ample", deadline=in_s(cluster, 500), expected_runtime_s=400)
    cluster.submit("untold", deadline=in_s(cluster, 600), max_runtime_s=9000)
    cluster.advance(1)
    assert waiting_in_order(cluster.state, "default", 3) == [("tight", -1), ("ample", -1), ("untold", -1)]
    cluster.advance(20)  # it had to begin within ten seconds
    assert cluster.serve_all() == ["first", "ample", "untold", "tight", "lost too", "lost", "none"]


def test_each_task_is_late_by_itself_and_what_was_saved_counts(cluster: Cluster) -> None:
    """One that goes on from a checkpoint may still be in time when those that begin anew are not."""
    cluster.rule(queues={"default": Queue(order="edf", protect_after_s=0)})
    cluster.join("w1", credit=1000, batch=1)
    cluster.submit("array", array={"last": 2}, deadline=in_s(cluster, 200), expected_runtime_s=100)
    cluster.submit("rival", deadline=in_s(cluster, 900), expected_runtime_s=10)
    uid = cluster.current("array", 0)
    cluster.run(uid)
    cluster.advance(95)
    cluster.turn(AttemptSaved("w1", "array", 0, uid, 9, 5000))
    cluster.hold("array")
    cluster.turn(AttemptsLost("w1", (uid,), "it is gone"))
    cluster.join("w2", credit=1000, batch=1)
    cluster.run(cluster.current("rival"))
    cluster.advance(30)  # 75 s are left: ten for the first task, a hundred for each of the others
    cluster.submit("last", deadline=in_s(cluster, 900), expected_runtime_s=10)
    cluster.hold("array", on=False)
    cluster.advance(1)
    assert waiting_in_order(cluster.state, "default", 4) == [("array", 0), ("last", -1), ("array", -1)]
    assert "can no longer meet its deadline" not in tell_place(found(cluster, "array"))
    assert cluster.serve_all("w2")[:3] == ["rival", "array", "last"]


def found(cluster: Cluster, job_id: str) -> Place:
    place = explain(cluster.state, cluster.job(job_id)).place
    assert place is not None
    return place


def test_why_says_that_a_deadline_is_out_of_reach_and_another_one_mends_it(cluster: Cluster) -> None:
    crowd(cluster, Queue(order="edf", protect_after_s=0))
    cluster.submit("other", deadline=in_s(cluster, 900), expected_runtime_s=30)
    cluster.submit("late", deadline=in_s(cluster, 20), expected_runtime_s=30)
    cluster.advance(1)
    assert found(cluster, "late").overdue
    assert tell_place(found(cluster, "late")) == (
        "1 job with 1 task before it in queue default (edf), since it can no longer meet its deadline behind all "
        "that can"
    )
    cluster.edit("late", deadline=in_s(cluster, 60))
    assert not found(cluster, "late").overdue
    assert waiting_in_order(cluster.state, "default", 2) == [("late", -1), ("other", -1)]
    cluster.rule(queues={"default": Queue(order="sjf")})
    cluster.advance(100)
    assert not found(cluster, "late").overdue
    cluster.rule(queues={"default": Queue(order="edf")})
    cluster.advance(1)
    assert found(cluster, "late").overdue


def test_a_look_at_a_distant_deadline_is_not_due_again_at_once(cluster: Cluster) -> None:
    """Also where nothing has happened since: the state knows no later time than that of the last event."""
    crowd(cluster, Queue(order="edf", protect_after_s=0))
    cluster.submit("distant", deadline=in_s(cluster, 30 * 86400), expected_runtime_s=30)
    clock = cluster.clock
    for day in range(1, 40):
        later = Clock(clock.now_ms + day * 90_000_000, clock.at_ms + day * 90_000_000)
        due(cluster.state, later, str)
        assert cluster.state.judging.get("distant", later.now_ms + 1) > later.now_ms


def test_deadlines_are_watched_after_a_restart(cluster: Cluster) -> None:
    crowd(cluster, Queue(order="edf", protect_after_s=0))
    cluster.submit("lost", deadline=in_s(cluster, 10), expected_runtime_s=30)
    cluster.submit("tight", deadline=in_s(cluster, 100), expected_runtime_s=60)
    cluster.submit("ample", deadline=in_s(cluster, 900), expected_runtime_s=60)
    cluster.advance(5)
    fresh = State()
    rows = [copy.deepcopy(list(one.values())) for one in (cluster.state.jobs, cluster.state.tasks)]
    policy = PolicyChanged(pack_policy(cluster.state.policy), "test")
    apply(fresh, policy, cluster.clock)
    load(fresh, cluster.state.counters, (*rows, [], []))  # type: ignore[arg-type]  # rows of two kinds
    fresh.now_ms, fresh.at_ms = cluster.clock
    wake_up(fresh, cluster.clock)
    order = [name for name, _ in waiting_in_order(fresh, "default", 9)]
    assert order == ["tight", "ample", "lost"]
    clock = Clock(cluster.now_ms + 60_000, cluster.clock.at_ms + 60_000)
    for event in due(fresh, clock, str):
        apply(fresh, event, clock)
    assert [name for name, _ in waiting_in_order(fresh, "default", 9)] == ["ample", "lost", "tight"]


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
