"""Room that is kept for somebody: for a task that has waited too long, and for one whose victims are leaving.

A protected task gets the earliest start that the time limits of what runs allow; work that ends before it may pass
(EASY backfill), and so may work that leaves enough beside it. A preemptor's room is kept the same way from the moment
its victims are asked to stop, for everybody but itself. Reservations are a cache: made anew from limits at any time,
and never later than before while their worker stays, because nothing that would delay them was let in.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from dray.core.lifecycle.providers.endings import OPEN_BUCKET, OPEN_MS, ends_ms, lasts
from dray.core.lifecycle.state.columns import pick_cards
from dray.core.lifecycle.state.events import Preemption
from dray.core.lifecycle.state.pass_events import LineWatch, RoomReleased
from dray.core.lifecycle.state.state import NEVER, Reservation, State
from dray.core.model.capability import Device
from dray.core.model.records.ledger import Receipt
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.ports import amount_of
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.scheduling.capacity.matching import CLASS_FILTERS, Room, fits
from dray.core.scheduling.capacity.remaining import Devices, Rooms
from dray.core.scheduling.claims.moving_room import could_hold, find_over
from dray.core.scheduling.turns.order import Turns
from dray.core.scheduling.turns.reservation_rights import Draft, Slots
from dray.core.scheduling.turns.unprotected import may_start, unprotected_of

# Beyond these an earlier start is hardly to be found, and a pass must stay short.
MOST_ROWS = 1024
AGAIN_MS = 30_000


class Window:
    """Until when the task that is being placed would run; set by the pass before it asks for room."""

    def __init__(self) -> None:
        self.until_ms = NEVER
        self.needed_ms = 0


class Spare:
    """What one worker has free at some moment, as attempts end one after another."""

    def __init__(
        self,
        state: State,
        room: Room,
        pool: str,
        leaving: Iterable[Attempt] = (),
        owed: Iterable[tuple[Ask, Devices]] = (),
    ) -> None:
        self.cpu, self.memory, self.slots = room.free_cpu, room.free_mem, room.slots_free
        self.cards: tuple[Device, ...] = room.cards
        self.used = dict(room.card_used)
        self.named = dict(room.named_free)
        self.pool, self._state = pool, state
        for attempt in leaving:
            self.give_back(attempt)
        for ask, devices in owed:
            self.take(ask, devices)

    def give_back(self, attempt: Attempt, sign: int = 1) -> None:
        """An attempt has ended (sign 1), or has not after all (sign -1)."""
        ask = self._state.ask(attempt)
        if attempt.yielded:
            ask = msgspec.structs.replace(ask, cpu_milli=0, pool="")
        self.take(ask, attempt.devices, -sign)

    def take(self, ask: Ask, devices: Devices, sign: int = 1) -> None:
        """Somebody has taken a part (sign 1), or does not take it after all (sign -1)."""
        self.cpu -= sign * ask.cpu_milli
        self.memory -= sign * ask.memory_bytes
        self.slots -= sign * (ask.pool == self.pool)
        for index in devices:
            self.used[index] = self.used.get(index, 0) + sign * ask.gpu_milli
        for name, amount in ask.resources:
            self.named[name] = amount_of(self.named, name) - sign * amount

    def cards_for(self, ask: Ask) -> Devices | None:
        """The cards a task would get; None where anything is missing."""
        if self.slots <= 0 or self.lacks(ask):
            return None
        return pick_cards(ask, self.cards, self.used)

    def lacks(self, ask: Ask) -> bool:
        """Whether anything but cards and slots is missing."""
        return (
            0 < ask.cpu_milli > self.cpu
            or 0 < ask.memory_bytes > self.memory
            or any(amount > amount_of(self.named, name) for name, amount in ask.resources)
        )

    def holds(self, ask: Ask, devices: Devices) -> bool:
        """Whether these very cards and everything else are there."""
        cards = all(self.used.get(index, 0) + ask.gpu_milli <= WHOLE for index in devices)
        return cards and self.slots > 0 and not self.lacks(ask)


class Keeper:
    """Stands before one worker on behalf of one job. `gone`: who has left by its start. `until_ms`: of a preemptor,
    who takes its victims' place as soon as they are gone, until when it would run; 0 of anybody else.
    """

    def __init__(
        self, job_id: str, start_ms: int, ask: Ask, devices: Devices, spare: Spare, window: Window
    ) -> None:
        self.job_id, self._start_ms, self._ask, self._devices = job_id, start_ms, ask, devices
        self._spare, self._window = spare, window
        self.gone: tuple[Attempt, ...] = ()
        self.until_ms = 0
        self._expected: dict[str, tuple[Keeper, list[Attempt]]] = {}

    def expect(self, other: Keeper) -> None:
        """Another has room kept here too: what a preemptor still holds by the start is not there for anybody else.

        Each of the two counts on the room that the other's victims leave, and the first could not start in it.
        """
        if other.until_ms <= self._start_ms or other.job_id == self.job_id:
            return
        counted = {attempt.uid for attempt in self.gone}
        leaving = [attempt for attempt in other.gone if attempt.uid not in counted]
        self._expected[other.job_id] = other, leaving
        self._count(other.job_id, 1)

    def admits(self, ask: Ask, devices: Devices, owner: str) -> bool:
        """The owner may in, and so may what ends in time or leaves the owner's part alone."""
        if owner == self.job_id or self._window.until_ms <= self._start_ms:
            return True
        spare = self._spare
        slots = spare.slots
        self._count(owner, -1)
        if ask.pool != self._ask.pool:
            spare.slots = max(1, spare.slots)
        admitted = spare.holds(ask, devices)
        self._count(owner, 1)
        spare.slots = slots
        return admitted

    def crowd(self, used: dict[int, int], owner: str) -> dict[int, int]:
        """What is used of each card, the owner's part counted too for whoever outlives the start."""
        if owner == self.job_id or self._window.until_ms <= self._start_ms:
            return used
        self._count(owner, -1)
        kept = {index: max(share, used.get(index, 0)) for index, share in self._spare.used.items()}
        self._count(owner, 1)
        return used | kept

    def took(self, ask: Ask, devices: Devices, owner: str) -> None:
        """A task was let in: where it outlives the start it has taken from what is left beside the owner."""
        if owner != self.job_id and self._window.until_ms > self._start_ms:
            self.no_longer_expect(owner)
            self._spare.take(ask, devices)

    def no_longer_expect(self, owner: str) -> None:
        """A job has its place: it comes here no more, and who leaves for it leaves nothing to anybody yet."""
        self._count(owner, -1)
        self._expected.pop(owner, None)

    def _count(self, owner: str, sign: int) -> None:
        """Count what is expected of a job in (sign 1), its victims gone, or leave it out while it asks itself (-1): as
        long as they are there it has no room here but what is idle.
        """
        other, leaving = self._expected.get(owner, (None, []))
        if other is None:
            return
        for attempt in leaving:
            self._spare.give_back(attempt, sign)
        self._spare.take(other._ask, other._devices, sign)

    def withhold(self, spare: Spare) -> None:
        """Take the owner's part off what others could make of a worker."""
        for attempt in self.gone if self.until_ms else ():
            spare.give_back(attempt)
        spare.take(self._ask, self._devices)


class Keepers:
    """All who stand before one worker: each must agree, and each is told. `lasts`: of a worker that ends at a known
    time, whether the task that is being placed would be gone by then.
    """

    def __init__(self) -> None:
        self._all: list[Keeper] = []
        self.lasts: Callable[[], bool] | None = None

    def add(self, keeper: Keeper) -> None:
        for other in self._all:
            other.expect(keeper)
            keeper.expect(other)
        self._all.append(keeper)

    def admits(self, ask: Ask, room: Room, devices: Devices, owner: str) -> bool:
        """Whether a task may take the room all the same."""
        if self.lasts is not None and not self.lasts():
            return False
        return all(keeper.admits(ask, devices, owner) for keeper in self._all)

    def crowd(self, used: dict[int, int], owner: str) -> dict[int, int]:
        """What is used of each card, all that is kept from this job counted too."""
        for keeper in self._all:
            used = keeper.crowd(used, owner)
        return used

    def took(self, ask: Ask, devices: Devices, owner: str) -> None:
        """A task was let in."""
        for keeper in self._all:
            keeper.took(ask, devices, owner)

    def dismiss(self, owner: str) -> None:
        """Nobody stands here for a job that has its place."""
        self._all = [keeper for keeper in self._all if keeper.job_id != owner]
        for keeper in self._all:
            keeper.no_longer_expect(owner)

    def withhold(self, spare: Spare, job_id: str) -> None:
        """Take what is kept for other jobs off what this one could make of a worker."""
        for keeper in self._all:
            if keeper.job_id != job_id:
                keeper.withhold(spare)


class Watch:
    """The keepers of one pass, by row."""

    def __init__(self, state: State, rooms: Rooms, window: Window) -> None:
        self._state, self._rooms, self._window = state, rooms, window
        self.of_row: dict[int, Keepers] = {}
        self._rows_of: dict[str, list[int]] = {}

    def stand_guard(self, reserved: Iterable[Reservation]) -> None:
        """Keep what is reserved, and what preemptors were promised."""
        state = self._state
        for worker_id in state.ending:
            if (row := state.columns.row_of.get(worker_id)) is not None:
                keepers = self.of_row[row] = self._rooms.guards[row] = Keepers()
                keepers.lasts = partial(self._lasts, worker_id)
        for kept in reserved:
            if _is_waiting(state, kept) and all(_is_open(state, spot[1]) for spot in kept.spots):
                self.reserve(kept)
        for receipt in state.receipts.values():
            job = state.jobs.get(receipt.job_id)
            if job is not None:
                self.preempt(job, receipt)

    def _lasts(self, worker_id: str) -> bool:
        return lasts(self._state, worker_id, self._window.needed_ms)

    def served(self, job_id: str) -> None:
        """A promise is kept once: a job that was given a place has nothing kept for it any longer."""
        for row in self._rows_of.pop(job_id, ()):
            self.of_row[row].dismiss(job_id)

    def reserve(self, kept: Reservation) -> None:
        """Keep what a protected task was promised, as of its start."""
        state = self._state
        asks = state.asks(state.jobs[kept.job_id].shape)
        for _, row, variant, devices in kept.spots:
            held = [state.attempts[uid] for uid in state.held.get(state.columns.worker_of[row], ())]
            gone = tuple(attempt for attempt in held if end_ms(state, attempt) <= kept.start_ms)
            self._add(row, kept.job_id, kept.start_ms, asks[variant], devices, gone)

    def preempt(self, job: Job, preemption: Preemption | Receipt) -> None:
        """Keep the room of a preemptor's victims for it, on every worker that is there."""
        state = self._state
        ask = state.asks(job.shape)[preemption.variant]
        until_ms = placed_until_ms(state, job)
        victims = [one if isinstance(one, str) else one.uid for one in preemption.victims]
        for worker, devices in zip(preemption.workers, preemption.devices, strict=True):
            row = state.columns.row_of.get(worker)
            if row is None or not _is_open(state, row):
                continue
            gone = tuple(state.attempts[uid] for uid in state.held.get(worker, ()) if uid in victims)
            self._add(row, job.id, state.now_ms, ask, devices, gone, until_ms)

    def _add(
        self,
        row: int,
        job_id: str,
        start_ms: int,
        ask: Ask,
        devices: Devices,
        gone: tuple[Attempt, ...],
        until_ms: int = 0,
    ) -> None:
        owed = self._rooms.owed.get(row, ())
        spare = Spare(self._state, self._rooms.room(row, ask.pool), ask.pool, gone, owed)
        spare.take(ask, devices)
        keeper = Keeper(job_id, start_ms, ask, devices, spare, self._window)
        keeper.gone, keeper.until_ms = gone, until_ms
        self.of_row.setdefault(row, Keepers()).add(keeper)
        self._rows_of.setdefault(job_id, []).append(row)
        self._rooms.guards[row] = self.of_row[row]


class Start(NamedTuple):
    """When one worker could take a task, and with which cards."""

    at_ms: int
    row: int
    variant: int
    devices: Devices


def placed_until_ms(state: State, job: Job) -> int:
    """When a task of a job, or a lane of its calls, would be gone at the latest if it were placed now."""
    if not job.limit_ms:
        return NEVER
    return state.now_ms + job.limit_ms + (state.rules.slice_ms if job.calls else 0)


def end_ms(state: State, attempt: Attempt) -> int:
    """When an attempt is gone at the latest: by its time limit, or by the grace it was given.

    Who is asked to stop has no more time than it had: its limit still holds, and may come before its grace is over.
    """
    limit_ms = _limit_ms(state, attempt)
    if attempt.phase is Phase.STOPPING:
        return min(limit_ms, attempt.cancel_ms + round(attempt.grace_s * 1000))
    return limit_ms


def _limit_ms(state: State, attempt: Attempt) -> int:
    if not attempt.limit_ms:
        return NEVER
    if attempt.lane:
        # While others wait it is fed for a while only; then each call that it has may take as long as any.
        fed_ms = max(attempt.assigned_ms + state.rules.slice_ms, attempt.fed_ms)
        return fed_ms + attempt.limit_ms * max(1, len(attempt.calls or ()))
    return (attempt.started_ms or attempt.assigned_ms) + attempt.limit_ms


def row_start(state: State, rooms: Rooms, row: int, ask: Ask, variant: int) -> Start | None:
    """The earliest moment at which a worker has room for a task, as what runs there comes to its limits."""
    room = rooms.room(row, ask.pool)
    if not room.present or room.draining or not fits(ask, room, CLASS_FILTERS):
        return None
    spare = Spare(state, room, ask.pool, (), rooms.owed.get(row, ()))
    devices = spare.cards_for(ask)
    if devices is not None:
        return _in_time(state, ask, Start(state.now_ms, row, variant, devices))
    held = [state.attempts[uid] for uid in state.held.get(room.worker, ())]
    for at_ms, _, attempt in sorted((end_ms(state, one), one.fence, one) for one in held):
        if at_ms >= NEVER:
            break
        spare.give_back(attempt)
        devices = spare.cards_for(ask)
        if devices is not None:
            return _in_time(state, ask, Start(max(at_ms, state.now_ms), row, variant, devices))
    return None


def _in_time(state: State, ask: Ask, start: Start) -> Start | None:
    """A start on a worker that is there for long enough, whatever limit of this bucket a task has."""
    worker_id = state.columns.worker_of[start.row]
    if worker_id not in state.ending:
        return start
    is_open = ask.limit_bucket in (0, OPEN_BUCKET)
    span_ms = OPEN_MS if is_open else 1000 << ask.limit_bucket
    return start if start.at_ms + span_ms <= ends_ms(state, worker_id) else None


def earliest(state: State, rooms: Rooms, asks: Sequence[Ask], rows: Sequence[int]) -> list[Start]:
    """The first start of a task (or of all members of a gang) among these workers; empty where there is none."""
    best: list[Start] = []
    for variant, ask in enumerate(asks):
        starts = sorted(_starts(state, rooms, rows, ask, variant))
        for group in _by_backend(state, ask, starts):
            chosen = group[: ask.nodes]
            if len(chosen) == ask.nodes and (not best or chosen[-1].at_ms < best[-1].at_ms):
                best = chosen
    return best


def _starts(state: State, rooms: Rooms, rows: Sequence[int], ask: Ask, variant: int) -> Iterator[Start]:
    for row in sorted(rows) if ask.nodes == 1 else rows:
        start = row_start(state, rooms, row, ask, variant)
        if start is not None:
            yield start
            if ask.nodes == 1 and start.at_ms <= state.now_ms:
                # Nothing is earlier, and of workers that have room now the first is taken.
                return


def _by_backend(state: State, ask: Ask, starts: list[Start]) -> list[list[Start]]:
    if ask.nodes == 1 or ask.mixed_backends:
        return [starts]
    groups: dict[str, list[Start]] = {}
    for start in starts:
        offer = state.columns.offers[state.columns.get("offer", start.row)]
        groups.setdefault(offer.backend, []).append(start)
    return list(groups.values())


def find_stale(state: State, served: Container[str] = ()) -> RoomReleased | None:
    """The moves that are over, and the reservations whose job no longer waits, or whose worker is away or can no
    longer hold it; None where there are none.

    Their room is there for others. `served`: jobs that were given places just now. Those that wait on began to wait
    anew, and may have within one millisecond: by the moment alone what they got would be kept for them once more.
    """
    if not (state.moves or state.reservations):
        return None
    over, slots = find_over(state), []
    for slot, kept in state.reservations.items():
        waits, rows = _is_waiting(state, kept), [spot[1] for spot in kept.spots]
        waits = waits and kept.job_id not in served
        if waits and all(_is_open(state, row) for row in rows) and _could_be_kept(state, kept):
            continue
        slots.append((slot, waits))
    return RoomReleased(tuple(slots), over) if slots or over else None


class Owners:
    """Whose workers are kept, by row: two promises on one worker could not both be held."""

    def __init__(self, state: State, reserved: Iterable[Reservation]) -> None:
        self._of_row: dict[int, list[str]] = {}
        self.jobs: dict[str, None] = {}
        row_of = state.columns.row_of
        for kept in reserved:
            self.keep(kept)
        for receipt in state.receipts.values():
            self._own(receipt.job_id, (row_of[worker] for worker in receipt.workers if worker in row_of))

    def keep(self, kept: Reservation, before: Reservation | None = None) -> None:
        """Somebody has another reservation than before."""
        for spot in before.spots if before is not None else ():
            self._of_row[spot[1]].remove(kept.job_id)
        self._own(kept.job_id, (spot[1] for spot in kept.spots))

    def has_others(self, row: int, job_id: str) -> bool:
        """Whether a row is kept for anybody else."""
        return any(owner != job_id for owner in self._of_row.get(row, ()))

    def _own(self, job_id: str, rows: Iterable[int]) -> None:
        self.jobs[job_id] = None
        for row in rows:
            self._of_row.setdefault(row, []).append(job_id)


def renew(state: State, rooms: Rooms, roomier: Sequence[int], draft: Draft) -> None:
    """Bring reservations in line with what has changed, and make due ones."""
    if not ((draft.reservations and roomier) or state.unprotected):
        return
    owners = Owners(state, draft.reservations.values())
    if roomier:
        for slot, kept in list(draft.reservations.items()):
            _improve(state, draft, rooms, slot, kept, roomier, owners)
    if state.unprotected:
        _protect_some(state, draft, rooms, owners)


def _protect_some(state: State, draft: Draft, rooms: Rooms, owners: Owners) -> None:
    """Give reservations that are to be had to those who are due for one, in the order of turns; the others stay due."""
    due, slots = unprotected_of(state), Slots(state, draft)
    for job_id in due.look(state):
        draft.answer(job_id)
    free = [roster for queue, roster in due.rosters.items() if roster.order and not slots.is_full(queue)]
    turns = Turns(state, (), free, due.walk)
    barren: dict[int, None] = {}
    while (head := turns.pop()) is not None:
        job = head.job
        if slot := slots.of(job):
            draft.answer(job.id)
            # Where one has found nothing there is nothing for others of its shape, unless room is kept for them.
            kept = None
            if job.shape not in barren or job.id in owners.jobs:
                kept = _protect(state, rooms, job, owners)
            if kept is not None:
                draft.keep(slot, kept)
                owners.keep(kept)
            else:
                barren[job.shape] = None
                # Nobody may ever look at its shape again while others fill every gap: it is asked for by time.
                watch_line(state, draft, job, slots)
        if slots.is_full(job.queue):
            turns.leave_out(lambda feeder: not slots.is_full(feeder.roster.queue))
        turns.push_next(head.line)


def _protect(state: State, rooms: Rooms, job: Job, owners: Owners) -> Reservation | None:
    """The reservation of a task that has waited too long; None where no worker will ever have room for it."""
    rows = [row for row in _rows(state) if not owners.has_others(row, job.id)]
    starts = earliest(state, rooms, state.asks(job.shape), rows)
    if not starts:
        return None
    start_ms = max(start.at_ms for start in starts)
    return Reservation(job.id, start_ms, start_ms, job.waiting_since_ms, _spots(starts))


def _improve(
    state: State,
    draft: Draft,
    rooms: Rooms,
    slot: str,
    kept: Reservation,
    roomier: Sequence[int],
    owners: Owners,
) -> None:
    """Move a reservation to where it starts earlier: to its own workers anew, or to one that gained room."""
    asks = state.asks(state.jobs[kept.job_id].shape)
    rows = list(dict.fromkeys([*(spot[1] for spot in kept.spots), *roomier]))[:MOST_ROWS]
    rows = [row for row in rows if _is_open(state, row) and not owners.has_others(row, kept.job_id)]
    starts = earliest(state, rooms, asks, rows)
    if starts and (at_ms := max(start.at_ms for start in starts)) <= kept.start_ms:
        spots = _spots(starts)
        moved = kept._replace(start_ms=at_ms, spots=spots)
        draft.keep(slot, moved)
        owners.keep(moved, kept)
        # A worker that is no longer kept has room for others, and nobody else will say so.
        left = {spot[1] for spot in kept.spots} - {spot[1] for spot in spots}
        draft.left.update(dict.fromkeys(sorted(left)))


def _spots(starts: Sequence[Start]) -> tuple[tuple[int, int, int, Devices], ...]:
    return tuple((start.at_ms, start.row, start.variant, start.devices) for start in starts)


def _could_be_kept(state: State, kept: Reservation) -> bool:
    """Whether its workers, as they registered last, can hold what was promised on them."""
    asks = state.asks(state.jobs[kept.job_id].shape)
    return all(could_hold(state, row, asks[variant]) for _, row, variant, _ in kept.spots)


def _is_waiting(state: State, kept: Reservation) -> bool:
    job = state.jobs.get(kept.job_id)
    return job is not None and may_start(state, job) and job.waiting_since_ms == kept.since_ms


def _is_open(state: State, row: int) -> bool:
    return bool(state.columns.get("open", row))


def _rows(state: State) -> list[int]:
    columns = state.columns
    found = [row for row in range(columns.count) if columns.get("open", row)]
    return found[:MOST_ROWS]


def watch_line(state: State, draft: Draft, job: Job, slots: Slots) -> None:
    """Look at the first of a blocked line once it has waited long enough to be protected."""
    if job.id in state.watched or job.id in draft.watches:
        return
    after_ms = slots.patience_ms(job)
    if not after_ms:
        return
    due_ms = job.waiting_since_ms + after_ms
    if due_ms <= state.now_ms and not slots.of(job):
        # Another has the reservation that it could have: it is next in turn, and must not miss the moment.
        draft.note_due(job.id)
        return
    # One that is due already found nowhere to be protected.
    at_ms = due_ms if due_ms > state.now_ms else state.now_ms + AGAIN_MS
    draft.watches[job.id] = LineWatch(job.id, after_ms, at_ms)
