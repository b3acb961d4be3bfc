"""A few tasks placed together: each in turn where it costs least, then moved and exchanged while that saves something.

Bounded by counts, so that it may be done within a pass. Gives up what an exact solver would find, and wins most of it.
"""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.scheduling.solving.costs import Group

MOST_STEPS = 60
NEVER = 1 << 40


def solve_in_turn(group: Group) -> list[int]:
    """Each in turn where it costs least: a worker's row for each task, or -1."""
    costs, room = _open_costs(group), group.room.copy()
    chosen = []
    for kind in group.kind_of.tolist():
        row = int(np.where(room > 0, costs[kind], NEVER).argmin()) if len(room) else -1
        if row < 0 or room[row] <= 0 or costs[kind, row] >= NEVER:
            chosen.append(-1)
            continue
        room[row] -= 1
        chosen.append(row)
    return chosen


def solve_by_exchanges(group: Group) -> list[int]:
    """The same, bettered by moves to room that is left and by exchanges of two."""
    chosen = np.array(solve_in_turn(group), dtype=np.intp)
    placed = np.flatnonzero(chosen >= 0)
    if not len(placed):
        return [-1] * len(chosen)
    costs, kinds, room = _open_costs(group), group.kind_of[placed], group.room.copy()
    rows = chosen[placed]
    np.subtract.at(room, rows, 1)
    for _ in range(MOST_STEPS):
        if not (_move(costs[kinds], rows, room) or _exchange(costs[kinds], rows)):
            break
    chosen[placed] = rows
    return [int(row) for row in chosen]


def _open_costs(group: Group) -> Numbers:
    return np.where(group.costs >= 0, group.costs, NEVER)


def _move(costs: Numbers, rows: Numbers, room: Numbers) -> bool:
    """Move the task that gains most to where there is room still."""
    now = costs[np.arange(len(rows)), rows]
    free = np.where(room > 0, costs, NEVER)
    best = free.argmin(axis=1)
    gain = now - free[np.arange(len(rows)), best]
    task = int(gain.argmax())
    if gain[task] <= 0:
        return False
    room[rows[task]] += 1
    room[best[task]] -= 1
    rows[task] = best[task]
    return True


def _exchange(costs: Numbers, rows: Numbers) -> bool:
    """Let the two tasks change places that gain most by it."""
    there = costs[:, rows]
    now = there.diagonal()
    gain = now[:, None] + now[None, :] - there - there.T
    one, other = divmod(int(gain.argmax()), len(rows))
    if gain[one, other] <= 0:
        return False
    rows[one], rows[other] = rows[other], rows[one]
    return True
