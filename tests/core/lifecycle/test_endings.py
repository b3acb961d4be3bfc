"""Workers that end at a known time: only what fits is placed there, what runs is stopped in time, at nobody's cost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import WALL_MS, Cluster

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.providers import endings
from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.effects import Cancel
from dray.core.lifecycle.state.service_events import WorkerEnding
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Phase

HOUR_S = 3600


def join(cluster: Cluster, name: str, ends_s: float = 0, **offer: Any) -> None:
    """A worker that says itself when it ends."""
    ends_at_ms = WALL_MS + cluster.now_ms + round(ends_s * 1000) if ends_s else 0
    cluster.join(name, credit=64, cpus=64, ends_at_ms=ends_at_ms, **offer)


def place_of(cluster: Cluster, job: str) -> str:
    live = list(cluster.state.live_of.get(job, ()))
    return cluster.state.attempts[live[0]].worker if live else ""


@pytest.mark.parametrize(
    ("left_s", "spec", "placed"),
    [
        (HOUR_S, {"max_runtime_s": HOUR_S - 60}, True),
        (HOUR_S, {"max_runtime_s": HOUR_S + 60}, False),
        (HOUR_S, {}, True),  # it does not say: there is a good while
        (660, {}, True),
        (600, {}, False),
        (1100, {"job_tier": "training"}, False),  # it has ten minutes to save
        (1300, {"job_tier": "training"}, True),
        (150, {"max_runtime_s": 120}, True),
        (100, {"max_runtime_s": 30}, False),  # about to go: services move now,
    ],
)
def test_only_what_is_done_in_time_is_placed_on_a_worker_that_ends(
    cluster: Cluster, left_s: float, spec: dict[str, Any], placed: bool
) -> None:
    join(cluster, "w1", left_s)
    cluster.submit("job", **spec)
    assert bool(place_of(cluster, "job")) is placed
    if not placed:
        said = cluster.summary("job")
        assert "it ends in" in said or "nearly over" in said, said
        join(cluster, "w2")
        assert place_of(cluster, "job") == "w2"


def test_what_runs_there_is_stopped_with_its_grace_before_the_end_and_queued_again_for_free(
    cluster: Cluster,
) -> None:
    join(cluster, "w1", HOUR_S)
    cluster.submit("short")
    cluster.submit("long", job_tier="training")
    short, long = cluster.current("short"), cluster.current("long")
    for uid in (short, long):
        cluster.run(uid)
    began_ms = cluster.now_ms
    asked: dict[str, int] = {}
    while len(asked) < 2 and cluster.now_ms - began_ms < 2 * HOUR_S * 1000:
        for effect in cluster.advance(10):  # with a sign of life in each
            if isinstance(effect, Cancel):
                asked[effect.uid] = cluster.now_ms - began_ms
    assert asked[long] == pytest.approx((HOUR_S - 600 - 15) * 1000, abs=11_000)
    assert asked[short] == pytest.approx((HOUR_S - 30 - 15) * 1000, abs=11_000)
    assert cluster.state.workers["w1"].draining
    for uid in (short, long):
        cluster.end(uid, "killed")
    join(cluster, "w2")
    for job in ("short", "long"):
        assert place_of(cluster, job) == "w2"
        assert not cluster.task(job).failures
    cluster.end(cluster.current("short"))
    assert cluster.job("short").state == "succeeded"


def test_a_notice_by_people_counts_for_what_runs_already_and_outlives_the_hub(cluster: Cluster) -> None:
    join(cluster, "w1")
    cluster.submit("job")
    uid = cluster.current("job")
    cluster.run(uid)
    cluster.turn(WorkerEnding("w1", cluster.clock.at_ms + 120_000, "ann", "spot notice"))
    again = State()
    for clock, fact in cluster.journal:
        apply(again, fact, clock)
    wake_up(again, cluster.clock)
    assert again.ending == cluster.state.ending == {"w1": again.workers["w1"].ends_at_ms}
    cluster.advance(60)
    assert cluster.attempt(uid).phase is Phase.RUNNING
    cluster.advance(20)
    assert cluster.attempt(uid).phase is Phase.STOPPING


def test_the_sooner_of_two_words_counts_and_a_new_registration_keeps_what_people_said(
    cluster: Cluster,
) -> None:
    join(cluster, "w1", 2 * HOUR_S)
    soon = cluster.clock.at_ms + 1000 * HOUR_S
    cluster.turn(WorkerEnding("w1", soon, "ann"))
    assert cluster.state.workers["w1"].ends_at_ms == soon
    join(cluster, "w1", 2 * HOUR_S)
    assert cluster.state.workers["w1"].ends_at_ms == soon
    cluster.turn(WorkerEnding("w1", 0, "ann"))
    assert cluster.state.workers["w1"].ends_at_ms > soon
    join(cluster, "w1")
    assert not cluster.state.ending


def test_a_gang_goes_whole_and_what_may_start_once_only_is_left_alone(cluster: Cluster) -> None:
    join(cluster, "w1", HOUR_S)
    join(cluster, "w2")
    cluster.submit("pair", node_count=2, min_cpu_cores=1)
    cluster.submit("once", at_most_once=True, require=["host=w1"])
    for name in ("w1", "w2"):
        for uid in cluster.held(name):
            cluster.run(uid)
    cluster.advance(HOUR_S - 20)
    phases = {cluster.attempt(uid).phase for uid in cluster.state.live_of["pair"]}
    assert phases == {Phase.STOPPING}


def test_margins_leave_time_for_last_words() -> None:
    assert endings.DRAIN_MS > endings.MARGIN_MS > 0
