"""The core run forward: what runs ends by history or limit, and those that wait start when a pass would start them."""

from __future__ import annotations

from tests.core.harness import Cluster

from dray.core.lifecycle.invariants import problems
from dray.core.scheduling.passes.run_forward import Forecast
from dray.core.scheduling.passes.snapshot import build_scene, first_waiting, pack_scene

HOUR_S = 3600


def foresee(cluster: Cluster, number: int = 0, most: int = 1000) -> dict[tuple[str, int], float]:
    cluster.state.now_ms = cluster.now_ms
    state, clock, wanted = build_scene(pack_scene(cluster.state, cluster.clock, most))
    assert not problems(state)
    waits = Forecast(state, clock, number, lambda: True).run(wanted)
    assert not problems(state)
    return {key: wait / 1000 for key, wait in waits.items()}


def begin(cluster: Cluster) -> None:
    for uid in [uid for uid, attempt in cluster.state.attempts.items() if attempt.phase == "assigned"]:
        cluster.run(uid)


def teach(cluster: Cluster, name: str, *spans_s: float) -> None:
    for span_s in spans_s:
        cluster.state.experience.spans.learn(name, round(span_s * 1000), 0)


def test_without_history_the_time_limit_counts(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, batch=1)
    cluster.submit("runs", max_runtime_s=HOUR_S)
    begin(cluster)
    cluster.submit("next", max_runtime_s=HOUR_S)
    cluster.submit("last", max_runtime_s=HOUR_S)
    cluster.advance(600)
    assert foresee(cluster) == {("next", 0): 3000, ("last", 0): 6600}


def test_history_counts_where_there_is_some_and_what_has_run_longer_is_left_out(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, batch=1)
    teach(cluster, "train", 100, 200, 300, 400, 500)
    cluster.submit("runs", name="train", max_runtime_s=HOUR_S)
    begin(cluster)
    cluster.submit("next", name="train", max_runtime_s=HOUR_S)
    cluster.submit("last", name="train", max_runtime_s=HOUR_S)
    cluster.advance(250)
    waits = foresee(cluster)
    assert waits["next", 0] == 150, "of 300, 400 and 500 the middle one"
    assert waits["last", 0] == 450
    draws = {foresee(cluster, number)["last", 0] for number in range(1, 30)}
    assert len(draws) > 3
    assert min(draws) >= 50 + 100
    assert max(draws) <= 250 + 500


def test_the_queue_order_and_gates_are_the_real_ones(cluster: Cluster) -> None:
    cluster.govern(
        queues={"default": {"order": "priority"}},
        preemption={"strategy": "none"},
        pacing={"starts": [{"label": "slow", "per_minute": 1, "burst": 1}]},
    )
    cluster.join("w1", credit=1, batch=1)
    cluster.submit("runs", max_runtime_s=100)
    begin(cluster)
    cluster.submit("low", priority=1, max_runtime_s=100)
    cluster.submit("high", priority=9, max_runtime_s=100)
    waits = foresee(cluster)
    assert (waits["high", 0], waits["low", 0]) == (100, 200)


def test_gangs_arrays_and_what_never_starts(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, batch=2)
    cluster.join("w2", credit=9, batch=2)
    cluster.submit("fill", array={"first": 0, "last": 3}, max_runtime_s=100)
    begin(cluster)
    cluster.submit("gang", node_count=2, max_runtime_s=50)
    cluster.submit("many", array={"first": 0, "last": 5}, max_runtime_s=10, cpu_milli=1000)
    cluster.submit("never", gpu_count=1)
    waits = foresee(cluster)
    assert waits["gang", 0] == waits["gang", 1] == 100
    assert [waits["many", index] for index in range(6)] == [100, 100, 110, 110, 120, 120]
    assert ("never", 0) not in waits


def test_only_the_first_are_asked_for(cluster: Cluster) -> None:
    cluster.submit("array", array={"first": 0, "last": 99_999})
    cluster.submit("single")
    assert first_waiting(cluster.state, 3) == [("array", 0), ("array", 1), ("array", 2)]
    assert len(first_waiting(cluster.state, 1000)) == 1000


def test_victims_leave_after_their_grace(cluster: Cluster) -> None:
    cluster.govern(queues={"default": {"order": "priority"}}, preemption={"min_run_s": 0})
    cluster.join("w1", credit=9, gpus=1)
    cluster.submit("victim", gpu_count=1, priority=1, max_runtime_s=HOUR_S)
    begin(cluster)
    cluster.submit("above", gpu_count=1, priority=5, max_runtime_s=100)
    waits = foresee(cluster)
    assert waits["above", 0] == 30, "the grace of its tier"


def test_a_scene_leaves_out_what_does_not_fit_together(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, batch=2)
    cluster.submit("fill", array={"first": 0, "last": 1}, max_runtime_s=100)
    begin(cluster)
    cluster.submit("next", max_runtime_s=100)
    cluster.state.now_ms = cluster.now_ms
    pieces = pack_scene(cluster.state, cluster.clock, 10)
    packed = [next(pieces)]
    cluster.end(cluster.current("fill", 0))
    cluster.submit("later", max_runtime_s=100)
    packed += pieces
    state, clock, wanted = build_scene(packed)
    assert wanted == [("next", 0)]
    assert sorted(state.jobs) == ["fill", "next"]
    assert Forecast(state, clock, 0, lambda: True).run(wanted) == {}, (
        "it was placed while the scene was packed"
    )


def test_calls_follow_each_other_through_their_lanes(cluster: Cluster) -> None:
    cluster.join("w1", credit=2, batch=2)
    cluster.map("map", count=10_000)
    for lane in cluster.lanes("map"):
        cluster.returns(lane.uid, cluster.calls(lane.uid), wall_us=10_000)
    cluster.submit("next")
    waits = foresee(cluster, most=20_000)
    assert 45 <= waits["next", 0] <= 55, "ten thousand calls of 10 ms, two at a time"
    assert waits["map", 10] < waits["map", 5_000] < waits["map", 9_999] <= waits["next", 0]
