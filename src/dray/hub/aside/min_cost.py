"""The work of a side process that places many tasks together: from a scene, where each is best placed.

Exact, by min-cost flow: from tasks of one kind to workers, as many as there is room for; whoever would have to be left
out is, at a price that nobody pays who can be placed. Loads its solver with the module, which a hub must never do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from ortools.graph.python import min_cost_flow

from dray.core.scheduling.passes.snapshot import build_scene
from dray.core.scheduling.solving.costs import Group, assign, is_plain
from dray.hub.aside.solver_answers import Solved


def solve(pieces: Sequence[bytes], go_on: Callable[[], bool]) -> Solved:
    """Place the first waiting tasks of a scene."""
    state, _, wanted = build_scene(pieces)
    keys = [key for key in wanted if is_plain(state, state.jobs[key[0]].shape)]
    return Solved(tuple(assign(state, keys, solve_by_flow)))


def solve_by_flow(group: Group) -> list[int]:
    """Who goes where so that all together cost least: a worker's row for each task, or -1."""
    kinds, tasks = np.unique(group.kind_of, return_counts=True)
    costs = group.costs[kinds]
    open_ = (costs >= 0) & (group.room > 0)
    of_kind, of_row = np.nonzero(open_)
    if not len(of_kind):
        return [-1] * len(group.keys)
    # Nodes: each kind of task, each worker, and one at which all of them end.
    workers = len(group.room)
    first_row, end = len(kinds), len(kinds) + workers
    dearest = int(costs.max()) + 1
    rows = np.arange(workers)
    flow = min_cost_flow.SimpleMinCostFlow()
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        of_kind, first_row + of_row, np.minimum(tasks[of_kind], group.room[of_row]), costs[of_kind, of_row]
    )
    flow.add_arcs_with_capacity_and_unit_cost(first_row + rows, np.full(workers, end), group.room, rows * 0)
    unplaced = np.arange(len(kinds))
    price = np.full(len(kinds), dearest * (len(group.keys) + 1))
    flow.add_arcs_with_capacity_and_unit_cost(unplaced, np.full(len(kinds), end), tasks, price)
    flow.set_nodes_supplies(np.append(unplaced, end), np.append(tasks, -tasks.sum()))
    if flow.solve() != flow.OPTIMAL:
        return [-1] * len(group.keys)
    return _deal(group, kinds, of_kind, of_row, np.asarray(flow.flows(arcs)))


def _deal(
    group: Group, kinds: np.ndarray, of_kind: np.ndarray, of_row: np.ndarray, flows: np.ndarray
) -> list[int]:
    """Give the places of each kind to its tasks in their order."""
    places: dict[int, list[int]] = {int(kind): [] for kind in kinds}
    for number in np.flatnonzero(flows).tolist():
        places[int(kinds[of_kind[number]])] += [int(of_row[number])] * int(flows[number])
    handed = {kind: iter(rows) for kind, rows in places.items()}
    return [next(handed[kind], -1) for kind in group.kind_of.tolist()]
