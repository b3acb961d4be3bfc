"""Sessions that another hub has kept go on: presence is taken up, and what may have been lost is said again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, assigned, only

from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.effects import Assign, Cancel, CloseSession, Effect, Go
from dray.core.lifecycle.state.events import CreditSet, SessionsResumed, WorkerForgotten
from dray.core.model.capability import Slots
from dray.core.model.records.records import JobState, Phase
from dray.core.model.records.worker import ResumedSession

SLOTS = Slots(batch_total=4, batch_in_use=0, service_total=0, service_in_use=0)


def held(cluster: Cluster, worker: str = "w1", session: int = 1 << 32, **said: Any) -> ResumedSession:
    """What a gateway says of a socket, right unless told otherwise."""
    row = cluster.state.workers[worker]
    known = {"incarnation": row.incarnation, "registered_at_ms": row.registered_at_ms, "credit": 0}
    return ResumedSession(worker, session, **{**known, "slots": SLOTS, **said})


def change_lead(cluster: Cluster) -> None:
    """A new leader: what lived in the memory of the last one is gone."""
    cluster.now_ms += 5000
    wake_up(cluster.state, cluster.clock)


def resume(cluster: Cluster, *sessions: ResumedSession) -> list[Effect]:
    return cluster.turn(SessionsResumed(sessions))


def test_presence_is_taken_up_and_nothing_is_said_to_one_that_runs_what_it_has(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    cluster.run(uid)
    change_lead(cluster)
    effects = resume(cluster, held(cluster, credit=3))
    presence = cluster.state.presence["w1"]
    assert (presence.session, presence.credit, presence.asked) == (1 << 32, 3, 3)
    assert (presence.seen_ms, presence.suspect, presence.slots) == (cluster.now_ms, False, SLOTS)
    assert effects == []
    assert cluster.attempt(uid).phase is Phase.RUNNING


def test_a_worker_that_is_resumed_gets_work_at_once(cluster: Cluster) -> None:
    cluster.join("w1")
    change_lead(cluster)
    cluster.submit()
    assert cluster.job().state is JobState.PENDING
    assert len(assigned(resume(cluster, held(cluster, credit=2)))) == 1


def test_what_was_not_accepted_is_sent_again_and_counts_against_the_credit(cluster: Cluster) -> None:
    cluster.join("w1", credit=2)
    cluster.submit()
    uid = cluster.current()
    change_lead(cluster)
    assert only(resume(cluster, held(cluster, credit=2)), Assign) == [Assign("w1", uid)]
    assert cluster.state.presence["w1"].credit == 1
    cluster.run(uid)
    cluster.end(uid)
    assert cluster.job().state is JobState.SUCCEEDED


def test_what_is_to_stop_is_asked_to_again_with_the_grace_left(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    cluster.run(uid)
    cluster.cancel("job", grace_s=30)
    change_lead(cluster)
    assert only(resume(cluster, held(cluster)), Cancel) == [Cancel("w1", "job", uid, "user", 25)]


def test_lanes_are_sent_again_whole(cluster: Cluster) -> None:
    cluster.join("w1", credit=2, batch=2, cpus=2)
    cluster.map(count=2)
    lanes = [lane.uid for lane in cluster.lanes()]
    cluster.returns(lanes[0], [])
    change_lead(cluster)
    assert [effect.uid for effect in only(resume(cluster, held(cluster)), Assign)] == lanes


def test_members_that_may_start_are_told_so_again(cluster: Cluster) -> None:
    for name in ("w1", "w2"):
        cluster.join(name, credit=1)
    cluster.submit(node_count=2)
    members = [cluster.current("job", index) for index in range(2)]
    for uid in members:
        cluster.accept(uid)
    change_lead(cluster)
    effects = resume(cluster, held(cluster, "w1", 1 << 32), held(cluster, "w2", (1 << 32) + 1))
    assert sorted(effect.uid for effect in only(effects, Go)) == sorted(members)


@pytest.mark.parametrize(
    "said", [{"incarnation": "another"}, {"registered_at_ms": 7}, {"worker": "stranger"}, {"session": 99}]
)
def test_a_session_of_another_registration_is_closed(cluster: Cluster, said: dict[str, Any]) -> None:
    cluster.join("w1")
    change_lead(cluster)
    if "session" in said:
        # It has registered with the new leader before its old socket was told of.
        cluster.register("w1")
    one = held(cluster)._replace(**said)
    if "session" in said:
        one = one._replace(registered_at_ms=cluster.state.workers["w1"].registered_at_ms)
    before = cluster.state.presence["w1"].session
    (closing,) = only(resume(cluster, one), CloseSession)
    assert (closing.session, closing.code) == (one.session, 1012)
    assert cluster.state.presence["w1"].session == before


def test_a_worker_that_left_or_was_forgotten_has_to_register(cluster: Cluster) -> None:
    cluster.join("w1")
    one = held(cluster)
    cluster.leave("w1")
    assert only(resume(cluster, one), CloseSession)
    cluster.turn(WorkerForgotten("w1"))
    assert only(resume(cluster, one), CloseSession)
    assert "w1" not in cluster.state.presence


def test_a_worker_that_may_be_told_things_once_only_has_to_register(cluster: Cluster) -> None:
    cluster.join("w1", features=())
    change_lead(cluster)
    assert only(resume(cluster, held(cluster)), CloseSession)


def test_one_that_fell_silent_while_nobody_led_is_looked_after_again(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, beats=False)
    cluster.submit()
    uid = cluster.current()
    cluster.run(uid)
    change_lead(cluster)
    resume(cluster, held(cluster))
    cluster.advance(45)
    assert cluster.attempt(uid).phase is Phase.UNKNOWN
    cluster.turn(*cluster.sign_of_life("w1"), CreditSet("w1", 1, SLOTS))
    assert cluster.attempt(uid).phase is Phase.RUNNING
