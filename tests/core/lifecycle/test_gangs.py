"""A gang starts together or not at all, and a generation is concluded once, for the job as one."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.harness import Cluster, assigned, cancels, only

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.recovery import release, wake_up
from dray.core.lifecycle.state.effects import Ack, Assign, Go, Note
from dray.core.lifecycle.state.events import Placement, PlanDecided, RequeueRequested, WorkerDrained
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.jobs import stop_attempt
from dray.core.model.records.records import JobState, Phase


@pytest.fixture
def trio(cluster: Cluster) -> Cluster:
    """Three workers that take gangs."""
    for name in ("w1", "w2", "w3"):
        cluster.join(name, credit=4)
    return cluster


def uids(cluster: Cluster, job_id: str = "job") -> list[str]:
    return [cluster.current(job_id, index) for index in range(cluster.job(job_id).total)]


def went(effects: object) -> list[str]:
    return [effect.uid for effect in only(effects, Go)]  # type: ignore[arg-type]  # a list of effects


def pass_barrier(cluster: Cluster, job_id: str = "job") -> list[str]:
    members = uids(cluster, job_id)
    for uid in members:
        cluster.accept(uid)
    return members


def states(cluster: Cluster, job_id: str = "job") -> list[JobState]:
    return [cluster.task(job_id, index).state for index in range(cluster.job(job_id).total)]


# --- placing and the barrier ------------------------------------------------------------------------------------------


def test_members_are_placed_together_on_workers_of_their_own(trio: Cluster) -> None:
    sent = assigned(trio.submit(node_count=3))
    assert len(sent) == 3
    assert {trio.attempt(uid).worker for uid in sent} == {"w1", "w2", "w3"}
    assert {trio.attempt(uid).generation for uid in sent} == {1}


def test_a_gang_waits_until_enough_workers_have_room(trio: Cluster) -> None:
    trio.turn(WorkerDrained("w3", True))
    assert assigned(trio.submit(node_count=3)) == []
    assert trio.blockers()[0] == ("nodes", "3", "2")
    assert len(assigned(trio.turn(WorkerDrained("w3", False)))) == 3


def test_a_gang_larger_than_the_cluster_can_never_start(trio: Cluster) -> None:
    trio.submit(node_count=4)
    assert trio.blockers()[0] == ("nodes", "4", "3")
    assert "cannot ever" in trio.summary()
    assert "needs 4 workers" in trio.summary()


def test_a_worker_that_knows_no_gangs_gets_none(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    cluster.join("w2", credit=4, base=True)
    assert assigned(cluster.submit(node_count=2)) == []


def test_members_share_one_backend_unless_told_otherwise(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    cluster.join("w2", credit=4, gpus=1, vram_gb=80)
    assert assigned(cluster.submit("same", node_count=2)) == []
    assert "of one backend" in cluster.summary("same")
    assert len(assigned(cluster.submit("mixed", node_count=2, mixed_backends=True))) == 2


def test_a_plan_that_no_longer_holds_for_one_member_is_dropped_for_all(trio: Cluster) -> None:
    trio.turn(WorkerDrained("w3", True))
    trio.submit(node_count=3)
    for workers in (("w1", "w2", "gone"), ("w1", "w2", "w2"), ("w1", "w2")):
        placements = tuple(Placement("job", i, f"1-{90 + i}", name) for i, name in enumerate(workers))
        assert assigned(trio.fold(PlanDecided(placements))) == []
        assert trio.job().waiting == 3


def test_nobody_goes_before_the_last_member_is_accepted(trio: Cluster) -> None:
    trio.submit(node_count=3)
    first, second, third = uids(trio)
    assert went(trio.accept(second)) == []
    assert went(trio.accept(first)) == []
    assert trio.job().state is JobState.PENDING
    assert went(trio.accept(third)) == [first, second, third]
    assert trio.job().state is JobState.RUNNING
    assert all(trio.attempt(uid).go for uid in (first, second, third))
    assert went(trio.accept(third)) == []


def test_go_is_said_again_until_a_member_has_started(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = pass_barrier(trio)
    trio.start(first)
    assert went(trio.advance(2)) == [second]
    assert went(trio.advance(30)) == [second] * 3
    trio.start(second)
    assert went(trio.advance(60)) == []


def test_go_is_said_again_after_a_new_registration(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = pass_barrier(trio)
    trio.start(first)
    worker = trio.attempt(second).worker
    again = trio.register(worker, active=[trio.active(second, running=False)])
    assert went(again) == [second]
    worker = trio.attempt(first).worker
    assert went(trio.register(worker, active=[trio.active(first)])) == []


def test_an_acceptance_that_was_lost_is_asked_for_again(trio: Cluster) -> None:
    """The registration says that it is accepted, but not where it can be met."""
    trio.submit(node_count=2)
    first, second = uids(trio)
    trio.accept(first)
    worker = trio.attempt(second).worker
    again = trio.register(worker, active=[trio.active(second, running=False)])
    assert only(again, Assign) == [Assign(worker, second)]
    assert went(again) == []
    assert went(trio.accept(second)) == [first, second]


# --- released before the barrier --------------------------------------------------------------------------------------


def test_not_all_accepted_in_time_releases_all_uncharged(trio: Cluster) -> None:
    trio.submit(node_count=3, retries=0, losses=0)
    first, second, third = uids(trio)
    trio.accept(first)
    effects = trio.advance(30)
    assert (first, "gang") in cancels(effects)
    assert {(second, "revoked"), (third, "revoked")} <= set(cancels(effects))
    assert not trio.task(index=1).queued, "it waits for the one that was accepted"
    trio.end(first, "killed")
    again = assigned(trio.advance(1))
    assert len(again) == 3
    assert {trio.attempt(uid).generation for uid in again} == {2}
    assert (trio.task().failures, trio.task().losses, trio.task().attempts) == (0, 0, 2)


def test_a_goodbye_before_acceptance_releases_all(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = uids(trio)
    trio.accept(first)
    effects = trio.leave(trio.attempt(second).worker)
    assert cancels(effects) == [(first, "gang"), (second, "revoked")]
    trio.end(first, "killed")
    assert trio.job().generation == 2


def test_a_member_lost_before_the_barrier_costs_nothing(trio: Cluster) -> None:
    trio.submit(node_count=2, losses=0)
    first, second = uids(trio)
    trio.accept(first)
    trio.end(second, "failed", exit_class="lost_unstarted")
    assert trio.attempt(first).phase is Phase.STOPPING
    trio.end(first, "killed")
    assert (trio.job().generation, trio.task().losses) == (2, 0)


def test_a_member_that_is_refused_is_a_failure_of_the_gang(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = uids(trio)
    trio.accept(first)
    trio.end(second, "failed", exit_class="refused", error="no space left")
    trio.end(first, "killed")
    assert states(trio) == [JobState.FAILED] * 2
    assert trio.task(index=1).exit_class == "refused"


def test_a_late_acceptance_after_the_release_changes_nothing(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = uids(trio)
    trio.accept(first)
    trio.advance(30)
    late = trio.accept(second)
    assert cancels(late) == [(second, "revoked")]
    assert went(late) == []


# --- after the barrier ------------------------------------------------------------------------------------------------


def test_a_gang_succeeds_when_all_have_and_not_before(trio: Cluster) -> None:
    trio.submit(node_count=3)
    members = pass_barrier(trio)
    for uid in members:
        trio.start(uid)
    for uid in members[:2]:
        effects = trio.end(uid)
        assert only(effects, Ack)[0].results == {uid: "recorded"}
        assert states(trio) == [JobState.RUNNING] * 3
    trio.end(members[2])
    assert states(trio) == [JobState.SUCCEEDED] * 3
    assert trio.job().state is JobState.SUCCEEDED


def test_the_first_failure_breaks_the_generation_and_is_charged_once(trio: Cluster) -> None:
    trio.submit(node_count=3, retries=1, job_tier="evaluation")
    members = pass_barrier(trio)
    for uid in members:
        trio.start(uid)
    trio.end(members[0])
    effects = trio.end(members[1], "failed", exit_code=3, exit_class="code")
    assert cancels(effects) == [(members[2], "gang")]
    assert trio.attempt(members[2]).grace_s == 120
    effects = trio.end(members[2], "failed", exit_code=143)
    assert [trio.task(index=index).failures for index in range(3)] == [1, 1, 1]
    assert len(assigned(effects)) == 3
    assert trio.job().generation == 2
    second = pass_barrier(trio)
    trio.end(second[0])
    trio.end(second[1], "failed", exit_code=3, exit_class="code", error="exited with code 3")
    trio.end(second[2], "killed")
    assert states(trio) == [JobState.FAILED] * 3
    assert [trio.task(index=index).exit_class for index in range(3)] == ["gang", "code", "gang"]
    worker = trio.attempt(second[1]).worker
    assert trio.task().error == f"job/1 on {worker} ended its gang: exited with code 3"
    assert (trio.task().exit_code, trio.task(index=1).exit_code) == (0, 3)


def test_the_blamed_worker_is_avoided_while_others_will_do(trio: Cluster) -> None:
    trio.submit(node_count=2, retries=5)
    for _ in range(3):
        first, second = pass_barrier(trio)
        blamed = trio.attempt(second).worker
        trio.end(second, "failed")
        trio.end(first, "killed")
        assert trio.job().blamed == blamed
        assert blamed not in {trio.attempt(uid).worker for uid in uids(trio)}


def test_a_loss_is_charged_once_and_the_lost_member_never_adopted(trio: Cluster) -> None:
    trio.submit(node_count=2, losses=1)
    first, second = pass_barrier(trio)
    trio.start(first)
    trio.start(second)
    worker = trio.attempt(second).worker
    trio.break_socket(worker)
    effects = trio.advance(120)
    assert trio.attempt(second).phase is Phase.LOST
    assert (first, "gang") in cancels(effects)
    back = trio.register(worker, active=[trio.active(second)])
    assert cancels(back) == [(second, "superseded")]
    trio.end(first, "killed")
    assert [trio.task(index=index).losses for index in range(2)] == [1, 1]
    assert second not in uids(trio)
    back = trio.end(second)
    assert only(back, Ack)[0].results == {second: "superseded"}


def test_a_lost_member_that_comes_back_while_the_gang_waits_is_stopped(trio: Cluster) -> None:
    trio.submit(node_count=3)
    members = pass_barrier(trio)
    for uid in members:
        trio.start(uid)
    worker = trio.attempt(members[2]).worker
    trio.break_socket(worker)
    trio.advance(120)
    for uid in members[:2]:
        trio.end(uid, "killed")
    assert trio.job().requeued == 3
    back = trio.register(worker, active=[trio.active(members[2])])
    assert cancels(back) == [(members[2], "superseded")]
    assert trio.job().requeued == 3


def test_losses_used_up_end_every_task_alike(trio: Cluster) -> None:
    trio.submit(node_count=2, losses=0)
    first, second = pass_barrier(trio)
    trio.start(first)
    trio.end(second, "failed", exit_class="lost")
    trio.end(first, "succeeded")
    assert states(trio) == [JobState.WORKER_FAILED] * 2
    assert [trio.task(index=index).exit_class for index in range(2)] == ["gang", "lost"]


def test_a_preempted_member_costs_the_gang_nothing(trio: Cluster) -> None:
    trio.submit(node_count=2, retries=0, losses=0)
    first, second = pass_barrier(trio)
    trio.start(first)
    trio.start(second)
    trio.end(second, "preempted")
    trio.end(first, "killed")
    assert (trio.task().failures, trio.task().losses, trio.task().preemptions) == (0, 0, 1)
    assert (trio.job().generation, trio.job().blamed) == (2, "")


def test_a_gang_that_may_start_once_is_not_tried_again_after_a_preemption(trio: Cluster) -> None:
    trio.submit(node_count=2, at_most_once=True)
    first, second = pass_barrier(trio)
    trio.start(first)
    trio.end(second, "preempted")
    trio.end(first, "killed")
    assert states(trio) == [JobState.WORKER_FAILED] * 2


def test_the_time_limit_of_one_member_is_a_failure_of_the_generation(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = pass_barrier(trio)
    trio.start(first)
    trio.start(second)
    trio.end(first, "failed", exit_class="time_limit", error="stopped at its time limit")
    trio.end(second, "failed", exit_class="time_limit")
    assert states(trio) == [JobState.FAILED] * 2
    assert [trio.task(index=index).exit_class for index in range(2)] == ["time_limit", "gang"]


def test_a_member_stopped_on_its_host_ends_the_gang_as_killed(trio: Cluster) -> None:
    trio.submit(node_count=2, retries=3)
    first, second = pass_barrier(trio)
    trio.end(first, "killed", error="stopped by an operator")
    trio.end(second, "killed")
    assert states(trio) == [JobState.KILLED] * 2


@pytest.mark.parametrize("index", [-1, 1])
def test_a_requeue_sends_all_back_uncharged(trio: Cluster, index: int) -> None:
    trio.submit(node_count=2, retries=0, losses=0)
    first, second = pass_barrier(trio)
    trio.start(first)
    effects = trio.turn(RequeueRequested("job", index, "ann"))
    assert sorted(cancels(effects)) == [(first, "requeued"), (second, "requeued")]
    trio.end(first, "killed")
    trio.end(second, "succeeded")
    assert (trio.job().generation, trio.job().blamed) == (2, "")
    assert (trio.task().failures, trio.task().losses) == (0, 0)


def test_nobody_goes_while_a_member_is_stopping(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = uids(trio)
    trio.accept(first)
    stop_attempt(trio.state, trio.attempt(first), "preempted", 1, trio.clock)
    assert went(trio.accept(second)) == []
    trio.end(first, "preempted")
    trio.end(second, "killed")
    assert trio.job().generation == 2


def test_a_preempted_gang_heads_its_band(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = pass_barrier(trio)
    trio.start(first)
    trio.start(second)
    trio.turn(WorkerDrained("w1", True), WorkerDrained("w2", True), WorkerDrained("w3", True))
    stop_attempt(trio.state, trio.attempt(second), "preempted", 1, trio.clock)
    trio.end(second, "preempted")
    trio.end(first, "killed")
    assert [trio.task(index=index).ahead for index in range(2)] == [True, True]


def test_who_fails_once_its_peer_was_told_to_go_for_another_costs_the_gang_nothing(trio: Cluster) -> None:
    trio.submit(node_count=2, retries=0)
    first, second = pass_barrier(trio)
    trio.start(first)
    trio.start(second)
    trio.turn(WorkerDrained("w1", True), WorkerDrained("w2", True), WorkerDrained("w3", True))
    stop_attempt(trio.state, trio.attempt(first), "preempted", 1, trio.clock)
    trio.end(second, "failed", error="its peer is gone")
    trio.end(first, "preempted")
    for index in range(2):
        task = trio.task(index=index)
        assert (task.queued, task.ahead, task.failures, task.preemptions) == (True, True, 0, 1)
    assert trio.job().blamed == ""


def test_a_loss_beside_a_preemption_is_charged_and_the_gang_heads_its_band(trio: Cluster) -> None:
    trio.submit(node_count=2, losses=1)
    first, second = pass_barrier(trio)
    trio.start(first)
    trio.start(second)
    trio.turn(WorkerDrained("w1", True), WorkerDrained("w2", True), WorkerDrained("w3", True))
    stop_attempt(trio.state, trio.attempt(first), "preempted", 1, trio.clock)
    trio.end(second, "failed", exit_class="lost")
    trio.end(first, "preempted")
    for index in range(2):
        task = trio.task(index=index)
        assert (task.queued, task.ahead, task.losses) == (True, True, 1)


# --- cancelled --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [-1, 1])
def test_a_cancel_of_one_member_is_a_cancel_of_all(trio: Cluster, index: int) -> None:
    trio.submit(node_count=3)
    members = pass_barrier(trio)
    trio.end(members[0])
    effects = trio.cancel("job", index)
    assert cancels(effects) == [(members[1], "user"), (members[2], "user")]
    assert states(trio) == [JobState.KILLED] * 3
    assert trio.job().state is JobState.KILLED
    for uid in members[1:]:
        trio.end(uid, "killed")
    assert [trio.held(name) for name in ("w1", "w2", "w3")] == [[], [], []]


def test_a_cancel_while_the_generation_breaks_up_wins(trio: Cluster) -> None:
    trio.submit(node_count=2, retries=1)
    first, second = pass_barrier(trio)
    trio.end(first, "failed")
    trio.cancel("job")
    trio.end(second, "killed")
    assert states(trio) == [JobState.KILLED] * 2


def test_a_gang_that_never_fits_times_out_whole(trio: Cluster) -> None:
    trio.submit(node_count=4, scheduling_timeout_s=60)
    effects = trio.advance(61)
    assert trio.job().state is JobState.UNSCHEDULABLE
    assert trio.job().unschedulable == 4
    assert [note.data["state"] for note in only(effects, Note) if note.type == "job_ended"] == [
        "unschedulable"
    ]


# --- restarts ---------------------------------------------------------------------------------------------------------


def folded(cluster: Cluster) -> State:
    """The state as a hub that starts now finds it in its log."""
    fresh = State(cluster.state.rules)
    for clock, fact in cluster.journal:
        apply(fresh, fact, clock)
    wake_up(fresh, cluster.clock)
    assert problems(fresh) == []
    return fresh


def test_every_step_is_found_again_in_the_log(trio: Cluster) -> None:
    trio.submit(node_count=2, retries=1)
    first, second = uids(trio)
    steps = [
        lambda: trio.accept(first),
        lambda: trio.accept(second),
        lambda: trio.start(first),
        lambda: trio.end(first),
        lambda: trio.end(second, "failed"),
    ]
    for step in steps:
        step()
        fresh = folded(trio)
        for mine, found in ((trio.state.jobs, fresh.jobs), (trio.state.tasks, fresh.tasks)):
            assert msgspec.msgpack.encode(list(mine.values())) == msgspec.msgpack.encode(list(found.values()))


def test_a_restart_goes_on_telling_members_to_start(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = pass_barrier(trio)
    trio.start(first)
    fresh = folded(trio)
    assert [key for _, kind, key in fresh.timers if kind == "go"] == [second]


def test_a_member_that_ended_stays_in_memory_until_its_generation_is_concluded(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = pass_barrier(trio)
    trio.end(first)
    release(trio.state, ["job"], [("job", 0)], [first])
    assert first in trio.state.attempts
    trio.end(second)
    assert first in trio.state.touched.attempts
    release(trio.state, ["job"], [("job", 0), ("job", 1)], [first, second])
    assert not trio.state.attempts
    assert not trio.state.jobs


def test_a_member_that_runs_proves_to_a_restored_hub_that_the_barrier_was_passed(trio: Cluster) -> None:
    trio.submit(node_count=2)
    first, second = uids(trio)
    worker = trio.attempt(first).worker
    trio.register(worker, active=[trio.active(first, running=True)])
    assert [trio.attempt(uid).go for uid in (first, second)] == [True, True]
    assert went(trio.accept(second)) == [second]
    trio.start(second)
    trio.end(first)
    trio.end(second)
    assert states(trio) == [JobState.SUCCEEDED] * 2
