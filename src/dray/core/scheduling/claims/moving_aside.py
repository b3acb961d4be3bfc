"""Work that may be moved aside: whose it may be, and where it starts again at once.

Proposes; nothing here stops a process. A move takes nothing from whoever is moved but what it has not saved, so it need
not sit below: it is a peer, in the same queue and of no higher priority. It must fit elsewhere, into room
that whoever it makes room for does not need: room that is idle now, or the place of a peer that takes its own.

Why this ends: a decision that only moves lets one more task run and stops none for long, and the room of each that is
moved is claimed until it runs again. So what runs only grows, and within one window each task is moved once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.lifecycle.state.parties import PaceGate, PurseGate, QuotaGate, SwitchGate, gpus_of
from dray.core.lifecycle.state.service_events import Move
from dray.core.lifecycle.state.state import State, TaskKey
from dray.core.model.records.records import Attempt, Job
from dray.core.model.specs.resources import Ask
from dray.core.scheduling.capacity.remaining import Devices, Rooms, Rows
from dray.core.scheduling.claims.reservations import Spare
from dray.core.scheduling.placement.placer import Placer
from dray.core.scheduling.turns.gates import Gates

# Workers that miss more than these hardly ever become free by moves, and a pass must stay short.
MOST_ROWS = 64
MOST_DESTINATIONS = 16
# Cores and memory are had by exchange too, cards hardly ever.
CARDS_WEIGH = 4


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
        self._free: tuple[list[int], list[int]] | None = None
        self._by_cards: dict[tuple[int, int, str], list[Attempt]] | None = None

    @property
    def most(self) -> int:
        """How many may be moved within the window of the limits."""
        return self._state.policy.preemption.moves

    def may_move(self, attempt: Attempt, job: Job, moved: Container[TaskKey]) -> bool:
        """Whether it could go at all, as far as rules say: whether there is room for it is another question.

        `moved`: those who were moved within the window.
        """
        state, mine = self._state, self._state.jobs[attempt.job_id]
        if attempt.lane or mine.gang or mine.barred or attempt.shape != mine.shape:
            return False
        if mine.id == job.id or mine.queue != job.queue or mine.priority > job.priority:
            return False
        key = (attempt.job_id, attempt.index)
        if key in state.moves or key in moved:
            return False
        ask = state.ask(attempt)
        # Who asks for cards alone can take nobody's place: it would have to be idle.
        if not (self._has_room(mine.shape) or ask.cpu_milli or ask.memory_bytes):
            return False
        return self._is_let_in(mine, job)

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
            elif (isinstance(gate, QuotaGate) and gate.opens_ms(now_ms)) or (
                isinstance(gate, SwitchGate | PurseGate) and not gate.room(0, 0, 0, now_ms)
            ):
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
                miss += CARDS_WEIGH * self._missing_cards(ask, some) / gpus_of(ask)
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

    def find(
        self, claims: Sequence[Claim], movers: Iterable[Attempt], may_go: Callable[[Attempt], bool]
    ) -> tuple[Move, ...] | None:
        """Where each of these would start again, side by side and beside the claims; None where one would not.

        `may_go`: whether another may be moved too, to let one of them take its place.
        """
        state = self._state
        taken = {claim.row: _beside(state, self._rooms, claim) for claim in claims}
        found: list[Move] = []
        for attempt in sorted(movers, key=lambda one: (-gpus_of(state.ask(one)), one.fence)):
            moves = self._to_idle_room(attempt, taken) or self._to_anothers(attempt, taken, may_go)
            if not moves:
                return None
            found += moves
        return tuple(found)

    def _to_idle_room(self, attempt: Attempt, taken: dict[int, Spare]) -> list[Move]:
        """Into what is idle now: the best place by the policy's strategy."""
        state, job = self._state, self._state.jobs[attempt.job_id]
        if not self._has_room(job.shape):
            return []
        for candidate in self._placer.ranking(job.shape, job.id, MOST_DESTINATIONS):
            row, ask = candidate.row, state.asks(job.shape)[candidate.variant]
            if row in self._rooms.guards:
                continue  # room that is kept for others, in part: what may stay beside it changes with time
            spare = taken.get(row) or self._spare(row, ask, ())
            if spare.pool != ask.pool:
                continue
            devices = candidate.devices if spare.holds(ask, candidate.devices) else spare.cards_for(ask)
            if devices is not None:
                spare.take(ask, devices)
                taken[row] = spare
                return [Move(attempt.uid, state.columns.worker_of[row], devices, candidate.variant)]
        return []

    def _to_anothers(
        self, attempt: Attempt, taken: dict[int, Spare], may_go: Callable[[Attempt], bool]
    ) -> list[Move]:
        """Into the place of another that asks for as many cards and less of the rest, and takes this one's place."""
        state, ask = self._state, self._state.ask(attempt)
        home_row = state.columns.row_of[attempt.worker]
        home = taken.get(home_row)
        if home is None or home.pool != ask.pool or home_row in self._rooms.guards:
            return []  # what is kept there for others is not taken off what stays beside the claim
        cpu, memory = self._idle
        for other in self._lightest(ask):
            row, less = state.columns.row_of[other.worker], state.ask(other)
            if (
                cpu[row] + less.cpu_milli < ask.cpu_milli
                or memory[row] + less.memory_bytes < ask.memory_bytes
            ):
                continue
            if row in taken or row in self._rooms.guards or not may_go(other):
                continue
            moves = self._exchange(attempt, other, taken, home_row, row)
            if moves:
                return moves
        return []

    def _exchange(
        self, attempt: Attempt, other: Attempt, taken: dict[int, Spare], home_row: int, row: int
    ) -> list[Move]:
        """Both moves, where each has room in the other's place."""
        state, home = self._state, taken[home_row]
        ask, less = state.ask(attempt), state.ask(other)
        offer = state.columns.get("offer", home_row)
        devices = home.cards_for(less) if self._rooms.class_mask(less)[offer] else None
        if devices is None or not self._rooms.class_mask(ask)[state.columns.get("offer", row)]:
            return []
        if not (state.columns.get("open", row) and state.columns.get("open", home_row)):
            return []
        spare = self._spare(row, ask, (other,))
        there = spare.cards_for(ask)
        if there is None:
            return []
        home.take(less, devices)
        spare.take(ask, there)
        taken[row] = spare
        return [
            Move(attempt.uid, other.worker, there, attempt.variant),
            Move(other.uid, attempt.worker, devices, other.variant),
        ]

    def _spare(self, row: int, ask: Ask, leaving: Sequence[Attempt]) -> Spare:
        owed = self._rooms.owed.get(row, ())
        spare = Spare(self._state, self._rooms.room(row, ask.pool), ask.pool, leaving, owed)
        spare.slots = min(spare.slots, self._rooms.left(row).credit)
        return spare

    @property
    def _idle(self) -> tuple[list[int], list[int]]:
        """Cores and memory idle on each worker when the pass began."""
        if self._free is None:
            self._free = self._rooms.free("cpu").tolist(), self._rooms.free("mem").tolist()
        return self._free

    def _lightest(self, than: Ask) -> Iterator[Attempt]:
        """Those who ask for the same cards and less of the rest, the fewest cores first."""
        if self._by_cards is None:
            self._by_cards = {}
            for uids in self._state.held.values():
                for attempt in map(self._state.attempts.__getitem__, uids):
                    ask = self._state.ask(attempt)
                    self._by_cards.setdefault((ask.gpus, ask.gpu_milli, ask.pool), []).append(attempt)
            for peers in self._by_cards.values():
                peers.sort(key=lambda one: (self._state.ask(one).cpu_milli, one.fence))
        for attempt in self._by_cards.get((than.gpus, than.gpu_milli, than.pool), ()):
            ask = self._state.ask(attempt)
            if ask.cpu_milli > than.cpu_milli:
                return
            if _is_lighter(ask, than):
                yield attempt


def _is_lighter(ask: Ask, than: Ask) -> bool:
    """Whether one asks for no more cores and memory than another, and for less of one of them."""
    if ask.resources:
        return False
    cpu, memory = than.cpu_milli - ask.cpu_milli, than.memory_bytes - ask.memory_bytes
    return cpu >= 0 and memory >= 0 and cpu + memory > 0


def _beside(state: State, rooms: Rooms, claim: Claim) -> Spare:
    """What stays idle on a worker beside a claim once those have left it who are to."""
    room, owed = rooms.room(claim.row, claim.ask.pool), rooms.owed.get(claim.row, ())
    spare = Spare(state, room, claim.ask.pool, claim.victims, owed)
    spare.take(claim.ask, claim.devices)
    spare.slots = min(spare.slots, rooms.left(claim.row).credit)
    return spare
