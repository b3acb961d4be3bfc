"""Kept keys are those that scoring everybody anew would give, whatever has happened since they were made."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.core.harness import Cluster

from dray.core.lifecycle.state.events import WorkerDrained, WorkerForgotten, WorkerLeft
from dray.core.model.policies.policy import PlacementPolicy, Provider, Weights
from dray.core.model.specs.resources import Ask
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement import kept_keys as standings
from dray.core.scheduling.placement.placer import make_placer
from dray.core.scheduling.placement.scorers import Wish
from dray.sim.faults.watches.kept_orders import find_misjudged

POLICIES = [
    PlacementPolicy(),
    PlacementPolicy(strategy="first_fit"),
    PlacementPolicy(weights=Weights(leftover=0, cost=2)),
    PlacementPolicy(weights=Weights(leftover=0.7, warmth=3, performance=5, reliability=0)),
    PlacementPolicy(weights=Weights(leftover=1500, gpu_avoidance=900)),
    PlacementPolicy(weights=Weights(warmth=0, spread=1)),
]
OFFERS = st.fixed_dictionaries(
    {
        "cpus": st.sampled_from([0, 3, 3, 8]),
        "memory_gb": st.sampled_from([0, 4, 4, 32]),
        "gpus": st.sampled_from([0, 0, 1]),
        "labels": st.sampled_from([{}, {"provider": "dear"}, {"zone": "a"}]),
        "batch": st.integers(1, 3),
        "service": st.integers(0, 1),
    }
)
SPECS = st.fixed_dictionaries(
    {
        "cpu_milli": st.sampled_from([0, 700, 3000]),
        "memory_bytes": st.sampled_from([0, 10**9]),
        "name": st.sampled_from(["a", "b"]),
        "prefer": st.sampled_from([[], ["zone=a"]]),
        "type": st.sampled_from(["batch", "batch", "service"]),
    }
)
NAMES = st.sampled_from([f"w{number}" for number in range(4)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), SPECS),
        st.tuples(st.just("join"), NAMES, OFFERS, st.integers(1, 3)),
        st.tuples(st.just("poll"), NAMES, st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from(["succeeded", "succeeded", "failed"])),
        st.tuples(st.sampled_from(["drain", "forget", "break"]), NAMES),
        st.tuples(st.just("govern"), st.sampled_from(POLICIES)),
        st.tuples(st.just("wait"), st.integers(1, 50)),
    ),
    min_size=6,
    max_size=25,
)


def take_step(cluster: Cluster, number: int, step: tuple[Any, ...]) -> None:
    state, (what, *words) = cluster.state, step
    if what == "submit":
        cluster.submit(f"j{number}", **words[0])
    elif what == "join":
        cluster.join(words[0], credit=words[2], **words[1])
    elif what == "govern":
        cluster.rule(placement=words[0], providers={"dear": Provider(price_per_hour=2)})
    elif what == "wait":
        cluster.advance(words[0])
    elif what == "end":
        live = [uid for uid, attempt in state.attempts.items() if attempt.phase.live]
        if live:
            uid = live[words[0] % len(live)]
            cluster.run(uid)
            cluster.end(uid, words[1], wall_s=1.0 + words[0])
    elif words[0] in state.workers:
        knock(cluster, what, words)


def knock(cluster: Cluster, what: str, words: list[Any]) -> None:
    """Let something happen to a worker that is there."""
    worker = words[0]
    if what == "poll" and cluster.state.presence[worker].session:
        cluster.poll(worker, words[1], batch=words[2])
    elif what == "drain":
        cluster.turn(WorkerDrained(worker, True))
    elif what == "break":
        cluster.break_socket(worker)
    elif what == "forget" and not cluster.held(worker):
        cluster.turn(WorkerLeft(worker), WorkerForgotten(worker))


def compare(cluster: Cluster) -> None:
    """Ask for the keys of every job's shape, both ways; claims of a dry run must leave no trace."""
    state = cluster.state
    for job in list(state.jobs.values()):
        make_placer(state, Rooms(state)).place(job.shape, 2, job.id)
        assert not find_misjudged(state)


@pytest.mark.parametrize("few", [1, 16])
@given(
    policy=st.sampled_from(POLICIES),
    offers=st.lists(OFFERS, min_size=2, max_size=3),
    first=st.lists(SPECS, min_size=2, max_size=2),
    steps=STEPS,
)
def test_kept_keys_are_those_of_scoring_everybody_anew(
    few: int,
    policy: PlacementPolicy,
    offers: list[dict[str, Any]],
    first: list[dict[str, Any]],
    steps: list[tuple[Any, ...]],
) -> None:
    cluster = Cluster()
    take_step(cluster, 0, ("govern", policy))
    for number, offer in enumerate(offers):
        cluster.join(f"w{number}", credit=3, **offer)
    for number, spec in enumerate(first):
        cluster.submit(f"first{number}", **spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standings, "FEW_CHANGES", few)
        for number, step in enumerate(steps):
            take_step(cluster, number, step)
            compare(cluster)


def test_a_shape_that_comes_back_under_an_old_number_has_its_own_keys() -> None:
    cluster = Cluster()
    cluster.join("w0", credit=1, cpus=8, memory_gb=16)
    cluster.join("w1", credit=1, cpus=2, memory_gb=16)
    state = cluster.state
    small, large = Ask(cpu_milli=1000), Ask(cpu_milli=4000)
    shape = state.shapes.take((small,))
    first = standings.keep_keys(make_placer(state, Rooms(state)), shape, "", Wish(state, small))
    state.shapes.release(shape)
    assert state.shapes.take((large,)) == shape
    second = standings.keep_keys(make_placer(state, Rooms(state)), shape, "", Wish(state, large))
    assert (first >= 0).tolist() == [True, True]
    assert (second >= 0).tolist() == [True, False]
