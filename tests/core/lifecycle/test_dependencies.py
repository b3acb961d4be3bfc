"""A job that waits for others starts when the last of them has ended as it must, and ends when one cannot."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster, assigned, only

from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.recovery import load
from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.events import CancelRequested, JobsSubmitted, NewJob
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import JobState
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec


def new_job(job_id: str, after: tuple[str, ...] = (), broken: str = "", **spec: object) -> NewJob:
    raw = {"command": ["true"], "after": list(after), **spec}
    return NewJob(job_id, "ann", pack_spec(check_spec(raw)), after, broken)


@pytest.mark.parametrize(
    ("need", "ending", "starts"),
    [
        ("ok", "succeeded", True),
        ("ok", "failed", False),
        ("any", "succeeded", True),
        ("any", "failed", True),
        ("fail", "failed", True),
        ("fail", "succeeded", False),
    ],
)
def test_what_each_condition_means(cluster: Cluster, need: str, ending: str, starts: bool) -> None:
    cluster.join("w1", credit=8)
    cluster.submit("first")
    assert not assigned(cluster.submit("second", after=[f"{need}:first"]))
    assert cluster.job("second").state is JobState.PENDING
    cluster.end(cluster.current("first"), ending)
    assert bool(cluster.current("second")) is starts
    if not starts:
        job = cluster.job("second")
        assert (job.state, job.rest_class) == (JobState.KILLED, "dependency")
        assert f"job first to {'succeed' if need == 'ok' else 'fail'}" in job.error
        assert f"ended {ending}" in job.error


def test_a_job_that_was_cancelled_has_not_succeeded(cluster: Cluster) -> None:
    cluster.submit("first")
    cluster.submit("then", after=["ok:first"])
    cluster.submit("else", after=["fail:first"])
    cluster.cancel("first")
    assert cluster.job("then").state is JobState.KILLED
    assert not cluster.job("else").barred


def test_all_conditions_must_be_met_and_one_is_enough_to_end_it(cluster: Cluster) -> None:
    cluster.join("w1", credit=8)
    for name in ("a", "b", "c"):
        cluster.submit(name)
    cluster.submit(after=["ok:a", "any:b", "fail:c"])
    cluster.end(cluster.current("a"))
    cluster.end(cluster.current("b"), "failed")
    assert cluster.job().after == ("fail:c",)
    assert cluster.summary() == "waits for job c to fail"
    assert cluster.blockers() == [("dependency", "fail:c", "not ended")]
    cluster.end(cluster.current("c"), "failed")
    assert cluster.current("job")


def test_an_array_counts_as_a_whole(cluster: Cluster) -> None:
    cluster.join("w1", credit=8)
    cluster.submit("array", array={"last": 1})
    cluster.submit(after=["ok:array"])
    cluster.end(cluster.current("array", 0))
    assert not cluster.current("job")
    cluster.end(cluster.current("array", 1))
    assert cluster.current("job")


def test_an_array_that_waits_in_vain_ends_whole(cluster: Cluster) -> None:
    cluster.submit("first")
    cluster.submit("closed", array={"last": 4}, after=["ok:first"])
    cluster.submit("empty", array={"last": -1, "open": True}, after=["ok:first"])
    cluster.cancel("first")
    assert (cluster.job("closed").state, cluster.job("closed").killed) == (JobState.KILLED, 5)
    assert cluster.job("empty").state is JobState.KILLED
    assert cluster.state.backlog.depth["default"] == 0


def test_the_scheduling_timeout_starts_when_the_conditions_are_met(cluster: Cluster) -> None:
    cluster.submit("first")
    cluster.submit(after=["any:first"], scheduling_timeout_s=60, cpu_milli=64000)
    cluster.advance(500)
    assert cluster.job().state is JobState.PENDING
    cluster.cancel("first")
    cluster.advance(59)
    assert cluster.job().state is JobState.PENDING
    cluster.advance(2)
    assert cluster.job().state is JobState.UNSCHEDULABLE


def test_a_hold_outlasts_the_conditions(cluster: Cluster) -> None:
    cluster.join("w1", credit=8)
    cluster.submit("first")
    cluster.submit(after=["ok:first"], hold=True)
    assert cluster.summary() == "held by ann; waits for job first to succeed"
    cluster.end(cluster.current("first"))
    assert not cluster.current("job")
    cluster.hold(on=False)
    assert cluster.current("job")


def test_a_chain_of_thousands_ends_without_recursion(cluster: Cluster) -> None:
    length = 5000
    chain = [new_job("j0")] + [new_job(f"j{n}", (f"ok:j{n - 1}",)) for n in range(1, length)]
    cluster.turn(JobsSubmitted(tuple(chain)))
    effects = cluster.turn(CancelRequested("j0"))
    assert all(job.state is JobState.KILLED for job in cluster.state.jobs.values())
    assert len([note for note in only(effects, Note) if note.type == "job_ended"]) == length
    assert not cluster.state.dependents


def test_a_diamond_starts_its_last_job_once(cluster: Cluster) -> None:
    cluster.join("w1", credit=8)
    batch = [
        new_job("end", ("ok:left", "ok:right")),
        new_job("left", ("ok:top",)),
        new_job("right", ("ok:top",)),
        new_job("top"),
    ]
    cluster.turn(JobsSubmitted(tuple(batch)))
    for name in ("top", "left", "right"):
        assert not cluster.current("end")
        cluster.end(cluster.current(name))
    assert cluster.current("end")


@pytest.mark.parametrize("turned", [False, True])
def test_a_condition_that_was_lost_before_the_submit_ends_the_job_and_its_followers(
    cluster: Cluster, turned: bool
) -> None:
    batch = [new_job("second", ("ok:first",)), new_job("first", broken="it waited for job 0")]
    effects = cluster.turn(JobsSubmitted(tuple(reversed(batch) if turned else batch)))
    assert [cluster.job(name).state for name in ("first", "second")] == [JobState.KILLED] * 2
    assert cluster.job("first").error == "it waited for job 0"
    assert [note.type for note in only(effects, Note)].count("job_ended") == 2


def test_a_restart_remembers_who_waits_for_whom(cluster: Cluster) -> None:
    cluster.submit("first")
    cluster.submit(after=["any:first"])
    again = State()
    load(again, cluster.state.counters, (cluster.state.jobs.values(), (), (), ()))
    assert not problems(again)
    assert again.dependents == {"first": {"job": None}}
    assert [entry.job_id for bucket in again.backlog.buckets.values() for entry in bucket.entries] == [
        "first"
    ]


def test_who_ended_waits_for_nobody(cluster: Cluster) -> None:
    cluster.submit("first")
    cluster.submit(after=["any:first"])
    cluster.cancel("job")
    assert not cluster.state.dependents
    assert not cluster.job().after
    cluster.cancel("first")
    assert cluster.job().state is JobState.KILLED
