"""What changes, as frames of rows: at most ten in a second, whatever happens meanwhile, and none while nothing does.

One task looks for all readers, while there are any: after a note was committed, else once in a second. A reader is
handed what changed since its last frame when it has room for the next one, so that a slow one gets fewer frames and
never a queue. Its place is a turn of one life of the hub (`TURN.EPOCH`): where it lies in the future, in another life,
or too far back, the reader is told to begin anew (`reset`) and hears what comes from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import WHOLE
from dray.errors import InvalidInput, NotReady, Problem
from dray.hub.access.caller import Caller
from dray.hub.answers.slices import work_off
from dray.hub.decisions.holdings import Holding, holding_steps
from dray.hub.documents.public_feed import FeedEvent
from dray.hub.documents.records import Document, moment, task_counts
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.views.board import SLICE_S, Board
from dray.hub.views.cluster import head, spell_row
from dray.hub.views.sight import sight_of

FRAME_S = 0.1
SIGNALS_S = 1.0
QUEUES_S = 1.0
KEEP_ALIVE_S = 15.0
LINGER_S = 30.0
# A frame has no more rows of workers, and of jobs, than these; of more the page asks anew.
MOST_ROWS, MOST_JOBS = 2_000, 500
KEPT_JOBS = 4_096
VIEWS = ("cluster", "queues", "jobs")
MOST_VIEWS = 32
RESET = "this place is in another life of the hub, in the future, or further back than it remembers: ask anew"
logger = logging.getLogger("dray.hub.views.live")


class FollowViews(NamedTuple):
    """What to hear of, after which place. `jobs`: these alone; of the view `jobs` all."""

    views: tuple[str, ...]
    jobs: tuple[str, ...] = ()
    after: str = ""


def read_views(texts: tuple[str, ...], after: str) -> FollowViews:
    """Read the names of views: `cluster`, `queues`, `jobs`, and `job:ID` for one; none stands for all of them."""
    views, jobs, problems = dict[str, None](), dict[str, None](), list[Problem]()
    for text in texts:
        if text.startswith("job:") and len(text) > 4:
            jobs[text[4:]] = None
        elif text in VIEWS:
            views[text] = None
        else:
            problems.append(
                Problem("views", f"{text[:64]!r} is none: there is {', '.join(VIEWS)} and job:ID")
            )
    if len(views) + len(jobs) > MOST_VIEWS:
        problems.append(Problem("views", f"are {len(views) + len(jobs)}, the most is {MOST_VIEWS}"))
    if problems:
        raise InvalidInput(f"views: {problems[0].what}", problems)
    return FollowViews(tuple(views) if texts else VIEWS, tuple(jobs), after)


class _Place(NamedTuple):
    """In which look something changed, and in which turn."""

    look: int
    turn: int


class _JobAt(NamedTuple):
    """Where a job changed last; `line`: what is said of one that has ended, for it leaves memory soon."""

    look: int
    turn: int
    line: Document | None = None


class _Seen(NamedTuple):
    """After which looks a reader has seen nothing: of this view, and of the board."""

    look: int
    board: int


class LiveView:
    """One hub's frames."""

    def __init__(self, engine: Engine, clock: HubClock, board: Board) -> None:
        self._engine, self._clock, self._board = engine, clock, board
        self._readers = self._queue_readers = 0
        self._work: asyncio.Task[None] | None = None
        self._noted, self._bell = asyncio.Event(), asyncio.Event()
        self._looks = 0
        # By id, in the order of their last change.
        self._jobs: dict[str, _JobAt] = {}
        self._forgot = _JobAt(-1, -1)
        self._queues: dict[str, tuple[Document, _Place]] = {}
        self._head: tuple[Document, _Place] = ({}, _Place(0, 0))
        self._since = -1
        self._queues_at_s = self._left_s = float("-inf")
        self.closed = False

    def hear(self, note: Note) -> None:
        """Hear of what was committed."""
        if self._work is None:
            return
        if note.job_id:
            self._jobs.pop(note.job_id, None)
            job = self._engine.state.jobs.get(note.job_id) if note.type == "job_ended" else None
            line = None if job is None else _line_of(job)
            self._jobs[note.job_id] = _JobAt(self._looks + 1, self._engine.seq, line)
            if len(self._jobs) > KEPT_JOBS:
                self._forgot = self._jobs.pop(next(iter(self._jobs)))
        self._noted.set()

    def close(self) -> None:
        """End every reader."""
        self.closed = True
        if self._work is not None:
            self._work.cancel()
        self._bell.set()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def follow(self, caller: Caller, ask: FollowViews) -> AsyncIterator[FeedEvent | None]:
        """Give frames as they come; None from time to time while nothing does."""
        self._readers += 1
        self._queue_readers += "queues" in ask.views
        try:
            await self._begin()
            seen = self._find_place(ask.after)
            if seen is None:
                yield self._event("reset", {"why": RESET})
                seen = _Seen(self._looks, self._board.done)
            elif not ask.after:
                yield self._event("ready", {})
            while not self.closed:
                bell, now = self._bell, _Seen(self._looks, self._board.done)
                if data := await self._frame(caller, ask, seen):
                    yield self._event("rows", data)
                seen = now
                if bell is not self._bell:
                    await asyncio.sleep(FRAME_S)
                    continue
                try:
                    await asyncio.wait_for(bell.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield None
        except NotReady:
            return  # the hub stops, and this with it: its reader asks again
        finally:
            self._readers -= 1
            self._queue_readers -= "queues" in ask.views
            self._left_s = asyncio.get_running_loop().time()

    def _find_place(self, after: str) -> _Seen | None:
        """After which looks a reader has seen nothing; None where nobody can tell."""
        if not after:
            return _Seen(self._looks, self._board.done)
        turn, epoch = (int(part) for part in after.split("."))
        first = max(self._since, self._board.since, self._forgot.turn + 1)
        if epoch != self._engine.state.counters.epoch or not first <= turn <= self._engine.seq:
            return None
        places: list[_Place | _JobAt] = [
            *self._jobs.values(),
            *(at for _, at in self._queues.values()),
            self._head[1],
        ]
        look = min([self._looks, *(at.look - 1 for at in places if at.turn >= turn)])
        return _Seen(look, self._board.look_before(turn))

    async def _frame(self, caller: Caller, ask: FollowViews, seen: _Seen) -> Document:
        """What changed since, as far as a frame goes; the state is read as of the last commit."""
        names = self._board.after(seen.board) if "cluster" in ask.views else []
        jobs, more_jobs = self._changed_jobs(ask, seen.look)
        shown, at = self._head
        is_new = "cluster" in ask.views and (bool(names) or at.look > seen.look)
        data: Document = {}
        if "queues" in ask.views:
            changed = [row for row, place in self._queues.values() if place.look > seen.look]
            data |= {"queues": changed} if changed else {}
        if not (is_new or jobs):
            return data

        def read(state: State) -> Document:
            found: Document = {}
            if is_new:
                sight, now_ms, rows = sight_of(state, caller), self._clock.read().now_ms, self._board.rows
                some = names[:MOST_ROWS]
                found["cluster"] = {
                    **shown,
                    "rows": [spell_row(rows[name], sight, now_ms) for name in some if name in rows],
                    "gone": [name for name in some if name not in rows],
                    "more": len(names) > MOST_ROWS,
                }
            lines = [line for job_id in jobs if (line := self._job_line(state, caller, job_id))]
            if lines or more_jobs:
                found["jobs"] = {"rows": lines, "more": more_jobs}
            return found

        return {**await self._engine.ask(read), **data}

    def _changed_jobs(self, ask: FollowViews, look: int) -> tuple[list[str], bool]:
        if "jobs" not in ask.views:
            known = ((job_id, self._jobs.get(job_id)) for job_id in ask.jobs)
            return [job_id for job_id, at in known if at is not None and at.look > look], False
        found: list[str] = []
        for job_id, at in reversed(self._jobs.items()):
            if at.look <= look or len(found) > MOST_JOBS:
                break
            found.append(job_id)
        return found[:MOST_JOBS], len(found) > MOST_JOBS or look < self._forgot.look

    def _job_line(self, state: State, caller: Caller, job_id: str) -> Document | None:
        job, at = state.jobs.get(job_id), self._jobs.get(job_id)
        line = _line_of(job) if job is not None else at.line if at is not None else None
        return line if line is not None and caller.sees(line["user"]) else None

    def _event(self, kind: str, data: Document) -> FeedEvent:
        place = f"{self._engine.seq}.{self._engine.state.counters.epoch}"
        return FeedEvent(place, kind, {"at": moment(self._clock.read().at_ms), **data})

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """The first reader has everything looked at once, and then again and again."""
        if self._work is None:
            self._work = asyncio.create_task(self._run())
            self._since = self._engine.seq
            await self._look()

    async def _run(self) -> None:
        # Who was cut off is back soon, and goes on where it was.
        while self._readers or asyncio.get_running_loop().time() - self._left_s < LINGER_S:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._noted.wait(), SIGNALS_S)
            self._noted.clear()
            try:
                await self._look()
            except NotReady:
                break
            except Exception:
                logger.exception("a look at what changed failed; the next one tries again")
            await asyncio.sleep(FRAME_S)
        self._work = None
        self._jobs.clear()

    async def _look(self) -> None:
        """Find out what changed, and wake those who wait for it."""
        done, place = self._board.done, _Place(self._looks + 1, self._engine.seq)
        await self._board.refresh()
        moved = bool(self._board.after(done))
        shown = await self._engine.ask(lambda state: head(state, self._board))
        if shown != self._head[0]:
            self._head, moved = (shown, place), True
        now_s = asyncio.get_running_loop().time()
        if self._queue_readers and now_s - self._queues_at_s >= QUEUES_S:
            moved = await self._look_at_queues(place) or moved
            # One that takes long is taken less often.
            self._queues_at_s = now_s + 20 * (asyncio.get_running_loop().time() - now_s)
        if moved or (self._jobs and next(reversed(self._jobs.values())).look == place.look):
            self._looks = place.look
            bell, self._bell = self._bell, asyncio.Event()
            bell.set()

    async def _look_at_queues(self, place: _Place) -> bool:
        held = (await work_off(self._engine, holding_steps, SLICE_S))["queue"]
        depth = await self._engine.ask(lambda state: dict(state.backlog.depth))
        moved = False
        for name in sorted({*held, *depth, *self._queues}):
            holding = held.get(name, Holding())
            gpus = holding.gpu_milli / WHOLE
            row = {"name": name, "waiting": depth.get(name, 0), "running": holding.tasks, "gpus_held": gpus}
            if name not in self._queues or self._queues[name][0] != row:
                self._queues[name] = row, place
                moved = True
        return moved


def _line_of(job: Job) -> Document:
    """A job in a few words."""
    named = {"id": job.id, "name": job.name, "user": job.user, "queue": job.queue}
    return {**named, "state": job.state.value, "held": job.held, "tasks": task_counts(job)}
