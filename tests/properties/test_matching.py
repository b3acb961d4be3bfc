"""Column scans leave out only what the filters refuse, and cards are picked whenever there are some that suffice."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from tests.core.harness import AGENT, Cluster

from dray.core.lifecycle.state.columns import pick_cards
from dray.core.lifecycle.state.events import Event, Suspected, WorkerDrained, WorkerSilent
from dray.core.model.capability import Device
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.resources import WHOLE, Ask, ask_of
from dray.core.scheduling.capacity.matching import fits, rejections
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement.placer import make_placer

SPECS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["batch", "service"]),
        "cpu_milli": st.sampled_from([0, 500, 2000, 8000]),
        "memory_bytes": st.sampled_from([0, 10**9, 10**10]),
        "gpu_backend": st.sampled_from(["nvidia", "vulkan", "cpu"]),
        "gpu_type": st.sampled_from(["A100", "v5", "tpu"]),
        "min_vram_gb": st.sampled_from([1, 30, 100]),
        "vram_per_gpu_bytes": st.sampled_from([10**9, 50 * 10**9]),
        "require": st.sampled_from([[], ["zone=a"], ["!zone"]]),
        "device": st.sampled_from([{"kind": "gpu"}, {"kind": "tpu"}, {"kind": "gpu", "variant": "a100"}]),
        "node_count": st.sampled_from([1, 2]),
        "ports": st.sampled_from(
            [["http"], ["a", "b"], ["http=8080"], ["a", "b=8080", "c"], ["a=8080", "b=8081"]]
        ),
    },
)
CARDS = st.one_of(
    st.fixed_dictionaries({}, optional={"gpu_count": st.integers(0, 3)}),
    st.fixed_dictionaries({"gpu_milli": st.sampled_from([250, 600])}),
)
OFFERS = st.fixed_dictionaries(
    {
        "cpus": st.sampled_from([0, 1, 4]),
        "memory_gb": st.sampled_from([0, 4, 32]),
        "gpus": st.integers(0, 3),
        "gpu_type": st.sampled_from(["A100", "TPU v5", ""]),
        "vram_gb": st.sampled_from([0, 40, 120]),
        "backend": st.sampled_from(["nvidia", "vulkan", "cpu"]),
        "labels": st.sampled_from([{}, {"zone": "a"}]),
        "batch": st.integers(0, 2),
        "service": st.integers(0, 1),
        "features": st.sampled_from([AGENT, (), ("gang",)]),
        "base": st.booleans(),
        "ports": st.sampled_from([-1, 0, 1, 3]),
    }
)


def ask(spec: dict[str, Any], cards: dict[str, Any]) -> Ask | None:
    if spec.get("device") and cards.get("gpu_milli"):
        return None
    return ask_of(check_spec({"command": ["true"], **spec, **cards}))


@given(
    st.lists(st.tuples(OFFERS, st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=4),
    st.lists(st.tuples(SPECS, CARDS), min_size=1, max_size=4),
)
def test_candidates_are_never_fewer_than_what_fits(
    workers: list[tuple[dict[str, Any], int, int]], specs: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    cluster = Cluster()
    for number, (offer, credit, mood) in enumerate(workers):
        name = f"w{number}"
        cluster.join(name, credit=credit, **offer)
        moods: list[Event] = [WorkerDrained(name, True), Suspected(name), WorkerSilent(name)]
        cluster.turn(*moods[mood : mood + 1])
    for number, (spec, cards) in enumerate(specs):
        wanted = ask(spec, cards)
        if wanted is None:
            continue
        rooms = Rooms(cluster.state)
        rows = rooms.candidates(wanted).tolist()
        fitting = [row for row in range(len(workers)) if fits(wanted, rooms.room(row, wanted.pool))]
        assert set(fitting) <= set(rows)
        for row in fitting:
            room = rooms.room(row, wanted.pool)
            assert list(rejections(wanted, room)) == []
            assert pick_cards(wanted, room.cards, room.card_used) is not None
        shape = cluster.state.shapes.take((wanted,))
        ranked = make_placer(cluster.state, rooms).ranking(shape)
        cluster.state.shapes.release(shape)
        assert sorted(found.row for found in ranked) == fitting
        cluster.submit(f"j{number}", **spec, **cards)


DEVICES = st.lists(
    st.tuples(st.sampled_from([0, 24, 40, 80]), st.sampled_from([0, 0, 300, 700, 1000]), st.booleans()),
    max_size=5,
)


@given(
    DEVICES,
    st.integers(1, 3),
    st.sampled_from([WHOLE, 300, 600]),
    st.sampled_from([0, 30, 100]),
    st.sampled_from([0, 30]),
)
def test_cards_are_found_exactly_when_some_suffice(
    devices: list[tuple[int, int, bool]], gpus: int, share: int, total: int, each: int
) -> None:
    gpus = gpus if share == WHOLE else 1
    wanted = Ask(gpus=gpus, gpu_milli=share, vram_total_bytes=total, vram_each_bytes=each)
    cards = tuple(
        Device(index, vram_bytes=vram, healthy=healthy) for index, (vram, _, healthy) in enumerate(devices)
    )
    used = {index: taken for index, (_, taken, _) in enumerate(devices) if taken}
    usable = [
        card
        for card in cards
        if card.healthy and WHOLE - used.get(card.index, 0) >= share and card.vram_bytes >= each
    ]
    possible = [
        group for group in combinations(usable, gpus) if sum(card.vram_bytes for card in group) >= total
    ]
    chosen = pick_cards(wanted, cards, used)
    assert (chosen is not None) == bool(possible)
    if chosen is not None:
        assert tuple(cards[index] for index in chosen) in possible
