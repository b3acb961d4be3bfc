"""Which lanes are fed, which linger and which close; who goes on after a yield."""

from __future__ import annotations

from typing import Any

from tests.core.harness import Cluster

from dray.core.lifecycle.state.effects import FeedCalls, Resume
from dray.core.lifecycle.state.events import (
    ArrayExtended,
    AttemptResumed,
    AttemptYielded,
    ResumeAsked,
    WorkerDrained,
)
from dray.core.model.records.records import JobState, Phase
from dray.core.scheduling.passes.lane_feeding import Supply, others_wait, target


def made(slots: int = 1, **offer: Any) -> Cluster:
    cluster = Cluster()
    cluster.join("w1", credit=50, batch=slots, **offer)
    return cluster


def test_how_far_ahead_a_lane_is_fed_depends_on_how_long_calls_take() -> None:
    cluster = made()
    cluster.map(count=1000)
    job, known = cluster.job(), cluster.state.experience.calls
    found = []
    for mean in (200_000.0, 100_000.0, 99_000.0, 10_000.0, 1_000.0, 3.0):
        known["job"] = mean
        found.append(target(cluster.state, job))
    assert found == [1, 1, 2, 2, 6, 128]


def test_supply_gives_what_was_queued_again_first_and_passes_holes_by() -> None:
    cluster = made()
    cluster.map(count=20)
    lane = cluster.lanes()[0]
    cluster.returns(lane.uid, [0], wall_us=1_000)
    for hole in (9, 10):
        cluster.cancel("job", hole)
    cluster.hold("job")
    cluster.returns(lane.uid, list(cluster.calls(lane.uid))[1:], "returned")
    cluster.job().held = False
    supply = Supply(cluster.state, cluster.job())
    assert supply.take(100) == [2, 5, 7, 2, 11, 9]
    assert supply.left == 0
    assert supply.take(1) == []
    cluster.job().held = True


def test_a_lane_that_had_its_time_is_not_fed_while_another_job_waits() -> None:
    cluster = made()
    cluster.map("first", count=1000)
    lane = cluster.lanes("first")[0]
    cluster.map("second", count=10, user="bob")
    cluster.returns(lane.uid, cluster.calls(lane.uid), wall_us=2_000)
    assert cluster.calls(lane.uid), "its time is not over"
    cluster.now_ms += 1_001
    cluster.returns(lane.uid, list(cluster.calls(lane.uid))[:1], wall_us=2_000)
    left = list(cluster.calls(lane.uid))
    cluster.returns(lane.uid, left, wall_us=2_000)
    assert cluster.attempt(lane.uid).phase is Phase.SUCCEEDED
    assert cluster.lanes("first") or cluster.lanes("second"), (
        "the place is given to somebody in the same turn"
    )


def test_a_lane_alone_is_fed_for_ever() -> None:
    cluster = made()
    cluster.map("first", count=1000)
    lane = cluster.lanes("first")[0]
    cluster.now_ms += 5_000
    cluster.returns(lane.uid, cluster.calls(lane.uid), wall_us=2_000)
    assert cluster.calls(lane.uid)
    assert not others_wait(cluster.state, cluster.job("first"))


def test_a_held_job_gets_nothing_and_goes_on_when_it_is_released() -> None:
    cluster = made()
    cluster.map(count=100)
    lane = cluster.lanes()[0]
    cluster.hold("job")
    cluster.returns(lane.uid, [0], wall_us=1_000)
    assert not cluster.lanes()
    assert cluster.attempt(lane.uid).phase is Phase.SUCCEEDED
    cluster.hold("job", on=False)
    assert cluster.lanes()


def test_a_drained_worker_gets_nothing_more() -> None:
    cluster = made()
    cluster.map(count=100)
    lane = cluster.lanes()[0]
    cluster.returns(lane.uid, [0], wall_us=1_000)
    cluster.turn(WorkerDrained("w1", True, "ann"))
    held = list(cluster.calls(lane.uid))
    cluster.returns(lane.uid, held[:2], wall_us=1_000)
    assert list(cluster.calls(lane.uid)) == held[2:]
    cluster.turn(WorkerDrained("w1", False, "ann"))
    assert len(cluster.calls(lane.uid)) > len(held[2:])


def test_an_open_array_keeps_its_lane_for_a_moment() -> None:
    cluster = made(2)
    cluster.map(count=0, open=True)
    assert not cluster.lanes()
    cluster.extend("job", 1)
    (lane,) = cluster.lanes()
    cluster.returns(lane.uid, [0], wall_us=100)
    assert cluster.attempt(lane.uid).phase is Phase.RUNNING
    assert not lane.calls
    cluster.now_ms += 20
    effects = cluster.extend("job", 1)
    assert [effect for effect in effects if isinstance(effect, FeedCalls)] == [
        FeedCalls("w1", lane.uid, (1,))
    ]
    assert len(cluster.lanes()) == 1, "the lane that is there goes before a new one"
    cluster.now_ms += 20
    cluster.returns(lane.uid, [1], wall_us=100)
    cluster.advance(0.049)
    assert cluster.attempt(lane.uid).phase is Phase.RUNNING
    cluster.advance(0.1)
    assert cluster.attempt(lane.uid).phase is Phase.SUCCEEDED
    assert not cluster.state.lingering


def test_a_lane_without_calls_makes_way_at_once_for_somebody_else() -> None:
    cluster = made(1)
    cluster.map(count=1, open=True)
    (lane,) = cluster.lanes()
    cluster.returns(lane.uid, [0], wall_us=100)
    assert cluster.attempt(lane.uid).phase is Phase.RUNNING
    cluster.submit("other")
    assert cluster.attempt(lane.uid).phase is Phase.SUCCEEDED
    assert cluster.current("other"), "in the same turn"


def test_an_open_array_that_nobody_extends_is_closed() -> None:
    cluster = made(2)
    cluster.map(count=1, open=True)
    cluster.returns(cluster.lanes()[0].uid, [0])
    cluster.advance(40)
    cluster.turn(ArrayExtended("job", 1))
    cluster.returns(cluster.lanes()[0].uid, [1])
    cluster.advance(40)
    assert cluster.job().open
    cluster.advance(60)
    assert (cluster.job().open, cluster.job().state) == (False, JobState.SUCCEEDED)


def test_an_open_array_with_work_under_way_is_left_open() -> None:
    cluster = made(1)
    cluster.map(count=1, open=True)
    cluster.run(cluster.lanes()[0].uid)
    cluster.advance(300)
    assert cluster.job().open
    cluster.returns(cluster.lanes()[0].uid, [0])
    cluster.advance(61)
    assert cluster.job().state is JobState.SUCCEEDED


# --- yield ------------------------------------------------------------------------------------------------------------


def test_who_yields_gives_its_slot_and_cores_up_and_takes_them_back_before_anything_new() -> None:
    cluster = made(1, cpus=1)
    cluster.submit("parent", cpu_milli=1000, memory_bytes=10**9)
    parent = cluster.current("parent")
    cluster.run(parent)
    cluster.map("child", count=3, cpu_milli=1000)
    assert not cluster.lanes("child")
    cluster.turn(AttemptYielded("w1", parent))
    (lane,) = cluster.lanes("child")
    row = cluster.state.columns.row_of["w1"]
    assert cluster.state.columns.get("used_mem", row) == 10**9, "memory stays its own"
    effects = cluster.turn(ResumeAsked("w1", parent))
    assert not [effect for effect in effects if isinstance(effect, Resume)]
    effects = cluster.returns(lane.uid, [0])
    assert cluster.attempt(lane.uid).phase is Phase.SUCCEEDED, "it is not fed while somebody waits to go on"
    assert Resume("w1", parent) in effects
    assert not cluster.attempt(parent).yielded
    assert cluster.turn(ResumeAsked("w1", parent)) == [Resume("w1", parent)], "told again when asked again"
    cluster.end(parent)
    assert cluster.lanes("child")


def test_a_lane_that_yields_is_not_fed_and_recursion_does_not_run_out_of_slots() -> None:
    cluster = made(1, cpus=1)
    cluster.map("job", count=1, open=True, cpu_milli=1000)
    depth = 6
    for level in range(depth):
        lane = cluster.lanes()[-1]
        assert cluster.calls(lane.uid) == {level: 1}
        cluster.extend("job", 1)
        cluster.turn(AttemptYielded("w1", lane.uid))
    for level in range(depth, -1, -1):
        lane = cluster.lanes()[-1]
        if lane.yielded:
            cluster.turn(ResumeAsked("w1", lane.uid))
        assert not lane.yielded
        cluster.returns(lane.uid, [level], wall_us=1000)
        cluster.advance(1)
    assert cluster.job().succeeded == depth + 1
    assert not cluster.lanes()


def test_an_end_of_one_that_yielded_gives_back_what_it_held_and_no_more() -> None:
    cluster = made(2, cpus=2)
    cluster.submit("parent", cpu_milli=1000, memory_bytes=10**9)
    parent = cluster.current("parent")
    cluster.run(parent)
    cluster.turn(AttemptYielded("w1", parent))
    cluster.turn(AttemptYielded("w1", parent))
    cluster.end(parent, "failed")
    row = cluster.state.columns.row_of["w1"]
    assert [cluster.state.columns.get(name, row) for name in ("used_cpu", "used_mem", "batch_live")] == [
        0,
        0,
        0,
    ]


def test_who_wants_to_go_on_and_is_lost_waits_no_more() -> None:
    cluster = made(1, cpus=1)
    cluster.submit("parent", cpu_milli=1000)
    parent = cluster.current("parent")
    cluster.run(parent)
    cluster.submit("other", cpu_milli=1000)
    cluster.turn(AttemptYielded("w1", parent))
    cluster.run(cluster.current("other"))
    cluster.turn(ResumeAsked("w1", parent))
    cluster.end(parent, "failed")
    assert not cluster.state.resuming
    assert not cluster.state.presence["w1"].resuming
    assert not cluster.fold(AttemptResumed(parent))
