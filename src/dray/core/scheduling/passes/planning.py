"""One scheduling pass: turns are taken, and whoever's turn it is starts where it fits best, or is passed by.

Costs in proportion to the shapes that are awake and the tasks it places. A shape that found no room is parked; a
worker that gained room wakes the shapes that could use it. A line that a gate holds back (quota, pace, cap) waits for
that gate. Both are caches: a dry run leaves them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from dray.core.lifecycle.state.events import Placement, Preemption
from dray.core.lifecycle.state.lines import RANGE, BucketKey, CrowdKey, Entry
from dray.core.lifecycle.state.parties import cost_of
from dray.core.lifecycle.state.pass_events import PassBegan, PassSettled
from dray.core.lifecycle.state.state import NO_HINTS, State
from dray.core.lifecycle.tasks.jobs import next_index
from dray.core.model.ids import attempt_uid
from dray.core.model.records.records import Job
from dray.core.scheduling.capacity.memory import Memory, memory_of
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.claims.moving_room import claim_moves
from dray.core.scheduling.claims.reservations import Watch, Window, renew, watch_line
from dray.core.scheduling.claims.victims import RETRY_MS, gives_up_ms, lapsed
from dray.core.scheduling.passes.overlay import Overlay
from dray.core.scheduling.passes.waking import find_woken, note_parked
from dray.core.scheduling.placement.candidates import Spot
from dray.core.scheduling.turns.order import Feeder, Head, Turns
from dray.core.scheduling.turns.ranks import entry_of, next_entry, stands
from dray.core.scheduling.turns.reservation_rights import Draft, Slots
from dray.core.scheduling.turns.rosters import rosters_of
from dray.core.scheduling.turns.unprotected import unprotected_of

_ONLY = (0,)


class Plan(NamedTuple):
    """What one pass decided. `gated` names lines and the gates they wait for, `blocked` the jobs that found no room and
    `looks` when some of them are to be looked at again; `vain`: those that looked for victims and will not find any by
    waiting alone. `cut`: the limit of one pass was reached and the next is due at once. `owned`: lines from which room
    that was kept was taken. `began`: whom it woke and what it reserved before anything was given out. `seen`: the lines
    that it looked at.
    """

    placements: tuple[Placement, ...]
    preemptions: tuple[Preemption, ...]
    parked: tuple[int, ...]
    gated: tuple[tuple[BucketKey | CrowdKey, str], ...]
    blocked: tuple[str, ...]
    looks: tuple[tuple[str, int], ...]
    cut: bool
    vain: tuple[str, ...] = ()
    owned: tuple[BucketKey, ...] = ()
    began: PassBegan = PassBegan()
    seen: tuple[BucketKey, ...] = ()


def is_due(state: State) -> bool:
    """Whether a pass has anything to do: somebody to look at, or somebody who asked for work."""
    return bool(state.backlog.awake or state.columns.roomier or state.polls or state.unprotected)


def plan(state: State, lines: Iterable[BucketKey] | None = None) -> Plan:
    """Decide who starts where now. Reads the state, which `apply` alone changes: a plan may be thrown away.

    `lines`: those to be looked at, whether or not they are awake and before their gates are asked.
    """
    return _Pass(state, lines).run()


class _Pass:
    """One pass under way: the overlay of what it has given out."""

    def __init__(self, state: State, lines: Iterable[BucketKey] | None) -> None:
        self._state = state
        self._preemptions = lapsed(state)
        self._woken = woken = find_woken(state)
        hints = {shape: rows for shape, rows in woken.hints.items() if state.asks(shape)[0].nodes == 1}
        rooms, window = Rooms(state), Window()
        self._moving = claim_moves(state, rooms)
        watch = Watch(state, rooms, window)
        self._draft = draft = Draft(state)
        renew(state, rooms, list(state.columns.roomier), draft)
        watch.stand_guard(draft.reservations.values())
        self._overlay = overlay = Overlay(state, rooms, window, watch, hints)
        self._rooms, self._placer = overlay.rooms, overlay.placer
        self._gates, self._search = overlay.gates, overlay.search
        self._taken: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._placements: list[Placement] = []
        self._served: set[tuple[str, int]] = set()
        self._parked: dict[int, None] = {}
        self._gated: dict[BucketKey | CrowdKey, str] = {}
        self._blocked: dict[str, None] = {}
        self._looks: dict[str, int] = {}
        self._owned: dict[BucketKey, None] = {}
        self._heard: list[BucketKey] = []
        batch = state.batch
        self._aside, self._hints = (batch.shapes, batch.hints) if batch is not None else ((), NO_HINTS)
        self._hinted = {job_id for job_id, _ in self._hints}
        if lines is None:
            shapes = dict.fromkeys(chain(state.backlog.awake, woken.shapes))
            for shape in self._aside:
                shapes.pop(shape, None)
            self._heard, kept = rosters_of(state).look(state, shapes)
            is_gated = state.backlog.is_gated
            self._turns = Turns(state, [line for line in self._heard if not is_gated(line)], kept)
        else:
            self._turns = Turns(state, lines)
        # Only then has everybody been looked at of whom something was heard.
        self._is_whole = lines is None and not self._aside
        self._ruled = bool(state.parties.gates)
        self._weighs = not self._turns.alone or state.backlog.eager
        self._number = state.counters.next_attempt

    def run(self) -> Plan:
        limit, placed, pop = self._state.rules.pass_placements, self._placements, self._turns.pop
        self._serve_owners()
        while len(placed) < limit and (head := pop()) is not None:
            self._serve(head, limit - len(placed))
        self._overlay.forget_walks()
        return Plan(
            tuple(self._placements),
            tuple(self._preemptions),
            tuple(self._parked),
            tuple(self._gated.items()),
            tuple(self._blocked),
            tuple(self._looks.items()),
            # Not whether heads are left: the last line may be an array of which only a part was placed.
            len(self._placements) >= limit,
            tuple(self._search.vain),
            tuple(self._owned),
            self._memo(),
            tuple(dict.fromkeys(chain(self._heard, self._turns.seen))),
        )

    def _memo(self) -> PassBegan:
        draft = self._draft
        return PassBegan(
            tuple(self._woken.shapes),
            tuple(draft.made.items()),
            tuple(draft.answered),
            tuple(draft.due),
            tuple(draft.watches.values()),
            tuple(draft.left),
            self._is_whole and len(self._placements) < self._state.rules.pass_placements,
        )

    def _serve_owners(self) -> None:
        """Let those into their room for whom it is kept: whoever stands before them in line would be refused it."""
        state, row_of = self._state, self._state.columns.row_of
        for (job_id, index), move in state.moves.items():
            task = state.tasks.get((job_id, index))
            if task is None or not task.queued:
                continue
            mover = state.jobs[job_id]
            group = mover.group_of(index)
            spots = [spot for one in group if (spot := self._moving.get((job_id, one))) is not None]
            if len(spots) == len(group) and index == group[0]:
                self._serve_moved(mover, index, spots)
            if move.receipt:
                # Until then it waits for the room that it was stopped for, and takes no other.
                self._served.add((job_id, index))
        owners = [
            (kept.job_id, [(row, variant) for _, row, variant, _ in kept.spots])
            for kept in self._draft.reservations.values()
        ]
        owners += [
            (
                receipt.job_id,
                [(row_of[worker], receipt.variant) for worker in receipt.workers if worker in row_of],
            )
            for receipt in state.receipts.values()
        ]
        for job_id, rows in owners:
            job = state.jobs.get(job_id)
            if job is not None and job.waiting and not job.barred and job_id not in self._taken:
                self._serve_owner(job, rows)

    def _serve_moved(self, job: Job, index: int, spots: list[Spot]) -> None:
        """Start a task that was moved, or a gang as a whole, where room was claimed for it."""
        entry = entry_of(self._state, job, index)
        head = Head((0, 0, entry), self._state.line_of(job), job)
        room, gate = self._gates.room(head)
        if room <= 0:
            self._shut(head.line, gate)
        elif wanted := self._wanted(job, entry, 1):
            self._take(head, wanted, spots)
            self._owned[head.line] = None

    def _serve_owner(self, job: Job, rows: list[tuple[int, int]]) -> None:
        state = self._state
        entry = next_entry(state, job)
        head = Head((0, 0, entry), state.line_of(job), job)
        asks = state.asks(job.shape)
        spots = []
        self._overlay.look_for(job)
        for row, variant in rows:
            if self._rooms.class_mask(asks[variant])[state.columns.get("offer", row)]:
                devices = self._placer.fit(row, asks[variant], job.id)
                if devices is not None:
                    spots.append(Spot(row, variant, devices))
        if len(spots) < asks[0].nodes:
            return
        room, gate = self._gates.room(head)
        if room <= 0:
            self._shut(head.line, gate)
        elif wanted := self._wanted(job, entry, 1):
            for spot in spots:
                self._placer.claim(spot, asks[spot.variant], job.id)
                # Several may have room kept on one worker: the others are to know what is gone from beside theirs.
                self._overlay.tell_keeper(job, spot)
            self._take(head, wanted, spots)
            self._owned[head.line] = None

    def _serve(self, head: Head, most: int) -> None:
        """Give whoever's turn it is as much as may be: everything, or one task while others take turns with it."""
        line, job, room = head.line, head.job, most
        if self._ruled:
            room, gate = self._gates.room(head)
            if room <= 0:
                self._shut(line, gate)
                return
        if line.shape in self._parked:
            self._pass_by(head)
            return
        turns, entry = self._turns, head.rank[2]
        room = min(room, most)
        wanted = self._wanted(job, entry, room if turns.alone or not turns.is_contended(head) else 1)
        if not wanted:
            turns.push_next(line)
            return
        hinted = job.id in self._hinted
        spots = self._find(job, wanted) if hinted else self._overlay.find(job, len(wanted))
        if spots:
            self._take(head, wanted, spots)
        if len(spots) < len(wanted):
            if apart := self._overlay.kept_apart(job):
                # There is room: others of its shape may have it.
                self._gated[line] = apart
            else:
                self._block(head, wanted[len(spots)])
        elif wanted[-1] + 1 < job.total and entry.position == RANGE and self._has_more(job):
            turns.push(head)
        else:
            turns.push_next(line)

    def _find(self, job: Job, wanted: Sequence[int]) -> list[Spot]:
        """Each task where a hint says it is best placed, if it fits there still, else as everybody."""
        overlay, spots = self._overlay, list[Spot]()
        asks, row_of, placer = (
            self._state.asks(job.shape),
            self._state.columns.row_of,
            overlay.placer_for(job),
        )
        overlay.look_for(job)
        for index in wanted:
            row = row_of.get(self._hints.get((job.id, index), ""), -1)
            fits = row >= 0 and placer is overlay.placer and self._rooms.mask(asks[0])[row]
            devices = placer.fit(row, asks[0], job.id) if fits else None
            if devices is None:
                if not (found := overlay.find(job, 1)):
                    break
                spots += found
                continue
            spot = Spot(row, 0, devices)
            placer.claim(spot, asks[0], job.id)
            overlay.tell_keeper(job, spot)
            spots.append(spot)
        return spots

    def _shut(self, line: BucketKey, gate: str) -> None:
        """A gate lets nothing of a line through: where it is not about its user, nor of any other of its crowd."""
        parties = self._state.parties
        if parties.gates[gate].whom.kind == "user":
            self._gated[line] = gate
            return
        crowd = parties.crowd_of(line)
        if crowd not in self._gated:
            self._gated[crowd] = gate
            self._turns.leave_out(
                lambda feeder: feeder.roster.crowd is None or feeder.roster.crowd.key != crowd
            )

    def _pass_by(self, head: Head) -> None:
        """Another line of its shape found no room, and it asks for the same: only victims may it find for itself."""
        job, position = head.job, head.rank[2].position
        if job.limit and job.live + self._taken.get(job.id, 0) >= job.limit:
            self._turns.push_next(head.line)
        elif job.id not in self._taken:
            self._seek(head, next_index(self._state, job) if position == RANGE else position)

    def _wanted(self, job: Job, entry: Entry, most: int) -> Sequence[int]:
        """The tasks behind an entry in order, as many as the array's own cap allows; of a group all or none."""
        if job.gang:
            return self._draw_group(job, entry)
        if job.total == 1 and entry.position == RANGE:
            return () if job.id in self._taken else _ONLY
        if job.limit:
            most = min(most, job.limit - job.live - self._taken.get(job.id, 0))
        if most <= 0:
            return ()
        if entry.position != RANGE:
            return () if (job.id, entry.position) in self._served else (entry.position,)
        return self._draw(job, most)

    def _draw_group(self, job: Job, entry: Entry) -> Sequence[int]:
        """The group behind an entry, which each of its tasks has one of where it is queued again."""
        if entry.position == RANGE:
            return self._draw(job, job.group_size)
        group = job.group_of(entry.position)
        return () if (job.id, group[0]) in self._served else group

    def _draw(self, job: Job, most: int) -> Sequence[int]:
        """The next tasks of a job's range that this pass has not looked at yet."""
        first = self._next.get(job.id)
        if first is None:
            first = next_index(self._state, job)
        # Not one by one where it can be helped: there may be thousands, and room for one.
        drawn: Sequence[int] = (
            list(islice(_range(self._state, job, first), most))
            if job.holes
            else range(first, min(first + most, job.total))
        )
        self._next[job.id] = drawn[-1] + 1 if drawn else first
        return drawn

    def _has_more(self, job: Job) -> bool:
        return not (job.limit and job.live + self._taken[job.id] >= job.limit)

    def _take(self, head: Head, wanted: Sequence[int], spots: list[Spot]) -> None:
        state, job, again = self._state, head.job, head.rank[2].position != RANGE
        epoch, key, worker_of = state.counters.epoch, state.uid_key, state.columns.worker_of
        job_id, number = job.id, self._number
        for index, (row, variant, devices) in zip(wanted, spots, strict=False):
            uid = attempt_uid(epoch, number, key)
            number += 1
            self._placements.append(Placement(job_id, index, uid, worker_of[row], devices, variant))
            if again:
                self._served.add((job_id, index))
        self._number = number
        self._taken[job_id] = self._taken.get(job_id, 0) + len(spots)
        if self._ruled:
            self._gates.take(head, len(spots))
        if self._weighs:
            asks = state.asks(head.line.shape)
            cost = len(spots) * cost_of(state.policy, asks[0])
            if len(asks) > 1:  # by what each of them takes, which need not be the first alternative
                cost = sum(cost_of(state.policy, asks[spot.variant]) for spot in spots)
            self._turns.charge(head, cost)
            self._search.give(job.user, cost)

    def _block(self, head: Head, index: int) -> None:
        """It found no room: whoever else asks for the same is passed by, and victims are looked for where it may."""
        shape = head.line.shape
        self._parked[shape] = None
        self._seek(head, index)
        self._leave_out(shape)

    def _seek(self, head: Head, index: int) -> None:
        job = head.job
        self._blocked[job.id] = None
        if not self._search.is_new(job):
            return
        found, look_ms = self._search.seek(job, index)
        if found is None:
            self._leave_out(job.shape)
        if found is not None:
            self._preemptions.append(found)
            self._overlay.keep(job, found)
            look_ms = gives_up_ms(self._state, found)
            # Whoever is next in its line may find others to stop.
            self._turns.push_next(head.line)
        if look_ms:
            self._looks[job.id] = look_ms

    def _leave_out(self, shape: int) -> None:
        """Look at no others of a shape without room, unless they may have somebody stopped for them."""

        def may_find(feeder: Feeder) -> bool:
            roster = feeder.roster
            if roster.shape != shape:
                return True
            return feeder.rise(self._search.hopeless(roster.queue, shape, bool(roster.ranked)))

        self._turns.leave_out(may_find)


def settle_plan(state: State, decided: Plan) -> PassSettled:
    """What to remember once the plan was folded in: park what found no room, forget empty lines."""
    memory = memory_of(state)
    backlog, draft = state.backlog, Draft(state)
    if decided.blocked:
        unprotected_of(state).look(state)
        slots = Slots(state, draft)
        for job_id in decided.blocked:
            watch_line(state, draft, state.jobs[job_id], slots)
    parked = dict.fromkeys(decided.parked)
    aside = state.batch.shapes if state.batch is not None else ()
    for shape in parked:
        note_parked(state, memory.needs, shape)
    # Perhaps none of an owner's shape was awake: whoever comes next must not stand behind an entry that means nothing.
    # Also of what found no room: else each pass walks over all that was cancelled or held at its front so far.
    looked = dict.fromkeys(line for line in chain(decided.owned, decided.seen) if line in backlog.buckets)
    stale = dict(stale_heads(state, looked))
    seen = []
    for shape in backlog.awake:
        if shape in parked or shape in aside:
            continue
        seen.append(shape)
        lines = backlog.lines_of(shape)
        if not decided.cut and any(stale.get(line, 0) < backlog.buckets[line].waiting for line in lines):
            note_parked(state, memory.needs, shape)
    return PassSettled(
        parked=decided.parked,
        gated=decided.gated,
        due=tuple(draft.due),
        watches=tuple(draft.watches.values()),
        looks=(*decided.looks, *_vain_looks(state, memory, decided)),
        stale=tuple(stale.items()),
        seen=() if decided.cut else tuple(seen),
    )


def _vain_looks(state: State, memory: Memory, decided: Plan) -> Iterator[tuple[str, int]]:
    """Look again for those who found no victims once something has changed, and no more often than now and then."""
    change, again_ms = state.columns.change, state.now_ms + RETRY_MS
    if memory.vain and change != memory.vain_change:
        yield from ((job_id, again_ms) for job_id in memory.vain)
        memory.vain.clear()
    memory.vain_change = change
    for job_id in decided.vain:
        if decided.placements:
            # What this very pass has placed may be stopped once it runs.
            yield job_id, again_ms
        else:
            memory.vain[job_id] = None


def stale_heads(state: State, lines: Iterable[BucketKey]) -> Iterator[tuple[BucketKey, int]]:
    """How many entries at the head of each line mean nothing any more; lines that begin well are left out."""
    for line in lines:
        bucket = state.backlog.buckets[line]
        entries, place = bucket.entries, bucket.head
        while place < len(entries) and not stands(state, line, entries[place]):
            place += 1
        if place > bucket.head:
            yield line, place - bucket.head


def _range(state: State, job: Job, index: int) -> Iterator[int]:
    """The tasks of a job's range from an index on, past those that ended by themselves."""
    while index < job.total:
        if not job.holes or (job.id, index) not in state.tasks:
            yield index
        index += 1
