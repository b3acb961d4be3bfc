"""One scheduling pass: turns are taken, and whoever's turn it is starts where it fits best, or is passed by.

Costs in proportion to the shapes that are awake and the tasks it places. A shape that found no room is parked; a
worker that gained room wakes the shapes that could use it. A line that a gate holds back (quota, pace, cap) waits for
that gate. Both are caches: a dry run leaves them alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from dray.core.lifecycle.backlog import RANGE, BucketKey, Entry
from dray.core.lifecycle.events import Placement
from dray.core.lifecycle.jobs import next_index
from dray.core.lifecycle.parties import ENDLESS, cost_of, gpus_of
from dray.core.lifecycle.state import State
from dray.core.model.ids import attempt_uid
from dray.core.model.records import Job
from dray.core.model.spec import POOLS
from dray.core.scheduling.filters import FILTERS, Room, fits
from dray.core.scheduling.ordering import Head, Turns, stands
from dray.core.scheduling.placement import Walk
from dray.core.scheduling.rooms import Rooms


class Plan(NamedTuple):
    """What one pass decided. `gated` names lines and the gates they wait for. `cut`: the limit of one pass was
    reached and the next is due at once.
    """

    placements: tuple[Placement, ...]
    parked: tuple[int, ...]
    gated: tuple[tuple[BucketKey, str], ...]
    cut: bool


class Gates:
    """Rules that hold work back, seen through a pass: what it has given out so far counts."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._taken: dict[str, tuple[int, int]] = {}

    def room(self, head: Head) -> tuple[int, str]:
        """How many tasks of this line may start now, and the gate that allows no more."""
        gates = self._state.parties.all[head.line.party].gates
        if not gates:
            return ENDLESS, ""
        milli = _most_gpus(self._state, head.line.shape)
        rooms = [
            (gate.room(milli, *self._taken.get(gate.key, (0, 0)), self._state.now_ms), gate.key)
            for gate in gates
        ]
        return min(rooms, key=lambda pair: pair[0])

    def take(self, head: Head, count: int) -> None:
        """Count what was placed."""
        for gate in self._state.parties.all[head.line.party].gates:
            taken, milli = self._taken.get(gate.key, (0, 0))
            more = count * _most_gpus(self._state, head.line.shape)
            self._taken[gate.key] = (taken + count, milli + more)


def plan(state: State) -> Plan:
    """Decide who starts where now. Reads the state; only `settle_plan` and `apply` change it."""
    return _Pass(state).run()


class _Pass:
    """One pass under way: the overlay of what it has given out."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._hints = wake(state)
        self._rooms = Rooms(state)
        self._gates = Gates(state)
        self._walks: dict[int, Walk] = {}
        self._taken: dict[str, int] = {}
        self._ranges: dict[str, Iterator[int]] = {}
        self._placements: list[Placement] = []
        self._parked: dict[int, None] = {}
        self._gated: dict[BucketKey, str] = {}
        self._turns = Turns(state, _awake_lines(state))
        self._number = state.counters.next_attempt

    def run(self) -> Plan:
        limit = self._state.rules.pass_placements
        while len(self._placements) < limit and (head := self._turns.pop()) is not None:
            if head.line.shape not in self._parked:
                # Another line of a shape that found no room asks for the same: it is not looked at.
                self._serve(head, limit - len(self._placements))
        # Not whether heads are left: the last line may be an array of which only a part was placed.
        cut = len(self._placements) >= limit
        return Plan(tuple(self._placements), tuple(self._parked), tuple(self._gated.items()), cut)

    def _serve(self, head: Head, most: int) -> None:
        """Give whoever's turn it is as much as may be: everything, or one task while others take turns with it."""
        state, line, job = self._state, head.line, head.job
        room, gate = self._gates.room(head)
        if room <= 0:
            self._gated[line] = gate
            return
        if self._turns.contended:
            most = 1
        wanted = self._wanted(job, head.rank[2], min(most, room))
        placed = self._place(head, wanted)
        if placed:
            self._gates.take(head, placed)
            self._taken[job.id] = self._taken.get(job.id, 0) + placed
            self._turns.charge(head, placed * cost_of(state.policy, state.asks(line.shape)[0]))
        if placed < len(wanted):
            self._parked[line.shape] = None
        elif head.rank[2].position == RANGE and placed and self._has_more(job, wanted[-1]):
            self._turns.push(head)
        else:
            self._turns.push_next(line)

    def _wanted(self, job: Job, entry: Entry, most: int) -> list[int]:
        """The tasks behind an entry in order, as many as the array's own cap allows."""
        if job.limit:
            most = min(most, job.limit - job.live - self._taken.get(job.id, 0))
        if most <= 0:
            return []
        if entry.position != RANGE:
            return [entry.position]
        walk = self._ranges.get(job.id)
        if walk is None:
            walk = self._ranges[job.id] = _range(self._state, job, next_index(self._state, job))
        return list(islice(walk, most))

    def _has_more(self, job: Job, last: int) -> bool:
        return last + 1 < job.total and not (job.limit and job.live + self._taken[job.id] >= job.limit)

    def _place(self, head: Head, wanted: list[int]) -> int:
        state, shape = self._state, head.line.shape
        walk = self._walks.get(shape)
        if walk is None:
            walk = self._walks[shape] = Walk(state, self._rooms, shape, self._hints.get(shape))
        for placed, index in enumerate(wanted):
            spot = walk.next()
            if spot is None:
                return placed
            row, devices = spot
            uid = attempt_uid(state.counters.epoch, self._number)
            self._number += 1
            worker = state.columns.worker_of[row]
            self._placements.append(Placement(head.job.id, index, uid, worker, devices))
        return len(wanted)


def settle_plan(state: State, decided: Plan) -> None:
    """Bring the caches in line once the plan was folded in: park what found no room, forget empty lines."""
    for shape in decided.parked:
        state.backlog.park(shape, full=True)
    for line, gate in decided.gated:
        if gate not in state.backlog.behind and (
            opens_ms := state.parties.gates[gate].opens_ms(state.now_ms)
        ):
            state.set_timer(opens_ms, "gate", gate)
        state.backlog.shut(line, gate)
    for shape in list(state.backlog.awake):
        for line in list(state.backlog.of_shape.get(shape, ())):
            prune(state, line)
        if not decided.cut:
            state.backlog.park(shape, full=False)


def prune(state: State, line: BucketKey) -> None:
    """Drop stale entries at the head of a line, and the line when nothing is left."""
    bucket = state.backlog.buckets[line]
    while bucket.head < len(bucket.entries) and not stands(state, line, bucket.entries[bucket.head]):
        bucket.drop_head()
    if bucket.head >= len(bucket.entries):
        state.backlog.remove_bucket(line)


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
            asks = state.asks(shape)
            rows = [
                row
                for row, pool, room in fresh
                if any(pool == ask.pool and fits(ask, room, FILTERS) for ask in asks)
            ]
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


def _awake_lines(state: State) -> Iterator[BucketKey]:
    backlog = state.backlog
    for shape in backlog.awake:
        for line in backlog.of_shape.get(shape, ()):
            if line not in backlog.gated:
                yield line


def _most_gpus(state: State, shape: int) -> int:
    return max(gpus_of(ask) * ask.nodes for ask in state.asks(shape))


def _range(state: State, job: Job, index: int) -> Iterator[int]:
    """The tasks of a job's range from an index on, past those that ended by themselves."""
    while index < job.total:
        if not job.holes or (job.id, index) not in state.tasks:
            yield index
        index += 1
