"""Whether anybody was overlooked: after a pass, fitting work and free credit never coexist.

Plans anew with every shape awake and every line let through to its gates, and puts all caches back as they were: a
look that mended what it found would hide it from those who wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dray.core.lifecycle.state.state import State
from dray.core.scheduling.passes.planning import plan
from dray.sim.faults.nodes.hub_life import HubLife


def find_overlooked(life: HubLife) -> list[str]:
    """Name work that would start now if anybody looked at it."""
    state = life.state
    if life.conductor.cut:
        return []
    with _undisturbed(state):
        for gate in list(state.backlog.behind):
            state.backlog.open(gate)
        for shape in list(state.backlog.parked):
            state.backlog.wake(shape)
        decided = plan(state)
    return [
        f"lost wake-up: {placement.job_id}/{placement.index} fits {placement.worker} and was left waiting"
        for placement in decided.placements
    ]


@contextmanager
def _undisturbed(state: State) -> Iterator[None]:
    """Leave no trace of a pass in what a hub remembers between passes."""
    backlog, columns = state.backlog, state.columns
    awake, parked = dict(backlog.awake), dict(backlog.parked)
    gated = dict(backlog.gated)
    behind = {gate: dict(lines) for gate, lines in backlog.behind.items()}
    roomier, timers, opens = dict(columns.roomier), list(state.timers), dict(backlog.opens)
    kept = dict(state.reservations), dict(state.unprotected), dict(state.watched)
    moves = dict(state.moves)
    yield
    backlog.awake, backlog.parked, backlog.gated, backlog.behind = awake, parked, gated, behind
    columns.roomier, state.timers, backlog.opens = roomier, timers, opens
    state.reservations, state.unprotected, state.watched = kept
    state.moves = moves
