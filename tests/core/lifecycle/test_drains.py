"""What people say of workers, in the core: drains that end by themselves, labels, who is away for how long."""

from __future__ import annotations

from tests.core.harness import WALL_MS, Cluster, assigned

from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.events import WorkerDrained, WorkerLabelled


def test_a_drain_until_a_moment_ends_by_itself(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    cluster.turn(WorkerDrained("w1", True, "ann", "new disk", cluster.clock.at_ms + 200_000))
    assert assigned(cluster.submit()) == []
    cluster.advance(190)
    assert cluster.state.workers["w1"].drain_reason == "new disk"
    assert assigned(cluster.advance(15))
    assert cluster.state.workers["w1"].drain_reason == ""


def test_a_drain_until_a_moment_ends_after_a_restart(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    cluster.turn(WorkerDrained("w1", True, "ann", "", cluster.clock.at_ms + 20_000))
    wake_up(cluster.state, cluster.clock)
    cluster.advance(30)
    assert not cluster.state.workers["w1"].draining


def test_resuming_by_hand_is_not_undone_by_an_old_moment(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    cluster.turn(WorkerDrained("w1", True, "ann", "", cluster.clock.at_ms + 20_000))
    cluster.turn(WorkerDrained("w1", False, "ann"))
    cluster.turn(WorkerDrained("w1", True, "ann", "for good"))
    cluster.advance(60)
    assert cluster.state.workers["w1"].draining


def test_given_labels_wake_what_waits_for_them_and_outlive_a_registration(cluster: Cluster) -> None:
    cluster.join("w1", credit=4)
    assert assigned(cluster.submit(require=["rack=7"])) == []
    assert assigned(cluster.turn(WorkerLabelled("w1", {"rack": "7"}, "ann")))
    cluster.register("w1")
    assert cluster.state.workers["w1"].all_labels["rack"] == "7"


def test_who_has_been_away_for_a_day_is_stale(cluster: Cluster) -> None:
    cluster.join("w1", credit=4, beats=False)
    cluster.join("w2", credit=4)
    cluster.leave("w2")
    assert cluster.state.workers["w2"].gone_at_ms == WALL_MS + cluster.now_ms
    cluster.advance(60)
    gone = cluster.state.workers["w1"]
    assert gone.silent
    assert not gone.is_stale(cluster.clock.at_ms, 30_000)
    assert gone.is_stale(gone.gone_at_ms + 30_001, 30_000)
    cluster.register("w1")
    assert not cluster.state.workers["w1"].gone_at_ms
