"""Who wants to hear of which job, and what of it is told: rows for the client channel, built from committed notes.

Rows are built when a turn's notes are handed out, which is the one moment when memory equals the last commit: building
them later, when a socket has room, could show what a failing commit takes back. A row carries the number of its turn,
because the answer to `watch` is built inside a turn and may reach its reader after what the same turn pushed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.hub.documents.records import Document, task_counts

SILENT = ("job_submitted", "cancel_requested")


class Watcher(Protocol):
    """One reader of rows. `last` marks the row after which nothing more comes for that job."""

    def tell(self, job_id: str, row: Document, last: bool) -> None: ...


class Watches:
    """Watchers by job. `last_row` builds the row of a job that has ended, with its whole document."""

    def __init__(
        self,
        state: State,
        turn: Callable[[], int],
        last_row: Callable[[State, Job], Document],
    ) -> None:
        self._state, self._turn, self._last_row = state, turn, last_row
        self._watchers: dict[str, list[Watcher]] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, job_id: str, watcher: Watcher) -> None:
        """Tell `watcher` of this job from now on; once, however often it is asked for."""
        known = self._watchers.setdefault(job_id, [])
        if watcher not in known:
            known.append(watcher)

    def drop(self, job_id: str, watcher: Watcher) -> None:
        """Tell `watcher` no more of this job."""
        known = self._watchers.get(job_id, [])
        if watcher in known:
            known.remove(watcher)
            if not known:
                del self._watchers[job_id]

    def hear(self, note: Note) -> None:
        """Pass a committed note on as a row."""
        watchers = self._watchers.get(note.job_id)
        if watchers is None or note.type in SILENT:
            return
        job = self._state.jobs.get(note.job_id)
        last = note.type == "job_ended"
        # A job that ended within this turn has its last note still to come: one document is enough.
        if job is None or (job.state.final and not last):
            return
        row = self.row(self._state, job)
        if last:
            del self._watchers[note.job_id]
        for watcher in watchers:
            watcher.tell(note.job_id, row, last)

    def row(self, state: State, job: Job) -> Document:
        """Show a job in a few fields, or with its document once it has ended."""
        row: Document = {"id": job.id, "state": job.state.value, "turn": self._turn()}
        if job.numbered:
            row["tasks"] = task_counts(job)
        if job.state.final:
            return row | self._last_row(state, job)
        task = state.tasks.get((job.id, 0))
        attempt = state.attempts.get(task.current) if task is not None and not job.numbered else None
        row["phase"] = attempt.phase.value if attempt is not None else "queued" if job.waiting else ""
        return row
