"""The one reader of jobs, tasks and attempts by name: memory first, else the row.

Memory has everything that goes on, and keeps what has ended until its row is written (`engine.projection`): so one of
the two always has it, and memory is never the older one.
"""

from __future__ import annotations

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, Task
from dray.hub.store.base import KeyRow, ResultsChunk, Store


class Rows:
    """Reads one hub's records."""

    def __init__(self, state: State, store: Store) -> None:
        self.state, self._store = state, store

    def job(self, job_id: str) -> Job | None:
        """A job, whether it goes on or has ended."""
        return self.state.jobs.get(job_id) or self._store.find_job(job_id)

    def task(self, job_id: str, index: int) -> Task | None:
        """A task, if it has a record."""
        return self.state.tasks.get((job_id, index)) or self._store.find_task(job_id, index)

    def attempt(self, uid: str) -> Attempt | None:
        """An attempt by its uid."""
        return self.state.attempts.get(uid) or self._store.find_attempt(uid)

    def newest_attempt(self, worker: str, job_id: str, index: int) -> Attempt | None:
        """The last attempt of a task on one worker, of those that have rows."""
        return self._store.newest_attempt(worker, job_id, index)

    def attempts(self, job_id: str, index: int | None) -> list[Attempt]:
        """The attempts of a task, or of a whole job, that have rows; memory may know later ones."""
        return self._store.find_attempts(job_id, index)

    def tasks(self, job_id: str, first: int, count: int, states: tuple[str, ...] = ()) -> list[Task]:
        """At most `count` tasks from an index on that have rows; memory may know them better."""
        return self._store.find_tasks(job_id, first - 1, count, states)

    def results(self, job_id: str, first: int, end: int) -> list[ResultsChunk]:
        """The chunks that may hold results of the calls `first` to `end - 1`; not those of the turn under way."""
        return self._store.find_results(job_id, first, end)

    def key(self, user: str, key: str) -> KeyRow | None:
        """What the first request under an idempotency key made."""
        return self._store.find_key(user, key)
