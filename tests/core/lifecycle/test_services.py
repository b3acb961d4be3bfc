"""A service's replicas start again whenever they end, until it is stopped; what is said of them decides no result."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Cluster, assigned, cancels, only

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.recovery import load, wake_up
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import AttemptsLost
from dray.core.lifecycle.state.service_events import HealthChanged, ServiceScaled
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.replicas import health_of, ready_replicas
from dray.core.model.records.records import JobState, Phase
from dray.errors import InvalidSpec

CHECKED: dict[str, Any] = {"health_check": {"readiness": "/ready"}}


def serve(cluster: Cluster, replicas: int = 1, service: int = 4, base: bool = False, **spec: Any) -> None:
    cluster.join("w1", credit=99, service=service, base=base)
    cluster.submit("web", type="service", replicas=replicas, **spec)


def uids(cluster: Cluster, count: int) -> list[str]:
    return [cluster.current("web", index) for index in range(count)]


def say(cluster: Cluster, uid: str, healthy: bool, live: bool = True, note: str = "") -> list[Effect]:
    attempt = cluster.attempt(uid)
    return cluster.turn(
        HealthChanged(attempt.worker, "web", cluster.spelled(attempt), uid, healthy, live, note)
    )


def crash(cluster: Cluster, index: int = 0) -> float:
    """Let a replica run and fail; gives for how long it rests then, in seconds."""
    cluster.poll("w1", 9)
    uid = cluster.current("web", index)
    cluster.run(uid)
    cluster.end(uid, "failed", last="line one\nno such model\n")
    return (cluster.task("web", index).again_ms - cluster.now_ms) / 1000


@pytest.mark.parametrize("said", ["succeeded", "failed", "killed"])
def test_a_replica_that_ends_rests_and_starts_again(cluster: Cluster, said: str) -> None:
    serve(cluster, retries=0)
    first = cluster.current("web")
    cluster.run(first)
    cluster.end(first, said)
    task = cluster.task("web")
    assert (task.current, task.queued, task.state, task.again_ms - cluster.now_ms) == (
        "",
        False,
        "pending",
        1000,
    )
    cluster.poll("w1", 9)
    assert not cluster.current("web"), "not before it has rested"
    cluster.advance(1)
    assert cluster.attempt(cluster.current("web")).no == 2
    assert (task.failures, task.losses, cluster.job("web").state) == (0, 0, "running")


def test_rests_double_up_to_a_bound_and_are_forgotten_after_a_good_while(cluster: Cluster) -> None:
    serve(cluster)
    rests = []
    for _ in range(11):
        rests.append(crash(cluster))
        cluster.advance(rests[-1])
    assert rests == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    cluster.run(cluster.current("web"))
    cluster.advance(599)
    cluster.end(cluster.current("web"), "failed")
    assert cluster.task("web").again_ms - cluster.now_ms == 300_000
    cluster.advance(300)
    cluster.poll("w1", 9)
    cluster.run(cluster.current("web"))
    cluster.advance(600)
    assert crash(cluster) == 1


def test_five_ends_within_ten_minutes_are_a_loop_which_why_tells(cluster: Cluster) -> None:
    serve(cluster)
    for _ in range(4):
        cluster.advance(crash(cluster))
        assert not cluster.task("web").looping
    crash(cluster)
    assert cluster.task("web").looping
    assert [note.type for note in only(cluster.effects, Note)].count("replica_crash_looping") == 1
    told = cluster.summary("web")
    assert told.startswith("0 of 1 replicas ready; replica 0: it keeps ending, 5 times by now")
    assert "no such model" in told
    assert "tried again in 16 s" in told
    cluster.advance(16)
    cluster.poll("w1", 9)
    cluster.run(cluster.current("web"))
    cluster.advance(600)
    cluster.end(cluster.current("web"), "failed")
    assert not cluster.task("web").looping


def test_a_lost_worker_s_replica_goes_elsewhere_at_once_and_is_charged_to_nobody(cluster: Cluster) -> None:
    serve(cluster, losses=0)
    first = cluster.current("web")
    cluster.run(first)
    cluster.join("w2", credit=9, service=1)
    effects = cluster.turn(AttemptsLost("w1", (first,), "silent for 60 s"))
    assert cluster.attempt(assigned(effects)[0]).worker == "w2"
    task = cluster.task("web")
    assert (task.losses, task.restarts, task.ends_ms) == (0, 0, ())


def test_a_lost_replica_that_comes_back_is_taken_on_again(cluster: Cluster) -> None:
    serve(cluster)
    first = cluster.current("web")
    cluster.run(first)
    cluster.break_socket("w1")
    cluster.advance(200)
    assert cluster.attempt(first).phase is Phase.LOST
    cluster.register("w1", active=[cluster.active(first)])
    assert (cluster.current("web"), cluster.task("web").losses) == (first, 0)


def test_a_replica_is_ready_by_its_checks_or_once_it_runs(cluster: Cluster) -> None:
    serve(cluster, 2, **CHECKED)
    first, second = uids(cluster, 2)
    job = cluster.job("web")
    assert health_of(cluster.state, job, cluster.attempt(first)) == "starting"
    cluster.run(first)
    assert health_of(cluster.state, job, cluster.attempt(first)) == "starting"
    say(cluster, first, healthy=True)
    cluster.run(second)
    assert [attempt.uid for attempt in ready_replicas(cluster.state, job)] == [first]
    say(cluster, first, healthy=False, note="503")
    assert ready_replicas(cluster.state, job) == []
    assert "replica 0: not well on w1 for 0 s: 503" in cluster.summary("web")
    cluster.submit("plain", type="service")
    cluster.run(cluster.current("plain"))
    assert len(ready_replicas(cluster.state, cluster.job("plain"))) == 1


def test_health_counts_for_the_current_attempt_alone(cluster: Cluster) -> None:
    serve(cluster, **CHECKED)
    first = cluster.current("web")
    cluster.run(first)
    cluster.end(first, "failed")
    say(cluster, first, healthy=True)
    assert cluster.attempt(first).health == ""
    assert ready_replicas(cluster.state, cluster.job("web")) == []


def test_what_is_not_live_is_stopped_and_starts_again_by_the_rule(cluster: Cluster) -> None:
    serve(cluster, **CHECKED)
    first = cluster.current("web")
    cluster.run(first)
    say(cluster, first, healthy=False)
    assert not cluster.attempt(first).cancel, "not ready is no reason to stop it"
    assert cancels(say(cluster, first, healthy=False, live=False, note="no answer")) == [(first, "unhealthy")]
    cluster.end(first, "killed", exit_class="cancelled")
    task = cluster.task("web")
    assert (task.restarts, task.again_ms - cluster.now_ms) == (1, 1000)
    assert task.error == "restarted: no answer"


def test_three_times_in_a_row_from_a_worker_that_knows_no_more(cluster: Cluster) -> None:
    serve(cluster, base=True)
    first = cluster.current("web")
    cluster.accept(first)
    for healthy in (False, False, True, False, False):
        assert cancels(say(cluster, first, healthy)) == []
    assert cancels(say(cluster, first, healthy=False)) == [(first, "unhealthy")]


def test_fewer_replicas_leave_before_they_stop_the_newest_first(cluster: Cluster) -> None:
    serve(cluster, 3)
    running = uids(cluster, 3)
    for uid in running:
        cluster.run(uid)
    assert cancels(cluster.turn(ServiceScaled("web", 1, "ann"))) == []
    job = cluster.job("web")
    assert [bool(cluster.task("web", index).leaving_ms) for index in range(3)] == [False, True, True]
    assert cancels(cluster.advance(5)) == [(running[2], "user"), (running[1], "user")]
    assert (job.total - job.ended, job.state, cluster.task("web", 2).state) == (1, "running", "killed")
    assert cluster.task("web", 2).error == "scaled down to 1"
    cluster.poll("w1", 9)
    cluster.turn(ServiceScaled("web", 2, "ann"))
    for uid in running[1:]:
        cluster.end(uid, "killed")
    cluster.poll("w1", 9)
    assert cluster.current("web", 3), "an index is used once"
    assert (job.total - job.ended, cluster.task("web", 1).state) == (2, "killed")
    assert cluster.state.spell(cluster.attempt(cluster.current("web", 3))) == "web/3"
    cluster.turn(ServiceScaled("web", 0, "ann"))
    cluster.advance(5)
    assert (job.total - job.ended, job.state) == (0, "running"), "it goes on, with nothing"


def test_of_too_many_replicas_those_go_that_serve_nobody(cluster: Cluster) -> None:
    serve(cluster, 3)
    running = uids(cluster, 3)
    cluster.run(running[2])
    asked = cancels(cluster.turn(ServiceScaled("web", 1, "ann")))
    assert asked == [(running[1], "user"), (running[0], "user")]
    cluster.advance(30)
    assert [attempt.uid for attempt in ready_replicas(cluster.state, cluster.job("web"))] == [running[2]]


def test_one_that_began_alone_keeps_its_name_when_others_come(cluster: Cluster) -> None:
    serve(cluster, 1)
    first = cluster.current("web")
    cluster.turn(ServiceScaled("web", 2, "ann"))
    second = cluster.current("web", 1)
    assert [cluster.state.spell(cluster.attempt(uid)) for uid in (first, second)] == ["web", "web/1"]
    cluster.run(first)
    cluster.run(second)
    assert len(ready_replicas(cluster.state, cluster.job("web"))) == 2


def test_a_replica_that_rests_or_waits_is_scaled_away_too(cluster: Cluster) -> None:
    serve(cluster, 4, service=2)
    crash(cluster, 1)
    third = cluster.current("web", 2)
    assert cancels(cluster.turn(ServiceScaled("web", 1, "ann"))) == [(third, "user")]
    assert [cluster.task("web", index).state for index in (1, 2, 3)] == ["killed"] * 3
    cluster.end(third, "killed")
    cluster.advance(5)
    cluster.poll("w1", 9)
    assert cluster.held("w1") == [cluster.current("web", 0)]


def test_stop_ends_all_of_them(cluster: Cluster) -> None:
    serve(cluster, 4, service=2)
    crash(cluster, 1)
    running = [cluster.current("web", 0), cluster.current("web", 2)]
    assert cancels(cluster.cancel("web")) == [(uid, "user") for uid in running]
    job = cluster.job("web")
    assert (job.state, job.killed, job.resting) == (JobState.KILLED, 4, 0)
    cluster.advance(400)
    for uid in running:
        cluster.end(uid, "killed")
    cluster.poll("w1", 9)
    assert cluster.held("w1") == []


def test_a_restart_is_free_and_ends_rests(cluster: Cluster) -> None:
    serve(cluster, 2)
    first = cluster.current("web")
    for _ in range(3):
        cluster.advance(crash(cluster, 1))
    crash(cluster, 1)
    cluster.run(first)
    assert cancels(cluster.ask_again("web")) == [(first, "requeued")]
    task = cluster.task("web", 1)
    assert (task.restarts, bool(task.current or task.queued)) == (0, True)
    cluster.end(first, "succeeded")
    assert cluster.task("web", 0).restarts == 0
    assert cluster.task("web", 0).again_ms == 0


def test_one_that_never_finds_a_place_times_out_and_one_that_ran_does_not(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, service=1)
    cluster.submit("web", type="service", scheduling_timeout_s=30, replicas=2)
    cluster.submit("never", type="service", scheduling_timeout_s=30, gpu_count=1)
    cluster.run(cluster.current("web"))
    cluster.advance(100)
    assert (cluster.job("web").state, cluster.job("web").unschedulable) == ("running", 0)
    assert cluster.job("never").state is JobState.UNSCHEDULABLE


def test_a_restarted_hub_goes_on_where_it_was(cluster: Cluster) -> None:
    serve(cluster, 2)
    crash(cluster, 1)
    folded = State()
    for clock, fact in cluster.journal:
        apply(folded, fact, clock)
    again = State()
    rows = (folded.jobs.values(), folded.tasks.values(), folded.attempts.values(), folded.workers.values())
    load(again, folded.counters, rows)
    cluster.state = again
    wake_up(again, cluster.clock)
    assert again.services == {"web": None}
    cluster.advance(1)
    assert cluster.task("web", 1).queued


def test_batch_work_stops_no_service_unless_the_policy_says_so(cluster: Cluster) -> None:
    rules: dict[str, Any] = {"queues": {"default": {"order": "priority"}}, "preemption": {"min_run_s": 0}}
    cluster.govern(**rules)
    cluster.join("w1", credit=9, cpus=1, service=1)
    cluster.submit("web", type="service", cpu_milli=1000)
    cluster.run(cluster.current("web"))
    cluster.advance(5)
    assert cancels(cluster.submit("batch", cpu_milli=1000, priority=50)) == []
    rules["preemption"]["services"] = True
    found = cancels(cluster.govern(**rules) + cluster.advance(61))
    assert set(found) == {(cluster.current("web"), "preempted")}


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"replicas": 2}, "replicas"),
        ({"restart": "always"}, "restart"),
        ({"type": "service", "replicas": 0}, "replicas"),
        ({"type": "service", "replicas": 2, "node_count": 2, "restart": "never"}, "replicas"),
        ({"type": "service", "replicas": 5001, "node_count": 2}, "replicas"),
        ({"type": "service", "at_most_once": True}, "at_most_once"),
        ({"type": "service", "restart": "sometimes"}, "restart"),
    ],
)
def test_what_cannot_be_a_service_is_refused(cluster: Cluster, spec: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        cluster.submit(**spec)
    assert [problem.where for problem in refused.value.problems] == [where]


def test_a_service_that_shall_not_start_again_ends_as_a_job_does(cluster: Cluster) -> None:
    serve(cluster, 2, restart="never")
    for uid in uids(cluster, 2):
        cluster.run(uid)
        cluster.end(uid)
    assert cluster.job("web").state is JobState.SUCCEEDED
