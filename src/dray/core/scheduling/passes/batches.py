"""`strategy: min_cost`: waiting tasks are placed together, by hints that each pass may take or leave.

A few are solved within the pass. Many are put aside as a batch for a solver beside the hub, of which a pass waits for
nothing: shapes of the batch are left out until its hints are there or its time is up, all others are placed as ever.
A hint is where a task is best placed as things stood; if it no longer fits there it is placed as by `greedy`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.pass_events import BatchOpened, HintsGiven
from dray.core.lifecycle.state.state import State, TaskKey
from dray.core.model.policies.policy import MIN_COST
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.choosing.automatic import placement_of
from dray.core.scheduling.passes.snapshot import first_waiting
from dray.core.scheduling.passes.waking import find_woken
from dray.core.scheduling.solving.costs import assign, count_room, is_plain
from dray.core.scheduling.solving.exchanges import solve_by_exchanges

FEW, MOST = 50, 2_000
# So long a batch may be out; what its scene takes to be packed included.
DEADLINE_MS = 500
MOST_COSTS = 200_000


def gather(state: State) -> Iterator[BatchOpened | HintsGiven]:
    """What is to be folded in before a pass, where tasks are placed together."""
    if placement_of(state).strategy != MIN_COST or state.batch is not None:
        return
    shapes = [shape for shape in _stirred(state) if is_plain(state, shape)]
    if not shapes:
        return
    ask = state.asks(shapes[0])[0]
    room = int(count_room(Rooms(state), ask).sum())
    keys = waiting_tasks(state, frozenset(shapes), min(room, MOST))
    if len(keys) < 2:
        return
    if len(keys) >= FEW:
        if state.solver:
            yield BatchOpened(tuple(shapes), state.now_ms + DEADLINE_MS)
        return
    kinds = len({state.jobs[key[0]].shape for key in keys})
    if kinds * state.columns.count <= MOST_COSTS:
        yield HintsGiven(0, tuple(assign(state, keys, solve_by_exchanges)))


def waiting_tasks(state: State, shapes: frozenset[int], most: int) -> list[TaskKey]:
    """The first tasks of these shapes that wait, in the order of a pass."""
    if most <= 0:
        return []
    found = first_waiting(state, most, shapes)
    return [key for key in found if not state.jobs[key[0]].blamed]


def _stirred(state: State) -> dict[int, None]:
    """Shapes that the coming pass looks at."""
    return dict.fromkeys((*state.backlog.awake, *find_woken(state).shapes))
