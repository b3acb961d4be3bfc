"""Registering again: every row of the rule that compares what a worker has with what the hub holds for it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, assigned, cancels, only

from dray.core.lifecycle.state.effects import Ack, Alarm, Cancel, CloseSession
from dray.core.lifecycle.state.events import Activity, Outcome, SessionClosed
from dray.core.model.records.records import JobState, Phase
from dray.core.model.units import GB


def begin(cluster: Cluster, job: str = "job", **spec: Any) -> str:
    cluster.poll("w1", 1)
    cluster.submit(job, **spec)
    uid = cluster.current(job)
    cluster.run(uid)
    return uid


def test_finished_and_unacked_is_recorded(cluster: Cluster) -> None:
    cluster.join("w1")
    uid = begin(cluster)
    effects = cluster.register("w1", finished=[cluster.outcome(uid)])
    assert only(effects, Ack)[0].results == {uid: "recorded"}
    assert cluster.job().state is JobState.SUCCEEDED
    again = cluster.register("w1", finished=[cluster.outcome(uid)])
    assert only(again, Ack)[0].results == {uid: "duplicate"}


def test_a_result_nobody_remembers_may_be_forgotten(cluster: Cluster) -> None:
    cluster.join("w1")
    uid = begin(cluster)
    strange = Outcome("gone", -1, "0-77", "succeeded")
    assert only(cluster.register("w1", finished=[strange], active=[cluster.active(uid)]), Ack)[0].results == {
        "0-77": "superseded"
    }


@pytest.mark.parametrize("named", [True, False])
def test_active_and_current_is_kept_and_unknown_runs_again(cluster: Cluster, named: bool) -> None:
    cluster.join("w1", beats=False)
    uid = begin(cluster)
    cluster.advance(45)
    assert cluster.attempt(uid).phase is Phase.UNKNOWN
    effects = cluster.register("w1", active=[cluster.active(uid, named=named)])
    assert only(effects, Ack)[0].keep == (uid,)
    assert cluster.attempt(uid).phase is Phase.RUNNING


def test_active_but_cancelled_is_stopped_with_the_grace_left(cluster: Cluster) -> None:
    cluster.join("w1")
    uid = begin(cluster)
    cluster.cancel("job", grace_s=30)
    cluster.break_socket("w1")
    cluster.advance(12)
    effects = cluster.register("w1", active=[cluster.active(uid)])
    assert only(effects, Ack)[0].stop == (uid,)
    assert only(effects, Cancel) == [Cancel("w1", "job", uid, "user", 18)]
    assert cluster.held("w1") == [uid]
    cluster.break_socket("w1")
    cluster.advance(60)
    assert only(cluster.register("w1", active=[cluster.active(uid)]), Cancel)[0].grace_s == 0


def test_lost_and_still_queued_is_adopted_again(cluster: Cluster) -> None:
    cluster.join("w1", beats=False)
    uid = begin(cluster)
    cluster.advance(121)
    assert (cluster.attempt(uid).error, cluster.task().losses) == ("silent for 120 s", 1)
    effects = cluster.register("w1", active=[cluster.active(uid)])
    assert only(effects, Ack)[0].keep == (uid,)
    attempt, task = cluster.attempt(uid), cluster.task()
    assert (attempt.phase, attempt.error, attempt.ended_at_ms) == (Phase.RUNNING, "", 0)
    assert (task.current, task.queued, task.losses, cluster.job().state) == (uid, False, 0, JobState.RUNNING)
    cluster.end(uid)
    assert cluster.job().state is JobState.SUCCEEDED


def test_lost_and_run_elsewhere_is_stopped(cluster: Cluster) -> None:
    cluster.join("w1", beats=False)
    old = begin(cluster)
    cluster.advance(121)
    cluster.join("w2", credit=1)
    new = cluster.current()
    assert new != old
    effects = cluster.register("w1", active=[cluster.active(old)])
    assert only(effects, Ack)[0].stop == (old,)
    assert cancels(effects) == [(old, "superseded")]
    assert only(cluster.end(old, "succeeded"), Ack)[0].results == {old: "superseded"}
    assert cluster.current() == new
    cluster.run(new)
    cluster.end(new, "failed", exit_code=5)
    assert (cluster.job().state, cluster.task().exit_code) == (JobState.FAILED, 5)


def test_lost_and_its_cards_given_away_is_stopped_not_adopted(cluster: Cluster) -> None:
    cluster.join("w1", gpus=1, vram_gb=40, labels={"room": "a"})
    old = begin(cluster, gpu_count=1, require=["room=a"])
    cluster.register("w1", gpus=1, vram_gb=40)
    assert cluster.task().queued
    other = begin(cluster, "other", gpu_count=1)
    reports = [cluster.active(old), cluster.active(other)]
    effects = cluster.register("w1", gpus=1, vram_gb=40, labels={"room": "a"}, active=reports)
    assert (only(effects, Ack)[0].keep, only(effects, Ack)[0].stop) == ((other,), (old,))
    assert cancels(effects) == [(old, "superseded")]
    assert cluster.state.columns.card_used[0] == {0: 1000}


def test_unknown_live_work_is_listed_and_never_killed(cluster: Cluster) -> None:
    cluster.join("w1")
    effects = cluster.register("w1", active=[Activity("stranger", 3, "0-9"), Activity("other", -1)])
    assert cancels(effects) == []
    assert only(effects, Ack)[0].stop == ()
    assert list(cluster.state.workers["w1"].quarantined) == ["other", "stranger/3"]
    cluster.register("w1")
    assert list(cluster.state.workers["w1"].quarantined) == []


def test_what_the_store_knows_as_over_is_stopped(cluster: Cluster) -> None:
    cluster.join("w1")
    effects = cluster.register("w1", active=[Activity("old", -1, "1-500", over=True)])
    assert cancels(effects) == [("1-500", "superseded")]
    assert cluster.state.workers["w1"].quarantined == ()


@pytest.mark.parametrize(
    ("journal", "phase"), [("j1", Phase.ASSIGNED), ("", Phase.ASSIGNED), ("j2", Phase.LOST)]
)
def test_an_assignment_that_is_not_reported(cluster: Cluster, journal: str, phase: Phase) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    effects = cluster.register("w1", journal_id=journal)
    assert cluster.attempt(uid).phase is phase
    assert assigned(effects) == ([uid] if phase is Phase.ASSIGNED else [])
    assert cluster.task().losses == 0


@pytest.mark.parametrize(
    ("journal", "why"),
    [("j1", "its worker came back without it"), ("j2", "its worker came back with a new journal")],
)
def test_what_ran_and_is_not_reported_is_lost(cluster: Cluster, journal: str, why: str) -> None:
    cluster.join("w1")
    uid = begin(cluster)
    cluster.register("w1", journal_id=journal)
    assert (cluster.attempt(uid).phase, cluster.attempt(uid).error) == (Phase.LOST, why)
    assert (cluster.task().queued, cluster.task().losses) == (True, 1)


def test_a_new_session_takes_over_and_the_old_one_is_closed(cluster: Cluster) -> None:
    cluster.join("w1")
    old = cluster.state.presence["w1"].session
    effects = cluster.register("w1")
    assert [(close.session, close.code) for close in only(effects, CloseSession)] == [(old, 4409)]
    assert cluster.state.presence["w1"].session == old + 1


def test_the_end_of_an_old_session_does_not_touch_the_new_one(cluster: Cluster) -> None:
    cluster.join("w1")
    old = cluster.state.presence["w1"].session
    cluster.register("w1")
    cluster.poll("w1", 1)
    cluster.turn(SessionClosed("w1", old))
    assert len(assigned(cluster.submit())) == 1


def test_two_machines_under_one_id_are_both_refused_for_a_minute(cluster: Cluster) -> None:
    cluster.join("w1")
    effects = []
    for number in range(5):
        effects += cluster.register("w1", incarnation=f"i{number % 2}")
    assert len(only(effects, Alarm)) == 1
    refused = cluster.register("w1", incarnation="i0")
    assert [close.code for close in only(refused, CloseSession)] == [4429]
    cluster.beating.clear()
    cluster.advance(61)
    assert only(cluster.register("w1", incarnation="i0"), CloseSession) == []
    assert cluster.state.presence["w1"].session


def test_one_machine_that_reconnects_often_is_not_refused(cluster: Cluster) -> None:
    cluster.join("w1")
    for _ in range(20):
        assert only(cluster.register("w1", incarnation="same"), Alarm) == []


def test_changed_totals_are_read_from_the_registration(cluster: Cluster) -> None:
    cluster.join("w1", memory_gb=16)
    cluster.register("w1", memory_gb=32)
    columns = cluster.state.columns
    assert columns.get("total_mem", columns.row_of["w1"]) == 32 * GB


@pytest.mark.parametrize(("base", "asked"), [(False, True), (True, False)])
def test_one_asked_to_stop_before_it_was_accepted_is_asked_about_again(
    cluster: Cluster, base: bool, asked: bool
) -> None:
    """A worker does not list what its supervisor has yet to begin: its silence does not say that it is gone."""
    cluster.join("w1", credit=1, base=base)
    cluster.submit("job")
    uid = cluster.current()
    cluster.ask_again()
    assert cluster.attempt(uid).phase is Phase.STOPPING
    cluster.break_socket("w1")
    effects = cluster.register("w1", base=base)
    assert only(effects, Cancel) == ([Cancel("w1", "job", uid, "requeued", 30)] if asked else [])
    assert cluster.task().queued is not asked
    cluster.end(uid, "killed", exit_class="never_began")
    assert cluster.task().queued
    assert cluster.task().losses == 0
