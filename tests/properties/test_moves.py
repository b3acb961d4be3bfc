"""Whatever runs where: who is moved aside runs on elsewhere, and whoever it was for starts."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from tests.core.harness import Cluster

from dray.core.lifecycle.holding.receipts import receipts
from dray.core.model.ids import attempt_number
from dray.core.model.policies.policy import (
    Cap,
    Pacing,
    PlacementPolicy,
    Policy,
    PreemptionPolicy,
    Queue,
    Quota,
)
from dray.core.model.records.ledger import Victim
from dray.core.model.records.records import Attempt, Phase

QUEUES = {"default": Queue(protect_after_s=0), "srsf": Queue(order="srsf", protect_after_s=0)}
OFFERS = ({"cpus": 4}, {"cpus": 8}, {"cpus": 8, "gpus": 2}, {"cpus": 6, "gpus": 4})
SPECS: tuple[dict[str, Any], ...] = (
    {"cpu_milli": 1000},
    {"cpu_milli": 3000, "expected_runtime_s": 50},
    {"gpu_count": 1, "gpu_milli": 400, "cpu_milli": 500},
    {"gpu_count": 1, "cpu_milli": 1000, "expected_runtime_s": 2000},
    {"array": {"last": 2}, "cpu_milli": 1500},
    {"node_count": 2, "cpu_milli": 2000},
    {"at_most_once": True, "cpu_milli": 2000},
    {"cpu_milli": 2000, "labels": {"team": "x"}},
)
WIDE: tuple[dict[str, Any], ...] = (
    {"cpu_milli": 8000},
    {"cpu_milli": 6000, "expected_runtime_s": 100},
    {"gpu_count": 2, "cpu_milli": 1000, "expected_runtime_s": 100},
    {"gpu_count": 1, "expected_runtime_s": 100},
    {"node_count": 2, "cpu_milli": 4000},
)


def crowd(cluster: Cluster, queue: str, offers: list[int], kinds: list[int], gone: list[int]) -> None:
    """Workers, work that is spread over all of them, and holes where some of it has ended."""
    for number, offer in enumerate(offers):
        more: dict[str, Any] = OFFERS[offer]
        cluster.join(f"w{number}", credit=100, batch=8, **more)
    for number, kind in enumerate(kinds):
        user = ("ann", "bob")[number % 2]
        cluster.submit(f"j{number}", user, queue=queue, **SPECS[kind])
        for worker in range(len(offers)):
            cluster.accept_all(f"w{worker}")
    for number in gone:
        running = [
            attempt.uid for attempt in cluster.state.attempts.values() if attempt.phase is Phase.RUNNING
        ]
        if running:
            cluster.end(running[number % len(running)])


@given(
    queue=st.sampled_from(sorted(QUEUES)),
    moves=st.integers(0, 4),
    offers=st.lists(st.integers(0, len(OFFERS) - 1), min_size=2, max_size=5),
    kinds=st.lists(st.integers(0, len(SPECS) - 1), min_size=2, max_size=12),
    gone=st.lists(st.integers(0, 11), max_size=5),
    wide=st.integers(0, len(WIDE) - 1),
)
def test_who_is_moved_runs_on_and_whoever_it_was_for_starts(
    queue: str, moves: int, offers: list[int], kinds: list[int], gone: list[int], wide: int
) -> None:
    cluster = Cluster()
    cluster.rule(
        queues=QUEUES,
        quotas=(Quota(user="*", gpus=4),),
        pacing=Pacing(running=(Cap(label="team", most=2),)),
        placement=PlacementPolicy(strategy="spread"),
        preemption=PreemptionPolicy(min_run_s=0, moves=moves),
    )
    crowd(cluster, queue, offers, kinds, gone)
    if cluster.state.receipts:
        return  # room is made for another already
    before = len(receipts(cluster.state))
    cluster.submit("wide", "cy", queue=queue, **WIDE[wide])
    mine = [one for one in receipts(cluster.state) if one.job_id == "wide"]
    if not mine:
        return
    (receipt,) = mine
    assert len(receipts(cluster.state)) == before + 1
    moved = [victim for victim in receipt.victims if victim.to]
    assert len(moved) <= moves
    for victim in moved:
        assert not cluster.job(victim.job_id).gang
    held = {name: job.live for name, job in cluster.state.jobs.items()}
    for victim in receipt.victims:
        if cluster.attempt(victim.uid).phase is Phase.STOPPING:
            cluster.end(victim.uid, "preempted")
    for attempt in list(cluster.state.attempts.values()):
        if attempt.phase is Phase.STOPPING:
            cluster.end(attempt.uid, "preempted")  # the others of a gang go with it
    assert next(one for one in receipts(cluster.state) if one.job_id == "wide").status == "served"
    for victim in moved:
        after = [one for one in cluster.state.attempts.values() if _is_next(one, victim)]
        assert after[0].worker == victim.to
    if queue == "default":  # by service whoever was stopped may have others stopped at once
        assert cluster.job("wide").live == cluster.job("wide").total
        assert all(cluster.job(name).live >= live for name, live in held.items())


def _is_next(attempt: Attempt, victim: Victim) -> bool:
    """Whether this is the attempt in which a victim came back."""
    same = (attempt.job_id, attempt.index) == (victim.job_id, victim.index)
    return same and attempt_number(attempt.uid) > attempt_number(victim.uid)


@settings(max_examples=20)  # sixty rounds each
@given(sizes=st.lists(st.integers(1, 7), min_size=2, max_size=8), wide=st.integers(2, 8))
def test_moves_come_to_an_end(sizes: list[int], wide: int) -> None:
    """Every victim goes at once, over and over: no task is moved twice, and then nothing more happens."""
    cluster = Cluster()
    policy = Policy(
        placement=PlacementPolicy(strategy="spread"),
        preemption=PreemptionPolicy(strategy="none", min_run_s=0, moves=1000),
    )
    cluster.rule(placement=policy.placement, preemption=policy.preemption)
    for number in range(3):
        cluster.join(f"w{number}", credit=100, batch=8, cpus=8)
    for number, size in enumerate(sizes):
        cluster.submit(f"j{number}", cpu_milli=size * 1000)
    for number in range(4):
        cluster.submit(f"wide{number}", cpu_milli=wide * 1000)
    for _ in range(60):
        for worker in ("w0", "w1", "w2"):
            cluster.accept_all(worker)
        going = [one.uid for one in cluster.state.attempts.values() if one.phase is Phase.STOPPING]
        for uid in going:
            cluster.end(uid, "preempted")
        cluster.advance(6)
    hits = [(victim.job_id, victim.index) for one in receipts(cluster.state) for victim in one.victims]
    assert len(hits) == len(set(hits))
    assert all(one.status == "served" for one in receipts(cluster.state))
