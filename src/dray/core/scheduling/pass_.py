"""One scheduling pass: turns are taken, and whoever's turn it is starts where it fits best, or is passed by.

Costs in proportion to the shapes that are awake and the tasks it places. A shape that found no room is parked; a
worker that gained room wakes the shapes that could use it. A line that a gate holds back (quota, pace, cap) waits for
that gate. Both are caches: a dry run leaves them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from dray.core.lifecycle.backlog import RANGE, BucketKey, Entry
from dray.core.lifecycle.events import Placement, Preemption
from dray.core.lifecycle.jobs import next_index
from dray.core.lifecycle.parties import cost_of
from dray.core.lifecycle.state import NEVER, State
from dray.core.model.ids import attempt_uid
from dray.core.model.records import Job
from dray.core.scheduling.gates import Gates
from dray.core.scheduling.ordering import Head, Turns, stands
from dray.core.scheduling.placement import make_placer
from dray.core.scheduling.preemption import Search
from dray.core.scheduling.reservations import Window, drop_stale, keep_for, renew, watch_line
from dray.core.scheduling.rooms import Rooms
from dray.core.scheduling.waking import note_parked, wake
from dray.core.scheduling.walks import Spot


class Plan(NamedTuple):
    """What one pass decided. `gated` names lines and the gates they wait for, `blocked` the jobs that found no room and
    `looks` when some of them are to be looked at again. `cut`: the limit of one pass was reached and the next is due at
    once.
    """

    placements: tuple[Placement, ...]
    preemptions: tuple[Preemption, ...]
    parked: tuple[int, ...]
    gated: tuple[tuple[BucketKey, str], ...]
    blocked: tuple[str, ...]
    looks: tuple[tuple[str, int], ...]
    cut: bool


def plan(state: State) -> Plan:
    """Decide who starts where now. Reads the state; only `settle_plan` and `apply` change it."""
    return _Pass(state).run()


class _Pass:
    """One pass under way: the overlay of what it has given out."""

    def __init__(self, state: State) -> None:
        self._state = state
        roomier = list(state.columns.roomier)
        drop_stale(state)
        hints = {shape: rows for shape, rows in wake(state).items() if state.asks(shape)[0].nodes == 1}
        self._rooms = Rooms(state)
        self._window = Window()
        self._keepers = renew(state, self._rooms, roomier, self._window)
        self._rooms.guards.update(self._keepers)
        self._placer = make_placer(state, self._rooms, hints)
        self._gates = Gates(state)
        self._search = Search(state, self._rooms)
        self._taken: dict[str, int] = {}
        self._ranges: dict[str, Iterator[int]] = {}
        self._placements: list[Placement] = []
        self._preemptions: list[Preemption] = []
        self._parked: dict[int, None] = {}
        self._gated: dict[BucketKey, str] = {}
        self._blocked: dict[str, None] = {}
        self._looks: dict[str, int] = {}
        self._turns = Turns(state, _awake_lines(state))
        self._number = state.counters.next_attempt

    def run(self) -> Plan:
        limit = self._state.rules.pass_placements
        while len(self._placements) < limit and (head := self._turns.pop()) is not None:
            if head.line.shape not in self._parked:
                # Another line of a shape that found no room asks for the same: it is not looked at.
                self._serve(head, limit - len(self._placements))
        return Plan(
            tuple(self._placements),
            tuple(self._preemptions),
            tuple(self._parked),
            tuple(self._gated.items()),
            tuple(self._blocked),
            tuple(self._looks.items()),
            # Not whether heads are left: the last line may be an array of which only a part was placed.
            len(self._placements) >= limit,
        )

    def _serve(self, head: Head, most: int) -> None:
        """Give whoever's turn it is as much as may be: everything, or one task while others take turns with it."""
        line, job = head.line, head.job
        room, gate = self._gates.room(head)
        if room <= 0:
            self._gated[line] = gate
            return
        wanted = self._wanted(job, head.rank[2], 1 if self._turns.contended else min(most, room))
        if not wanted:
            self._turns.push_next(line)
            return
        self._window.until_ms = self._state.now_ms + job.limit_ms if job.limit_ms else NEVER
        spots = self._find(job, len(wanted))
        if spots:
            self._take(head, wanted, spots)
        if len(spots) < len(wanted):
            self._block(head, wanted[len(spots)])
        elif head.rank[2].position == RANGE and not job.gang and self._has_more(job, wanted[-1]):
            self._turns.push(head)
        else:
            self._turns.push_next(line)

    def _wanted(self, job: Job, entry: Entry, most: int) -> Sequence[int]:
        """The tasks behind an entry in order, as many as the array's own cap allows; of a gang all or none."""
        if job.gang:
            return () if job.id in self._taken else range(job.total)
        if job.limit:
            most = min(most, job.limit - job.live - self._taken.get(job.id, 0))
        if most <= 0:
            return ()
        if entry.position != RANGE:
            return (entry.position,)
        walk = self._ranges.get(job.id)
        if walk is None:
            walk = self._ranges[job.id] = _range(self._state, job, next_index(self._state, job))
        return list(islice(walk, most))

    def _has_more(self, job: Job, last: int) -> bool:
        return last + 1 < job.total and not (job.limit and job.live + self._taken[job.id] >= job.limit)

    def _find(self, job: Job, count: int) -> list[Spot]:
        if job.gang:
            return self._placer.place_gang(job.shape, job.id, (job.blamed,)) or []
        if not self._keepers:
            return self._placer.place(job.shape, count, job.id)
        # One by one: what a keeper lets in changes what it lets in next.
        spots: list[Spot] = []
        while len(spots) < count and (found := self._placer.place(job.shape, 1, job.id)):
            spots += found
            self._tell_keeper(job, found[0])
        return spots

    def _tell_keeper(self, job: Job, spot: Spot) -> None:
        keeper = self._keepers.get(spot.row)
        if keeper is not None:
            keeper.took(self._state.asks(job.shape)[spot.variant], spot.devices, job.id)

    def _take(self, head: Head, wanted: Sequence[int], spots: list[Spot]) -> None:
        state, job = self._state, head.job
        epoch, worker_of = state.counters.epoch, state.columns.worker_of
        for index, (row, variant, devices) in zip(wanted, spots, strict=False):
            uid = attempt_uid(epoch, self._number)
            self._number += 1
            self._placements.append(Placement(job.id, index, uid, worker_of[row], devices, variant))
        if job.gang:
            for spot in spots:
                self._tell_keeper(job, spot)
        self._taken[job.id] = self._taken.get(job.id, 0) + len(spots)
        self._gates.take(head, len(spots))
        self._turns.charge(head, len(spots) * cost_of(state.policy, state.asks(head.line.shape)[0]))

    def _block(self, head: Head, index: int) -> None:
        """It found no room: whoever else asks for the same is passed by, and victims are looked for where it may."""
        state, job = self._state, head.job
        self._parked[head.line.shape] = None
        self._blocked[job.id] = None
        found, look_ms = self._search.seek(job, index)
        if found is not None:
            self._preemptions.append(found)
            keepers = keep_for(state, self._rooms, found, self._window)
            self._keepers.update(keepers)
            self._rooms.guards.update(keepers)
        elif look_ms:
            self._looks[job.id] = look_ms


def settle_plan(state: State, decided: Plan) -> None:
    """Bring the caches in line once the plan was folded in: park what found no room, forget empty lines."""
    for shape in decided.parked:
        note_parked(state, shape)
        state.backlog.park(shape, full=True)
    for line, gate in decided.gated:
        if gate not in state.backlog.behind and (
            opens_ms := state.parties.gates[gate].opens_ms(state.now_ms)
        ):
            state.set_timer(opens_ms, "gate", gate)
        state.backlog.shut(line, gate)
    for job_id in decided.blocked:
        watch_line(state, state.jobs[job_id])
    for job_id, at_ms in decided.looks:
        if job_id not in state.looking:
            state.looking[job_id] = None
            state.set_timer(at_ms, "look", job_id)
    for shape in list(state.backlog.awake):
        for line in list(state.backlog.of_shape.get(shape, ())):
            prune(state, line)
        if not decided.cut:
            if shape in state.backlog.of_shape:
                note_parked(state, shape)
            state.backlog.park(shape, full=False)


def prune(state: State, line: BucketKey) -> None:
    """Drop stale entries at the head of a line, and the line when nothing is left."""
    bucket = state.backlog.buckets[line]
    while bucket.head < len(bucket.entries) and not stands(state, line, bucket.entries[bucket.head]):
        bucket.drop_head()
    if bucket.head >= len(bucket.entries):
        state.backlog.remove_bucket(line)


def _awake_lines(state: State) -> Iterator[BucketKey]:
    backlog = state.backlog
    for shape in backlog.awake:
        for line in backlog.of_shape.get(shape, ()):
            if line not in backlog.gated:
                yield line


def _range(state: State, job: Job, index: int) -> Iterator[int]:
    """The tasks of a job's range from an index on, past those that ended by themselves."""
    while index < job.total:
        if not job.holes or (job.id, index) not in state.tasks:
            yield index
        index += 1
