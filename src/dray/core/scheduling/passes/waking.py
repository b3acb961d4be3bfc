"""Parked shapes against workers that gained room: who is worth another look.

A freed worker is held against the needs of all parked shapes at once; only those that are left are asked by the rules.
Where many workers gained room together their best sides are taken for one worker: a shape may then be looked at in
vain, but none is overlooked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.state.state import State
from dray.core.model.specs.resources import WHOLE
from dray.core.scheduling.capacity.memory import Mask
from dray.core.scheduling.capacity.parked_needs import Needs
from dray.core.scheduling.capacity.remaining import Left, Rooms, class_key

FEW = 16
FEW_SHAPES = 2


def note_parked(state: State, needs: Needs, shape: int) -> None:
    """Remember what a shape needs; to be called whenever one is parked."""
    asks = state.asks(shape)
    if not needs.knows(shape, asks):
        keys = {class_key(ask) for ask in asks}
        needs.note(shape, asks, class_key(asks[0]) if len(keys) == 1 else None)


class Woken(NamedTuple):
    """Parked shapes that are worth another look. `hints`: the rows that woke one which had found every worker full; no
    others need be looked at for it.
    """

    shapes: dict[int, None]
    hints: dict[int, list[int]]


def find_woken(state: State) -> Woken:
    """The parked shapes that could use a worker which gained room since the last pass."""
    woken = Woken({}, {})
    backlog, columns = state.backlog, state.columns
    if backlog.parked and columns.roomier:
        rooms = Rooms(state)
        fresh = [row for row in columns.roomier if _usable(rooms.left(row))]
        if len(fresh) > FEW:
            parked = backlog.parked
            woken.shapes.update((shape, None) for shape in _within(state, rooms, fresh) if shape in parked)
        elif len(backlog.parked) <= FEW_SHAPES:
            # The rules are asked at once: for so few shapes the columns cost more than they spare.
            shapes = sorted(backlog.parked)
            for row in fresh:
                for shape in shapes:
                    _offer(state, rooms, row, shape, woken)
        else:
            for row in fresh:
                for shape in _within(state, rooms, [row]):
                    _offer(state, rooms, row, shape, woken)
    return woken


def _usable(left: Left) -> bool:
    return left.credit > 0 and (left.batch > 0 or left.service > 0)


def _offer(state: State, rooms: Rooms, row: int, shape: int, woken: Woken) -> None:
    """Wake a shape if a worker really has room for it."""
    offer = state.columns.get("offer", row)
    if not any(rooms.class_mask(ask)[offer] and rooms.fit(row, ask) is not None for ask in state.asks(shape)):
        return
    full = state.backlog.parked.get(shape)
    if full is not None and shape not in woken.shapes:
        woken.shapes[shape] = None
        if full:
            woken.hints[shape] = [row]
    elif shape in woken.hints:
        woken.hints[shape].append(row)


def _within(state: State, rooms: Rooms, rows: list[int]) -> list[int]:
    """Parked shapes, and those woken just now, that ask for no more than the best of these workers has."""
    columns = state.columns
    lefts = [rooms.left(row) for row in rows]
    cards = [[WHOLE - left.used.get(card.index, 0) for card in left.cards if card.healthy] for left in lefts]
    room = {
        "cpu": max(left.cpu for left in lefts),
        "mem": max(left.memory for left in lefts),
        "gpus": max(sum(free == WHOLE for free in idle) for idle in cards),
        "milli": max(max(idle, default=0) for idle in cards),
        "batch": max(left.batch for left in lefts),
        "service": max(left.service for left in lefts),
    }
    offers = sorted({columns.get("offer", row) for row in rows})
    found = rooms.memory.needs.within(room, _classes(rooms, offers))
    parked, awake = state.backlog.parked, state.backlog.awake
    return [shape for shape in found if shape in parked or shape in awake]


def _classes(rooms: Rooms, offers: list[int]) -> Mask:
    """Which classes of ask match any of these classes of worker."""
    verdicts = [bool(rooms.class_mask(ask)[offers].any()) for ask in rooms.memory.needs.class_asks]
    return np.array(verdicts, dtype=np.bool_)
