"""Silence: suspect, unknown, lost; who is charged for it, and when nothing is decided."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, assigned, only

from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.effects import CloseSession
from dray.core.lifecycle.state.events import Clock, WorkerForgotten
from dray.core.model.records.records import JobState, Phase


def running(cluster: Cluster, worker: str = "w1", job: str = "job", **spec: Any) -> str:
    cluster.poll(worker, 1)
    cluster.submit(job, **spec)
    uid = cluster.current(job)
    cluster.run(uid)
    return uid


def test_silence_makes_suspect_then_unknown_then_lost(cluster: Cluster) -> None:
    cluster.join("w1", beats=False)
    uid = running(cluster)
    cluster.poll("w1", 4)
    cluster.advance(24.9)
    assert len(assigned(cluster.submit("early"))) == 1
    cluster.advance(0.1)
    assert assigned(cluster.submit("suspect")) == []
    assert [kind for kind, _, _ in cluster.blockers("suspect")] == ["suspect"]
    cluster.advance(14.9)
    assert cluster.attempt(uid).phase is Phase.RUNNING
    cluster.advance(0.1)
    assert cluster.attempt(uid).phase is Phase.UNKNOWN
    assert cluster.job().state is JobState.RUNNING
    cluster.advance(79.9)
    assert cluster.attempt(uid).phase is Phase.UNKNOWN
    cluster.advance(0.1)
    assert cluster.attempt(uid).phase is Phase.LOST
    assert (cluster.task().queued, cluster.task().losses, cluster.task().failures) == (True, 1, 0)


def test_any_message_ends_the_silence(cluster: Cluster) -> None:
    cluster.join("w1", beats=False)
    uid = running(cluster)
    cluster.advance(50)
    assert cluster.attempt(uid).phase is Phase.UNKNOWN
    cluster.turn(*cluster.sign_of_life("w1"))
    assert cluster.attempt(uid).phase is Phase.RUNNING
    assert not cluster.state.workers["w1"].silent
    cluster.advance(100)
    assert cluster.attempt(uid).phase is Phase.UNKNOWN, "the time starts anew"


def test_a_second_silence_is_noticed_as_soon_as_the_first(cluster: Cluster) -> None:
    cluster.join("w1", beats=False)
    running(cluster, lost_after_s=100_000)
    cluster.advance(50)
    assert cluster.state.workers["w1"].silent, "and its next look is a day away"
    cluster.turn(*cluster.sign_of_life("w1"))
    cluster.advance(25)
    assert cluster.state.presence["w1"].suspect
    cluster.advance(15)
    assert cluster.state.workers["w1"].silent
    cluster.register("w1", active=[cluster.active(cluster.current())])
    cluster.advance(25)
    assert cluster.state.presence["w1"].suspect


def test_a_worker_that_was_given_up_must_register_again(cluster: Cluster) -> None:
    cluster.join("w1", beats=False)
    uid = running(cluster)
    session = cluster.state.presence["w1"].session
    effects = cluster.advance(121)
    assert [(close.session, close.code) for close in only(effects, CloseSession)] == [(session, 4408)]
    assert cluster.state.presence["w1"].session == 0
    cluster.register("w1", active=[cluster.active(uid)])
    assert cluster.attempt(uid).phase is Phase.RUNNING


@pytest.mark.parametrize(("spec", "seconds"), [({"type": "service"}, 60), ({"lost_after_s": 300}, 300)])
def test_services_and_single_jobs_have_their_own_time(
    cluster: Cluster, spec: dict[str, Any], seconds: int
) -> None:
    cluster.join("w1", beats=False, service=1)
    uid = running(cluster, **spec)
    cluster.advance(seconds - 1)
    assert cluster.attempt(uid).phase is Phase.UNKNOWN
    cluster.advance(1)
    assert cluster.attempt(uid).phase is Phase.LOST


def test_a_loss_before_the_start_is_free(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, beats=False)
    cluster.submit(at_most_once=True)
    cluster.accept(cluster.current())
    cluster.advance(121)
    task = cluster.task()
    assert (task.queued, task.losses, cluster.job().state) == (True, 0, JobState.PENDING)


def test_losses_run_out(cluster: Cluster) -> None:
    cluster.submit(losses=2)
    for loss in (1, 2, 3):
        cluster.join(f"w{loss}", credit=1, beats=False)
        cluster.run(cluster.current())
        cluster.advance(121)
        assert cluster.task().losses == loss
    assert cluster.job().state is JobState.WORKER_FAILED
    assert cluster.task().error == "its worker was lost 3 times, 2 allowed"


def test_at_most_once_ends_with_its_first_loss(cluster: Cluster) -> None:
    cluster.join("w1", beats=False)
    running(cluster, at_most_once=True, retries=5, losses=5)
    cluster.advance(121)
    assert cluster.job().state is JobState.WORKER_FAILED


def test_what_a_worker_reports_as_lost_is_a_loss(cluster: Cluster) -> None:
    cluster.join("w1")
    uid = running(cluster)
    cluster.end(uid, "failed", exit_class="lost", error="the host was restarted")
    assert (cluster.attempt(uid).phase, cluster.task().losses, cluster.task().queued) == (Phase.LOST, 1, True)
    cluster.poll("w1", 1)
    cluster.accept(cluster.current())
    cluster.end(cluster.current(), "failed", exit_class="lost_unstarted")
    assert (cluster.task().losses, cluster.task().failures, cluster.task().queued) == (1, 0, True)


def test_the_late_result_of_a_lost_attempt_counts_while_its_task_waits(cluster: Cluster) -> None:
    cluster.join("w1", beats=False)
    uid = running(cluster)
    cluster.advance(121)
    cluster.register("w1", finished=[cluster.outcome(uid)])
    assert cluster.job().state is JobState.SUCCEEDED
    assert cluster.task().losses == 0
    assert (cluster.attempt(uid).phase, cluster.attempt(uid).error) == (Phase.SUCCEEDED, "")


def test_a_worker_that_was_forgotten_and_came_back_is_watched_once(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.join("w1", beats=False)
        cluster.advance(5)
        cluster.break_socket("w1")
        cluster.turn(WorkerForgotten("w1"))
    cluster.join("w1")
    cluster.advance(100)
    assert [key for _, kind, key in cluster.state.timers if kind == "silence"] == ["w1"]


def test_mass_loss_decides_nothing(cluster: Cluster) -> None:
    uids = []
    for number in range(4):
        cluster.join(f"w{number}", beats=number == 0)
        uids.append(running(cluster, f"w{number}", f"job{number}"))
    cluster.advance(300)
    assert cluster.state.braked
    assert [cluster.attempt(uid).phase for uid in uids] == [Phase.RUNNING] * 4
    assert all(cluster.state.presence[f"w{number}"].suspect for number in (1, 2, 3))
    for number in (1, 2):
        cluster.register(f"w{number}", active=[cluster.active(uids[number])])
        cluster.beating[f"w{number}"] = None
    cluster.advance(60)
    assert not cluster.state.braked
    assert cluster.attempt(uids[3]).phase is Phase.LOST


def test_two_of_three_silent_is_too_few_for_the_brake(cluster: Cluster) -> None:
    for number in range(3):
        cluster.join(f"w{number}", beats=number == 0)
    uid = running(cluster, "w1")
    cluster.advance(130)
    assert not cluster.state.braked
    assert cluster.attempt(uid).phase is Phase.LOST


def test_a_fresh_hub_decides_no_loss_for_a_while(cluster: Cluster) -> None:
    cluster.join("w1", beats=False)
    uid = running(cluster, lost_after_s=41)
    wake_up(cluster.state, Clock(cluster.now_ms, 0))
    cluster.advance(119)
    assert cluster.attempt(uid).phase is Phase.UNKNOWN
    cluster.advance(40)
    assert cluster.attempt(uid).phase is Phase.LOST
