"""One scheduling pass: the order of the queues, walked once, skipping what does not fit.

Costs in proportion to the shapes that are awake and the tasks it places. A shape that found no room is parked; a
worker that gained room wakes the shapes that could use it. Parking is a cache: a dry run leaves it alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from dray.core.lifecycle.backlog import RANGE, BucketKey, Entry, key_of
from dray.core.lifecycle.events import Placement
from dray.core.lifecycle.jobs import next_index
from dray.core.lifecycle.state import State
from dray.core.model.ids import attempt_uid
from dray.core.model.records import Job
from dray.core.model.spec import POOLS
from dray.core.scheduling.filters import FILTERS, Room, fits
from dray.core.scheduling.placement import Walk
from dray.core.scheduling.rooms import Rooms


class Plan(NamedTuple):
    """What one pass decided. `cut`: the limit of one pass was reached and the next is due at once."""

    placements: tuple[Placement, ...]
    parked: tuple[int, ...]
    cut: bool


def plan(state: State) -> Plan:
    """Decide who starts where now. Reads the state; only `settle_plan` and `apply` change it."""
    hints = wake(state)
    rooms = Rooms(state)
    walks: dict[int, Walk] = {}
    taken: dict[str, int] = {}
    lines = _Lines(state)
    placements: list[Placement] = []
    parked: dict[int, None] = {}
    limit, number = state.rules.pass_placements, state.counters.next_attempt
    while lines.heap and len(placements) < limit:
        _, key, job, entry = lines.pop()
        if key.shape in parked:
            continue  # another line of a shape that found no room: it asks for the same
        walk = walks.get(key.shape)
        if walk is None:
            walk = walks[key.shape] = Walk(state, rooms, key.shape, hints.get(key.shape))
        for index in _waiting(state, job, entry, limit - len(placements), taken.get(job.id, 0)):
            spot = walk.next()
            if spot is None:
                parked[key.shape] = None
                break
            row, devices = spot
            uid = attempt_uid(state.counters.epoch, number)
            number += 1
            taken[job.id] = taken.get(job.id, 0) + 1
            placements.append(Placement(job.id, index, uid, state.columns.worker_of[row], devices))
        if key.shape not in parked:
            lines.push_next(key)
    # Not `bool(lines.heap)`: the last line may be an array of which only a part was placed.
    return Plan(tuple(placements), tuple(parked), len(placements) >= limit)


def settle_plan(state: State, decided: Plan) -> None:
    """Bring the caches in line once the plan was folded in: park what found no room, forget empty lines."""
    for shape in decided.parked:
        state.backlog.park(shape, full=True)
    for shape in list(state.backlog.awake):
        for key in list(state.backlog.of_shape.get(shape, ())):
            prune(state, key)
        if not decided.cut:
            state.backlog.park(shape, full=False)


def prune(state: State, key: BucketKey) -> None:
    """Drop stale entries at the head of a line, and the line when nothing is left."""
    bucket = state.backlog.buckets[key]
    while bucket.head < len(bucket.entries) and not _stands(state, key, bucket.entries[bucket.head]):
        bucket.drop_head()
    if bucket.head >= len(bucket.entries):
        state.backlog.remove_bucket(key)


def wake(state: State) -> dict[int, list[int]]:
    """Look at parked shapes again that could use a worker which gained room since the last pass.

    Gives the rows that woke a shape which had found every worker full: no others need be looked at for it.
    """
    hints: dict[int, list[int]] = {}
    backlog, columns = state.backlog, state.columns
    if backlog.parked and columns.roomier:
        rooms = Rooms(state)
        fresh = [(row, *pair) for row in columns.roomier for pair in _usable(state, rooms, row)]
        for shape, full in list(backlog.parked.items()) if fresh else ():
            ask, *_ = state.asks(shape)
            rows = [row for row, pool, room in fresh if pool == ask.pool and fits(ask, room, FILTERS)]
            if rows:
                backlog.wake(shape)
                if full:
                    hints[shape] = rows
    columns.roomier.clear()
    return hints


def _usable(state: State, rooms: Rooms, row: int) -> list[tuple[str, Room]]:
    if not (state.columns.get("open", row) and state.columns.get("credit", row)):
        return []
    pairs = [(pool, rooms.room(row, pool)) for pool in POOLS]
    return [(pool, room) for pool, room in pairs if room.slots_free > 0]


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
        if _stands(state, key, entry):
            yield state.jobs[entry.job_id], entry


def _stands(state: State, key: BucketKey, entry: Entry) -> bool:
    """Whether an entry still means work: its job stands in this very line, with a range or this task queued again."""
    job = state.jobs.get(entry.job_id)
    if job is None or job.seq != entry.seq or job.barred or key_of(job) != key:
        return False
    if entry.position == RANGE:
        return job.untouched > 0
    return entry.position in state.requeued_of.get(job.id, ())


def _waiting(state: State, job: Job, entry: Entry, most: int, taken: int) -> Iterator[int]:
    """The tasks behind an entry in order, as many as the array's own cap and the pass allow."""
    room = job.limit - job.live - taken if job.limit else most
    if room <= 0:
        return
    if entry.position != RANGE:
        yield entry.position
        return
    index, left = next_index(state, job), min(room, most, job.untouched)
    while left > 0:
        if not job.holes or (job.id, index) not in state.tasks:
            yield index
            left -= 1
        index += 1
