"""A job tried out: what a pass would do with it, had it been submitted so. Nothing of it stays.

The job stands in the state only while it is tried, within one turn. A dry run is the pass's own way from a job to its
places; only whose turn it is is left out: the question is what would happen if it were this one's.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.events import Preemption
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import Asks
from dray.core.scheduling.passes.overlay import Overlay
from dray.core.scheduling.placement.candidates import Spot


class Outcome(NamedTuple):
    """Where its first tasks would go, the gate that lets through no more, and whom it would have stopped."""

    spots: list[Spot]
    gate: str
    preemption: Preemption | None


class Guest:
    """A copy of a job with other asks, known to the state for as long as a `with` block lasts."""

    def __init__(self, state: State, job: Job, asks: Asks) -> None:
        self._state, self._job, self._asks = state, job, asks

    def __enter__(self) -> Job:
        state, job = self._state, self._job
        self._mark, self._before = state.parties.mark(), state.jobs.get(job.id)
        self._copy = msgspec.structs.replace(job, shape=state.shapes.take(self._asks))
        state.join_party(self._copy)
        state.jobs[job.id] = self._copy
        return self._copy

    def __exit__(self, *_: object) -> None:
        state, copy = self._state, self._copy
        if self._before is None:
            del state.jobs[copy.id]
        else:
            state.jobs[copy.id] = self._before
        state.shapes.release(copy.shape)
        state.parties.forget_since(self._mark)


def try_out(overlay: Overlay, job: Job, most: int) -> Outcome:
    """Give a job what a pass would give it now, were it its turn."""
    room, gate = overlay.gates.room_for(job)
    if room <= 0:
        return Outcome([], gate, None)
    wanted = min(most, room, job.waiting)
    if job.gang:
        wanted = max(job.group_size, wanted - wanted % job.group_size)
    if job.limit:
        wanted = min(wanted, job.limit - job.live)
    spots = overlay.find(job, wanted) if wanted > 0 else []
    found = None
    if len(spots) < wanted:
        found, _ = overlay.search.seek(job, len(spots))
    return Outcome(spots, gate, found)


def fits_now(overlay: Overlay, job: Job) -> Spot | None:
    """The place that one task of a job (or the first member of its gang) would get now; None where it would wait."""
    asks = overlay.state.asks(job.shape)
    if overlay.gates.room_for(job)[0] <= 0:
        return None
    if not any(int(overlay.rooms.mask(ask).sum()) >= ask.nodes for ask in asks):
        return None
    spots = overlay.find(job, 1)
    return spots[0] if spots else None
