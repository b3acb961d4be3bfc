"""Cancelling: what waits ends at once, what runs is killed for the record and holds its place until it is gone."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster, assigned, cancels, only

from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.effects import Ack, Cancel
from dray.core.lifecycle.state.events import Clock
from dray.core.model.records.records import JobState, Phase


def test_a_waiting_job_ends_at_once(cluster: Cluster) -> None:
    cluster.submit()
    assert cancels(cluster.cancel("job")) == []
    assert (cluster.job().state, cluster.job().killed) == (JobState.KILLED, 1)
    assert cluster.state.backlog.depth["default"] == 0
    cluster.join("w1")
    assert assigned(cluster.poll("w1", 4)) == []


@pytest.mark.parametrize("phase", [Phase.ASSIGNED, Phase.ACCEPTED, Phase.RUNNING])
def test_a_placed_job_is_killed_at_once_and_holds_its_cards_until_it_is_gone(
    cluster: Cluster, phase: Phase
) -> None:
    cluster.join("w1", credit=4, gpus=2, vram_gb=80)
    cluster.submit(gpu_count=2)
    uid = cluster.current()
    if phase is not Phase.ASSIGNED:
        cluster.accept(uid)
    if phase is Phase.RUNNING:
        cluster.start(uid)
    assert cluster.attempt(uid).phase is phase
    asked = only(cluster.cancel("job", grace_s=3), Cancel)
    assert asked == [Cancel("w1", "job", uid, "user", 3)]
    assert cluster.job().state is JobState.KILLED
    assert (cluster.free_cards("w1"), cluster.held("w1")) == (0, [uid])
    assert assigned(cluster.submit("next", gpu_count=1)) == []
    ended = cluster.end(uid, "killed")
    assert only(ended, Ack)[0].results == {uid: "superseded"}
    assert len(assigned(ended)) == 1, "the next one starts as soon as the cards are free"


def test_the_grace_is_the_tiers_own_where_none_is_asked(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit(job_tier="evaluation")
    assert only(cluster.cancel("job"), Cancel)[0].grace_s == 120


def test_cancel_then_finish_stays_killed(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    cluster.run(uid)
    cluster.cancel("job")
    assert only(cluster.end(uid, "succeeded"), Ack)[0].results == {uid: "superseded"}
    assert (cluster.job().state, cluster.task().state) == (JobState.KILLED, JobState.KILLED)
    assert cluster.attempt(uid).phase is Phase.SUCCEEDED


def test_finish_then_cancel_stays_succeeded(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    cluster.run(uid)
    cluster.end(uid, "succeeded")
    assert cluster.cancel("job") == []
    assert cluster.job().state is JobState.SUCCEEDED


def test_a_second_cancel_is_quiet(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    cluster.cancel("job")
    assert cluster.cancel("job") == []
    assert cluster.cancel("never-heard-of") == []


def test_one_cancelled_task_of_an_array_is_a_hole_that_is_passed_over(cluster: Cluster) -> None:
    cluster.submit(array={"last": 4})
    cluster.cancel("job", 0)
    cluster.cancel("job", 2)
    cluster.cancel("job", 2)
    assert (cluster.job().killed, cluster.job().waiting, cluster.job().holes) == (2, 3, 2)
    cluster.join("w1", batch=9)
    cluster.poll("w1", 9)
    placed = [cluster.attempt(uid).index for uid in cluster.held("w1")]
    assert placed == [1, 3, 4]
    assert (cluster.job().holes, cluster.job().waiting) == (0, 0)
    for uid in cluster.held("w1"):
        cluster.end(uid)
    assert (cluster.job().state, cluster.job().succeeded) == (JobState.KILLED, 3)


def test_one_running_task_of_an_array(cluster: Cluster) -> None:
    cluster.join("w1", credit=2)
    cluster.submit(array={"last": 3})
    uid = cluster.current("job", 1)
    assert cancels(cluster.cancel("job", 1)) == [(uid, "user")]
    assert cluster.task("job", 1).state is JobState.KILLED
    assert (cluster.job().state.final, cluster.job().waiting) == (False, 2)


@pytest.mark.parametrize("index", [5, 10**9])
def test_a_task_that_is_not_there_is_not_cancelled(cluster: Cluster, index: int) -> None:
    cluster.submit(array={"last": 4})
    cluster.cancel("job", index)
    assert (cluster.job().waiting, cluster.job().killed) == (5, 0)


def test_the_whole_array_ends_with_what_waits_what_waits_again_and_what_runs(cluster: Cluster) -> None:
    cluster.join("w1", credit=3)
    cluster.submit(array={"last": 9}, retries=1)
    first, second, third = (cluster.current("job", index) for index in range(3))
    cluster.run(first)
    cluster.end(first, "failed")
    cluster.run(second)
    cluster.end(third, "succeeded")
    assert cancels(cluster.cancel("job")) == [(second, "user")]
    job = cluster.job()
    assert (job.state, job.killed, job.succeeded, job.waiting) == (JobState.KILLED, 9, 1, 0)
    cluster.end(second, "killed")
    assert cluster.held("w1") == []


def test_a_cancelled_job_says_how_much_of_it_had_not_started(cluster: Cluster) -> None:
    cluster.join("w1", credit=3)
    cluster.submit("some", array={"last": 9})
    cluster.submit("none")
    for job_id in ("some", "none"):
        cluster.cancel(job_id)
    assert cluster.job("some").error == "cancelled by ann when 7 of its 10 tasks had not started"
    assert cluster.job("none").error == "cancelled by ann before it started"


def test_a_cancelled_attempt_that_is_lost_frees_its_place_and_charges_nobody(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, beats=False)
    cluster.submit()
    uid = cluster.current()
    cluster.run(uid)
    cluster.cancel("job")
    cluster.advance(121)
    assert (cluster.attempt(uid).phase, cluster.held("w1")) == (Phase.LOST, [])
    assert (cluster.task().state, cluster.task().losses) == (JobState.KILLED, 0)


def test_a_restarted_hub_asks_again_for_what_it_had_asked_to_stop(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    uid = cluster.current()
    cluster.run(uid)
    cluster.cancel("job", grace_s=3)
    wake_up(cluster.state, Clock(cluster.now_ms, 0))
    cluster.register("w1", active=[cluster.active(uid)])
    again = cluster.advance(cluster.state.rules.stop_again_ms / 1000 + 4)
    assert [asked.uid for asked in only(again, Cancel)] == [uid], (
        "the request after the restart may be lost too"
    )
