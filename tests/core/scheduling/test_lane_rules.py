"""Lanes stand under the same rules as tasks: preemption, receipts, quotas, caps, `why`."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster

from dray.core.lifecycle.holding.receipts import receipts
from dray.core.lifecycle.state.effects import Cancel
from dray.core.lifecycle.state.events import AttemptYielded
from dray.core.model.policies.policy import PreemptionPolicy, Queue
from dray.core.model.records.records import Phase
from dray.core.scheduling.explain.explain import explain, look_ahead


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.join("w1", credit=50, batch=2, cpus=2, gpus=2, vram_gb=160)
    return made


def test_a_lane_is_preempted_and_its_calls_go_back_uncharged(cluster: Cluster) -> None:
    cluster.rule(
        queues={"default": Queue(order="priority")}, preemption=PreemptionPolicy(min_run_s=0, wait_s=0)
    )
    cluster.map("low", count=40, priority=1, cpu_milli=1000)
    first, second = cluster.lanes("low")
    for lane in (first, second):
        cluster.run(lane.uid)
        cluster.returns(lane.uid, list(cluster.calls(lane.uid)), wall_us=1_000)
    cluster.advance(3)
    effects = cluster.submit("high", priority=9, cpu_milli=1000)
    (asked,) = [effect for effect in effects if isinstance(effect, Cancel)]
    assert (asked.reason, asked.task_id) == ("preempted", "low")
    victim = cluster.attempt(asked.uid)
    (receipt,) = receipts(cluster.state)
    assert receipt.victims[0].uid == victim.uid
    assert receipt.victims[0].lost_ms <= 3_100, "what is on record is not lost"
    held = list(cluster.calls(victim.uid))
    cluster.returns(victim.uid, held[:1], "killed")
    cluster.end(victim.uid, "preempted")
    assert cluster.attempt(victim.uid).phase is Phase.PREEMPTED
    assert cluster.current("high")
    tasks = [cluster.task("low", index) for index in held]
    assert [task.failures + task.losses for task in tasks] == [0] * len(held)
    assert all(not task.state.final for task in tasks)


def test_why_names_the_lane_that_holds_what_is_missing(cluster: Cluster) -> None:
    cluster.map("calls", count=40, cpu_milli=1000)
    cluster.accept_all("w1")
    cluster.submit("next", cpu_milli=1000)
    reason = explain(cluster.state, cluster.job("next"))
    look_ahead(cluster.state, cluster.job("next"), reason)
    assert {holder.task_id for holder in reason.holders} == {"calls"}
    own = explain(cluster.state, cluster.job("calls"))
    assert own.blockers


def test_lanes_count_for_caps_quotas_and_the_array_s_own_limit(cluster: Cluster) -> None:
    cluster.map("few", count=40, limit=1)
    assert len(cluster.lanes("few")) == 1
    cluster.cancel("few")
    for lane in cluster.lanes("few"):
        cluster.end(lane.uid, "killed")
    cluster.govern(quotas=[{"user": "ann", "gpus": 1}])
    cluster.map("cards", count=40, gpu_count=1)
    (lane,) = cluster.lanes("cards")
    cluster.returns(lane.uid, [0], wall_us=1_000)
    assert len(cluster.lanes("cards")) == 1
    assert cluster.blockers("cards")


def test_the_cards_of_a_lane_stay_its_own_while_it_yields(cluster: Cluster) -> None:
    cluster.map("cards", count=1, gpu_count=2)
    (lane,) = cluster.lanes("cards")
    cluster.run(lane.uid)
    cluster.turn(AttemptYielded("w1", lane.uid))
    assert cluster.free_cards("w1") == 0
    cluster.submit("other", gpu_count=1)
    assert not cluster.current("other")
    cluster.submit("plain")
    assert cluster.current("plain")
