"""Scheduling timeouts, and the order in which what waits is looked at."""

from __future__ import annotations

from tests.core.harness import Cluster, assigned

from dray.core.model.records.records import JobState


def test_the_scheduling_timeout_ends_with_the_reasons(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, gpus=2, vram_gb=80)
    cluster.submit(gpu_count=4, scheduling_timeout_s=60)
    cluster.advance(59.9)
    assert cluster.job().state is JobState.PENDING
    cluster.advance(0.1)
    job = cluster.job()
    assert (job.state, job.unschedulable) == (JobState.UNSCHEDULABLE, 1)
    assert job.error.startswith("cannot ever start on any known worker: each task asks for 4 GPUs")


def test_no_timeout_waits_for_ever(cluster: Cluster) -> None:
    cluster.submit()
    cluster.advance(10**5)
    assert cluster.job().state is JobState.PENDING


def test_an_array_that_moves_on_does_not_time_out(cluster: Cluster) -> None:
    cluster.join("w1", batch=1)
    cluster.submit(array={"last": 3}, scheduling_timeout_s=60)
    for index in range(3):
        cluster.poll("w1", 1)
        cluster.run(cluster.current("job", index))
        cluster.advance(50)
        cluster.end(cluster.current("job", index))
    assert (cluster.job().succeeded, cluster.job().waiting) == (3, 1)
    cluster.advance(61)
    assert (cluster.job().state, cluster.job().unschedulable) == (JobState.UNSCHEDULABLE, 1)


def test_what_runs_goes_on_when_the_rest_times_out(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit(array={"last": 3}, scheduling_timeout_s=60)
    cluster.run(cluster.current("job", 0))
    cluster.advance(600)
    assert cluster.job().waiting == 3, "while a member runs the array moves on"
    cluster.end(cluster.current("job", 0))
    cluster.advance(130)
    assert (cluster.job().state, cluster.job().unschedulable) == (JobState.UNSCHEDULABLE, 3)
    assert cluster.job().succeeded == 1


def test_a_task_queued_again_may_time_out_too(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit(scheduling_timeout_s=60, retries=3)
    cluster.run(cluster.current())
    cluster.advance(100)
    cluster.end(cluster.current(), "failed")
    cluster.advance(59)
    assert cluster.job().state is JobState.PENDING
    cluster.advance(61)
    assert (cluster.job().state, cluster.task().exit_class) == (JobState.UNSCHEDULABLE, "unschedulable")


def test_first_come_first_served_and_what_does_not_fit_is_skipped(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, cpus=4, batch=9)
    cluster.submit("big", cpu_milli=3000)
    cluster.submit("huge", cpu_milli=4000)
    cluster.submit("small", cpu_milli=1000)
    cluster.submit("late", cpu_milli=1000)
    assert [bool(cluster.current(job)) for job in ("big", "huge", "small", "late")] == [
        True,
        False,
        True,
        False,
    ]
    cluster.end(cluster.current("big"))
    assert cluster.current("late"), "huge still does not fit beside small"
    cluster.end(cluster.current("small"))
    cluster.end(cluster.current("late"))
    assert cluster.current("huge")


def test_a_requeued_task_keeps_its_first_place_among_other_shapes(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, batch=1)
    cluster.submit("first", cpu_milli=1000, retries=1)
    cluster.submit("second", cpu_milli=2000)
    cluster.end(cluster.current("first"), "failed")
    assert cluster.poll("w1", 1)
    assert cluster.current("first")
    assert not cluster.current("second")


def test_new_work_of_a_full_shape_waits_until_room_appears(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, cpus=2, batch=9)
    cluster.submit("first", cpu_milli=2000)
    cluster.submit("second", cpu_milli=2000)
    cluster.submit("third", cpu_milli=2000)
    assert cluster.state.backlog.awake == {}
    assert len(assigned(cluster.end(cluster.current("first")))) == 1
    assert cluster.current("second")
