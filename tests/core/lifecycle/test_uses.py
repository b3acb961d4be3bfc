"""Jobs that use services start while those are ready, and wait, with the reason, while one is not."""

from __future__ import annotations

from typing import Any

from tests.core.harness import Cluster

from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.recovery import load, wake_up
from dray.core.lifecycle.state.events import AttemptsLost
from dray.core.lifecycle.state.service_events import HealthChanged
from dray.core.lifecycle.state.state import State

CHECKED: dict[str, Any] = {"health_check": {"readiness": "/ready"}}


def serve(cluster: Cluster, job_id: str = "web", **spec: Any) -> None:
    cluster.submit(job_id, type="service", name=spec.pop("name", job_id), **CHECKED, **spec)


def say(cluster: Cluster, job_id: str, healthy: bool) -> None:
    attempt = cluster.attempt(cluster.current(job_id))
    if not attempt.started:
        cluster.run(attempt.uid)
    cluster.turn(HealthChanged(attempt.worker, job_id, cluster.spelled(attempt), attempt.uid, healthy))


def starts(cluster: Cluster, job_id: str = "train") -> bool:
    """Whether a job stands in line, and so has been placed on a worker with room."""
    return bool(cluster.task(job_id).current) if (job_id, 0) in cluster.state.tasks else False


def why(cluster: Cluster, job_id: str = "train") -> str:
    assert problems(cluster.state) == []
    return cluster.summary(job_id)


def test_a_job_waits_for_a_service_that_is_not_there_yet_and_is_told_so(cluster: Cluster) -> None:
    cluster.join("w1", credit=99, service=4)
    cluster.submit("train", uses=["web"])
    assert not starts(cluster)
    assert "waits for service web: none of ann runs" in why(cluster)
    serve(cluster)
    assert not starts(cluster), "it is not ready yet"
    assert "waits for service web: 0 of 1 replicas ready; replica 0: starting" in why(cluster)
    say(cluster, "web", True)
    assert starts(cluster)


def test_a_service_that_is_not_ready_any_more_lets_nothing_start(cluster: Cluster) -> None:
    cluster.join("w1", credit=99, service=4)
    serve(cluster)
    say(cluster, "web", True)
    cluster.submit("first", uses=["web"])
    assert starts(cluster, "first")
    say(cluster, "web", False)
    cluster.submit("train", uses=["web"])
    assert not starts(cluster)
    assert cluster.task("first").current, "what runs goes on"
    assert "replica 0: not well on w1" in why(cluster)
    say(cluster, "web", True)
    assert starts(cluster)


def test_jobs_that_wait_in_line_leave_it_with_the_service(cluster: Cluster) -> None:
    cluster.join("w1", batch=0, credit=99, service=4)
    serve(cluster)
    say(cluster, "web", True)
    cluster.submit("train", uses=["web"])
    assert not cluster.state.jobs["train"].barred, "it waits for a slot alone"
    cluster.cancel("web")
    assert cluster.state.jobs["train"].barred
    assert "waits for service web, which was stopped" in why(cluster)
    cluster.join("w2", credit=99)
    assert not starts(cluster)
    serve(cluster, "again", name="web")
    say(cluster, "again", True)
    assert starts(cluster), "by its name it is the same service"


def test_the_service_of_a_lost_worker_counts_no_more(cluster: Cluster) -> None:
    cluster.join("w1", credit=99, service=1)
    cluster.join("w2", batch=0, credit=99, service=0)
    serve(cluster)
    say(cluster, "web", True)
    cluster.turn(AttemptsLost("w1", (cluster.current("web"),), "gone"))
    cluster.submit("train", uses=["web"])
    assert not starts(cluster)


def test_all_services_have_to_be_ready_and_those_of_others_only_where_shared(cluster: Cluster) -> None:
    cluster.join("w1", credit=99, service=9)
    serve(cluster, "db")
    serve(cluster, "bens", name="web", user="ben")
    say(cluster, "db", True)
    say(cluster, "bens", True)
    cluster.submit("train", uses=["db", "web"])
    cluster.submit("other", uses=["db", "web@ben"])
    assert not starts(cluster)
    assert "none that is shared with ann runs" in why(cluster, "other")
    cluster.edit("bens", share=["ann"])
    assert starts(cluster, "other")
    assert not starts(cluster), "a bare name is one of his own"
    serve(cluster, "own", name="web")
    say(cluster, "own", True)
    assert starts(cluster)
    serve(cluster, "twin", name="web")
    say(cluster, "twin", True)
    cluster.submit("last", uses=["db", "web"])
    assert "several are named so: name one by its id (own, twin)" in why(cluster, "last")
    cluster.submit("named", uses=["db", "twin"])
    assert starts(cluster, "named")


def test_what_a_job_uses_can_be_changed_and_held_jobs_stay_held(cluster: Cluster) -> None:
    cluster.join("w1", credit=99, service=4)
    cluster.submit("train", uses=["web"], hold=True)
    serve(cluster)
    say(cluster, "web", True)
    assert not starts(cluster)
    cluster.submit("second", uses=["none"])
    cluster.edit("second", uses=[])
    assert starts(cluster, "second")
    assert problems(cluster.state) == []


def test_a_restart_of_the_hub_knows_who_waits_for_what(cluster: Cluster) -> None:
    cluster.join("w1", credit=99, service=4)
    serve(cluster)
    cluster.submit("train", uses=["web"])
    cluster.submit("more", uses=["web"])
    old, state = cluster.state, State()
    load(
        state,
        old.counters,
        (old.jobs.values(), old.tasks.values(), old.attempts.values(), old.workers.values()),
    )
    cluster.state = state
    wake_up(state, cluster.clock)
    assert problems(state) == []
    assert state.using == {("ann", ("web",)): {"train": None, "more": None}}
    cluster.join("w1", credit=99, service=4)
    say(cluster, "web", True)
    assert starts(cluster)
