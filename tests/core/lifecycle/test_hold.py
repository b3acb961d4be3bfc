"""A held job stands in no line until it is released; what runs goes on."""

from __future__ import annotations

from tests.core.harness import Cluster, assigned

from dray.core.lifecycle.state.events import Placement, PlanDecided
from dray.core.model.records.records import JobState
from dray.core.scheduling.passes.planning import plan


def test_a_job_submitted_with_a_hold_starts_when_it_is_released(cluster: Cluster) -> None:
    cluster.join("w1", credit=2)
    assert not assigned(cluster.submit(hold=True))
    assert cluster.summary() == "held by ann"
    assert cluster.blockers() == [("held", "a release", "held by ann")]
    assert cluster.state.backlog.depth["default"] == 1, "it waits in its queue all the same"
    assert assigned(cluster.hold(on=False))
    assert not cluster.job().held_by


def test_a_waiting_job_is_held_where_it_stands(cluster: Cluster) -> None:
    cluster.submit()
    cluster.submit("second")
    cluster.hold()
    assert cluster.summary() == "held by bob"
    cluster.join("w1", credit=8)
    assert cluster.current("second")
    assert not cluster.current("job")
    cluster.hold(on=False)
    assert cluster.current("job")


def test_a_released_job_is_ahead_of_those_that_came_after_it(cluster: Cluster) -> None:
    cluster.submit()
    cluster.submit("second")
    cluster.hold()
    cluster.hold(on=False)
    cluster.join("w1", credit=1)
    assert cluster.current("job")
    assert not cluster.current("second")


def test_what_runs_of_an_array_goes_on_and_the_rest_waits(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit(array={"last": 2}, retries=1)
    running = cluster.current("job", 0)
    cluster.run(running)
    cluster.hold()
    cluster.poll("w1", 8)
    assert not cluster.current("job", 1)
    cluster.end(running, "failed")
    assert cluster.task("job", 0).queued, "a retry of a held job waits as well"
    assert not assigned(cluster.poll("w1", 8))
    assert len(assigned(cluster.hold(on=False))) == 3
    assert [cluster.attempt(cluster.current("job", index)).no for index in range(3)] == [2, 1, 1]


def test_the_scheduling_timeout_does_not_run_while_held(cluster: Cluster) -> None:
    cluster.submit(scheduling_timeout_s=60)
    cluster.advance(50)
    cluster.hold()
    cluster.advance(500)
    assert cluster.job().state is JobState.PENDING
    cluster.hold(on=False)
    cluster.advance(59)
    assert cluster.job().state is JobState.PENDING
    cluster.advance(2)
    assert cluster.job().state is JobState.UNSCHEDULABLE


def test_a_held_job_can_be_cancelled(cluster: Cluster) -> None:
    cluster.submit(hold=True)
    cluster.cancel("job")
    assert cluster.job().state is JobState.KILLED
    assert not cluster.hold(on=False)


def test_members_that_join_a_held_array_wait_with_it(cluster: Cluster) -> None:
    cluster.join("w1", credit=8)
    cluster.submit(array={"first": 0, "last": -1, "open": True}, hold=True)
    assert not assigned(cluster.extend("job", 2))
    assert len(assigned(cluster.hold(on=False))) == 2


def test_a_plan_made_before_the_hold_places_nothing(cluster: Cluster) -> None:
    """A plan is advice: one that was made on an older picture is checked again."""
    cluster.submit()
    cluster.join("w1")
    cluster.hold()
    assert not cluster.turn(PlanDecided((Placement("job", 0, "1-99", "w1"),)))
    assert not cluster.held("w1")


def test_a_hold_is_as_cheap_as_it_is_in_a_long_line(cluster: Cluster) -> None:
    """Entries of held jobs at the head of a line are dropped, those behind others are passed over."""
    for number in range(6):
        cluster.submit(f"j{number}")
    for number in (0, 1, 3):
        cluster.hold(f"j{number}")
    cluster.join("w1", credit=2)
    assert [job for job in cluster.state.jobs if cluster.current(job)] == ["j2", "j4"]
    cluster.hold("j0", on=False)
    cluster.hold("j3", on=False)
    cluster.poll("w1", 2)
    assert [job for job in cluster.state.jobs if cluster.current(job)] == ["j0", "j2", "j3", "j4"]
    assert not plan(cluster.state).placements
