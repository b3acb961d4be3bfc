"""Room that is kept for tasks which are being moved aside, seen through one pass, and whether it can be at all.

Claimed before anything else is: to everybody, keepers included, it looks as taken as if the task ran there already.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import chain

import msgspec

from dray.core.lifecycle.holding.moves import is_under_way
from dray.core.lifecycle.state.state import State, TaskKey
from dray.core.model.specs.resources import Ask
from dray.core.scheduling.capacity.matching import rejections
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement.candidates import Spot


def could_hold(state: State, row: int, ask: Ask) -> bool:
    """Whether a worker that was found to have room for an ask could still have it, empty: it may have registered as
    another than it was, with fewer slots or without its cards.

    Asked of workers alone that have told of themselves since the last pass: nothing else changes what they are.
    """
    get = state.columns.get
    if row not in state.columns.roomier or not (get("batch_total", row) or get("service_total", row)):
        return True  # a base-only worker says with its first poll how many slots it has, and not when it registers
    return not any(rejection.ever for rejection in rejections(ask, Rooms(state).room(row, ask.pool)))


def find_over(state: State) -> tuple[TaskKey, ...]:
    """The moves whose task started again, ended or may not start, and those whose other worker is away or can no
    longer hold it.
    """
    columns, over = state.columns, []
    for key, move in state.moves.items():
        if move.receipt:
            if not is_under_way(state, key, move):
                over.append(key)
            continue
        row = columns.row_of.get(move.worker)
        if row is not None and columns.get("open", row) and is_under_way(state, key, move):
            asks = state.asks(state.jobs[key[0]].shape)
            if move.variant >= len(asks) or could_hold(state, row, asks[move.variant]):
                continue
        over.append(key)
    return tuple(over)


def _rest(ask: Ask, part: Ask) -> Ask:
    """What of an ask a part does not hold; the slot is with the part."""
    had = dict(part.resources)
    return msgspec.structs.replace(
        ask,
        pool="",
        cpu_milli=ask.cpu_milli - part.cpu_milli,
        memory_bytes=ask.memory_bytes - part.memory_bytes,
        resources=tuple((name, amount - had.get(name, 0)) for name, amount in ask.resources),
    )


def claim_moves(state: State, rooms: Rooms, but: Container[TaskKey] = ()) -> dict[TaskKey, Spot]:
    """Claim what is kept and there; gives where each task would start now. `but`: what is kept for these is not asked.

    What is kept of the places that tasks came from is claimed with it, and is nobody's to start in.
    """
    found: dict[TaskKey, Spot] = {}
    going = [(key, move, True) for key, move in state.moves.items()]
    for key, move, goes in chain(going, ((*kept, False) for kept in state.origins.items())):
        if key in but:
            continue
        row = state.columns.row_of.get(move.worker)
        job = state.jobs.get(key[0])
        asks = state.asks(job.shape) if job is not None else ()
        if row is None or move.variant >= len(asks):
            continue
        # Its job may have been edited since: then the room may not suit it any more.
        ask = asks[move.variant]
        if not rooms.class_mask(ask)[state.columns.get("offer", row)]:
            continue
        devices = rooms.fit_cards(row, ask, move.devices)
        if devices is not None:
            rooms.claim(row, ask, devices)
            if goes:
                found[key] = Spot(row, move.variant, devices)
        elif rooms.left(row).credit > 0:
            # Others leave that place for it, or a slot is missing for a moment: what is there of it is kept.
            part, cards = rooms.clip(row, ask, move.devices)
            rooms.claim(row, part, cards)
            rooms.owe(row, _rest(ask, part), tuple(index for index in move.devices if index not in cards))
        else:
            rooms.owe(row, ask, move.devices)
    return found
