"""A requeue stops what runs and queues it again, free of charge, once it is confirmed gone."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster, assigned, cancels

from dray.core.model.records.records import JobState, Phase


def test_it_is_stopped_and_queued_again_once_gone(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    first = cluster.current()
    cluster.run(first)
    assert cancels(cluster.ask_again()) == [(first, "requeued")]
    assert cluster.attempt(first).phase is Phase.STOPPING
    cluster.poll("w1", 8)
    assert cluster.current() == first, "no second attempt before the first is gone"
    cluster.end(first, "killed", exit_class="cancelled")
    second = cluster.current()
    assert cluster.attempt(second).no == 2
    task = cluster.task()
    assert (task.failures, task.losses, task.preemptions) == (0, 0, 0)
    cluster.end(second)
    assert cluster.job().state is JobState.SUCCEEDED


@pytest.mark.parametrize("said", ["killed", "failed"])
def test_it_is_free_whatever_the_program_made_of_the_signal(cluster: Cluster, said: str) -> None:
    cluster.join("w1", credit=1)
    cluster.submit(retries=0)
    cluster.run(cluster.current())
    cluster.ask_again()
    cluster.end(cluster.current(), said)
    assert cluster.task().queued
    assert not cluster.task().failures


def test_a_run_that_succeeded_before_it_could_be_stopped_counts(cluster: Cluster) -> None:
    cluster.join("w1", credit=8)
    cluster.submit()
    cluster.run(cluster.current())
    cluster.ask_again()
    cluster.end(cluster.current(), "succeeded")
    assert cluster.job().state is JobState.SUCCEEDED


def test_one_task_of_an_array(cluster: Cluster) -> None:
    cluster.join("w1", credit=3)
    cluster.submit(array={"last": 2})
    uids = [cluster.current("job", index) for index in range(3)]
    assert cancels(cluster.ask_again(index=1)) == [(uids[1], "requeued")]
    assert len(cancels(cluster.ask_again())) == 2, "the one that is stopping is not asked twice"


def test_an_assignment_nobody_accepted_is_taken_back(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit()
    first = cluster.current()
    cluster.ask_again()
    cluster.advance(31)
    assert cluster.attempt(first).phase is Phase.REVOKED
    assert cluster.task().queued


def test_a_held_job_waits_after_its_requeue(cluster: Cluster) -> None:
    cluster.join("w1", credit=8)
    cluster.submit()
    cluster.run(cluster.current())
    cluster.hold()
    cluster.ask_again()
    assert not assigned(cluster.end(cluster.current(), "killed"))
    assert cluster.summary() == "held by bob"
    assert assigned(cluster.hold(on=False))


def test_a_cancel_wins_over_a_requeue(cluster: Cluster) -> None:
    cluster.join("w1", credit=8)
    cluster.submit()
    uid = cluster.current()
    cluster.run(uid)
    cluster.ask_again()
    cluster.cancel("job")
    cluster.end(uid, "killed")
    assert cluster.job().state is JobState.KILLED


def test_a_worker_lost_while_it_stops_is_a_loss(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, beats=False)
    cluster.submit(losses=1)
    cluster.run(cluster.current())
    cluster.ask_again()
    cluster.advance(130)
    assert cluster.task().queued
    assert cluster.task().losses == 1
