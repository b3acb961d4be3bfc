"""Failures, retries, hand-backs and time limits: what the end of an attempt means for its task."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, cancels, only

from dray.core.lifecycle.state.effects import Cancel
from dray.core.model.records.records import JobState, Phase


def begin(cluster: Cluster, **spec: Any) -> str:
    cluster.submit(**spec)
    cluster.run(cluster.current())
    return cluster.current()


def test_retries_count_failures_only(cluster: Cluster) -> None:
    cluster.join("w1", credit=9)
    uid = begin(cluster, retries=2)
    cluster.end(uid, "preempted", error="drain")
    for failure in (1, 2):
        cluster.run(cluster.current())
        cluster.end(cluster.current(), "failed", exit_code=failure)
        assert cluster.job().state is JobState.PENDING or cluster.current()
    cluster.run(cluster.current())
    cluster.end(cluster.current(), "failed", exit_code=9, exit_class="code", error="nine")
    task = cluster.task()
    assert (task.failures, task.preemptions, task.attempts) == (3, 1, 4)
    assert (cluster.job().state, task.exit_code, task.error) == (JobState.FAILED, 9, "nine")


def test_a_retry_keeps_its_place_in_the_line(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, batch=1)
    uid = begin(cluster, retries=1)
    cluster.submit("second")
    cluster.end(uid, "failed")
    cluster.poll("w1", 1)
    assert cluster.current()
    assert not cluster.current("second")


def test_at_most_once_is_not_started_again_after_a_hand_back(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    uid = begin(cluster, at_most_once=True)
    cluster.end(uid, "preempted", error="drain")
    assert cluster.job().state is JobState.WORKER_FAILED
    assert "may start once only" in cluster.task().error


def test_at_most_once_handed_back_before_its_start_waits_again(cluster: Cluster) -> None:
    cluster.join("w1", credit=4, features=("job_started",))
    cluster.submit(at_most_once=True)
    cluster.accept(cluster.current())
    cluster.end(cluster.current(), "preempted", error="drain")
    assert cluster.task().attempts == 2


def test_a_kill_nobody_asked_for_ends_the_task_killed(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    uid = begin(cluster, retries=3)
    cluster.end(uid, "killed", error="stopped by hand")
    assert (cluster.job().state, cluster.task().error) == (JobState.KILLED, "stopped by hand")


def test_the_hub_keeps_the_limit_of_base_only_workers(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, base=True)
    cluster.submit(max_runtime_s=100, job_tier="training")
    uid = cluster.current()
    cluster.accept(uid)
    assert cancels(cluster.advance(104.9)) == []
    stopped = only(cluster.advance(0.1), Cancel)
    assert stopped == [Cancel("w1", "job", uid, "time_limit", 600)]
    assert (cluster.attempt(uid).phase, cluster.job().state) == (Phase.STOPPING, JobState.RUNNING)
    cluster.end(uid, "killed")
    assert (cluster.job().state, cluster.task().exit_class) == (JobState.FAILED, "time_limit")


def test_agents_keep_their_limit_themselves(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    uid = begin(cluster, max_runtime_s=100)
    assert cancels(cluster.advance(1000)) == []
    cluster.end(uid, "failed", exit_class="time_limit")
    assert cluster.task().exit_class == "time_limit"


@pytest.mark.parametrize(("said", "state"), [("succeeded", JobState.SUCCEEDED), ("failed", JobState.FAILED)])
def test_past_the_limit_the_recorded_result_decides(cluster: Cluster, said: str, state: JobState) -> None:
    cluster.join("w1", credit=1, base=True)
    cluster.submit(max_runtime_s=1)
    cluster.accept(cluster.current())
    cluster.advance(6)
    cluster.end(cluster.current(), said)
    assert cluster.job().state is state


def test_an_adopted_attempt_is_still_held_to_its_limit(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, base=True, beats=False)
    cluster.submit(max_runtime_s=100)
    uid = cluster.current()
    cluster.accept(uid)
    cluster.advance(121)
    assert cluster.attempt(uid).phase is Phase.LOST
    cluster.register("w1", active=[cluster.active(uid)])
    cluster.beating["w1"] = None
    cluster.advance(1)
    assert cluster.attempt(uid).cancel == "time_limit"


def test_a_service_has_no_limit(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, base=True, service=1)
    cluster.submit(type="service")
    cluster.accept(cluster.current())
    assert cluster.attempt(cluster.current()).limit_ms == 0
    assert cancels(cluster.advance(50_000)) == []
