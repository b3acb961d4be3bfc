"""Where a task goes among the workers that fit: the default, greedy by score.

Scores are integers before they are compared and ties end in the worker id, so that two runs decide alike. CPU-only work
goes to GPU workers last; otherwise the tightest fit wins, so that large holes stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dray.core.lifecycle.columns import pick_cards
from dray.core.lifecycle.state import State
from dray.core.model.resources import Ask
from dray.core.scheduling.filters import ROOM_FILTERS, fits
from dray.core.scheduling.rooms import Rooms, Rows

GPU_PENALTY = 10_000


def rank(state: State, ask: Ask, rows: Rows) -> Rows:
    """Order rows by score, best first. A score sums the shares (per mille) that would stay free."""
    columns = state.columns
    columns.refresh_ranks()
    view = columns.view
    score = np.zeros(len(rows), dtype=np.int64)
    for total_name, used_name, need in (
        ("total_cpu", "used_cpu", ask.cpu_milli),
        ("total_mem", "used_mem", ask.memory_bytes),
    ):
        total = view[total_name][rows]
        left = np.maximum(total - view[used_name][rows] - need, 0)
        score += left // np.maximum(total // 1000, 1)
    total_gpu = view["total_gpu"][rows]
    if ask.gpus:
        score += (view["free_gpu"][rows] - ask.gpus) * 1000 // np.maximum(total_gpu, 1)
    else:
        score += np.where(total_gpu > 0, GPU_PENALTY, 0)
    return rows[np.lexsort((view["rank"][rows], score))]


class Walk:
    """One shape's way through its candidates in a pass: each worker is filled before the next is looked at.

    Filling on is what greedy best fit would do anyway: a worker just used has less left than it had.
    """

    def __init__(self, state: State, rooms: Rooms, shape: int, hint: list[int] | None = None) -> None:
        self._rooms, (self._ask, *_) = rooms, state.asks(shape)
        rows = rooms.candidates(shape, self._ask) if hint is None else np.array(hint, dtype=np.intp)
        ranked = rank(state, self._ask, rows) if len(rows) > 1 else rows
        self._rows: Iterator[int] = iter(ranked.tolist())
        self._row = next(self._rows, -1)

    def next(self) -> tuple[int, tuple[int, ...]] | None:
        """Claim room for one more task; None when no worker has any."""
        while self._row >= 0:
            if self._rooms.is_spent(self._row, self._ask.pool):
                self._row = next(self._rows, -1)
                continue
            room = self._rooms.room(self._row, self._ask.pool)
            if fits(self._ask, room, ROOM_FILTERS):
                devices = pick_cards(self._ask, room.cards, room.card_used)
                if devices is not None:
                    self._rooms.claim(self._row, self._ask, devices)
                    return self._row, devices
            self._row = next(self._rows, -1)
        return None
