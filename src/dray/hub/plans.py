"""`POST /plan`: the real pass run dry for one spec, its claims thrown away."""

from __future__ import annotations

from dray.core.lifecycle.state import State
from dray.core.model.resources import ask_of
from dray.core.model.spec import JobSpec
from dray.core.scheduling.explain import explain_ask
from dray.core.scheduling.placement import Walk, rank
from dray.core.scheduling.rooms import Rooms
from dray.hub.documents import Document

MOST = 100


def plan_document(state: State, spec: JobSpec) -> Document:
    """Where the tasks of a spec would go now, whom else they could go to, and why not."""
    ask = ask_of(spec)
    shape = state.shapes.take((ask,))
    try:
        rooms = Rooms(state)
        rows = rooms.candidates(shape, ask)
        candidates = (
            [state.columns.worker_of[row] for row in rank(state, ask, rows).tolist()] if len(rows) else []
        )
        walk, spots = Walk(state, rooms, shape), []
        for index in range(min(spec.task_count, MOST)):
            spot = walk.next()
            if spot is None:
                break
            spots.append(
                {"task": index, "worker": state.columns.worker_of[spot[0]], "devices": list(spot[1])}
            )
        answer = explain_ask(state, ask)
    finally:
        state.shapes.release(shape)
    return {
        "starts_now": len(spots) == min(spec.task_count, MOST),
        "tasks": spec.task_count,
        "placements": spots,
        "candidates": candidates,
        "summary": answer.summary,
        "blockers": [blocker._asdict() for blocker in answer.blockers],
        "victims": [],
        "fix": answer.fix,
    }
