"""One scheduling pass: the order of the queues, walked once, skipping what does not fit.

Costs in proportion to the shapes that are awake and the tasks it places. A shape that found no room is parked; a
worker that gained room wakes the shapes that could use it. Parking is a cache: a dry run leaves it alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dray.core.lifecycle.backlog import RANGE, BucketKey, Entry
from dray.core.lifecycle.events import Placement
from dray.core.lifecycle.jobs import next_index
from dray.core.lifecycle.state import State
from dray.core.model.ids import attempt_uid
from dray.core.model.records import Job
from dray.core.scheduling.placement import make_placer
from dray.core.scheduling.rooms import Rooms
from dray.core.scheduling.waking import note_parked, wake


class Plan(NamedTuple):
    """What one pass decided. `cut`: the limit of one pass was reached and the next is due at once."""

    placements: tuple[Placement, ...]
    parked: tuple[int, ...]
    cut: bool


def plan(state: State) -> Plan:
    """Decide who starts where now. Reads the state; only `settle_plan` and `apply` change it."""
    placer = make_placer(state, Rooms(state), wake(state))
    taken: dict[str, int] = {}
    lines = _Lines(state)
    placements: list[Placement] = []
    parked: dict[int, None] = {}
    limit, number = state.rules.pass_placements, state.counters.next_attempt
    worker_of = state.columns.worker_of
    while lines.heap and len(placements) < limit:
        _, key, job, entry = lines.pop()
        if key.shape in parked:
            continue  # another line of a shape that found no room: it asks for the same
        indices = _waiting(state, job, entry, limit - len(placements), taken.get(job.id, 0))
        if not indices:
            lines.push_next(key)
            continue
        spots = placer.place(key.shape, len(indices), job.id)
        for index, (row, variant, devices) in zip(indices, spots, strict=False):
            uid = attempt_uid(state.counters.epoch, number)
            number += 1
            placements.append(Placement(job.id, index, uid, worker_of[row], devices, variant))
        taken[job.id] = taken.get(job.id, 0) + len(spots)
        if len(spots) < len(indices):
            parked[key.shape] = None
        if key.shape not in parked:
            lines.push_next(key)
    # Not `bool(lines.heap)`: the last line may be an array of which only a part was placed.
    return Plan(tuple(placements), tuple(parked), len(placements) >= limit)


def settle_plan(state: State, decided: Plan) -> None:
    """Bring the caches in line once the plan was folded in: park what found no room, forget empty lines."""
    for shape in decided.parked:
        note_parked(state, shape)
        state.backlog.park(shape, full=True)
    for shape in list(state.backlog.awake):
        for key in list(state.backlog.of_shape.get(shape, ())):
            prune(state, key)
        if not decided.cut:
            if shape in state.backlog.of_shape:
                note_parked(state, shape)
            state.backlog.park(shape, full=False)


def prune(state: State, key: BucketKey) -> None:
    """Drop stale entries at the head of a line, and the line when nothing is left."""
    bucket = state.backlog.buckets[key]
    while bucket.head < len(bucket.entries) and not _stands(state, bucket.entries[bucket.head]):
        bucket.drop_head()
    if bucket.head >= len(bucket.entries):
        state.backlog.remove_bucket(key)


class _Lines:
    """The heads of all awake lines, first come first."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.heap: list[tuple[tuple[int, int], BucketKey, Job, Entry]] = []
        self._walks: dict[BucketKey, Iterator[tuple[Job, Entry]]] = {}
        for shape in state.backlog.awake:
            for key in state.backlog.of_shape.get(shape, ()):
                self._walks[key] = _standing(state, key)
                self.push_next(key)

    def push_next(self, key: BucketKey) -> None:
        found = next(self._walks[key], None)
        if found is not None:
            job, entry = found
            heapq.heappush(self.heap, ((entry.seq, entry.position), key, job, entry))

    def pop(self) -> tuple[tuple[int, int], BucketKey, Job, Entry]:
        return heapq.heappop(self.heap)


def _standing(state: State, key: BucketKey) -> Iterator[tuple[Job, Entry]]:
    for entry in state.backlog.entries(key):
        if _stands(state, entry):
            yield state.jobs[entry.job_id], entry


def _stands(state: State, entry: Entry) -> bool:
    """Whether an entry still means work: its job waits with a range, or this very task is queued again."""
    job = state.jobs.get(entry.job_id)
    if job is None or job.seq != entry.seq:
        return False
    if entry.position == RANGE:
        return job.untouched > 0
    return entry.position in state.requeued_of.get(job.id, ())


def _waiting(state: State, job: Job, entry: Entry, most: int, taken: int) -> Sequence[int]:
    """The tasks behind an entry in order, as many as the array's own cap and the pass allow."""
    room = job.limit - job.live - taken if job.limit else most
    if room <= 0:
        return ()
    if entry.position != RANGE:
        return (entry.position,)
    index, left = next_index(state, job), min(room, most, job.untouched)
    if not job.holes:
        return range(index, index + left)
    indices: list[int] = []
    while len(indices) < left:
        if (job.id, index) not in state.tasks:
            indices.append(index)
        index += 1
    return indices
