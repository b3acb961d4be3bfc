"""Whatever the strategy: nothing is over-committed, nothing that fits is left lying, and fgd follows its formula."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.core.harness import Cluster
from tests.properties.placed import hold_all

from dray.core.lifecycle.state.events import PolicyChanged
from dray.core.lifecycle.state.state import State
from dray.core.model.capability import Device
from dray.core.model.policies.policy import PlacementPolicy, Policy, Weights, pack_policy
from dray.core.model.specs.resources import WHOLE, Ask, Asks
from dray.core.scheduling.capacity.matching import fits
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement import packed_front as fronts
from dray.core.scheduling.placement import placer as placement
from dray.core.scheduling.placement.candidates import Spot
from dray.core.scheduling.placement.placer import STRATEGIES, make_placer

POLICIES = [
    *(PlacementPolicy(strategy=name) for name in STRATEGIES),
    PlacementPolicy(weights=Weights(fragmentation=1, spread=3, cost=1, performance=1), spread_label="zone"),
    PlacementPolicy(weights=Weights(spread=3)),
]
WORKERS = st.lists(
    st.fixed_dictionaries(
        {
            "cpus": st.sampled_from([0, 2, 8]),
            "memory_gb": st.sampled_from([0, 4, 32]),
            "devices": st.lists(
                st.builds(
                    Device,
                    st.just(0),
                    vram_bytes=st.sampled_from([8, 80]),
                    healthy=st.sampled_from([True, True, False]),
                ),
                max_size=4,
            ),
            "labels": st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]),
            "batch": st.integers(0, 5),
            "service": st.integers(0, 2),
            "resources": st.sampled_from([{}, {"license": 1}, {"license": 3, "disk": 2}]),
            "credit": st.integers(1, 6),
        }
    ),
    min_size=1,
    max_size=5,
)
PLAIN = st.builds(
    Ask,
    pool=st.sampled_from(["batch", "batch", "service"]),
    cpu_milli=st.sampled_from([0, 500, 3000]),
    memory_bytes=st.sampled_from([0, 10**9, 3 * 10**9]),
    gpus=st.sampled_from([0, 0, 1, 2]),
    vram_each_bytes=st.sampled_from([0, 0, 20]),
    vram_total_bytes=st.sampled_from([0, 0, 100]),
    resources=st.sampled_from([(), (), (("license", 1),), (("disk", 1), ("license", 2))]),
    require=st.sampled_from([(), (), ("zone=a",)]),
)
SHARED = st.builds(
    Ask, gpus=st.just(1), gpu_milli=st.sampled_from([100, 450, 700]), cpu_milli=st.sampled_from([0, 500])
)
SHAPES = st.lists(
    st.lists(st.one_of(PLAIN, SHARED), min_size=1, max_size=2).map(tuple), min_size=1, max_size=4
)
ORDERS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=8)


def join(cluster: Cluster, number: int, offer: dict[str, Any]) -> None:
    devices = tuple(
        Device(index, vram_bytes=card.vram_bytes, healthy=card.healthy)
        for index, card in enumerate(offer["devices"])
    )
    given = {**offer, "devices": devices, "gpus": len(devices)}
    credit = given.pop("credit")
    cluster.join(f"w{number}", credit=credit, **given)


def make(workers: list[dict[str, Any]], policy: PlacementPolicy) -> Cluster:
    cluster = Cluster()
    cluster.turn(PolicyChanged(pack_policy(Policy(placement=policy))))
    for number, offer in enumerate(workers):
        join(cluster, number, offer)
    return cluster


def check_commitments(state: State, given: list[tuple[Spot, Ask]]) -> None:
    """Add up what was given away, straight from what the workers registered."""
    for worker_id, row in state.columns.row_of.items():
        mine = [(spot, ask) for spot, ask in given if spot.row == row]
        worker, presence = state.workers[worker_id], state.presence[worker_id]
        cpu, memory = sum(ask.cpu_milli for _, ask in mine), sum(ask.memory_bytes for _, ask in mine)
        assert cpu <= worker.capability.cpu_count * 1000
        assert memory <= worker.capability.memory_gb * 10**9
        assert len(mine) <= presence.credit
        for pool, total in (("batch", presence.slots.batch_total), ("service", presence.slots.service_total)):
            assert sum(ask.pool == pool for _, ask in mine) <= total
        for name in ("license", "disk"):
            held = sum(dict(ask.resources).get(name, 0) for _, ask in mine)
            assert held <= worker.resources.get(name, 0)
        cards: dict[int, int] = {}
        for spot, ask in mine:
            assert len(spot.devices) == len(set(spot.devices)) == ask.gpus
            chosen = [worker.devices[index] for index in spot.devices]
            assert all(card.healthy and card.vram_bytes >= ask.vram_each_bytes for card in chosen)
            assert sum(card.vram_bytes for card in chosen) >= ask.vram_total_bytes or not ask.gpus
            for index in spot.devices:
                cards[index] = cards.get(index, 0) + ask.gpu_milli
        assert all(share <= WHOLE for share in cards.values())


@pytest.mark.parametrize(
    "policy", POLICIES, ids=lambda policy: f"{policy.strategy}-{policy.weights.spread:g}"
)
@given(workers=WORKERS, shapes=SHAPES, orders=ORDERS)
def test_nothing_is_given_away_twice_and_nothing_that_fits_is_left(
    policy: PlacementPolicy, workers: list[dict[str, Any]], shapes: list[Asks], orders: list[tuple[int, int]]
) -> None:
    cluster = make(workers, policy)
    state = cluster.state
    cluster.submit("owner", require=["nowhere"])
    numbers = [state.shapes.take(asks) for asks in shapes]
    rooms = Rooms(state)
    placer = make_placer(state, rooms)
    given: list[tuple[Spot, Ask]] = []
    for which, count in orders:
        shape = numbers[which % len(numbers)]
        spots = placer.place(shape, count, "owner")
        asks = state.asks(shape)
        given += [(spot, asks[spot.variant]) for spot in spots]
        check_commitments(state, given)
        if len(spots) < count:
            for ask in asks:
                assert not [
                    row for row in state.columns.row_of.values() if fits(ask, rooms.room(row, ask.pool))
                ]


@given(workers=WORKERS, shapes=SHAPES, orders=ORDERS)
def test_the_numbers_and_the_rules_agree(
    workers: list[dict[str, Any]], shapes: list[Asks], orders: list[tuple[int, int]]
) -> None:
    cluster = make(workers, PlacementPolicy())
    state = cluster.state
    numbers = [state.shapes.take(asks) for asks in shapes]
    rooms = Rooms(state)
    placer = make_placer(state, rooms)
    for which, count in orders:
        placer.place(numbers[which % len(numbers)], count)
        for ask in (ask for asks in shapes for ask in asks):
            classes = rooms.class_mask(ask)
            for row in state.columns.row_of.values():
                fast = bool(classes[state.columns.get("offer", row)]) and rooms.fit(row, ask) is not None
                assert fast == fits(ask, rooms.room(row, ask.pool))


@given(WORKERS, st.integers(2, 3), st.booleans(), st.lists(st.sampled_from(["w0", "w1", "w2"]), max_size=2))
def test_a_gang_is_whole_or_not_there(
    workers: list[dict[str, Any]], nodes: int, mixed: bool, avoid: list[str]
) -> None:
    cluster = make(workers, PlacementPolicy())
    state = cluster.state
    ask = Ask(nodes=nodes, cpu_milli=500, features=("gang",), mixed_backends=mixed)
    rooms = Rooms(state)
    fitting = [row for row in state.columns.row_of.values() if fits(ask, rooms.room(row, "batch"))]
    backends = [state.columns.offers[state.columns.get("offer", row)].backend for row in fitting]
    most = len(fitting) if mixed else max((backends.count(name) for name in backends), default=0)
    spots = make_placer(state, rooms).place_gang(state.shapes.take((ask,)), avoid=avoid)
    assert (spots is not None) == (most >= nodes)
    if spots is not None:
        assert len({spot.row for spot in spots}) == nodes
        check_commitments(state, [(spot, ask) for spot in spots])


# --- fragmentation gradient descent, written down a second time, slowly -----------------------------------------------

Node = tuple[int, list[int]]
TYPICAL = st.dictionaries(
    st.tuples(
        st.sampled_from([0, 1000, 4000]), st.sampled_from([0, 1, 2]), st.sampled_from([WHOLE, 300, 600])
    ),
    st.integers(1, 20),
    min_size=1,
    max_size=4,
)


def lost(cpu: int, idle: list[int], typical: dict[tuple[int, int, int], int]) -> float:
    total = sum(typical.values())
    found = 0.0
    for (need, count, share), weight in typical.items():
        able = count > 0 and cpu >= need and sum(free >= share for free in idle) >= count
        found += weight * (sum(free for free in idle if 0 < free < share) if able else sum(idle))
    return found / total


def mark(before: float, after: float) -> int:
    difference = round(before - after, 6)
    return math.floor(100 / (1 + math.exp(-difference / 1000)))


def best_way(
    node: Node, ask: Ask, typical: dict[tuple[int, int, int], int]
) -> tuple[int, tuple[int, ...]] | None:
    cpu, idle = node
    if cpu < ask.cpu_milli:
        return None
    if not ask.gpus:
        return mark(lost(cpu, idle, typical), lost(cpu - ask.cpu_milli, idle, typical)), ()
    whole = [index for index, free in enumerate(idle) if free == WHOLE][: ask.gpus]
    ways: list[tuple[int, ...]] = [(index,) for index, free in enumerate(idle) if free >= ask.gpu_milli]
    if ask.gpu_milli == WHOLE:
        ways = [tuple(whole)] if len(whole) == ask.gpus else []
    best: tuple[int, tuple[int, ...]] | None = None
    for way in ways:
        after = [free - ask.gpu_milli if index in way else free for index, free in enumerate(idle)]
        score = mark(lost(cpu, idle, typical), lost(cpu - ask.cpu_milli, after, typical))
        if best is None or score > best[0]:
            best = score, way
    return best


@given(
    st.lists(st.tuples(st.sampled_from([2, 4, 16]), st.integers(0, 3)), min_size=1, max_size=4),
    TYPICAL,
    st.lists(
        st.one_of(
            st.builds(Ask, cpu_milli=st.sampled_from([500, 1000]), gpus=st.integers(0, 2)),
            st.builds(Ask, gpus=st.just(1), gpu_milli=st.sampled_from([300, 450, 600])),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_fgd_follows_the_formula(
    nodes: list[tuple[int, int]], typical: dict[tuple[int, int, int], int], asks: list[Ask]
) -> None:
    cluster = Cluster()
    cluster.turn(PolicyChanged(pack_policy(Policy(placement=PlacementPolicy(strategy="fgd")))))
    slow: list[Node] = []
    for number, (cpus, cards) in enumerate(nodes):
        cluster.join(f"w{number}", credit=50, cpus=cpus, gpus=cards, batch=50)
        slow.append((cpus * 1000, [WHOLE] * cards))
    state = cluster.state
    shapes: dict[tuple[Ask, ...], int] = {
        (Ask(cpu_milli=cpu, gpus=count, gpu_milli=share if count == 1 else WHOLE),): 0
        for cpu, count, share in typical
    }
    for (cpu, count, share), weight in typical.items():
        shapes[Ask(cpu_milli=cpu, gpus=count, gpu_milli=share if count == 1 else WHOLE),] += weight
    state.experience.set_typical(shapes)
    used = {
        (one[0].cpu_milli, one[0].gpus, one[0].gpu_milli): weight
        for one, weight in state.experience.typical()
    }
    placer = make_placer(state, Rooms(state))
    for place, ask in enumerate(asks):
        ways = [best_way(node, ask, used) for node in slow]
        best = max((way[0] for way in ways if way is not None), default=None)
        spots = placer.place(state.shapes.take((ask,)), 1)
        if best is None:
            assert spots == []
            continue
        row = next(row for row, way in enumerate(ways) if way is not None and way[0] == best)
        devices = ways[row][1]  # type: ignore[index]  # the row was chosen because it has a way
        assert spots == [Spot(row, 0, devices)]
        cpu, idle = slow[row]
        slow[row] = (
            cpu - ask.cpu_milli,
            [free - ask.gpu_milli if index in devices else free for index, free in enumerate(idle)],
        )
        if place == len(asks) // 2:
            for index, (left, free) in enumerate(slow):
                hold_all(cluster, f"w{index}", nodes[index][0], left, free)
            placer = make_placer(state, Rooms(state))


@given(
    workers=st.lists(
        st.tuples(
            st.sampled_from([0, 2, 8, 64]),
            st.sampled_from([0, 4, 32]),
            st.integers(0, 4),
            st.sampled_from([0, 0, 2]),
        ),
        min_size=1,
        max_size=12,
    ),
    asks=st.lists(
        st.builds(
            Ask,
            cpu_milli=st.sampled_from([0, 500, 3000]),
            memory_bytes=st.sampled_from([0, 10**9, 3 * 10**9]),
        ),
        min_size=1,
        max_size=4,
        unique=True,
    ),
    orders=ORDERS,
    trouble=st.lists(st.integers(0, 11), max_size=3),
)
def test_looking_at_the_front_first_changes_no_choice(
    workers: list[tuple[int, int, int, int]],
    asks: list[Ask],
    orders: list[tuple[int, int]],
    trouble: list[int],
) -> None:
    cluster = Cluster()
    for number, (cpus, memory_gb, batch, gpus) in enumerate(workers):
        cluster.join(f"w{number:02d}", credit=3, cpus=cpus, memory_gb=memory_gb, batch=batch, gpus=gpus)
    state = cluster.state
    for number in trouble:
        state.experience.trouble[f"w{number:02d}"] = (1.5, 0)
    numbers = [state.shapes.take((ask,)) for ask in asks]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fronts, "FIRST_REACH", 2)
        patch.setattr(fronts, "STEP", 2)
        patch.setattr(placement, "FEW_WALKS", 0)
        patch.setattr(placement, "FEWEST_WORKERS", 0)
        quick, whole = make_placer(state, Rooms(state)), make_placer(state, Rooms(state))
        patch.setattr(whole, "front", lambda pool: None)
        for which, count in orders:
            shape = numbers[which % len(numbers)]
            walked = make_walk_only(whole).place(shape, count)
            assert quick.place(shape, count) == walked


def make_walk_only(placer: placement.Placer) -> placement.Placer:
    """A placer that goes the general way even where a shorter one would do."""
    placer._plain_walk = lambda shape, owner: None  # type: ignore[method-assign]  # the point of the comparison
    return placer
