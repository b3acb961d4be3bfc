"""Workers as rows of a few numbers, kept while somebody looks, with when each of them changed.

All who look share one board: a row is made anew where the columns of the core say that something changed, so that
neither a second reader nor a worker that idles costs anything. Nothing here is anybody's alone; names of users are
left out or told by whoever shows a row. Empty after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.records.worker import why_not_ready
from dray.core.scheduling.claims.reservations import end_ms
from dray.hub.answers.slices import work_off
from dray.hub.engine.engine import Engine

STATES = ("offline", "quarantined", "draining", "not_ready", "busy", "ready")
HERE = range(2, len(STATES))
STEP_ROWS = 64
SLICE_S = 0.0015
# Signs of use change no room: who uses what is looked at anew that often.
USES_MS = 5_000
# A card that was idle for so long is told as held and idle.
IDLE_S = 600.0
KEPT_GONE = 4096


class Row(NamedTuple):
    """One worker. `state` is a place in `STATES`; `held` are milli-GPUs; `free_ms`: when all that it runs is over by
    its limits, in hub time (0: it runs nothing, -1: nobody knows). `used`: how busy its held cards are, of 1,000; -1
    where nobody could look. `idle`: so many of them were idle for ten minutes. `user` and `queue` are those of the
    task that holds most cards.
    """

    id: str
    kind: str
    state: int
    gpus: int
    held: int
    cpu: int
    cpu_used: int
    tasks: int
    free_ms: int
    used: int
    idle: int
    user: str
    queue: str


class Totals(msgspec.Struct):
    """Sums over the rows; of workers that are not here only their number."""

    workers: dict[str, int]
    gpus: int = 0
    held: int = 0
    cpu: int = 0
    cpu_used: int = 0
    tasks: int = 0
    idle: int = 0

    def add(self, row: Row, sign: int) -> None:
        self.workers[STATES[row.state]] += sign
        if row.state in HERE:
            self.gpus += sign * row.gpus
            self.held += sign * row.held
            self.cpu += sign * row.cpu
            self.cpu_used += sign * row.cpu_used
            self.tasks += sign * row.tasks
            self.idle += sign * row.idle


class Change(NamedTuple):
    """When a row changed last: in which look of the board, and in which turn of the hub."""

    look: int
    turn: int


class Board:
    """The rows of one hub. `changed` has the ids of workers in the order of their last change, those gone too."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read = -1
        self._uses_ms = 0
        self._ids: dict[int, str] = {}
        self._gone: dict[str, None] = {}
        self._turn = asyncio.Lock()
        self.rows: dict[str, Row] = {}
        self.changed: dict[str, Change] = {}
        self.totals = Totals(dict.fromkeys(STATES, 0))
        # The look that is under way or was last, and the last that came to its end; `since`: the turn from which on it
        # knows all that changed.
        self.look = self.done = 0
        self.since = NEVER

    async def refresh(self) -> None:
        """Bring the rows in line with the last commit."""
        async with self._turn:
            if self._read == self._engine.state.columns.changes_read and not self._uses_due:
                return
            self.look += 1
            if self._read < 0:
                self.since = self._engine.seq
            await work_off(self._engine, self._steps, SLICE_S)
            self.done = self.look

    @property
    def _uses_due(self) -> bool:
        return bool(self._engine.state.uses) and self._engine.clock_ms() - self._uses_ms >= USES_MS

    def _steps(self, state: State) -> Iterator[None]:
        columns = state.columns
        changes = columns.changes_since(self._read) if self._read >= 0 else None
        numbers = list(dict.fromkeys(changes) if changes is not None else range(columns.count))
        self._read = columns.changes_read
        if self._uses_due:
            now_ms, last_ms = self._engine.clock_ms(), self._uses_ms
            self._uses_ms = now_ms
            uses = list(state.uses.items())
            for first in range(0, len(uses), 1024):
                yield None
                for uid, use in uses[first : first + 1024]:
                    attempt = state.attempts.get(uid) if use.at_ms >= last_ms else None
                    if attempt is not None and attempt.worker in columns.row_of:
                        numbers.append(columns.row_of[attempt.worker])
        for first in range(0, len(numbers), STEP_ROWS):
            yield None
            for number in numbers[first : first + STEP_ROWS]:
                self._take(state, number)
        yield None

    def _take(self, state: State, number: int) -> None:
        name, before = state.columns.worker_of[number], self._ids.get(number)
        if before is not None and before != name:
            self._drop(before)
        if not name:
            self._ids.pop(number, None)
            return
        self._ids[number] = name
        row, old = look_at(state, name, number), self.rows.get(name)
        if row == old:
            return
        if old is not None:
            self.totals.add(old, -1)
        self.totals.add(row, 1)
        self.rows[name] = row
        self._gone.pop(name, None)
        self._note(name)

    def _drop(self, name: str) -> None:
        row = self.rows.pop(name, None)
        if row is not None:
            self.totals.add(row, -1)
            self._gone[name] = None
            self._note(name)
            if len(self._gone) > KEPT_GONE:
                # Whoever saw it last that long ago begins anew.
                oldest = next(iter(self._gone))
                del self._gone[oldest]
                self.since = max(self.since, self.changed.pop(oldest).turn + 1)

    def _note(self, name: str) -> None:
        self.changed.pop(name, None)
        self.changed[name] = Change(self.look, self._engine.seq)

    def after(self, look: int) -> list[str]:
        """The workers that changed after a look, the last ones first."""
        found = []
        for name, change in reversed(self.changed.items()):
            if change.look <= look:
                break
            found.append(name)
        return found

    def look_before(self, turn: int) -> int:
        """The look after which everything is that changed in a turn or later."""
        look = self.done
        for change in reversed(self.changed.values()):
            if change.turn < turn:
                break
            look = min(look, change.look - 1)
        return look


def look_at(state: State, name: str, number: int) -> Row:
    """Make the row of one worker."""
    columns, worker, presence = state.columns, state.workers[name], state.presence[name]
    cells, capability = columns.cells, worker.capability
    held = state.held.get(name, ())
    ends, most, shares, seen, idle, top = 0, -1, 0.0, 0, 0, ""
    queue = ""
    for uid in held:
        attempt = state.attempts[uid]
        ends = max(ends, end_ms(state, attempt))
        if (cards := len(attempt.devices)) > most:
            job, most = state.jobs[attempt.job_id], cards
            top, queue = job.user, job.queue
        use = state.uses.get(uid) if cards else None
        for card in use.cards if use is not None else ():
            shares += card.share
            seen += 1
            idle += card.idle_s >= IDLE_S
    slots = presence.slots if presence.session else worker.slots
    if not presence.session or worker.silent:
        kind = 0
    elif worker.draining or worker.quarantined:
        kind = 1 if worker.faults or worker.quarantined else 2
    elif (
        presence.suspect or presence.paused or (presence.not_ready and why_not_ready(presence, state.now_ms))
    ):
        kind = 3
    else:
        kind = 4 if len(held) >= max(slots.batch_total + slots.service_total, 1) else 5
    free_ms = ends and (-1 if ends >= NEVER else ends)
    return Row(
        name,
        f"{capability.gpu_type or 'GPU'} ×{capability.gpu_count}" if capability.gpu_count else "cpu",
        kind,
        len(columns.cards[number]),
        sum(columns.card_used[number].values()),
        cells["total_cpu"][number],
        cells["used_cpu"][number],
        len(held),
        free_ms,
        round(1000 * shares / seen) if seen else -1,
        idle,
        top,
        queue,
    )
