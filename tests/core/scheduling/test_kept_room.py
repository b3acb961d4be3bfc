"""Room that is kept for several at once, for who was served just now, and on workers that came back as others."""

from __future__ import annotations

from typing import Any

from tests.core.harness import Cluster

from dray.core.lifecycle.holding.receipts import receipts
from dray.core.lifecycle.state.events import AttemptEnded, AttemptSaved
from dray.core.model.capability import Slots
from dray.core.model.policies.policy import Pace, Pacing, PlacementPolicy, PreemptionPolicy, Queue
from dray.core.scheduling.claims.reservations import end_ms

BANDS = Queue(order="priority", ageing_s=0, protect_after_s=10)


def govern(cluster: Cluster, **preemption: Any) -> None:
    given = {"min_run_s": 0, **preemption}
    cluster.rule(queues={"default": BANDS, "other": BANDS}, preemption=PreemptionPolicy(**given))


def run(cluster: Cluster, job: str, **spec: Any) -> str:
    cluster.submit(job, **spec)
    uid = cluster.current(job)
    cluster.run(uid)
    return uid


def test_room_is_not_kept_once_more_for_whom_it_was_given_to_within_a_millisecond(cluster: Cluster) -> None:
    govern(cluster, strategy="none")
    cluster.join("w1", credit=100, batch=2)
    uids = [run(cluster, "a", max_runtime_s=100), run(cluster, "b", max_runtime_s=100)]
    cluster.submit("first")
    cluster.submit("array", array={"first": 0, "last": 4}, cpu_milli=1000)
    cluster.advance(10)
    assert cluster.state.reservations["default"].job_id == "first"
    # All of it without a tick of the clock: the array begins to wait anew with each of its tasks that is placed.
    cluster.turn(*(AttemptEnded("w1", cluster.outcome(uid)) for uid in uids))
    assert cluster.current("array", 0)
    assert cluster.state.reservations["default"].job_id == "array"
    cluster.run(cluster.current("array", 0))
    cluster.end(cluster.current("array", 0))
    assert cluster.current("array", 1)
    assert not cluster.state.reservations


def test_a_promise_counts_on_no_room_that_a_preemptor_will_hold(cluster: Cluster) -> None:
    """The pair is promised a slot beside the victim's, which the preemptor takes over for longer than that."""
    govern(cluster)
    cluster.join("w2", credit=100, batch=1, cpus=2)
    other = run(cluster, "other", cpu_milli=1000, priority=9, max_runtime_s=1000)
    cluster.join("w1", credit=100, batch=2, cpus=8)
    victim = run(cluster, "victim", cpu_milli=6000, max_runtime_s=100)
    cluster.submit("pair", node_count=2, cpu_milli=1000)
    cluster.advance(10)
    assert cluster.state.reservations["default"].job_id == "pair"
    cluster.submit("preemptor", cpu_milli=6000, priority=5)
    assert cluster.attempt(victim).cancel == "preempted"
    cluster.submit("lasting", max_runtime_s=100_000)
    assert not cluster.current("lasting")
    cluster.end(victim, "preempted")
    cluster.end(other)
    assert cluster.current("preemptor")
    assert cluster.current("pair", 0)
    assert cluster.current("pair", 1)


def test_two_preemptors_on_one_worker_count_with_each_other(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, cpus=8, gpus=2)
    victims = [run(cluster, name, cpu_milli=1000, gpu_count=1) for name in ("v1", "v2")]
    cluster.submit("p1", cpu_milli=3000, gpu_count=1, priority=5)
    cluster.submit("p2", cpu_milli=3000, gpu_count=1, priority=5, queue="other")
    assert [cluster.attempt(uid).cancel for uid in victims] == ["preempted", "preempted"]
    cluster.submit("greedy", cpu_milli=4000)
    cluster.submit("modest", cpu_milli=2000)
    assert not cluster.current("greedy")
    assert cluster.current("modest")
    for uid in victims:
        cluster.end(uid, "preempted")
    assert cluster.current("p1")
    assert cluster.current("p2")


def test_a_preemptor_waits_for_its_own_victims_beside_another(cluster: Cluster) -> None:
    """Though it is counted as if they were gone, where what it will hold is taken off what the other leaves beside."""
    govern(cluster)
    cluster.join("w1", credit=100, batch=2)
    victims = [run(cluster, name) for name in ("v1", "v2")]
    cluster.submit("p1", priority=5)
    cluster.submit("p2", priority=5, queue="other")
    mine = {victim.uid: receipt.job_id for receipt in receipts(cluster.state) for victim in receipt.victims}
    cluster.end(victims[1], "preempted")
    assert [job for job in ("p1", "p2") if cluster.current(job)] == [mine[victims[1]]]
    cluster.end(victims[0], "preempted")
    assert cluster.current("p1")
    assert cluster.current("p2")


def test_who_is_asked_to_stop_has_no_more_time_than_its_limit_gave_it(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, batch=1)
    uid = run(cluster, "low", max_runtime_s=20)
    limit_ms = end_ms(cluster.state, cluster.attempt(uid))
    cluster.advance(5)
    cluster.submit("high", priority=5)
    assert cluster.attempt(uid).grace_s > 15
    assert end_ms(cluster.state, cluster.attempt(uid)) == limit_ms


def test_a_promise_goes_with_the_cores_it_was_made_on(cluster: Cluster) -> None:
    govern(cluster, strategy="none")
    cluster.join("w1", credit=100, cpus=8)
    uid = run(cluster, "running", cpu_milli=6000, max_runtime_s=100)
    cluster.submit("big", cpu_milli=8000)
    cluster.advance(10)
    assert cluster.state.reservations["default"].job_id == "big"
    cluster.register("w1", active=[cluster.active(uid)], cpus=7)
    cluster.poll("w1", 100)
    assert not cluster.state.reservations
    cluster.submit("small", cpu_milli=1000)
    assert cluster.current("small")


def test_a_promise_outlasts_a_worker_that_has_yet_to_say_how_many_slots_it_has(cluster: Cluster) -> None:
    govern(cluster, strategy="none")
    cluster.join("w1", credit=100, base=True, batch=1)
    uid = run(cluster, "short", max_runtime_s=100)
    cluster.join("w2", credit=100, batch=1)
    run(cluster, "long", max_runtime_s=1000)
    cluster.submit("first")
    cluster.advance(1)
    cluster.submit("second", queue="other", cpu_milli=1000)
    cluster.advance(10)
    kept = dict(cluster.state.reservations)
    assert [kept[queue].job_id for queue in ("default", "other")] == ["first", "second"]
    cluster.register("w1", active=[cluster.active(uid)], base=True, slots=Slots())
    assert cluster.state.reservations == kept


def test_a_preemption_is_given_up_at_once_where_its_worker_lost_its_cards(cluster: Cluster) -> None:
    govern(cluster)
    cluster.join("w1", credit=100, gpus=1, batch=2)
    uid = run(cluster, "low", gpu_count=1, priority=1)
    cluster.submit("high", gpu_count=1, priority=5)
    assert cluster.attempt(uid).cancel == "preempted"
    cluster.register("w1", active=[cluster.active(uid)], gpus=0, batch=2)
    cluster.poll("w1", 100)
    (receipt,) = receipts(cluster.state)
    assert (receipt.status, cluster.state.receipts) == ("lapsed", {})


def test_a_move_is_given_up_where_the_other_worker_became_too_small(cluster: Cluster) -> None:
    cluster.rule(
        queues={"default": Queue(protect_after_s=0)},
        preemption=PreemptionPolicy(strategy="none", min_run_s=0, moves=10),
        placement=PlacementPolicy(strategy="spread"),
    )
    for worker, job in (("w1", "a"), ("w2", "b")):
        cluster.join(worker, credit=100, cpus=8)
        run(cluster, job, cpu_milli=4000)
    cluster.submit("wide", cpu_milli=8000)
    assert [move.worker for move in cluster.state.moves.values()] == ["w2"]
    cluster.register("w2", active=[cluster.active(cluster.current("b"))], cpus=2)
    cluster.poll("w2", 100)
    assert not cluster.state.moves


def test_a_preemptor_leaves_what_a_move_waits_for(cluster: Cluster) -> None:
    """`light` moves to where `heavy` leaves: nobody else may reckon with the cores that it has yet to get there."""
    bands = Queue(order="priority", ageing_s=0, protect_after_s=0)
    cluster.rule(
        queues={"default": bands},
        preemption=PreemptionPolicy(min_run_s=0, moves=10),
        placement=PlacementPolicy(strategy="spread"),
    )
    cluster.join("w1", credit=100, cpus=4, gpus=1)
    heavy = run(cluster, "heavy", cpu_milli=4000, priority=1)
    small = run(cluster, "small", gpu_count=1, priority=0)
    cluster.join("w2", credit=100, cpus=4, batch=1)
    light = run(cluster, "light", cpu_milli=2000, priority=1)
    cluster.submit("last", cpu_milli=1000, priority=1)
    moved = {key[0]: move.worker for key, move in cluster.state.moves.items()}
    assert moved == {"heavy": "w2", "light": "w1"}
    cluster.submit("preemptor", cpu_milli=3000, gpu_count=1, priority=5)
    assert cluster.attempt(small).cancel == "", "three cores beside last and light are not to be had"
    for uid in (heavy, light):
        cluster.end(uid, "preempted")
    assert {cluster.attempt(cluster.current(name)).worker for name in ("light", "last")} == {"w1"}


def test_what_the_victims_of_who_was_served_elsewhere_leave_is_promised_to_nobody(cluster: Cluster) -> None:
    """The first finds room before its victim is gone; stopping the idler would give the second a slot without cores."""
    govern(cluster)
    cluster.join("w1", credit=100, batch=3, cpus=4)
    before = run(cluster, "before", cpu_milli=2000, priority=9)
    victim, idler = run(cluster, "victim", cpu_milli=2000), run(cluster, "idler")
    cluster.submit("first", cpu_milli=1000, priority=6)
    assert cluster.attempt(victim).cancel == "preempted"
    cluster.submit("second", cpu_milli=2000, priority=5)
    cluster.end(before)
    assert cluster.current("first")
    assert not cluster.attempt(idler).cancel
    cluster.end(victim, "preempted")
    assert cluster.current("second")


def test_a_task_with_little_of_its_limit_left_leaves_more_beside_a_promise(cluster: Cluster) -> None:
    """It is placed as if it had all of it, and whoever fits beside it then is looked at once more."""
    govern(cluster, strategy="none")
    cluster.join("w1", credit=100, batch=3, cpus=4)
    run(cluster, "short", cpu_milli=2000, max_runtime_s=1600)
    again, filler = run(cluster, "again", cpu_milli=1000, max_runtime_s=1500), run(cluster, "filler")
    cluster.submit("big", cpu_milli=3000, max_runtime_s=50_000)
    cluster.submit("third", cpu_milli=1000, max_runtime_s=5000)
    cluster.advance(800)
    assert cluster.state.reservations["default"].job_id == "big"
    cluster.turn(AttemptSaved("w1", "again", -1, again, 1, 0))
    stopped, over = cluster.outcome(again, "preempted"), cluster.outcome(filler)
    cluster.turn(AttemptEnded("w1", stopped), AttemptEnded("w1", over))
    assert cluster.attempt(cluster.current("again")).limit_ms == 700_000
    assert cluster.current("third")


def test_who_may_start_again_takes_the_room_that_is_kept_for_it_though_its_like_found_none(
    cluster: Cluster,
) -> None:
    """Another of the same shape was kept out of that room: the shape counts as one that fits nowhere."""
    bands = {"default": Queue(order="priority", ageing_s=0, protect_after_s=10_000)}
    slowly = Pacing(starts=(Pace(user="bob", per_minute=1),))
    cluster.rule(queues=bands, preemption=PreemptionPolicy(min_run_s=0), pacing=slowly)
    cluster.join("w1", credit=100, batch=1, cpus=8)
    victim = run(cluster, "victim")
    cluster.submit("owner", user="bob", priority=5, cpu_milli=4000)
    assert cluster.attempt(victim).cancel == "preempted"
    cluster.join("w2", credit=100, batch=1, cpus=2)
    run(cluster, "first", user="bob", priority=9, cpu_milli=1000)
    cluster.advance(2)
    cluster.submit("like", priority=1, cpu_milli=4000)
    cluster.end(victim, "preempted")
    assert not cluster.current("owner"), "bob has had his start of this minute"
    assert not cluster.current("like")
    cluster.advance(58)  # no look at either is due just then
    assert cluster.current("owner")
