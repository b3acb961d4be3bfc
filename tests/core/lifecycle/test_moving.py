"""Work that is moved for its own sake: how a move comes forward, is called off, taken back or given up."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, cancels

from dray.core.lifecycle import recovery
from dray.core.lifecycle.holding.moves import CLAIM_MS, SETTLE_MS, START_MS, move_receipts, recall
from dray.core.lifecycle.providers.prices import MICRO
from dray.core.lifecycle.state.events import AttemptsLost, WorkerDrained
from dray.core.lifecycle.state.service_events import Move, MovesDecided, MoveStepped
from dray.core.model.policies.policy import Provider
from dray.core.model.records.ledger import Receipt
from dray.core.model.records.records import Phase

WHOLE = 8000


def only(cluster: Cluster) -> Receipt:
    (found,) = move_receipts(cluster.state)
    return found


def stages(cluster: Cluster) -> list[str]:
    return [victim.stage for victim in only(cluster).victims]


def kept(cluster: Cluster) -> int:
    """Of how many moves anything is remembered."""
    state = cluster.state
    return len(state.moves) + len(state.origins) + len(state.moving)


def run(cluster: Cluster, job: str, worker: str, **spec: Any) -> str:
    cluster.submit(job, **{"cpu_milli": WHOLE, **spec})
    uid = cluster.current(job)
    assert cluster.attempt(uid).worker == worker
    cluster.run(uid)
    return uid


def move(cluster: Cluster, *moves: tuple[str, str], cause: str = "person", **more: Any) -> None:
    cluster.turn(MovesDecided(tuple(Move(uid, to) for uid, to in moves), cause, **more))


def settle(cluster: Cluster, job: str) -> str:
    """The task starts where it went to, and stays for long enough."""
    uid = cluster.current(job)
    cluster.run(uid)
    cluster.advance(SETTLE_MS / 1000 + 1)
    return uid


def pair(cluster: Cluster) -> str:
    cluster.join("w1", credit=100)
    uid = run(cluster, "job", "w1")
    cluster.join("w2", credit=100)
    return uid


def test_a_task_goes_to_where_it_is_told_and_its_place_is_kept_until_it_runs_there(cluster: Cluster) -> None:
    uid = pair(cluster)
    cluster.advance(7)
    effects = cluster.turn(MovesDecided((Move(uid, "w2"),), "person", "ann", why="because"))
    assert cancels(effects) == [(uid, "preempted")]
    assert stages(cluster) == ["saving"]
    cluster.submit("other", cpu_milli=WHOLE)
    cluster.advance(2)
    cluster.end(uid, "preempted")
    # Both places are its own: that which it goes to, and that which it left.
    assert stages(cluster) == ["starting"]
    assert cluster.attempt(cluster.current("job")).worker == "w2"
    assert not cluster.current("other")
    new = settle(cluster, "job")
    receipt = only(cluster)
    (victim,) = receipt.victims
    assert (receipt.status, receipt.by, receipt.why, receipt.cause) == ("done", "ann", "because", "person")
    assert (victim.stage, victim.worker, victim.to, victim.lost_ms, victim.down_ms) == (
        "done",
        "w1",
        "w2",
        9000,
        2000,
    )
    assert victim.next_uid == new
    assert cluster.attempt(cluster.current("other")).worker == "w1"
    assert kept(cluster) == 0
    task = cluster.task("job")
    assert (task.failures, task.losses, task.attempts) == (0, 0, 2)


def test_nobody_is_asked_to_stop_before_the_room_is_there(cluster: Cluster) -> None:
    uid = pair(cluster)
    other = run(cluster, "other", "w2")
    move(cluster, (uid, "w2"))
    assert stages(cluster) == ["claimed"]
    cluster.end(other)
    assert stages(cluster) == ["saving"]


def test_a_move_whose_room_does_not_come_free_is_called_off(cluster: Cluster) -> None:
    uid = pair(cluster)
    run(cluster, "other", "w2")
    move(cluster, (uid, "w2"))
    cluster.advance(CLAIM_MS / 1000 + 1)
    assert (only(cluster).status, stages(cluster)) == ("called_off", ["called_off"])
    assert cluster.attempt(uid).phase is Phase.RUNNING
    assert kept(cluster) == 0


@pytest.mark.parametrize("what", ["by hand", "ends", "cancelled", "held", "destination leaves", "drained"])
def test_what_is_claimed_can_be_called_off_and_nobody_is_stopped_for_it(cluster: Cluster, what: str) -> None:
    uid = pair(cluster)
    run(cluster, "other", "w2")
    move(cluster, (uid, "w2"))
    if what == "by hand":
        cluster.turn(MoveStepped(only(cluster).id, "called_off", user="ann"))
    elif what == "ends":
        cluster.end(uid)
    elif what == "cancelled":
        cluster.cancel("job")
    elif what == "held":
        cluster.hold()
    elif what == "destination leaves":
        cluster.leave("w2")
    else:
        cluster.turn(WorkerDrained("w2", True))
    assert only(cluster).status == "called_off"
    assert cluster.attempt(uid).cancel in ("", "cancelled", "user")
    assert kept(cluster) == 0


def test_a_task_that_cannot_start_there_goes_back_to_its_place(cluster: Cluster) -> None:
    uid = pair(cluster)
    move(cluster, (uid, "w2"))
    cluster.end(uid, "preempted")
    cluster.run(cluster.current("job"))
    assert stages(cluster) == ["settling"]
    cluster.submit("other", cpu_milli=WHOLE)
    cluster.turn(AttemptsLost("w2", (cluster.current("job"),), "test"))
    assert stages(cluster) == ["returning"]
    back = cluster.current("job")
    assert cluster.attempt(back).worker == "w1"
    cluster.run(back)
    assert (only(cluster).status, stages(cluster)) == ("rolled_back", ["rolled_back"])
    assert kept(cluster) == 0


def test_a_destination_that_dies_while_its_task_stops_is_not_waited_for(cluster: Cluster) -> None:
    uid = pair(cluster)
    move(cluster, (uid, "w2"))
    cluster.leave("w2")
    cluster.end(uid, "preempted")
    assert cluster.attempt(cluster.current("job")).worker == "w1"
    cluster.run(cluster.current("job"))
    assert only(cluster).status == "rolled_back"


def test_where_both_places_are_gone_it_waits_like_any_other(cluster: Cluster) -> None:
    uid = pair(cluster)
    move(cluster, (uid, "w2"))
    cluster.end(uid, "preempted")
    new = cluster.current("job")
    cluster.run(new)
    cluster.leave("w1")
    cluster.turn(AttemptsLost("w2", (new,), "test"))
    assert only(cluster).status == "failed"
    assert cluster.job().blamed == "w2"
    cluster.join("w3", credit=100)
    assert cluster.attempt(cluster.current("job")).worker in ("w2", "w3")
    assert kept(cluster) == 0


def test_what_never_starts_there_is_given_up(cluster: Cluster) -> None:
    uid = pair(cluster)
    move(cluster, (uid, "w2"))
    cluster.end(uid, "preempted")
    cluster.accept(cluster.current("job"))
    cluster.advance(START_MS / 1000 + 1)
    assert only(cluster).status == "failed"
    assert "not begun" in only(cluster).victims[0].note
    assert cluster.attempt(cluster.current("job")).worker == "w2"


def test_what_ends_within_its_grace_has_nothing_to_move(cluster: Cluster) -> None:
    uid = pair(cluster)
    move(cluster, (uid, "w2"))
    cluster.end(uid)
    assert (only(cluster).status, cluster.job().state.value) == ("called_off", "succeeded")
    assert kept(cluster) == 0


def test_what_is_lost_while_it_stops_and_comes_back_stays_where_it_was(cluster: Cluster) -> None:
    uid = pair(cluster)
    move(cluster, (uid, "w2"))
    cluster.poll("w2", 0)  # it takes nothing for now
    cluster.turn(AttemptsLost("w1", (uid,), "test"))
    assert stages(cluster) == ["starting"]
    cluster.register("w1", active=[cluster.active(uid)])
    assert only(cluster).status in ("rolled_back", "open")


def test_two_exchange_their_places_as_one_whole(cluster: Cluster) -> None:
    one = pair(cluster)
    other = run(cluster, "other", "w2")
    move(cluster, (one, "w2"), (other, "w1"), cause="performance")
    assert stages(cluster) == ["saving", "saving"]
    cluster.submit("third", cpu_milli=WHOLE)
    cluster.end(one, "preempted")
    # The first to go waits for the second.
    assert stages(cluster) == ["starting", "saving"]
    assert not cluster.current("job")
    cluster.end(other, "preempted")
    assert cluster.attempt(cluster.current("job")).worker == "w2"
    assert cluster.attempt(cluster.current("other")).worker == "w1"
    for name in ("job", "other"):
        cluster.run(cluster.current(name))
    cluster.advance(SETTLE_MS / 1000 + 1)
    assert only(cluster).status == "done"
    assert not cluster.current("third")


def test_an_exchange_of_which_one_has_ended_is_called_off_whole(cluster: Cluster) -> None:
    one = pair(cluster)
    other = run(cluster, "other", "w2")
    cluster.hold("other")
    move(cluster, (one, "w2"), (other, "w1"))
    assert stages(cluster) == ["called_off", "called_off"]
    assert cluster.attempt(one).phase is Phase.RUNNING


def test_a_gang_goes_whole(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.join(name, credit=100)
    cluster.submit("gang", node_count=2, cpu_milli=WHOLE, gpu_count=0)
    first, second = (cluster.current("gang", rank) for rank in (0, 1))
    for uid in (first, second):
        cluster.accept(uid)
    for uid in (first, second):
        cluster.start(uid)
    for name in ("w3", "w4"):
        cluster.join(name, credit=100)
    move(cluster, (first, "w3"), (second, "w4"), cause="evacuate")
    cluster.submit("other", cpu_milli=WHOLE)
    cluster.end(first, "preempted")
    assert stages(cluster) == ["saving", "saving"]
    cluster.end(second, "preempted")
    assert [cluster.attempt(cluster.current("gang", rank)).worker for rank in (0, 1)] == ["w3", "w4"]
    for rank in (0, 1):
        cluster.accept(cluster.current("gang", rank))
    for rank in (0, 1):
        cluster.start(cluster.current("gang", rank))
    cluster.advance(SETTLE_MS / 1000 + 1)
    assert only(cluster).status == "done"


@pytest.mark.parametrize("stage", ["claimed", "saving", "starting", "settling", "returning"])
def test_a_hub_that_comes_back_knows_how_far_each_move_has_come(cluster: Cluster, stage: str) -> None:
    uid = pair(cluster)
    blocker = run(cluster, "other", "w2")
    move(cluster, (uid, "w2"))
    if stage != "claimed":
        cluster.end(blocker)
    if stage in ("starting", "settling", "returning"):
        cluster.poll("w2", 0)
        cluster.end(uid, "preempted")
    if stage in ("settling", "returning"):
        cluster.poll("w2", 10)
        cluster.run(cluster.current("job"))
    if stage == "returning":
        cluster.poll("w1", 0)
        cluster.turn(AttemptsLost("w2", (cluster.current("job"),), "test"))
    assert stages(cluster) == [stage]
    state = cluster.state
    before = dict(state.moves), dict(state.origins), dict(state.moving), dict(state.moved_to)
    for known in (state.moves, state.origins, state.moving, state.moved_to):
        known.clear()
    recall(state)
    assert (dict(state.moves), dict(state.origins), dict(state.moving), dict(state.moved_to)) == before
    state.timers.clear()
    recovery.wake_up(state, cluster.clock)
    for worker in ("w1", "w2"):
        cluster.register(worker, active=[cluster.active(one) for one in cluster.held(worker)])
        cluster.poll(worker, 10)
    if stage == "saving":
        cluster.end(uid, "preempted")
    for _ in range(3):
        if cluster.current("job") and not cluster.attempt(cluster.current("job")).started:
            cluster.run(cluster.current("job"))
        cluster.advance(CLAIM_MS / 1000)
    assert only(cluster).status == {"claimed": "called_off", "returning": "rolled_back"}.get(stage, "done")


def test_what_a_move_has_won_is_written_down_when_the_task_has_ended(cluster: Cluster) -> None:
    cluster.rule(providers={"cloud": Provider(price_per_hour=2), "lab": Provider(price_per_hour=1)})
    cluster.join("w1", credit=100, labels={"provider": "cloud"})
    uid = run(cluster, "job", "w1")
    cluster.join("w2", credit=100, labels={"provider": "lab"})
    move(cluster, (uid, "w2"), cause="cost", gain=MICRO, cost=1, unit="money")
    cluster.end(uid, "preempted")
    new = settle(cluster, "job")
    assert not only(cluster).settled
    cluster.advance(3600 - SETTLE_MS / 1000 - 1)
    cluster.end(new, wall_s=3600)
    # An hour at one instead of two; it lost nothing, and stood for no time.
    assert (only(cluster).won, only(cluster).settled) == (MICRO, True)


def test_advice_that_no_longer_holds_changes_nothing(cluster: Cluster) -> None:
    uid = pair(cluster)
    move(cluster, (uid, "nowhere"))
    move(cluster, ("unknown", "w2"), (uid, "w2"))
    cluster.end(uid)
    move(cluster, (uid, "w2"))
    assert move_receipts(cluster.state) == []


def test_a_worker_that_is_emptied_has_what_runs_there_moved(cluster: Cluster) -> None:
    cluster.join("w1", credit=100)
    once = run(cluster, "once", "w1", cpu_milli=1000, at_most_once=True)
    one = run(cluster, "one", "w1", cpu_milli=3000)
    other = run(cluster, "other", "w1", cpu_milli=3000)
    cluster.join("w2", credit=100, cpus=4)
    effects = cluster.turn(WorkerDrained("w1", True, "ann", "new disk", move=True))
    # There is room for one of them; what may start once only stays until it has ended.
    assert cancels(effects) == [(one, "preempted")]
    assert (only(cluster).cause, only(cluster).by) == ("evacuate", "ann")
    cluster.join("w3", credit=100)
    cluster.advance(6)
    assert [cluster.attempt(uid).cancel for uid in (once, one, other)] == ["", "preempted", "preempted"]
    for uid in (one, other):
        cluster.end(uid, "preempted")
    for name in ("one", "other"):
        cluster.run(cluster.current(name))
    cluster.advance(SETTLE_MS / 1000 + 1)
    assert [receipt.status for receipt in move_receipts(cluster.state)] == ["done", "done"]
    assert cluster.held("w1") == [once]
    cluster.turn(WorkerDrained("w1", False))
    assert not cluster.state.emptying


def test_a_gang_leaves_a_worker_whole_and_comes_back_where_it_may_stay(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.join(name, credit=100)
    cluster.submit("gang", node_count=2, cpu_milli=WHOLE)
    uids = [cluster.current("gang", rank) for rank in (0, 1)]
    for uid in uids:
        cluster.accept(uid)
    for uid in uids:
        cluster.start(uid)
    cluster.join("w3", credit=100)
    stays = next(uid for uid in uids if cluster.attempt(uid).worker == "w2")
    cluster.turn(WorkerDrained("w1", True, "ann", move=True))
    cluster.submit("other", cpu_milli=WHOLE)
    for uid in uids:
        cluster.end(uid, "preempted")
    now = [cluster.attempt(cluster.current("gang", rank)).worker for rank in (0, 1)]
    assert sorted(now) == ["w2", "w3"]
    assert cluster.attempt(stays).worker == "w2"
    assert not cluster.current("other")
