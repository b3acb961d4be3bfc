"""The walk of a task from submit to result, and what readiness means on the way."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster, assigned, cancels, only

from dray.core.lifecycle.state.effects import Ack, Cancel, LookUp, Note, NoWork, Refuse
from dray.core.lifecycle.state.events import (
    AttemptAccepted,
    AttemptEnded,
    Outcome,
    WorkerChanged,
    WorkerDrained,
)
from dray.core.model.capability import Capability, Slots
from dray.core.model.records.records import JobState, Phase


def test_a_job_walks_from_submit_to_its_result(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    sent = assigned(cluster.submit())
    uid = cluster.current()
    assert sent == [uid]
    assert (cluster.job().state, cluster.attempt(uid).phase) == (JobState.PENDING, Phase.ASSIGNED)
    cluster.accept(uid)
    assert (cluster.job().state, cluster.attempt(uid).phase) == (JobState.RUNNING, Phase.ACCEPTED)
    assert not cluster.attempt(uid).started
    cluster.start(uid)
    assert (cluster.attempt(uid).phase, cluster.attempt(uid).pid) == (Phase.RUNNING, 7)
    effects = cluster.end(uid, exit_code=0, wall_s=1.5, value=b"42")
    assert only(effects, Ack)[0].results == {uid: "recorded"}
    assert cluster.job().state is JobState.SUCCEEDED
    assert (cluster.task().exit_code, cluster.task().exit_class, cluster.task().attempts) == (0, "ok", 1)
    assert (cluster.attempt(uid).value, cluster.attempt(uid).wall_s) == (b"42", 1.5)
    assert [note.type for note in only(effects, Note)] == ["task_ended", "job_ended"]
    assert cluster.held("w1") == []


def test_for_a_base_only_worker_accepted_means_started(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, base=True)
    cluster.submit()
    uid = cluster.current()
    cluster.turn(AttemptAccepted("w1", "job", -1))
    assert cluster.attempt(uid).started
    ended = cluster.turn(AttemptEnded("w1", cluster.outcome(uid, named=False)))
    assert only(ended, Ack)[0].results == {uid: "recorded"}
    assert cluster.job().state is JobState.SUCCEEDED


def test_the_end_of_an_earlier_attempt_is_not_that_of_the_one_on_its_way(cluster: Cluster) -> None:
    """A base-only worker names tasks, not attempts: it was told to stop one, and has not heard of the next yet."""
    cluster.join("w1", credit=1, base=True)
    cluster.submit()
    uid = cluster.current()
    killed = cluster.turn(AttemptEnded("w1", cluster.outcome(uid, "killed", named=False)))
    assert only(killed, Ack)[0].results == {uid: "superseded"}
    cluster.turn(AttemptAccepted("w1", "job", -1))
    assert (cluster.job().state, cluster.attempt(uid).started) == (JobState.RUNNING, True)
    # From here on it is its own.
    cluster.turn(AttemptEnded("w1", cluster.outcome(uid, "killed", named=False)))
    assert cluster.job().state is JobState.KILLED


def test_what_a_base_only_worker_begins_when_it_is_over_is_stopped(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, base=True)
    cluster.submit()
    uid = cluster.current()
    cluster.turn(AttemptEnded("w1", cluster.outcome(uid, named=False)))
    assert cluster.job().state is JobState.SUCCEEDED
    late = cluster.turn(AttemptAccepted("w1", "job", -1))
    assert [(stop.uid, stop.reason) for stop in only(late, Cancel)] == [(uid, "superseded")]


def test_credit_is_set_and_never_added(cluster: Cluster) -> None:
    cluster.join("w1", batch=8)
    for _ in range(3):
        cluster.poll("w1", 1)
    assert cluster.state.presence["w1"].credit == 1
    assert len(assigned(cluster.submit(array={"last": 4}))) == 1
    assert cluster.state.presence["w1"].credit == 0
    assert len(assigned(cluster.poll("w1", 2))) == 2
    assert assigned(cluster.poll("w1", 0)) == []


def test_unspent_credit_stays_after_no_work_and_is_pushed_to(cluster: Cluster) -> None:
    effects = cluster.join("w1", credit=1)
    assert only(effects, NoWork) == [NoWork("w1")]
    assert len(assigned(cluster.submit())) == 1


def test_a_new_session_starts_without_credit(cluster: Cluster) -> None:
    cluster.join("w1", credit=5)
    cluster.register("w1")
    assert assigned(cluster.submit()) == []
    assert [kind for kind, _, _ in cluster.blockers()] == ["credit"]


@pytest.mark.parametrize(("total", "in_use", "placed"), [(4, 0, 1), (4, 3, 1), (4, 4, 0), (0, 0, 0)])
def test_free_slots_are_what_the_worker_says_is_not_in_use(
    cluster: Cluster, total: int, in_use: int, placed: int
) -> None:
    cluster.join("w1", batch=total)
    cluster.poll("w1", 1, batch=in_use)
    assert len(assigned(cluster.submit(array={"last": 9}))) == placed


def test_live_attempts_count_where_the_worker_does_not_count_them_yet(cluster: Cluster) -> None:
    cluster.join("w1", credit=10, batch=2)
    assert len(assigned(cluster.submit(array={"last": 9}))) == 2
    assert assigned(cluster.report_slots("w1", Slots(batch_total=2, batch_in_use=1))) == []
    assert len(assigned(cluster.report_slots("w1", Slots(batch_total=3, batch_in_use=1)))) == 1


def test_cards_of_an_unaccepted_assignment_are_not_free(cluster: Cluster) -> None:
    cluster.join("w1", credit=8, gpus=4, vram_gb=160)
    cluster.submit("first", gpu_count=3)
    assert cluster.free_cards("w1") == 1
    assert assigned(cluster.submit("second", gpu_count=2)) == []
    assert len(assigned(cluster.submit("third", gpu_count=1))) == 1
    assert cluster.attempt(cluster.current("first")).devices == (0, 1, 2)
    assert cluster.attempt(cluster.current("third")).devices == (3,)


def test_a_message_without_an_attempt_means_the_newest_one_of_this_worker(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, base=True)
    cluster.submit(retries=1)
    first = cluster.current()
    cluster.end(first, "failed")
    cluster.poll("w1", 1)
    second = cluster.current()
    assert second != first
    cluster.turn(AttemptEnded("w1", cluster.outcome(second, named=False)))
    assert cluster.attempt(second).phase is Phase.SUCCEEDED
    assert cluster.attempt(first).phase is Phase.FAILED


def test_a_worker_speaks_only_for_its_own_attempts(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.join("w2")
    cluster.submit()
    uid = cluster.current()
    refused = cluster.turn(AttemptAccepted("w2", "job", -1, uid))
    assert "no attempt of task job" in only(refused, Refuse)[0].error
    looked_up = cluster.turn(AttemptEnded("w2", Outcome("job", -1, uid, "succeeded")))
    assert only(looked_up, LookUp) == [LookUp("w2", "job", -1, uid)]
    assert cluster.attempt(uid).phase is Phase.ASSIGNED


def test_a_second_result_is_a_duplicate_and_changes_nothing(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    cluster.end(uid, "failed", exit_code=3, error="boom")
    effects = cluster.end(uid, "succeeded")
    assert only(effects, Ack)[0].results == {uid: "duplicate"}
    assert (cluster.task().state, cluster.task().exit_code, cluster.task().error) == (
        JobState.FAILED,
        3,
        "boom",
    )


def test_drain_takes_no_new_work_until_resumed(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    cluster.submit("running")
    cluster.turn(WorkerDrained("w1", True, "ann"))
    assert assigned(cluster.submit("late")) == []
    assert "draining" in cluster.summary("late")
    cluster.end(cluster.current("running"))
    assert cluster.job("running").state is JobState.SUCCEEDED
    assert len(assigned(cluster.turn(WorkerDrained("w1", False, "ann")))) == 1


def test_draining_lives_through_a_new_registration(cluster: Cluster) -> None:
    cluster.join("w1")
    cluster.turn(WorkerDrained("w1", True))
    cluster.register("w1")
    cluster.poll("w1", 4)
    assert assigned(cluster.submit()) == []


def test_a_changed_capability_frees_and_blocks(cluster: Cluster) -> None:
    cluster.join("w1", credit=8, gpus=1, vram_gb=40)
    cluster.submit(gpu_count=2)
    assert "cannot ever" in cluster.summary()
    larger = Capability("nvidia", 2, "A100", 80, 8, 16)
    assert len(assigned(cluster.turn(WorkerChanged("w1", larger)))) == 1
    cluster.end(cluster.current())
    cluster.poll("w1", 8)
    cluster.turn(WorkerChanged("w1", Capability("cpu", 0, "", 0, 8, 16)))
    assert assigned(cluster.submit("next", gpu_count=1)) == []


def test_a_late_accept_of_a_revoked_attempt_is_told_to_stop(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    revoked = cluster.advance(30)
    assert cancels(revoked) == [(uid, "revoked")]
    assert cluster.attempt(uid).phase is Phase.REVOKED
    assert cluster.task().queued
    late = cluster.accept(uid)
    assert only(late, Cancel) == [Cancel("w1", "job", uid, "revoked", 0)]
    assert cluster.task().queued
