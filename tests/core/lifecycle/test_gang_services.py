"""A service with several nodes: each replica is a group, which starts, ends and is counted as one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.core.harness import Cluster, assigned, only

from dray.core.lifecycle.holding import groups
from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.recovery import load, wake_up
from dray.core.lifecycle.state.effects import Cancel, Effect, Go, Note
from dray.core.lifecycle.state.events import AttemptsLost, RequeueRequested, WorkerDrained
from dray.core.lifecycle.state.service_events import HealthChanged, ServiceScaled, ServiceUpdated
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.replicas import ready_replicas, wanted
from dray.core.model.records.records import Phase
from dray.core.model.specs.health import complete_health, member_health
from dray.core.model.specs.spec import pack_spec, unpack_spec

WORKERS = ("w1", "w2", "w3", "w4")
COMMAND: dict[str, Any] = {"health_check": {"command": ["check"]}}


def serve(cluster: Cluster, replicas: int = 2, run: bool = True, **spec: Any) -> None:
    for name in WORKERS:
        cluster.join(name, credit=99, service=8)
    cluster.submit("web", type="service", node_count=2, replicas=replicas, **spec)
    if run:
        start(cluster)


def members(cluster: Cluster, group: int) -> list[str]:
    return [cluster.current("web", index) for index in cluster.job("web").group_of(2 * group)]


def start(cluster: Cluster) -> None:
    """Let all that was placed pass its barrier and run."""
    fresh = [uid for uid in cluster.state.live_of["web"] if not cluster.attempt(uid).started]
    for uid in fresh:
        cluster.accept(uid)
    for uid in fresh:
        cluster.start(uid)


def look(cluster: Cluster, seconds: float = 0) -> None:
    cluster.advance(seconds)
    for _ in range(3):
        for name in cluster.state.workers:
            cluster.poll(name, 99)


def say(cluster: Cluster, uid: str, healthy: bool, live: bool = True) -> list[Effect]:
    attempt = cluster.attempt(uid)
    return cluster.turn(HealthChanged(attempt.worker, "web", attempt.index, uid, healthy, live, "no answer"))


def end_stopping(cluster: Cluster) -> None:
    for uid in list(cluster.state.live_of.get("web", ())):
        if cluster.attempt(uid).phase is Phase.STOPPING:
            cluster.end(uid, "killed")


def stops(effects: list[Effect]) -> list[Cancel]:
    return only(effects, Cancel)


def listed(cluster: Cluster) -> list[int]:
    return [attempt.index for attempt in ready_replicas(cluster.state, cluster.job("web"))]


def test_each_replica_is_a_group_with_a_barrier_of_its_own(cluster: Cluster) -> None:
    serve(cluster, run=False)
    job = cluster.job("web")
    assert (job.total, wanted(job), job.generation) == (4, 2, 2)
    for group in (0, 1):
        uids = members(cluster, group)
        assert len({cluster.attempt(uid).worker for uid in uids}) == 2
        assert {cluster.attempt(uid).generation for uid in uids} == {group + 1}
    first, second = members(cluster, 0)
    assert only(cluster.accept(first), Go) == []
    assert [go.uid for go in only(cluster.accept(second), Go)] == [first, second]
    assert not any(cluster.attempt(uid).go for uid in members(cluster, 1)), "the other group was not accepted"


def test_a_group_is_ready_with_all_its_members_and_reached_by_the_first(cluster: Cluster) -> None:
    serve(cluster, **COMMAND)
    assert listed(cluster) == []
    say(cluster, members(cluster, 1)[0], True)
    assert listed(cluster) == []
    assert "1 of 2" not in cluster.summary("web")
    say(cluster, members(cluster, 1)[1], True)
    assert listed(cluster) == [2]
    assert cluster.summary("web").startswith("1 of 2 groups of 2 nodes ready; group 0: web/0 starting on w")
    say(cluster, members(cluster, 1)[1], False)
    assert listed(cluster) == []
    assert "group 1: web/3 not well on " in cluster.summary("web")


@pytest.mark.parametrize("said", ["succeeded", "failed", "killed"])
def test_one_end_of_a_group_counts_once_and_starts_it_again_as_one(cluster: Cluster, said: str) -> None:
    serve(cluster)
    first, second = members(cluster, 0)
    others = members(cluster, 1)
    asked = cluster.end(second, said, last="no such model\n")
    assert [each.uid for each in stops(asked)] == [first]
    assert listed(cluster) == [2], "and the other group serves on"
    assert cluster.current("web", 1) == second, "nothing is concluded while a member lives"
    cluster.end(first, "killed")
    tasks = groups.tasks_of(cluster.state, cluster.job("web"), 0)
    assert [(task.restarts, task.again_ms - cluster.now_ms, task.failures) for task in tasks] == [
        (1, 1000, 0)
    ] * 2
    assert "web/1 on " in tasks[0].error
    assert "no such model" in tasks[0].error
    assert [note.type for note in only(cluster.effects, Note)].count("replica_ended") == 1
    look(cluster, 1)
    start(cluster)
    assert [cluster.attempt(uid).generation for uid in members(cluster, 0)] == [3, 3]
    assert (members(cluster, 1), listed(cluster)) == (others, [0, 2])
    assert problems(cluster.state) == []


def test_a_group_that_keeps_ending_is_a_loop(cluster: Cluster) -> None:
    serve(cluster, replicas=1)
    for number in range(5):
        first, second = members(cluster, 0)
        cluster.end(second if number % 2 else first, "failed")
        end_stopping(cluster)
        assert cluster.task("web", 0).looping == (number == 4)
        if number < 4:
            look(cluster, 1 << number)
            start(cluster)
    assert "group 0: it keeps ending, 5 times by now" in cluster.summary("web")
    assert [note.type for note in only(cluster.effects, Note)].count("replica_crash_looping") == 1


def test_a_lost_member_costs_no_rest_and_the_group_goes_elsewhere(cluster: Cluster) -> None:
    serve(cluster, replicas=1)
    first, second = members(cluster, 0)
    worker = cluster.attempt(second).worker
    cluster.turn(AttemptsLost(worker, (second,), "silent"))
    assert cluster.current("web", 0) == first
    cluster.end(first, "killed")
    look(cluster)
    assert cluster.task("web", 0).restarts == 0
    assert worker not in {cluster.attempt(uid).worker for uid in members(cluster, 0)}


def test_a_member_that_does_not_live_stops_its_whole_group_at_once(cluster: Cluster) -> None:
    serve(cluster, replicas=1, **COMMAND)
    uids = members(cluster, 0)
    for uid in uids:
        say(cluster, uid, True)
    asked = say(cluster, uids[1], False, live=False)
    assert {each.uid for each in stops(asked)} == {*uids}
    cluster.end(uids[0], "failed")
    cluster.end(uids[1], "killed")
    assert cluster.task("web", 0).restarts == 1
    assert "restarted: no answer" in cluster.task("web", 0).error


def test_what_was_not_accepted_whole_is_placed_again_for_nothing(cluster: Cluster) -> None:
    serve(cluster, replicas=1, run=False)
    first, second = members(cluster, 0)
    cluster.accept(first)
    cluster.advance(cluster.state.rules.accept_ms / 1000)
    end_stopping(cluster)
    look(cluster)
    assert (cluster.task("web", 0).restarts, cluster.attempt(second).phase) == (0, Phase.REVOKED)
    start(cluster)
    assert listed(cluster) == [0]


def test_groups_are_added_and_ended_whole(cluster: Cluster) -> None:
    serve(cluster)
    cluster.turn(ServiceScaled("web", 3))
    look(cluster)
    start(cluster)
    assert (cluster.job("web").total, listed(cluster)) == (6, [0, 2, 4])
    gone = members(cluster, 1) + members(cluster, 2)
    assert stops(cluster.turn(ServiceScaled("web", 1))) == []
    assert {each.uid for each in stops(cluster.advance(5))} == {*gone}
    assert (wanted(cluster.job("web")), listed(cluster)) == (1, [0])
    assert {each.uid for each in stops(cluster.cancel("web", 1))} == {*members_or(cluster, gone)}
    assert wanted(cluster.job("web")) == 0


def members_or(cluster: Cluster, gone: list[str]) -> list[str]:
    """The attempts of the first group, whose tasks have ended by now."""
    live = (cluster.attempt(uid) for uid in cluster.state.live_of["web"])
    return [attempt.uid for attempt in live if attempt.uid not in gone]


def test_a_restart_of_one_member_is_one_of_its_group(cluster: Cluster) -> None:
    serve(cluster)
    asked = cluster.turn(RequeueRequested("web", 3))
    assert {each.uid for each in stops(asked)} == {*members(cluster, 1)}
    end_stopping(cluster)
    look(cluster)
    assert cluster.task("web", 2).restarts == 0
    assert [cluster.attempt(uid).no for uid in members(cluster, 1)] == [2, 2]


def test_an_update_goes_group_by_group_and_never_below_the_size(cluster: Cluster) -> None:
    serve(cluster)
    cluster.advance(20)
    spec = msgspec.structs.replace(unpack_spec(cluster.job("web").spec), command=["new"])
    cluster.turn(ServiceUpdated("web", pack_spec(spec), "ann"))
    for _ in range(4):
        look(cluster)
        fresh = [uid for uid in cluster.state.live_of["web"] if not cluster.attempt(uid).started]
        assert len(fresh) in (0, 2), "one group more at a time"
        start(cluster)
        for seconds in (10, 5):
            look(cluster, seconds)
            assert len(listed(cluster)) >= 2
            end_stopping(cluster)
    assert {cluster.attempt(uid).revision for uid in cluster.state.live_of["web"]} == {2}
    assert (cluster.job("web").stable, wanted(cluster.job("web")), len(listed(cluster))) == (2, 2, 2)
    assert problems(cluster.state) == []


def test_a_drain_of_one_member_s_worker_moves_its_group(cluster: Cluster) -> None:
    serve(cluster, replicas=1)
    cluster.advance(20)
    worker = cluster.attempt(members(cluster, 0)[1]).worker
    cluster.turn(WorkerDrained(worker, True))
    look(cluster)
    assert f"moving off {worker}" in cluster.summary("web")
    start(cluster)
    look(cluster, 10)
    assert listed(cluster) == [2], "the new group serves, the old one gets no more requests"
    look(cluster, 5)
    end_stopping(cluster)
    assert worker not in {cluster.attempt(uid).worker for uid in cluster.state.live_of["web"]}


def test_a_hub_that_starts_anew_finds_a_group_as_it_was(cluster: Cluster) -> None:
    serve(cluster, replicas=1)
    first, second = members(cluster, 0)
    cluster.end(second, "failed")
    state, old = State(cluster.state.rules), cluster.state
    rows = (old.jobs.values(), old.tasks.values(), old.attempts.values(), old.workers.values())
    load(state, old.counters, rows)
    wake_up(state, cluster.clock)
    state.now_ms = cluster.now_ms
    cluster.state = state
    assert cluster.task("web", 0).broken == "failed"
    cluster.end(first, "killed")
    assert (cluster.task("web", 0).restarts, cluster.task("web", 1).restarts) == (1, 1)


def test_how_an_older_row_says_that_a_generation_broke_is_understood(cluster: Cluster) -> None:
    for name in WORKERS:
        cluster.join(name, credit=9)
    cluster.submit("job", node_count=2, retries=1)
    start_of = [cluster.current("job", index) for index in (0, 1)]
    for uid in start_of:
        cluster.accept(uid)
    cluster.end(start_of[1], "failed")
    job, first = cluster.job("job"), cluster.task("job", 0)
    job.broken, job.breaker, job.nodes = first.broken, first.breaker, 0
    first.broken = first.breaker = ""
    state, old = State(cluster.state.rules), cluster.state
    rows = (old.jobs.values(), old.tasks.values(), old.attempts.values(), old.workers.values())
    load(state, old.counters, rows)
    wake_up(state, cluster.clock)
    state.now_ms = cluster.now_ms
    cluster.state = state
    cluster.end(start_of[0], "killed")
    assert (cluster.task("job", 0).failures, cluster.job("job").requeued) == (1, 2)


def test_a_group_waits_for_as_many_workers_as_it_has_nodes(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, service=8)
    assert assigned(cluster.submit("web", type="service", node_count=2)) == []
    assert "needs 2 workers" in cluster.summary("web")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"http": "/"}, None),
        ({"tcp": True}, None),
        ({"command": ["check"]}, {"command": ["check"]}),
        ({"readiness": "/ready", "liveness": "test -e alive"}, {"liveness": "test -e alive"}),
        ({"readiness": "/ready"}, None),
    ],
)
def test_ports_are_asked_of_the_first_member_and_commands_run_for_all(given: Any, kept: Any) -> None:
    health = complete_health(given)
    assert member_health(health, 0) is health
    assert member_health(health, 1) == (None if kept is None else complete_health(kept))


def test_members_without_a_check_of_their_own_are_ready_once_they_run(cluster: Cluster) -> None:
    serve(cluster, replicas=1, health_check={"http": "/"})
    assert listed(cluster) == []
    say(cluster, members(cluster, 0)[0], True)
    assert listed(cluster) == [0]
