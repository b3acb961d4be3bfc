"""Tasks placed by a genetic search for two ends, cost and few workers: only to be compared with, never to place by.

NSGA-II: of parents and children those stay that nobody betters in both ends, the lonelier first. Chance is drawn by a
fixed seed, so that two questions have one answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.scheduling.solving.costs import Group
from dray.core.scheduling.solving.exchanges import NEVER, solve_in_turn

PEOPLE, ROUNDS, CHANGES = 40, 60, 0.02
Floats = np.ndarray[Any, np.dtype[np.float64]]


def solve_by_genes(group: Group) -> list[int]:
    """Of the last generation the cheapest; nobody is placed where there is no room."""
    rng = np.random.default_rng(0)
    costs = np.where(group.costs >= 0, group.costs, NEVER)[group.kind_of]
    first = np.array(solve_in_turn(group), dtype=np.intp)
    open_rows = np.flatnonzero(group.room > 0)
    if not len(open_rows) or not len(first):
        return [int(row) for row in first]
    drawn = rng.choice(open_rows, (PEOPLE - 1, len(first)))
    people = np.vstack([first, [_mend(one, costs, group.room) for one in drawn]])
    for _ in range(ROUNDS):
        mothers, fathers = people[rng.integers(PEOPLE, size=(2, PEOPLE))]
        children = np.where(rng.random(mothers.shape) < 0.5, mothers, fathers)
        changed = rng.random(children.shape) < CHANGES
        children[changed] = rng.choice(open_rows, int(changed.sum()))
        both = np.vstack([people, [_mend(one, costs, group.room) for one in children]])
        people = both[_select(_ends(both, costs))]
    cheapest = people[int(_ends(people, costs)[:, 0].argmin())]
    return [int(row) for row in cheapest]


def _mend(rows: Numbers, costs: Numbers, room: Numbers) -> Numbers:
    """Move whoever is one too many, or does not fit, to where it costs least of what is left; -1 where nothing is."""
    left, found = room.copy(), rows.copy()
    for task, row in enumerate(rows.tolist()):
        if row < 0 or left[row] <= 0 or costs[task, row] >= NEVER:
            row = int(np.where(left > 0, costs[task], NEVER).argmin())
            if left[row] <= 0 or costs[task, row] >= NEVER:
                found[task] = -1
                continue
        found[task] = row
        left[row] -= 1
    return found


def _ends(people: Numbers, costs: Numbers) -> Floats:
    """Cost and number of workers of each; one who leaves tasks out pays more than anybody."""
    tasks = np.arange(people.shape[1])
    paid = np.where(people >= 0, costs[tasks, people], NEVER).sum(axis=1)
    return np.array(
        [[cost, len(set(one.tolist()))] for cost, one in zip(paid.tolist(), people, strict=True)],
        dtype=np.float64,
    )


def _select(ends: Floats) -> Numbers:
    """The half that stays: front by front, within the last one the lonelier first."""
    better = (ends[:, None] <= ends[None]).all(axis=2) & (ends[:, None] < ends[None]).any(axis=2)
    kept: list[int] = []
    left = np.ones(len(ends), dtype=np.bool_)
    while len(kept) < PEOPLE:
        front = np.flatnonzero(left & ~(better & left[:, None]).any(axis=0))
        alone = _loneliness(ends[front])
        kept += front[np.argsort(-alone, kind="stable")].tolist()
        left[front] = False
    return np.array(kept[:PEOPLE], dtype=np.intp)


def _loneliness(ends: Floats) -> Floats:
    found = np.zeros(len(ends))
    for column in ends.T:
        order = np.argsort(column, kind="stable")
        width = max(float(column[order[-1]] - column[order[0]]), 1e-9)
        found[order[[0, -1]]] = np.inf
        found[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / width
    return found
