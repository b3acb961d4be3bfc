"""The one sentence with which each page begins, in words, made of numbers that are known already. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.state.state import State
from dray.core.model.specs.resources import WHOLE

MOST_LINES = 2_000


class Idle(NamedTuple):
    """Whole cards that are free on workers that take work, how many tasks wait, and why the one does not help the
    other: `asked` is the least number of cards that a waiting task asks for on one worker (0: none asks for any), and
    `pieces` are the free cards on workers with fewer.
    """

    cards: int
    waiting: int
    asked: int
    pieces: int


def find_idle_cards(state: State) -> Idle:
    """Look at what is free and what waits."""
    columns = state.columns
    count = columns.count
    free = columns.view["free_gpu"][:count] * (columns.view["open"][:count] > 0)
    cards = int(free.sum())
    waiting = sum(depth for depth in state.backlog.depth.values() if depth > 0)
    asked = 0
    for place, shape in enumerate(state.backlog.of_shape):
        if place >= MOST_LINES:
            break
        least = min((ask.gpus for ask in state.asks(shape)), default=0)
        if least and (not asked or least < asked):
            asked = least
    pieces = int(free[np.asarray(free < asked)].sum()) if asked else 0
    return Idle(cards, waiting, asked, pieces)


def say_cluster(workers: Mapping[str, int], totals: Mapping[str, int], idle: Idle) -> str:
    """Is it well used?"""
    here = sum(count for state, count in workers.items() if state not in ("offline", "quarantined"))
    if not here:
        known = sum(workers.values())
        gone = (
            f"none of {known:,} workers is here"
            if known
            else "there is no worker: dray worker start makes one"
        )
        return f"{gone[:1].upper()}{gone[1:]}. {_waits(idle.waiting)}"
    if totals["gpus"]:
        said = _of(totals["held"], totals["gpus"], "GPUs")
    else:
        said = _of(totals["cpu_used"], totals["cpu"] // WHOLE, "cores")
    if not idle.waiting or not idle.cards:
        return f"{said}. {_waits(idle.waiting)}"
    said = f"{said}. {idle.cards:,} idle while {_tasks(idle.waiting)}"
    if not idle.asked:
        return f"{said}, none of which asks for a GPU."
    if idle.pieces:
        return f"{said}: {idle.pieces:,} of them lie in pieces under {idle.asked}."
    return f"{said}."


def _of(held_milli: int, total: int, what: str) -> str:
    share = round(100 * held_milli / WHOLE / total) if total else 0
    return f"{held_milli / WHOLE:,.10g} of {total:,} {what} held ({share} %)"


def _waits(waiting: int) -> str:
    return f"{_tasks(waiting)}." if waiting else "Nothing waits."


def _tasks(waiting: int) -> str:
    return "1 task waits" if waiting == 1 else f"{waiting:,} tasks wait"
