"""A worker says with its result whether user code had begun; the hub believes it, whatever it heard before."""

from __future__ import annotations

import pytest
from tests.core.harness import AGENT, Cluster

from dray.core.model.records.records import JobState, Phase


@pytest.mark.parametrize("at_registering", [False, True])
def test_a_reported_loss_counts_where_the_start_was_never_heard_of(
    cluster: Cluster, at_registering: bool
) -> None:
    cluster.submit(at_most_once=True)
    cluster.join("w1", credit=1)
    uid = cluster.current()
    cluster.accept(uid)
    if at_registering:
        cluster.register("w1", finished=[cluster.outcome(uid, "failed", exit_class="lost")])
    else:
        cluster.end(uid, "failed", exit_class="lost")
    assert (cluster.job().state, cluster.task().losses) == (JobState.WORKER_FAILED, 1)


def test_what_never_began_is_free(cluster: Cluster) -> None:
    cluster.submit(at_most_once=True)
    cluster.join("w1", credit=1)
    uid = cluster.current()
    cluster.accept(uid)
    cluster.end(uid, "failed", exit_class="lost_unstarted")
    assert (cluster.job().state, cluster.task().losses) == (JobState.PENDING, 0)
    assert not cluster.attempt(uid).started


def test_what_was_stopped_before_its_start_was_heard_of_has_started(cluster: Cluster) -> None:
    cluster.submit()
    cluster.join("w1", credit=1)
    uid = cluster.current()
    cluster.accept(uid)
    cluster.cancel("job")
    cluster.end(uid, "killed", exit_class="cancelled", wall_s=0.004)
    assert cluster.job().state is JobState.KILLED
    assert cluster.attempt(uid).started


def test_what_was_handed_back_before_its_start_was_heard_of_may_not_start_again(cluster: Cluster) -> None:
    cluster.submit(at_most_once=True)
    cluster.join("w1", credit=1)
    uid = cluster.current()
    cluster.accept(uid)
    cluster.end(uid, "preempted", wall_s=0.004)
    assert cluster.job().state is JobState.WORKER_FAILED


def test_what_was_taken_back_and_had_begun_may_not_start_again(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, features=(*AGENT, "lease"))
    cluster.submit(at_most_once=True, overlap="fenced")
    uid = cluster.current()
    cluster.advance(30)
    assert cluster.attempt(uid).phase is Phase.STOPPING
    cluster.end(uid, "killed", exit_class="cancelled", wall_s=0.004)
    assert cluster.job().state is JobState.WORKER_FAILED
    assert "once" in cluster.task().error
