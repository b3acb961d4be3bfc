"""A service is updated replica by replica: start, then stop; what does not get ready is taken back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.holding import rollouts
from dray.core.lifecycle.recovery import load
from dray.core.lifecycle.state.events import AttemptsLost, RequeueRequested, WorkerDrained
from dray.core.lifecycle.state.service_events import (
    HealthChanged,
    ServiceScaled,
    ServiceUpdated,
    UpdateAbandoned,
)
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.replicas import ready_replicas, wanted
from dray.core.model.records.records import Phase
from dray.core.model.specs.spec import pack_spec, unpack_spec
from dray.errors import InvalidSpec

CHECKED: dict[str, Any] = {"health_check": {"readiness": "/ready"}}


def serve(cluster: Cluster, replicas: int = 2, **spec: Any) -> None:
    cluster.join("w1", credit=99, service=8)
    cluster.submit("web", type="service", replicas=replicas, **{**CHECKED, **spec})
    for uid in [cluster.current("web", index) for index in range(replicas)]:
        make_ready(cluster, uid)
    cluster.advance(20)


def update(cluster: Cluster, kind: str = "update", revision: int = 0, **changes: Any) -> None:
    spec = msgspec.structs.replace(unpack_spec(cluster.job("web").spec), **changes)
    cluster.turn(ServiceUpdated("web", pack_spec(spec), "ann", kind, revision))
    settle(cluster)


def settle(cluster: Cluster, seconds: float = 0) -> None:
    for worker in cluster.state.workers:
        cluster.poll(worker, 99)
    cluster.advance(seconds)
    for _ in range(3):
        # A step may make the next one possible at once.
        for worker in cluster.state.workers:
            cluster.poll(worker, 99)


def make_ready(cluster: Cluster, uid: str, healthy: bool = True) -> None:
    attempt = cluster.attempt(uid)
    if not attempt.started:
        cluster.run(uid)
    said = HealthChanged(attempt.worker, "web", cluster.spelled(attempt), uid, healthy)
    cluster.turn(said)


def starting(cluster: Cluster) -> list[str]:
    """Attempts that live and have not begun."""
    live = (cluster.attempt(uid) for uid in cluster.state.live_of.get("web", ()))
    return [attempt.uid for attempt in live if not attempt.started and not attempt.cancel]


def stopping(cluster: Cluster) -> list[str]:
    live = (cluster.attempt(uid) for uid in cluster.state.live_of.get("web", ()))
    return [attempt.uid for attempt in live if attempt.phase is Phase.STOPPING]


def step(cluster: Cluster) -> int:
    """Let what starts become ready and settle, and what stops end; gives how few were ready meanwhile."""
    least = 99
    for uid in starting(cluster):
        make_ready(cluster, uid)
    for seconds in (0, 10, 5, 0):
        settle(cluster, seconds)
        least = min(least, len(ready_replicas(cluster.state, cluster.job("web"))))
        for uid in stopping(cluster):
            cluster.end(uid, "killed")
    return least


def by_revision(cluster: Cluster) -> dict[int, int]:
    found: dict[int, int] = {}
    for attempt in ready_replicas(cluster.state, cluster.job("web")):
        found[attempt.revision] = found.get(attempt.revision, 0) + 1
    return found


def test_replicas_are_replaced_one_by_one_start_then_stop(cluster: Cluster) -> None:
    serve(cluster)
    update(cluster, command=["new"])
    (fresh,) = starting(cluster)
    assert (cluster.attempt(fresh).revision, by_revision(cluster)) == (2, {1: 2})
    make_ready(cluster, fresh)
    settle(cluster, 9)
    assert by_revision(cluster) == {1: 2, 2: 1}, "it has not been ready for long enough"
    settle(cluster, 1)
    assert (by_revision(cluster), stopping(cluster)) == ({1: 1, 2: 1}, []), "it gets no requests, and runs on"
    settle(cluster, 5)
    assert len(stopping(cluster)) == 1
    while cluster.job("web").aim >= 0:
        assert step(cluster) >= 2
    assert (by_revision(cluster), cluster.job("web").stable, wanted(cluster.job("web"))) == ({2: 2}, 2, 2)
    known = rollouts.revisions_of(cluster.state, cluster.job("web"))
    assert {number: one.outcome for number, one in known.items()} == {1: "done", 2: "done"}
    assert cluster.task("web", 3).revision == 2


def test_no_more_than_surge_are_started_and_no_more_than_may_be_missing_stop(cluster: Cluster) -> None:
    serve(cluster, 4, update={"max_surge": 2, "max_unavailable": 1})
    update(cluster, command=["new"])
    assert len(by_revision(cluster)) == 1
    assert by_revision(cluster)[1] == 3, "one may be missing at once"
    assert len(starting(cluster)) == 3
    while cluster.job("web").aim >= 0:
        assert step(cluster) >= 3
    assert by_revision(cluster) == {2: 4}


def test_without_surge_an_old_one_stops_first(cluster: Cluster) -> None:
    serve(cluster, 2, update={"max_surge": 0, "max_unavailable": 1, "drain_s": 0.0})
    update(cluster, command=["new"])
    assert (by_revision(cluster), len(stopping(cluster))) == ({1: 1}, 1)
    while cluster.job("web").aim >= 0:
        assert step(cluster) >= 1
    assert by_revision(cluster) == {2: 2}


def test_one_that_may_neither_start_nor_stop_first_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidSpec, match="max_surge or max_unavailable"):
        cluster.submit("web", type="service", update={"max_surge": 0})
    with pytest.raises(InvalidSpec, match="is for a service"):
        cluster.submit("web", update={"max_surge": 1})


def test_a_revision_that_is_not_ready_in_time_goes_back_and_says_why(cluster: Cluster) -> None:
    serve(cluster)
    old = [attempt.uid for attempt in ready_replicas(cluster.state, cluster.job("web"))]
    update(cluster, command=["bad"])
    (bad,) = starting(cluster)
    cluster.run(bad)
    settle(cluster, 599)
    assert cluster.job("web").revision == 2
    settle(cluster, 1)
    job = cluster.job("web")
    assert (job.revision, job.stable, unpack_spec(job.spec).command) == (1, 1, ["true"])
    assert stopping(cluster) == [bad]
    cluster.end(bad, "killed")
    settle(cluster)
    assert [attempt.uid for attempt in ready_replicas(cluster.state, job)] == old, "nobody else was touched"
    assert job.aim == -1
    receipt = rollouts.revisions_of(cluster.state, job)[2]
    assert (receipt.outcome, receipt.why) == ("rolled_back", "replica 2 on w1 was not ready within 600 s")


def test_a_revision_that_finds_no_place_says_what_is_lacking(cluster: Cluster) -> None:
    serve(cluster)
    update(cluster, cpu_milli=64_000)
    settle(cluster, 600)
    receipt = rollouts.revisions_of(cluster.state, cluster.job("web"))[2]
    assert receipt.outcome == "rolled_back"
    assert "64" in receipt.why, "why it could not be placed"
    assert cluster.job("web").aim == -1
    assert by_revision(cluster) == {1: 2}


def test_a_revision_that_keeps_ending_goes_back_at_once(cluster: Cluster) -> None:
    serve(cluster)
    update(cluster, command=["bad"])
    for seconds in (1, 2, 4, 8, 0):
        (bad,) = starting(cluster)
        cluster.run(bad)
        cluster.end(bad, "failed", last="no such model")
        settle(cluster, seconds)
    receipt = rollouts.revisions_of(cluster.state, cluster.job("web"))[2]
    assert "replica 2 keeps ending: ended with exit code 1 (it printed last: no such model)" in receipt.why
    assert (by_revision(cluster), cluster.job("web").aim) == ({1: 2}, -1)


def test_a_rollback_in_the_middle_keeps_as_many_ready(cluster: Cluster) -> None:
    serve(cluster, 3)
    update(cluster, command=["new"])
    step(cluster)
    assert by_revision(cluster) == {1: 2, 2: 1}
    cluster.turn(UpdateAbandoned("web", "rolled back by ann", "ann"))
    while cluster.job("web").aim >= 0:
        assert step(cluster) >= 3
    assert by_revision(cluster) == {1: 3}


def test_an_update_takes_the_place_of_one_that_has_not_ended(cluster: Cluster) -> None:
    serve(cluster)
    update(cluster, command=["bad"])
    (bad,) = starting(cluster)
    update(cluster, command=["good"])
    assert stopping(cluster) == [bad], "what is not ready gives its place"
    while cluster.job("web").aim >= 0:
        assert step(cluster) >= 2
    known = rollouts.revisions_of(cluster.state, cluster.job("web"))
    assert (by_revision(cluster), known[2].outcome) == ({3: 2}, "replaced")


def test_a_size_given_meanwhile_is_what_is_aimed_at(cluster: Cluster) -> None:
    serve(cluster, 2)
    update(cluster, command=["new"])
    cluster.turn(ServiceScaled("web", 4, "ann"))
    while cluster.job("web").aim >= 0:
        assert step(cluster) >= 2
    assert by_revision(cluster) == {2: 4}
    update(cluster, command=["newer"])
    cluster.turn(ServiceScaled("web", 1, "ann"))
    while cluster.job("web").aim >= 0:
        assert step(cluster) >= 1
    assert by_revision(cluster) == {3: 1}


def test_a_service_is_stopped_in_the_middle_and_leaves_nothing(cluster: Cluster) -> None:
    serve(cluster)
    update(cluster, command=["new"])
    step(cluster)
    cluster.cancel("web")
    for uid in stopping(cluster):
        cluster.end(uid, "killed")
    assert cluster.job("web").state.final
    assert ("revisions", "web") not in cluster.state.ledger
    settle(cluster, 700)


def test_an_old_replica_that_ends_starts_again_by_its_own_revision(cluster: Cluster) -> None:
    serve(cluster)
    update(cluster, command=["new"])
    first = cluster.current("web", 0)
    cluster.turn(AttemptsLost("w1", (first,), "gone"))
    cluster.join("w2", credit=9, service=2)
    again = cluster.attempt(cluster.current("web", 0))
    assert (again.no, again.revision) == (2, 1)


def test_an_old_replica_that_asks_for_something_else_makes_way_where_it_ends(cluster: Cluster) -> None:
    serve(cluster, cpu_milli=1000)
    update(cluster, cpu_milli=500)
    first = cluster.current("web", 0)
    cluster.end(first, "failed")
    settle(cluster)
    assert cluster.task("web", 0).state.final
    assert len(starting(cluster)) == 2
    held = sum(cluster.state.ask(cluster.attempt(uid)).cpu_milli for uid in cluster.held("w1"))
    assert held == 1000 + 2 * 500
    while cluster.job("web").aim >= 0:
        step(cluster)
    assert by_revision(cluster) == {2: 2}


def test_a_restart_replaces_all_by_the_same_and_is_nothing_to_go_back_to(cluster: Cluster) -> None:
    serve(cluster)
    update(cluster, kind="restart")
    while cluster.job("web").aim >= 0:
        assert step(cluster) >= 2
    assert by_revision(cluster) == {2: 2}
    assert list(rollouts.revisions_of(cluster.state, cluster.job("web"))) == [2]


def test_what_a_restart_has_yet_to_stop_holds_what_it_asked_for_whatever_comes_next(cluster: Cluster) -> None:
    serve(cluster, 1, cpu_milli=1000, update={"settle_s": 0.0, "drain_s": 0.0})
    update(cluster, kind="restart")
    (fresh,) = starting(cluster)
    make_ready(cluster, fresh)
    settle(cluster)
    (old,) = stopping(cluster)
    assert cluster.job("web").stable == 2
    update(cluster, cpu_milli=500)
    state, again = cluster.state, State()
    again.ledger.update(state.ledger)
    rows = (state.jobs.values(), state.tasks.values(), state.attempts.values(), state.workers.values())
    load(again, state.counters, rows)
    assert again.ask(again.attempts[old]).cpu_milli == 1000


def test_the_last_ten_revisions_are_kept(cluster: Cluster) -> None:
    serve(cluster, 1, update={"settle_s": 0.0, "drain_s": 0.0})
    for number in range(12):
        update(cluster, command=[f"new-{number}"])
        while cluster.job("web").aim >= 0:
            step(cluster)
    assert list(rollouts.revisions_of(cluster.state, cluster.job("web"))) == list(range(4, 14))


def test_a_drained_worker_s_replica_goes_elsewhere_before_it_stops(cluster: Cluster) -> None:
    serve(cluster, 1)
    cluster.turn(WorkerDrained("w1", on=True, user="ann"))
    settle(cluster, 5)
    assert (starting(cluster), by_revision(cluster)) == ([], {1: 1}), "there is no other place: it stays"
    cluster.join("w2", credit=9, service=2)
    settle(cluster)
    (moved,) = starting(cluster)
    assert cluster.attempt(moved).worker == "w2"
    while cluster.job("web").aim >= 0:
        assert step(cluster) >= 1
    assert [attempt.uid for attempt in ready_replicas(cluster.state, cluster.job("web"))] == [moved]
    assert cluster.held("w1") == []


def test_a_drain_that_is_taken_back_leaves_the_replica_where_it_is(cluster: Cluster) -> None:
    serve(cluster, 1)
    first = cluster.current("web", 0)
    cluster.turn(WorkerDrained("w1", on=True, user="ann"))
    settle(cluster)
    assert cluster.job("web").total == 2
    cluster.turn(WorkerDrained("w1", on=False, user="ann"))
    settle(cluster)
    job = cluster.job("web")
    assert (job.aim, job.total - job.ended, cluster.current("web", 0)) == (-1, 1, first)


def test_a_move_that_cannot_begin_yet_begins_once_it_can(cluster: Cluster) -> None:
    for name in ("w1", "w2", "w3"):
        cluster.join(name, credit=9, service=1)
    rules = {"max_surge": 0, "max_unavailable": 1, "settle_s": 0.0, "drain_s": 0.0}
    cluster.submit("web", type="service", replicas=2, update=rules, **CHECKED)
    uids = [cluster.current("web", index) for index in (0, 1)]
    make_ready(cluster, uids[0])
    cluster.run(uids[1])
    drained = cluster.attempt(uids[0]).worker
    cluster.turn(WorkerDrained(drained, on=True, user="ann"))
    settle(cluster, 5)
    assert by_revision(cluster) == {1: 1}, "the only one that serves stays"
    make_ready(cluster, uids[1])
    settle(cluster)
    assert stopping(cluster) == [uids[0]]
    cluster.end(uids[0], "killed")
    settle(cluster)
    for uid in starting(cluster):
        make_ready(cluster, uid)
    assert cluster.held(drained) == []
    assert by_revision(cluster) == {1: 2}


def test_a_replica_that_leaves_and_ends_by_itself_is_not_started_again(cluster: Cluster) -> None:
    serve(cluster)
    update(cluster, command=["new"])
    (fresh,) = starting(cluster)
    make_ready(cluster, fresh)
    settle(cluster, 10)
    (leaving,) = [index for index in (0, 1) if cluster.task("web", index).leaving_ms]
    cluster.end(cluster.current("web", leaving), "succeeded")
    assert cluster.task("web", leaving).state.final


def test_an_old_replica_that_is_stopped_for_another_reason_is_looked_at(cluster: Cluster) -> None:
    """A rollback gives up what does not serve: that it was asked to stop is a reason to look, as its end is."""
    serve(cluster, 2, update={"max_surge": 2, "settle_s": 0.0, "drain_s": 0.0})
    update(cluster, command=["new"])
    for uid in starting(cluster)[:1]:
        make_ready(cluster, uid)
    settle(cluster)
    cluster.turn(UpdateAbandoned("web", "rolled back by ann", "ann"))
    settle(cluster)
    old = [one for one in ready_replicas(cluster.state, cluster.job("web")) if one.revision == 2]
    if old:
        cluster.state.rollouts.clear()
        cluster.fold(RequeueRequested("web", old[0].index, "ann"))
        assert "web" in cluster.state.rollouts
    assert old
