"""Assignments that nobody accepts: asked again, taken back, and back in their old place at no charge."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster, assigned, cancels, only

from dray.core.lifecycle.happenings.workers import MOST_UNKNOWN, stop_over
from dray.core.lifecycle.state.effects import Ack, Assign, Cancel, Effect, StopIfOver
from dray.core.lifecycle.timers import forget_answered, unanswered
from dray.core.model.records.records import JobState, Phase


def test_not_accepted_in_time_goes_back_to_its_old_place_uncharged(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, features=("job_started",))
    cluster.submit("first", losses=0)
    cluster.submit("second")
    uid = cluster.current("first")
    assert cancels(cluster.advance(29.9)) == []
    assert cancels(cluster.advance(0.1)) == [(uid, "revoked")]
    task = cluster.task("first")
    assert (task.queued, task.failures, task.losses, task.attempts) == (True, 0, 0, 1)
    assert (cluster.job("first").state, cluster.held("w1")) == (JobState.PENDING, [])
    cluster.poll("w1", 1)
    assert not cluster.current("first"), "who does not start what it is given is left alone for a moment"
    cluster.advance(1)
    assert cluster.current("first"), "it comes before the job that was submitted after it"
    assert not cluster.current("second")
    assert cluster.attempt(cluster.current("first")).no == 2


def test_only_a_worker_that_asked_for_it_is_asked_again(cluster: Cluster) -> None:
    cluster.join("asks", credit=1, labels={"n": "a"}, features=("resend",))
    cluster.join("not", credit=1, labels={"n": "b"}, features=())
    cluster.submit("a", require=["n=a"])
    cluster.submit("b", require=["n=b"])
    uid, began = cluster.current("a"), cluster.now_ms
    seen = []
    for _ in range(10):
        seen += [(cluster.now_ms - began, got) for got in assigned(cluster.advance(1))]
    assert [got for _, got in seen] == [uid] * 3
    assert [at for at, _ in seen] == [2000, 4000, 8000]


def test_an_assignment_is_sent_again_later_where_all_are_answered_late(cluster: Cluster) -> None:
    """Their answers are read one by one, the last of them after six seconds: the hub is slow, and nothing was lost."""
    names = [f"w{number}" for number in range(30)]
    for name in names:
        cluster.join(name, credit=1, batch=1)
    cluster.submit("array", array={"first": 0, "last": len(names) - 1})
    sent: list[str] = []
    for name in names:
        sent += assigned(cluster.advance(0.2))
        cluster.accept_all(name)
    assert sent == []


def test_what_is_truly_lost_is_sent_again_though_others_were_late(cluster: Cluster) -> None:
    cluster.join("slow", credit=1, labels={"n": "slow"})
    cluster.join("deaf", credit=1, labels={"n": "deaf"})
    cluster.submit("late", require=["n=slow"])
    cluster.advance(1.9)
    cluster.accept(cluster.current("late"))
    cluster.submit("lost", require=["n=deaf"])
    uid, began = cluster.current("lost"), cluster.now_ms
    seen = [(cluster.now_ms - began) for _ in range(28) for got in assigned(cluster.advance(1)) if got == uid]
    assert seen == [4000, 8000, 12000], "twice as late as others were, and then no sooner than that again"
    cluster.advance(60)
    cluster.poll("deaf", 1)
    again = cluster.current("lost")
    assert assigned(cluster.advance(2)) == [again], "how late they were long ago does not count"


def test_no_second_asking_after_acceptance_or_without_a_session(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit("taken")
    cluster.accept(cluster.current("taken"))
    assert assigned(cluster.advance(10)) == []
    cluster.poll("w1", 1)
    cluster.submit("cut-off")
    cluster.break_socket("w1")
    assert assigned(cluster.advance(10)) == []


def test_a_look_at_an_answered_assignment_is_forgotten_and_no_other(cluster: Cluster) -> None:
    cluster.join("w1", credit=2)
    cluster.submit("answered")
    cluster.submit("open")
    cluster.accept(cluster.current("answered"))
    forget_answered(cluster.state)
    looks = {key for _, kind, key in cluster.state.timers if kind in ("accept", "resend")}
    uid = cluster.current("open")
    assert looks == {uid}
    cluster.cancel("open")
    forget_answered(cluster.state)
    assert unanswered(cluster.attempt(uid)), "it was asked to stop and has not said a word yet"
    assert any(key == uid for _, kind, key in cluster.state.timers if kind == "resend")


def test_goodbye_gives_unaccepted_work_back_at_once(cluster: Cluster) -> None:
    cluster.join("w1", credit=2)
    cluster.submit("accepted")
    cluster.submit("unaccepted")
    kept = cluster.current("accepted")
    cluster.run(kept)
    cluster.leave("w1")
    assert cluster.task("unaccepted").queued
    assert cluster.attempt(kept).phase is Phase.RUNNING
    cluster.advance(41)
    assert cluster.attempt(kept).phase is Phase.UNKNOWN
    cluster.advance(80)
    assert cluster.attempt(kept).phase is Phase.LOST


def test_a_broken_socket_costs_nothing_and_the_assignment_is_sent_again(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    cluster.break_socket("w1")
    cluster.advance(5)
    effects: list[Effect] = cluster.register("w1")
    kinds = [type(effect) for effect in effects if isinstance(effect, (Ack, Assign))]
    assert kinds == [Ack, Assign], "the answer to register comes before the assignment"
    assert assigned(effects) == [uid]
    assert cluster.state.presence["w1"].credit == 0, "it needs no credit"
    assert cancels(cluster.advance(29)) == [], "the time to accept starts anew"
    assert cancels(cluster.advance(1)) == [(uid, "revoked")]


def test_an_accept_may_ride_with_registering(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    effects = cluster.register("w1", active=[cluster.active(uid, running=False)])
    assert only(effects, Ack)[-1].keep == (uid,)
    assert (cluster.attempt(uid).phase, cluster.attempt(uid).started) == (Phase.ACCEPTED, False)
    assert cluster.job().state is JobState.RUNNING


def test_cancelled_before_acceptance_and_never_heard_of_again_frees_its_place(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, batch=1)
    cluster.submit()
    uid = cluster.current()
    cluster.advance(20)
    assert cancels(cluster.cancel("job")) == [(uid, "user")]
    cluster.poll("w1", 1)
    cluster.submit("next")
    cluster.advance(29)
    assert (cluster.held("w1"), cluster.current("next")) == ([uid], "")
    cluster.advance(1)
    assert cluster.attempt(uid).phase is Phase.REVOKED
    assert cluster.current("next")
    assert cluster.task().state is JobState.KILLED


def test_cancelled_before_acceptance_but_accepted_late_holds_until_it_is_gone(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    cluster.cancel("job")
    assert only(cluster.accept(uid), Cancel) == []
    cluster.advance(60)
    assert cluster.attempt(uid).phase is Phase.STOPPING
    assert cluster.held("w1") == [uid]
    cluster.end(uid, "killed")
    assert cluster.held("w1") == []


def test_what_was_given_up_is_asked_to_stop_again_when_its_worker_names_it(cluster: Cluster) -> None:
    cluster.join("w1", credit=3)
    cluster.join("w2", credit=0)
    for job in ("revoked", "lost", "runs"):
        cluster.submit(job)
    revoked, lost, runs = (cluster.current(job) for job in ("revoked", "lost", "runs"))
    cluster.run(lost)
    cluster.run(runs)
    cluster.advance(31)
    cluster.register("w1", active=[cluster.active(runs)])
    assert [cluster.attempt(uid).phase for uid in (revoked, lost)] == [Phase.REVOKED, Phase.LOST]
    again = list(stop_over(cluster.state, "w1", [revoked, lost, runs, "7-7"]))
    # A lost one may still be adopted: nobody else has begun it. What memory does not hold is looked for in the rows.
    assert again == [Cancel("w1", "revoked", revoked, "superseded", 0), StopIfOver("w1", "7-7")]
    assert list(stop_over(cluster.state, "w2", [revoked])) == [], "it is another's"


@pytest.mark.parametrize("numbered", [True, False])
def test_heartbeats_that_name_many_strangers_are_gone_through_a_few_at_a_time(
    cluster: Cluster, numbered: bool
) -> None:
    cluster.join("w1", credit=1)
    many = [f"7-{number}" for number in range(1000)]
    looked: set[str] = set()
    for beat in range(5_000_000, 5_000_000 + 1000 // MOST_UNKNOWN + 1):
        cluster.advance(1)
        found = list(stop_over(cluster.state, "w1", many, beat if numbered else 0))
        assert len(found) == MOST_UNKNOWN
        looked |= {effect.uid for effect in found if isinstance(effect, StopIfOver)}
    assert looked == {*many}
