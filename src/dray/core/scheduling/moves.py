"""Work that may be moved aside: whose it may be, and where it starts again at once.

Proposes; nothing here stops a process. A move takes nothing from whoever is moved but what it has not saved, so it need
not sit below: it is a peer, in the same queue and of no higher priority. It must fit elsewhere as things are now, into
room that whoever it makes room for does not need, and nothing but its start may stand between the two.

Why this ends: a decision that only moves lets one more task run and stops none for long, and the room of each that is
moved is claimed until it runs again. So what runs only grows, and within one window each task is moved once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.columns import Numbers
from dray.core.lifecycle.events import Move
from dray.core.lifecycle.parties import PaceGate, QuotaGate, gpus_of
from dray.core.lifecycle.receipts import Hit
from dray.core.lifecycle.state import State
from dray.core.model.records import Attempt, Job
from dray.core.model.resources import Ask
from dray.core.scheduling.gates import Gates
from dray.core.scheduling.placement import Placer
from dray.core.scheduling.reservations import Spare
from dray.core.scheduling.rooms import Devices, Rooms, Rows

# Workers that miss more than these hardly ever become free by moves, and a pass must stay short.
MOST_ROWS = 64
MOST_DESTINATIONS = 16


class Claim(NamedTuple):
    """What somebody would take on a worker once these have left it."""

    row: int
    ask: Ask
    devices: Devices
    victims: tuple[Attempt, ...]


class Aside:
    """The moves of one pass."""

    def __init__(self, state: State, rooms: Rooms, placer: Placer, gates: Gates) -> None:
        self._state, self._rooms, self._placer, self._gates = state, rooms, placer, gates
        self._fitting: dict[int, bool] = {}

    @property
    def most(self) -> int:
        """How many may be moved within the window of the limits."""
        return self._state.policy.preemption.moves

    def may_move(self, attempt: Attempt, job: Job, hits: Sequence[Hit]) -> bool:
        """Whether it could go at all, as far as rules say: whether there is room for it is another question."""
        state, mine = self._state, self._state.jobs[attempt.job_id]
        if attempt.lane or mine.gang or mine.barred or attempt.shape != mine.shape:
            return False
        if mine.id == job.id or mine.queue != job.queue or mine.priority > job.priority:
            return False
        key = (attempt.job_id, attempt.index)
        if key in state.moves or any(hit.moved and (hit.job_id, hit.number) == key for hit in hits):
            return False
        return self._has_room(mine.shape) and self._is_let_in(mine, job)

    def _has_room(self, shape: int) -> bool:
        """Whether any worker had room for a shape when the pass began: mostly none has, and all else is in vain."""
        found = self._fitting.get(shape)
        if found is None:
            found = any(bool(self._rooms.mask(ask).any()) for ask in self._state.asks(shape))
            self._fitting[shape] = found
        return found

    def is_enough(self, asks: Sequence[Ask]) -> bool:
        """Whether all that is idle together comes to what is asked for: without that no moves make room for it."""
        columns = self._rooms.columns
        open_rows = columns.view["open"][: columns.count] > 0
        milli = int(columns.view["free_milli"][: columns.count][open_rows].sum())
        cpu = int(self._rooms.free("cpu")[open_rows].sum())
        return any(gpus_of(ask) * ask.nodes <= milli and ask.cpu_milli * ask.nodes <= cpu for ask in asks)

    def _is_let_in(self, mine: Job, job: Job) -> bool:
        """Whether no gate would keep it from starting again. What it holds of a quota or a cap it brings along."""
        now_ms = self._state.now_ms
        for gate in self._state.parties.all[mine.party].gates:
            if isinstance(gate, PaceGate):
                # Only where there is plenty: the start that it makes room for must not be paid for with its own.
                if self._gates.room_at(gate, mine) < gate.rule.burst or gate.rule.burst <= job.total:
                    return False
            elif isinstance(gate, QuotaGate) and gate.opens_ms(now_ms):
                return False
        return True

    def near_rows(self, asks: Sequence[Ask], rows: Sequence[int]) -> list[int]:
        """Of these workers those that miss the least."""
        view, some = self._rooms.columns.view, np.array(rows, dtype=np.intp)
        if len(some) <= MOST_ROWS:
            return list(rows)
        best = np.full(len(some), np.inf)
        for ask in asks:
            miss = np.where(self._rooms.class_mask(ask)[view["offer"][some]], 0.0, np.inf)
            if ask.gpus:
                miss += self._missing_cards(ask, some) / gpus_of(ask)
            if ask.cpu_milli:
                miss += np.maximum(0, ask.cpu_milli - self._rooms.free("cpu")[some]) / ask.cpu_milli
            if ask.memory_bytes:
                miss += np.maximum(0, ask.memory_bytes - self._rooms.free("mem")[some]) / ask.memory_bytes
            best = np.minimum(best, miss)
        order = np.argsort(best, kind="stable")[:MOST_ROWS]
        return [int(some[place]) for place in order if best[place] < np.inf]

    def _missing_cards(self, ask: Ask, rows: Rows) -> Numbers:
        """How much of its cards a task would still miss on those that are idle most."""
        columns = self._rooms.columns
        idle = np.sort(columns.device_free[rows], axis=1)[:, ::-1][:, : ask.gpus]
        missing: Numbers = ask.gpus * ask.gpu_milli - np.minimum(idle, ask.gpu_milli).sum(axis=1)
        return missing

    def find(self, claims: Sequence[Claim], movers: Iterable[Attempt]) -> tuple[Move, ...] | None:
        """Where each of these would start again, side by side and beside the claims; None where one would not."""
        state = self._state
        taken = {claim.row: _beside(state, self._rooms, claim) for claim in claims}
        found: list[Move] = []
        for attempt in sorted(movers, key=lambda one: (-gpus_of(state.ask(one)), one.fence)):
            move = self._destination(attempt, taken)
            if move is None:
                return None
            found.append(move)
        return tuple(found)

    def _destination(self, attempt: Attempt, taken: dict[int, Spare]) -> Move | None:
        state, job = self._state, self._state.jobs[attempt.job_id]
        for candidate in self._placer.ranking(job.shape, job.id, MOST_DESTINATIONS):
            row, ask = candidate.row, state.asks(job.shape)[candidate.variant]
            if row in self._rooms.guards:
                continue  # room that is kept for others, in part: what may stay beside it changes with time
            spare = taken.get(row)
            if spare is None:
                spare = Spare(state, self._rooms.room(row, ask.pool), ask.pool)
                spare.slots = min(spare.slots, self._rooms.left(row).credit)
            if spare.pool != ask.pool:
                continue
            devices = candidate.devices if spare.holds(ask, candidate.devices) else spare.cards_for(ask)
            if devices is None:
                continue
            spare.take(ask, devices)
            taken[row] = spare
            return Move(attempt.uid, state.columns.worker_of[row], devices, candidate.variant)
        return None


def _beside(state: State, rooms: Rooms, claim: Claim) -> Spare:
    """What is idle on a worker now and stays so beside a claim: who leaves it may not count on his own room."""
    room = rooms.room(claim.row, claim.ask.pool)
    now, later = Spare(state, room, claim.ask.pool), Spare(state, room, claim.ask.pool, claim.victims)
    later.take(claim.ask, claim.devices)
    now.cpu, now.memory = min(now.cpu, later.cpu), min(now.memory, later.memory)
    now.slots = min(now.slots, later.slots, rooms.left(claim.row).credit - 1)
    now.used = _most(now.used, later.used)
    now.named = {name: min(amount, later.named.get(name, 0)) for name, amount in now.named.items()}
    return now


def _most(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {index: max(one.get(index, 0), other.get(index, 0)) for index in [*one, *other]}
