"""A job that waits may be given another spec; it keeps its number and stands in one line only."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.core.harness import Cluster, assigned

from dray.core.lifecycle.state.events import JobsSubmitted, NewJob, PolicyChanged
from dray.core.model.policies.policy import Policy, Queue, pack_policy
from dray.core.model.records.records import Job, JobState
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec, unpack_spec
from dray.core.scheduling.passes.planning import plan

EVERYTHING: dict[str, Any] = {
    "name": "n",
    "queue": "night",
    "priority": 7,
    "job_tier": "training",
    "retries": 2,
    "losses": 1,
    "scheduling_timeout_s": 9.0,
    "max_runtime_s": 60.0,
    "lost_after_s": 50.0,
    "plugin": "p",
    "expected_runtime_s": 5.0,
    "deadline": "2100-01-01T00:00:00Z",
    "cpu_milli": 3000,
    "array": {"last": 3, "limit": 2},
}


def test_an_edited_job_is_what_a_new_one_of_that_spec_would_be(cluster: Cluster) -> None:
    """Guards against a field that the record keeps of its spec and an edit forgets."""
    cluster.submit(array={"last": 3})
    cluster.submit("fresh", **EVERYTHING)
    cluster.edit(**EVERYTHING)
    own = ("id", "seq", "original")
    edited, fresh = (
        {name: getattr(job, name) for name in Job.__struct_fields__ if name not in own}
        for job in (cluster.job("job"), cluster.job("fresh"))
    )
    assert edited == fresh
    assert unpack_spec(cluster.job().original) == check_spec({"command": ["true"], "array": {"last": 3}})


def test_an_edit_moves_a_job_to_another_line_and_never_places_it_twice(cluster: Cluster) -> None:
    cluster.submit()
    cluster.submit("other", cpu_milli=1000)
    cluster.edit(queue="night", priority=3, cpu_milli=1000)
    cluster.edit(cpu_milli=2000)
    cluster.edit(queue="default", priority=0, cpu_milli=1000)
    cluster.join("w1", credit=8)
    assert sorted(attempt.job_id for attempt in cluster.state.attempts.values()) == ["job", "other"]
    assert not plan(cluster.state).placements
    assert cluster.state.backlog.depth == {"default": 0, "night": 0}


def test_a_job_that_could_not_start_starts_by_its_new_ask(cluster: Cluster) -> None:
    cluster.join("w1", credit=8, cpus=2)
    cluster.submit(cpu_milli=8000)
    assert not cluster.current("job")
    assert assigned(cluster.edit(cpu_milli=2000))
    assert cluster.state.ask(cluster.attempt(cluster.current("job"))).cpu_milli == 2000


def test_it_keeps_its_place_among_those_of_its_new_line(cluster: Cluster) -> None:
    cluster.submit("first", queue="night")
    cluster.submit("second", queue="day")
    cluster.submit("third", queue="night")
    cluster.edit("second", queue="night")
    cluster.join("w1", credit=2)
    assert [bool(cluster.current(name)) for name in ("first", "second", "third")] == [True, True, False]


def test_the_cap_of_an_array_that_runs_can_be_raised(cluster: Cluster) -> None:
    cluster.join("w1", credit=8)
    cluster.submit(array={"last": 3, "limit": 1})
    assert len(cluster.held("w1")) == 1
    assert len(assigned(cluster.edit(array={"last": 3, "limit": 3}))) == 2
    assert cluster.job().limit == 3


def test_an_array_that_runs_moves_with_what_is_queued_again(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit(array={"last": 2}, retries=1)
    cluster.end(cluster.current("job", 0), "failed")
    cluster.edit(priority=5, queue="night")
    assert cluster.state.backlog.depth == {"default": 0, "night": 3}
    assert len(assigned(cluster.poll("w1", 8))) == 3


def test_new_conditions_bar_a_job_and_none_let_it_go(cluster: Cluster) -> None:
    cluster.submit("first")
    cluster.submit("other")
    cluster.submit(after=["ok:first"])
    cluster.edit(after=["any:other"])
    assert cluster.state.dependents == {"other": {"job": None}}
    cluster.edit(after=[])
    assert not cluster.state.dependents
    cluster.join("w1", credit=8)
    assert cluster.current("job")


def test_another_timeout_starts_anew_and_any_other_edit_does_not(cluster: Cluster) -> None:
    cluster.submit(scheduling_timeout_s=100)
    cluster.advance(80)
    cluster.edit(priority=3)
    cluster.advance(21)
    assert cluster.job().state is JobState.UNSCHEDULABLE
    cluster.submit("second")
    cluster.advance(80)
    cluster.edit("second", scheduling_timeout_s=60)
    cluster.advance(59)
    assert cluster.job("second").state is JobState.PENDING
    cluster.advance(2)
    assert cluster.job("second").state is JobState.UNSCHEDULABLE


def test_the_last_job_of_a_shape_takes_its_lines_along(cluster: Cluster) -> None:
    cluster.submit()
    cluster.edit(cpu_milli=2000)
    assert cluster.state.shapes.refs == [0, 1]
    assert [key.shape for key in cluster.state.backlog.buckets] == [1]
    packed = pack_spec(check_spec({"command": ["true"]}))
    cluster.turn(JobsSubmitted((NewJob("next", "ann", packed),)))
    assert cluster.job("next").shape == 0
    cluster.join("w1", credit=8)
    assert len(cluster.state.attempts) == 2


def test_what_has_ended_is_not_edited(cluster: Cluster) -> None:
    cluster.submit()
    cluster.cancel("job")
    before = msgspec.structs.replace(cluster.job())
    assert not cluster.edit(priority=3)
    assert cluster.job() == before


def test_a_new_deadline_moves_a_job_within_its_line_and_leaves_nothing_behind(cluster: Cluster) -> None:
    """The line is the same: only the place in it tells the old entry from the new one."""
    cluster.turn(PolicyChanged(pack_policy(Policy(queues={"default": Queue(order="edf")}))))
    for name, year in (("a", 2040), ("b", 2050), ("c", 2060)):
        cluster.submit(name, deadline=f"{year}-01-01T00:00:00Z", array={"last": 1})
    cluster.edit("a", deadline="2055-01-01T00:00:00Z")
    cluster.join("w1", credit=3)
    assert [cluster.job(name).cursor for name in "abc"] == [1, 2, 0]
    cluster.edit("c", deadline="2054-01-01T00:00:00Z")
    assert len(assigned(cluster.poll("w1", 2))) == 2
    assert [cluster.job(name).cursor for name in "abc"] == [1, 2, 2]
