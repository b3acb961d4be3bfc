"""Who had, has and gets which card when: bars on workers, from the past over now into what is foreseen.

The past is read from rows of attempts by worker, what runs from memory, what is kept from reservations, and what comes
from the forecaster's middle run. A few workers at a time, as a page shows them. Times are wall time in
milliseconds: a bar is a handful of numbers, and there are thousands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dray.core.lifecycle.state.state import NEVER, Reservation, State
from dray.core.model.records.records import Attempt
from dray.core.scheduling.claims.reservations import end_ms
from dray.core.scheduling.passes.run_forward import Placed
from dray.errors import NotFound
from dray.hub.access.caller import Caller
from dray.hub.answers.estimates import Forecasts
from dray.hub.answers.slices import work_off
from dray.hub.decisions.commands import owned
from dray.hub.documents.records import Document, moment
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.rows import Rows, job_row
from dray.hub.store.base import PastQuery, PastRow, Store
from dray.hub.views.board import SLICE_S, Board
from dray.hub.views.sight import Sight, sight_of
from dray.hub.views.spans import Span

DAY_MS = 86_400_000
AHEAD_MS = 7 * DAY_MS
MOST_BARS = 20_000
STEP_BARS = 256
# What is named of others' work.
STRANGE = ("", -1, "")
BARS_OF_WORKER = 1_000
# Who looked at a job finds the workers that it was on among so many tries of it.
TRIES_OF_JOB = 1_000


class ShowTimeline(NamedTuple):
    """From when to when, on which workers: these, those of a kind, those that a job was on, or all; by the page."""

    since: str = ""
    until: str = ""
    workers: tuple[str, ...] = ()
    kind: str = ""
    job: str = ""
    limit: int = 20
    cursor: str = ""


class _Sheet:
    """The bars of one answer: card (-1: none), begin, end (0: nobody knows), state, user, job, task, name."""

    def __init__(self, names: Sequence[str], span: Span) -> None:
        self.bars: dict[str, list[list[Any]]] = {name: [] for name in names}
        self.span, self.count, self.cut = span, 0, False

    def add(self, worker: str, cards: Sequence[int], begin_ms: int, end_ms: int, *words: Any) -> None:
        """Draw one bar on each of these cards, as far as it lies within the span."""
        if (
            worker not in self.bars
            or begin_ms >= self.span.until_ms
            or (end_ms and end_ms < self.span.since_ms)
        ):
            return
        for card in cards or (-1,):
            if self.count >= MOST_BARS:
                self.cut = True
                return
            self.count += 1
            self.bars[worker].append([card, begin_ms, end_ms, *words])


class TimelineView:
    """One hub's timeline."""

    def __init__(
        self, engine: Engine, clock: HubClock, store: Store, rows: Rows, board: Board, forecasts: Forecasts
    ) -> None:
        self._engine, self._clock, self._store, self._rows = engine, clock, store, rows
        self._board, self._forecasts = board, forecasts

    async def show(self, caller: Caller, ask: ShowTimeline, span: Span) -> Document:
        """Bars of a page of workers."""
        await self._board.refresh()
        await self._engine.settle()
        names = await self._choose(caller, ask)
        shown, more = names[: ask.limit], len(names) > ask.limit
        self._forecasts.want()
        sight = await self._engine.ask(lambda state: sight_of(state, caller))
        sheet = _Sheet(shown, span)
        # Off the loop: some thousand records are read.
        await asyncio.to_thread(self._draw_past, sheet, sight)
        answer = await work_off(self._engine, lambda state: self._steps(state, sheet, sight), SLICE_S)
        return answer | {"next_cursor": shown[-1] if more and shown else None}

    def _steps(self, state: State, sheet: _Sheet, sight: Sight) -> Iterator[Document]:
        answer: Document = {}
        now = self._clock.read()
        offset_ms = now.at_ms - now.now_ms
        for name in sheet.bars:
            yield answer
            for uid in list(state.held.get(name, ())):
                self._draw_live(sheet, sight, state, uid, offset_ms)
        for kept in list(state.reservations.values()):
            yield answer
            _draw_kept(sheet, sight, state, kept, offset_ms)
        placed = self._forecasts.foresight.placed
        for first in range(0, len(placed), STEP_BARS):
            yield answer
            for one in placed[first : first + STEP_BARS]:
                self._draw_foreseen(sheet, sight, state, one, offset_ms)
        rows = self._board.rows
        yield {
            "from": moment(sheet.span.since_ms),
            "to": moment(sheet.span.until_ms),
            "now_ms": now.at_ms,
            "headline": self._say(state, now.now_ms, offset_ms),
            "rows": [
                {
                    "worker": name,
                    "kind": rows[name].kind if name in rows else "",
                    "cards": rows[name].gpus if name in rows else 0,
                    "bars": bars,
                }
                for name, bars in sheet.bars.items()
            ],
            "cut": sheet.cut,
        }

    async def _choose(self, caller: Caller, ask: ShowTimeline) -> list[str]:
        """The workers of the page, and one more where there are more."""
        rows = self._board.rows
        if ask.job:
            job = await self._engine.read(
                lambda state: owned(caller, self._rows.job(ask.job), ask.job), job_row(ask.job)
            )
            query = PastQuery(0, NEVER, job_id=job.id, limit=TRIES_OF_JOB)
            tried = await asyncio.to_thread(self._store.past_attempts, query)
            live = await self._engine.ask(
                lambda state: [state.attempts[uid].worker for uid in state.live_of.get(job.id, ())]
            )
            named = sorted({*live, *(row.attempt.worker for row in tried)})
        elif ask.workers:
            unknown = [name for name in ask.workers if name not in rows]
            if unknown:
                raise NotFound(f"there is no worker {unknown[0]!r}: see `dray worker ls`")
            named = sorted(ask.workers)
        else:
            kind = ask.kind
            named = sorted(
                row.id
                for row in rows.values()
                if not kind or row.kind == kind or row.kind.startswith(f"{kind} ")
            )
        return [name for name in named if name > ask.cursor][: ask.limit + 1]

    def _draw_past(self, sheet: _Sheet, sight: Sight) -> None:
        for name in sheet.bars:
            asked = PastQuery(sheet.span.since_ms, sheet.span.until_ms, worker=name, limit=BARS_OF_WORKER)
            for row in self._store.past_attempts(asked):
                _draw_past(sheet, sight, row)

    def _draw_live(self, sheet: _Sheet, sight: Sight, state: State, uid: str, offset_ms: int) -> None:
        attempt = state.attempts[uid]
        job, ends_ms = state.jobs[attempt.job_id], end_ms(state, attempt)
        foreseen = self._forecasts.foresight.ends.get(uid)
        if foreseen is not None:
            ends_ms = min(ends_ms, self._forecasts.foreseen_ms + foreseen)
        own = sight.sees(job.user)
        sheet.add(
            attempt.worker,
            attempt.devices,
            attempt.started_at_ms or attempt.assigned_at_ms,
            ends_ms + offset_ms if ends_ms < NEVER else 0,
            "runs",
            sight.name(job.user),
            *((job.id, attempt.index, job.name) if own else STRANGE),
        )

    def _draw_foreseen(self, sheet: _Sheet, sight: Sight, state: State, one: Placed, offset_ms: int) -> None:
        job = state.jobs.get(one.job_id)
        if job is None or one.worker not in sheet.bars or _has_begun(state, one.job_id, one.task):
            return
        offset_ms += self._forecasts.foreseen_ms
        own = sight.sees(job.user)
        sheet.add(
            one.worker,
            one.devices,
            one.begin_ms + offset_ms,
            one.end_ms + offset_ms if one.end_ms < NEVER else 0,
            "foreseen",
            sight.name(job.user),
            *((job.id, one.task, job.name) if own else STRANGE),
        )

    def _say(self, state: State, now_ms: int, offset_ms: int) -> str:
        waiting = sum(depth for depth in state.backlog.depth.values() if depth > 0)
        if not waiting:
            return "Nothing waits."
        starts = [one.begin_ms + self._forecasts.foreseen_ms for one in self._forecasts.foresight.placed]
        later = [at_ms for at_ms in starts if at_ms >= now_ms]
        waits = f"{waiting:,} task{' waits' if waiting == 1 else 's wait'}"
        if not later:
            return f"{waits}; no start is foreseen yet."
        at = (moment(min(later) + offset_ms) or "")[11:16]
        return f"{waits}; the next start is foreseen at {at} UTC."


def _has_begun(state: State, job_id: str, index: int) -> bool:
    task = state.tasks.get((job_id, index))
    return task is not None and (bool(task.current) or task.state.final)


def _draw_past(sheet: _Sheet, sight: Sight, row: PastRow) -> None:
    attempt: Attempt = row.attempt
    if not attempt.started_at_ms:
        return
    own = sight.sees(row.user)
    named = (attempt.job_id, attempt.index, row.name) if own else STRANGE
    begin_ms, ended_ms, phase = attempt.started_at_ms, attempt.ended_at_ms, attempt.phase.value
    sheet.add(attempt.worker, attempt.devices, begin_ms, ended_ms, phase, sight.name(row.user), *named)


def _draw_kept(sheet: _Sheet, sight: Sight, state: State, kept: Reservation, offset_ms: int) -> None:
    """Room that is kept for somebody, from when it is thought to be free on."""
    job = state.jobs.get(kept.job_id)
    if job is None:
        return
    length_ms = job.expected_ms or job.limit_ms
    named = (job.id, 0, job.name) if sight.sees(job.user) else STRANGE
    for at_ms, row, _, cards in kept.spots:
        begin_ms = max(at_ms, kept.start_ms) + offset_ms
        last_ms = begin_ms + length_ms if length_ms else 0
        sheet.add(
            state.columns.worker_of[row], cards, begin_ms, last_ms, "kept", sight.name(job.user), *named
        )
