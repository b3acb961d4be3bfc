"""The one reader of jobs, tasks, attempts, results and keys: memory first, else the row, and inside a turn no store.

Memory has everything that goes on, and keeps what has ended until its row is written (`engine.projection`): so one of
the two always has it, and memory is never the older one. A turn may not wait for a store. What it may need is fetched
right before it, for all of its requests in one go (`Request.wants`). A request that finds a row missing all the same is
put back (`RowsWanted`), and what it asked for is fetched before the next turn.

Why a row that was fetched before the turn is still true inside it: between the two nothing runs that lets go of
anything. Memory lets go of what has ended between two turns only, before the rows of the next one are fetched; a row
of something that memory has let go never changes; and what a turn brings itself is in memory, or is handed out as
`fresh`, and comes before any row. A sweep may take a row away meanwhile: then it was there a moment ago, as if the
request had come sooner. Nothing that was fetched lives longer than one turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, Task
from dray.hub.store.base import KeyRow, ResultsChunk, Store

T = TypeVar("T")
Made = TypeVar("Made")
# So many rows the loop reads itself, right before a turn: a thread would take longer to wake than they take.
FEW_ROWS = 32


class RowKey(NamedTuple):
    """What to read of a store: the name of its method, and what it is asked with."""

    find: str
    args: tuple[Any, ...]


class Reader(Protocol):
    """Whoever has a state to look at: an engine, or one that follows another hub's."""

    async def read(self, look: Callable[[State], T], *wants: RowKey) -> T: ...
    async def ask(self, look: Callable[[State], T], *wants: RowKey) -> T: ...
    async def settle(self) -> None: ...


class RowsWanted(BaseException):
    """A turn needs rows that were not fetched for it. Not an error, and nobody who handles errors may stop it."""

    def __init__(self, keys: Sequence[RowKey]) -> None:
        super().__init__(f"{len(keys)} rows are wanted, first {keys[0]}")
        self.keys = keys


def job_row(job_id: str) -> RowKey:
    """A job, unless memory has it."""
    return RowKey("find_job", (job_id,))


def attempt_row(uid: str) -> RowKey:
    """An attempt, unless memory has it."""
    return RowKey("find_attempt", (uid,))


def newest_row(worker: str, job_id: str, index: int) -> RowKey:
    """The last attempt of a task on one worker."""
    return RowKey("newest_attempt", (worker, job_id, index))


def key_row(user: str, key: str) -> RowKey:
    """An idempotency key."""
    return RowKey("find_key", (user, key))


_IN_MEMORY: dict[str, Callable[[State, tuple[Any, ...]], bool]] = {
    "find_job": lambda state, args: args[0] in state.jobs,
    "find_task": lambda state, args: args in state.tasks,
    "find_attempt": lambda state, args: args[0] in state.attempts,
}
# How many rows one of these may come to, at most.
_SPANS: dict[str, Callable[[tuple[Any, ...]], int]] = {
    "find_tasks": lambda args: int(args[2]),
    "find_results": lambda args: int(args[2] - args[1]),
    "find_attempts": lambda args: FEW_ROWS if args[1] is None else 1,
}


class Rows:
    """Reads one hub's records. While a turn is decided only what was fetched for it is to be had of the store."""

    def __init__(self, state: State, store: Store) -> None:
        self.state, self._store, self._guard = state, store, store.guard
        self._fetched: dict[RowKey, Any] = {}

    def job(self, job_id: str) -> Job | None:
        """A job, whether it goes on or has ended."""
        found: Job | None = self.state.jobs.get(job_id) or self._row("find_job", job_id)
        return found

    def task(self, job_id: str, index: int) -> Task | None:
        """A task, if it has a record."""
        found: Task | None = self.state.tasks.get((job_id, index)) or self._row("find_task", job_id, index)
        return found

    def attempt(self, uid: str) -> Attempt | None:
        """An attempt by its uid."""
        found: Attempt | None = self.state.attempts.get(uid) or self._row("find_attempt", uid)
        return found

    def newest_attempt(self, worker: str, job_id: str, index: int) -> Attempt | None:
        """The last attempt of a task on one worker, of those that have rows."""
        found: Attempt | None = self._row("newest_attempt", worker, job_id, index)
        return found

    def attempts(self, job_id: str, index: int | None) -> list[Attempt]:
        """The attempts of a task, or of a whole job, that have rows; memory may know later ones."""
        found: list[Attempt] = self._row("find_attempts", job_id, index)
        return found

    def tasks(self, job_id: str, first: int, count: int, states: tuple[str, ...] = ()) -> list[Task]:
        """At most `count` tasks from an index on that have rows; memory may know them better."""
        found: list[Task] = self._row("find_tasks", job_id, first - 1, count, states)
        return found

    def calls(self, job_id: str, first: int, end: int) -> tuple[list[ResultsChunk], list[Task]]:
        """What rows have of the calls `first` to `end - 1`: chunks that may hold their results, other than those of the
        turn under way, and their own records where they had trouble.

        Not bounded by how many calls the job has: that grows, and what was fetched is found by what was asked for.
        """
        asked = (
            RowKey("find_results", (job_id, first, end)),
            RowKey("find_tasks", (job_id, first - 1, end - first, ())),
        )
        chunks, tasks = self.each(lambda key: self._row(key.find, *key.args), asked)
        return chunks, tasks

    def key(self, user: str, key: str) -> KeyRow | None:
        """What the first request under an idempotency key made."""
        found: KeyRow | None = self._row("find_key", user, key)
        return found

    def each(self, make: Callable[[T], Made], items: Iterable[T]) -> list[Made]:
        """Make something of each item; all of them say what rows they miss, not only the first that misses one."""
        made: list[Made] = []
        wanted: list[RowKey] = []
        for item in items:
            try:
                made.append(make(item))
            except RowsWanted as missed:
                wanted += missed.keys
        if wanted:
            raise RowsWanted(wanted)
        return made

    def _row(self, find: str, *args: Any) -> Any:
        if not self._guard.closed:
            return getattr(self._store, find)(*args)
        key = RowKey(find, args)
        try:
            return self._fetched[key]
        except KeyError:
            raise RowsWanted((key,)) from None

    # --- before and around a turn -------------------------------------------------------------------------------------

    def missing(self, wanted: Iterable[RowKey]) -> list[RowKey]:
        """Those of the rows that memory does not stand in for."""
        state, known = self.state, _IN_MEMORY
        return [
            key
            for key in dict.fromkeys(wanted)
            if not (key.find in known and known[key.find](state, key.args))
        ]

    def read(self, keys: Iterable[RowKey]) -> None:
        """Read rows for the next turn, here and now."""
        store = self._store
        self._fetched = {key: getattr(store, key.find)(*key.args) for key in keys}

    async def fetch(self, wanted: Iterable[RowKey]) -> None:
        """Read rows for the next turn: few of them here, many on a thread; those of a server all at once."""
        keys = self.missing(wanted)
        if (remote := self._store.remote) is not None:
            found = await asyncio.wrap_future(remote.find_soon(keys)) if keys else []
            self._fetched = dict(zip(keys, found, strict=True))
        elif sum(_SPANS[key.find](key.args) if key.find in _SPANS else 1 for key in keys) > FEW_ROWS:
            await asyncio.to_thread(self.read, keys)
        else:
            self.read(keys)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """While a turn is decided the store is closed to this thread, whoever asks it; afterwards nothing is kept."""
        self._guard.close()
        try:
            yield
        finally:
            self._guard.open()
            self._fetched = {}
