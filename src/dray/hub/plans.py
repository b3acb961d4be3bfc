"""`POST /plan`: the real pass run dry for one spec, its claims thrown away."""

from __future__ import annotations

from dray.core.lifecycle.state import State
from dray.core.model.resources import asks_of
from dray.core.model.spec import JobSpec
from dray.core.scheduling.explain import explain_ask
from dray.core.scheduling.placement import make_placer
from dray.core.scheduling.rooms import Rooms
from dray.hub.documents import Document

MOST = 100


def plan_document(state: State, spec: JobSpec) -> Document:
    """Where the tasks of a spec would go now, whom else they could go to, and why not."""
    asks = asks_of(spec)
    ask = asks[0]
    shape = state.shapes.take(asks)
    try:
        names = state.columns.worker_of
        placer = make_placer(state, Rooms(state))
        candidates = list(dict.fromkeys(names[found.row] for found in placer.ranking(shape)))
        most = min(spec.task_count, MOST)
        places = placer.place(shape, most) if ask.nodes == 1 else placer.place_gang(shape) or []
        spots = [
            {"task": index, "worker": names[spot.row], "devices": list(spot.devices)}
            for index, spot in enumerate(places[:most])
        ]
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
