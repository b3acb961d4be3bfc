"""Memory holds live work only: what ended is let go once its row is written, and nothing is left behind."""

from __future__ import annotations

from tests.core.harness import Cluster, assigned, only

from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.recovery import release
from dray.core.lifecycle.state.effects import LookUp
from dray.core.lifecycle.state.events import AttemptEnded, WorkerForgotten
from dray.core.lifecycle.state.state import State, Touched
from dray.core.model.records.records import JobState


def write_rows(cluster: Cluster) -> None:
    """What the shell does once the rows of all that changed are written."""
    state: State = cluster.state
    touched, state.touched = state.touched, Touched()
    release(state, touched.jobs, touched.tasks, touched.attempts)
    assert problems(state) == []


def is_empty(state: State) -> bool:
    kept = (state.jobs, state.tasks, state.attempts, state.live_of, state.requeued_of, state.newest)
    lines = (state.backlog.buckets, state.backlog.of_shape, state.backlog.awake, state.backlog.parked)
    return not any(kept) and not any(lines) and not any(state.held.values())


def test_an_ended_job_leaves_nothing_behind(cluster: Cluster) -> None:
    cluster.join("w1", credit=3)
    cluster.submit(array={"last": 2})
    for index in range(3):
        cluster.end(cluster.current("job", index))
        write_rows(cluster)
    assert is_empty(cluster.state)
    assert cluster.state.shapes.refs == [0]


def test_live_work_stays(cluster: Cluster) -> None:
    cluster.join("w1", credit=1)
    cluster.submit(array={"last": 2})
    write_rows(cluster)
    assert cluster.current("job", 0)
    assert cluster.job().waiting == 2
    cluster.cancel("job")
    write_rows(cluster)
    assert cluster.job().state is JobState.KILLED, "its attempt still has to stop"
    cluster.end(cluster.task("job", 0).last_uid, "killed")
    write_rows(cluster)
    assert is_empty(cluster.state)


def test_a_lost_attempt_is_kept_for_adoption_and_let_go_with_the_next_one(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, beats=False)
    cluster.submit()
    lost = cluster.current()
    cluster.run(lost)
    cluster.advance(121)
    write_rows(cluster)
    assert lost in cluster.state.attempts
    report = cluster.outcome(lost)
    cluster.join("w2", credit=1)
    write_rows(cluster)
    assert lost not in cluster.state.attempts
    cluster.end(cluster.current())
    write_rows(cluster)
    assert is_empty(cluster.state)
    cluster.register("w1")
    late = cluster.turn(AttemptEnded("w1", report))
    assert only(late, LookUp), "the rows know what became of it"


def test_a_lost_attempt_of_a_cancelled_task_is_let_go(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, beats=False)
    cluster.submit()
    cluster.run(cluster.current())
    cluster.advance(121)
    write_rows(cluster)
    cluster.cancel("job")
    write_rows(cluster)
    assert is_empty(cluster.state)


def test_holes_that_were_passed_over_are_let_go(cluster: Cluster) -> None:
    cluster.submit(array={"last": 3})
    cluster.cancel("job", 1)
    write_rows(cluster)
    assert ("job", 1) in cluster.state.tasks
    cluster.join("w1", credit=4)
    write_rows(cluster)
    assert ("job", 1) not in cluster.state.tasks
    for index in (0, 2, 3):
        cluster.end(cluster.current("job", index))
    write_rows(cluster)
    assert is_empty(cluster.state)


def test_holes_that_were_never_reached_are_let_go_with_their_job(cluster: Cluster) -> None:
    cluster.submit(array={"last": 3})
    cluster.cancel("job", 2)
    write_rows(cluster)
    cluster.cancel("job")
    write_rows(cluster)
    assert is_empty(cluster.state)


def test_a_shapes_number_is_used_again(cluster: Cluster) -> None:
    cluster.submit("first", cpu_milli=64_000)
    cluster.cancel("first")
    write_rows(cluster)
    cluster.submit("second", memory_bytes=1)
    assert cluster.job("second").shape == 0
    cluster.join("w1")
    assert len(assigned(cluster.poll("w1", 1))) == 1


def test_a_forgotten_worker_leaves_its_row_to_the_next_one(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, gpus=2, vram_gb=80)
    cluster.submit(gpu_count=1)
    cluster.turn(WorkerForgotten("w1"))
    assert "w1" in cluster.state.workers, "it holds an attempt"
    cluster.end(cluster.current())
    cluster.leave("w1")
    cluster.turn(WorkerForgotten("w1"))
    assert "w1" not in cluster.state.workers
    cluster.join("w2", credit=1)
    assert cluster.state.columns.row_of == {"w2": 0}
    assert assigned(cluster.submit("gpu", gpu_count=1)) == []
    assert len(assigned(cluster.submit("cpu"))) == 1
