"""`foresight`, written down a second time, slowly: the same worker and the same card on any cluster."""

from __future__ import annotations

import math
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given
from tests.core.harness import Cluster
from tests.properties.placed import hold_all

from dray.core.lifecycle.state.events import PolicyChanged
from dray.core.model.policies.policy import PlacementPolicy, Policy, pack_policy
from dray.core.model.specs.resources import WHOLE, Ask, Asks
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement.candidates import Spot
from dray.core.scheduling.placement.packing_worth import CORE, LENGTH, LINES, Usual, line_up
from dray.core.scheduling.placement.placer import make_placer

ZONES = ("a", "b")
Kind = tuple[int, int, int, str]


class Node(NamedTuple):
    cpu: int
    idle: list[int]
    zone: str


class Need(NamedTuple):
    zones: str
    gpus: int
    charge: float


NODES = st.lists(
    st.tuples(st.sampled_from([2, 4, 16]), st.integers(0, 3), st.sampled_from(ZONES)), min_size=1, max_size=4
)
TYPICAL = st.dictionaries(
    st.tuples(
        st.sampled_from([0, 1000, 1500, 4000]),
        st.sampled_from([1, 1, 2]),
        st.sampled_from([WHOLE, 300, 600]),
        st.sampled_from(["", "", "a", "b"]),
    ),
    st.integers(1, 20),
    max_size=4,
)
ASKS = st.lists(
    st.one_of(
        st.builds(Ask, cpu_milli=st.sampled_from([500, 1000]), gpus=st.integers(0, 2)),
        st.builds(Ask, gpus=st.just(1), gpu_milli=st.sampled_from([300, 450, 600])),
    ),
    min_size=1,
    max_size=8,
)


def ask_of(kind: Kind) -> Ask:
    cpu, gpus, share, zone = kind
    require = (f"zone={zone}",) if zone else ()
    return Ask(cpu_milli=cpu, gpus=gpus, gpu_milli=share if gpus == 1 else WHOLE, require=require)


def worth(node: Node, lines: list[list[Usual]], zones: list[str]) -> int:
    """What the lines would put on a node, all together."""
    total = 0
    for line in lines:
        cpu, idle = node.cpu // CORE * CORE, sorted(node.idle)
        for one in line:
            able = [free for free in idle if free >= one.share]
            if cpu < one.cpu or len(able) < one.gpus or not one.matches[zones.index(node.zone)]:
                continue
            cpu -= one.cpu
            for free in able[: one.gpus]:
                idle[idle.index(free)] -= one.share
            idle.sort()
            total += one.gpus * one.share
    return total


def find_needs(usual: list[Usual], nodes: list[Node], zones: list[str]) -> list[Need]:
    """What is charged for each kind of room that not all of the work can use."""
    anywhere = {zone for one in usual for zone, good in zip(zones, one.matches, strict=True) if good}
    asked = sum(one.weight * one.gpus * one.share for one in usual)
    total = sum(sum(node.idle) for node in nodes)
    found: dict[tuple[tuple[bool, ...], int], Need] = {}
    for one in usual:
        mine = {zone for zone, good in zip(zones, one.matches, strict=True) if good}
        if (one.gpus == 1 and mine == anywhere) or (one.matches, one.gpus) in found:
            continue
        bound = room = 0
        for other in usual:
            theirs = {zone for zone, good in zip(zones, other.matches, strict=True) if good}
            if other.gpus >= one.gpus and theirs <= mine:
                bound += other.weight * other.gpus * other.share
        for node in nodes:
            whole = node.idle.count(WHOLE)
            if node.zone in mine:
                room += sum(node.idle) if one.gpus == 1 else whole * WHOLE * (whole >= one.gpus)
        charge = min(1.0, (bound / asked * (total + 1) / (room + 1)) ** 4)
        found[one.matches, one.gpus] = Need("".join(sorted(mine)), one.gpus, charge)
    return list(found.values())


def charge_of(node: Node, ask: Ask, opened: int, needs: list[Need]) -> float:
    whole = node.idle.count(WHOLE)
    mine = [need for need in needs if node.zone in need.zones]
    charge = sum(need.charge for need in mine if need.gpus == 1) * ask.gpus * ask.gpu_milli
    for need in mine:
        if need.gpus > 1:
            charge += need.charge * WHOLE * whole * (whole >= need.gpus)
            charge -= need.charge * WHOLE * (whole - opened) * (whole - opened >= need.gpus)
    return charge


def ways_of(node: Node, ask: Ask) -> list[tuple[int, ...]]:
    if node.cpu < ask.cpu_milli:
        return []
    if not ask.gpus:
        return [()]
    if ask.gpu_milli < WHOLE:
        return [(index,) for index, free in enumerate(node.idle) if free >= ask.gpu_milli]
    whole = tuple(index for index, free in enumerate(node.idle) if free == WHOLE)[: ask.gpus]
    return [whole] if len(whole) == ask.gpus else []


def after(node: Node, ask: Ask, way: tuple[int, ...]) -> Node:
    idle = [free - ask.gpu_milli if index in way else free for index, free in enumerate(node.idle)]
    return Node(node.cpu - ask.cpu_milli, idle, node.zone)


class Slow:
    """The rule, from its definition."""

    def __init__(self, typical: list[tuple[Asks, int]], nodes: list[Node], zones: list[str]) -> None:
        usual: dict[tuple[int, int, int, tuple[bool, ...]], int] = {}
        for (ask,), count in typical:
            matches = tuple(not ask.require or ask.require == (f"zone={zone}",) for zone in zones)
            key = (ask.cpu_milli, ask.gpus, ask.gpu_milli, matches)
            usual[key] = usual.get(key, 0) + count
        self.usual = [Usual(*key[:3], count, key[3]) for key, count in usual.items()]
        self.lines = line_up(self.usual) if self.usual else []
        self.needs, self.zones = find_needs(self.usual, nodes, zones), zones

    def net(self, node: Node, ask: Ask, way: tuple[int, ...]) -> float:
        opened = sum(node.idle[index] == WHOLE for index in way)
        gain = ask.gpus * ask.gpu_milli * LINES - worth(node, self.lines, self.zones)
        gain += worth(after(node, ask, way), self.lines, self.zones)
        return gain / LINES - charge_of(node, ask, opened, self.needs)

    def best(self, node: Node, ask: Ask) -> tuple[int, float, tuple[int, ...]] | None:
        """The mark, what is behind it, and the way."""
        nets = [(self.net(node, ask, way), way) for way in ways_of(node, ask)]
        if not nets:
            return None
        net, way = max(nets, key=lambda one: one[0])
        return math.floor(net / 100 + 0.5), net, way


@given(NODES, TYPICAL, ASKS)
def test_foresight_follows_its_definition(
    nodes: list[tuple[int, int, str]], typical: dict[Kind, int], asks: list[Ask]
) -> None:
    cluster = Cluster()
    cluster.turn(PolicyChanged(pack_policy(Policy(placement=PlacementPolicy(strategy="foresight")))))
    slow_nodes = []
    for number, (cpus, cards, zone) in enumerate(nodes):
        cluster.join(f"w{number}", credit=50, cpus=cpus, gpus=cards, batch=50, labels={"zone": zone})
        slow_nodes.append(Node(cpus * 1000, [WHOLE] * cards, zone))
    state = cluster.state
    shapes: dict[Asks, int] = {}
    for kind, count in typical.items():
        shapes[ask_of(kind),] = shapes.get((ask_of(kind),), 0) + count
    state.experience.set_typical(shapes)
    zones = [dict(offer.labels)["zone"] for offer in state.columns.offers]
    slow = Slow(list(state.experience.typical()), slow_nodes, zones)
    placer = make_placer(state, Rooms(state))
    for place, ask in enumerate(asks):
        found = [slow.best(node, ask) for node in slow_nodes]
        spots = placer.place(state.shapes.take((ask,)), 1)
        marks = [one[0] for one in found if one is not None]
        if not marks:
            assert spots == []
            continue
        row = next(row for row, one in enumerate(found) if one is not None and one[0] == max(marks))
        chosen = found[row]
        assert chosen is not None
        assert spots == [Spot(row, 0, chosen[2])]
        slow_nodes[row] = after(slow_nodes[row], ask, chosen[2])
        if place == len(asks) // 2:
            for index, node in enumerate(slow_nodes):
                hold_all(cluster, f"w{index}", nodes[index][0], node.cpu, node.idle)
            placer = make_placer(state, Rooms(state))


@given(
    st.lists(
        st.builds(
            Usual,
            cpu=st.sampled_from([500, 1000, 8000]),
            gpus=st.just(1),
            share=st.sampled_from([100, 500]),
            weight=st.integers(1, 1000),
            matches=st.just((True,)),
        ),
        min_size=1,
        max_size=6,
        unique=True,
    )
)
def test_lines_hold_everything_as_often_as_it_is_asked_for(usual: list[Usual]) -> None:
    lines = line_up(usual)
    assert [len(line) for line in lines] == [LENGTH] * LINES
    whole = sum(one.weight for one in usual)
    for one in usual:
        expected = LENGTH * one.weight / whole
        for line in lines:
            assert abs(line.count(one) - expected) < 2
