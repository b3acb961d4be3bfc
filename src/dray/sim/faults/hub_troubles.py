"""What can go wrong where several hubs share a store, by name; only in worlds that have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dray.sim.faults.hubs.group import HubGroup, HubMachine

if TYPE_CHECKING:
    from dray.sim.faults.run import History
    from dray.sim.faults.troubles import Fault, Node

    Trouble = Callable[[History, HubGroup, int], None]


def _for_hubs(trouble: Trouble) -> Fault:
    def befall(history: History, node: Node, draw: int) -> None:
        if isinstance(history.hub, HubGroup):
            history.hub.disturb()
            trouble(history, history.hub, draw)

    return befall


def _leader(group: HubGroup) -> HubMachine:
    """The machine that leads, or any while none does."""
    return next((machine for machine in group.machines if machine.leads), group.machines[0])


def _other(group: HubGroup, draw: int) -> HubMachine:
    others = [machine for machine in group.machines if not machine.leads] or group.machines
    return others[draw % len(others)]


def _any(group: HubGroup, draw: int) -> HubMachine:
    return group.machines[draw % len(group.machines)]


def _span(group: HubGroup, draw: int) -> int:
    """Often within a lease, sometimes past it, seldom past every patience of a worker."""
    lease_ms = group.lease_ms
    return (50 + draw % lease_ms, lease_ms + draw % (3 * lease_ms), 30_000 + draw % 60_000)[
        (0, 0, 1, 1, 1, 2)[draw // 7 % 6]
    ]


def _cut(history: History, machine: HubMachine, duration_ms: int) -> None:
    """Cut it off from the store; a process that is started meanwhile is as well."""
    machine.link.cut = True

    def mend() -> None:
        machine.link.cut = False

    history.world.at(duration_ms, mend)


def _lose_answers(history: History, group: HubGroup, draw: int) -> None:
    """What is written is written, and nobody hears so."""
    link = _leader(group).link
    link.mute = True

    def mend() -> None:
        link.mute = False

    history.world.at(20 + draw % (2 * group.lease_ms), mend)


def _cut_from_workers(history: History, group: HubGroup, draw: int) -> None:
    weather = _any(group, draw).weather
    weather.up_lost = weather.down_lost = True

    def mend() -> None:
        weather.up_lost = weather.down_lost = False
        weather.rough_ms = history.world.now_ms

    history.world.at(_span(group, draw >> 2), mend)


def _take_down(history: History, group: HubGroup, draw: int) -> None:
    group.database.down = True

    def mend() -> None:
        group.database.down = False
        group.disturb()

    history.world.at(_span(group, draw), mend)


def _lag(history: History, group: HubGroup, draw: int) -> None:
    """The standby that commits wait for lags, and catches up or is promoted without the rest."""
    group.database.lag()

    def end() -> None:
        group.disturb()
        if draw % 3:
            group.fail_over()
        else:
            group.database.catch_up()

    history.world.at(50 + (draw >> 2) % (3 * group.lease_ms), end)


def _lose_turns(history: History, group: HubGroup, draw: int) -> None:
    """A standby that nobody waits for lags, and is promoted."""
    backup = group.back_up(history.checker.account.copy())
    history.world.at(20 + draw % 4000, history.lose_turns, backup, history.rewinds)


def _cut_from_hubs(history: History, group: HubGroup, draw: int) -> None:
    machine = _any(group, draw)
    machine.cut_from_hubs = True
    history.world.at(_span(group, draw >> 2), group.reconnect, machine)


def _move(history: History, group: HubGroup, draw: int) -> None:
    """A machine goes to another hub, and the one that it was connected to does not hear so for long."""
    worker = history.workers[draw % len(history.workers)]
    if worker.connection is not None:
        group.send_on(worker.connection.owner)
        worker.connection.desert(5000 + (draw >> 8) % 60_000)


def _move_under(history: History, group: HubGroup, draw: int) -> None:
    """And the leader dies soon after."""
    _move(history, group, draw)
    history.world.at(200 + (draw >> 4) % 8000, lambda: _leader(group).kill("killed"))


# Of workers between gateways. Drawn apart too.
MOVES: dict[str, Fault] = {
    "worker moves to another hub": _for_hubs(_move),
    "worker moves before a leader dies": _for_hubs(_move_under),
}


# What befalls the ways between hubs where those are gateways. Drawn apart: worlds without stay as they were.
GATEWAY_TROUBLES: dict[str, Fault] = {
    name: _for_hubs(trouble)
    for name, trouble in {
        "hub cut off from hubs": _cut_from_hubs,
        "links of a hub broken": lambda history, group, draw: group.break_links(_any(group, draw)),
        "links of the leader broken": lambda history, group, draw: group.break_links(_leader(group)),
        "gateway killed": lambda history, group, draw: _other(group, draw).kill("killed"),
        "leader killed under gateways": lambda history, group, draw: _leader(group).kill("killed"),
    }.items()
}
HUB_TROUBLES: dict[str, Fault] = {
    name: _for_hubs(trouble)
    for name, trouble in {
        "leader killed": lambda history, group, draw: _leader(group).kill("killed"),
        "any hub killed": lambda history, group, draw: _any(group, draw).kill("killed"),
        "leader stopped": lambda history, group, draw: group.stop(_leader(group), _span(group, draw)),
        "standby stopped": lambda history, group, draw: group.stop(_other(group, draw), _span(group, draw)),
        "leader cut off from the store": lambda history, group, draw: _cut(
            history, _leader(group), _span(group, draw)
        ),
        "standby cut off from the store": lambda history, group, draw: _cut(
            history, _other(group, draw), _span(group, draw)
        ),
        "hub cut off from workers": _cut_from_workers,
        "answers of the store lost": _lose_answers,
        "store away": _take_down,
        "standby of the store lags": _lag,
        "store loses turns": _lose_turns,
        "leader resigns": lambda history, group, draw: _leader(group).resign(),
    }.items()
}
