"""What a mirror is fed with: rows as they are written, notes as they are committed, and a store to begin from.

A hub that leads feeds it with what it writes itself; one that follows another may feed it with what it folds. Whoever
feeds never waits: what is handed in goes into a bounded buffer, and where that runs over, everything is read anew.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dray.core.lifecycle.state.effects import Note
from dray.core.model.records.records import Attempt, Job
from dray.core.model.records.worker import Worker
from dray.hub.store.base import LiveRows, LogEntry, Projection

MOST_ROWS = 200_000


class Source(Protocol):
    """Where a mirror begins, and looks up what it missed; asked from any thread."""

    epoch: int

    def live_rows(self) -> LiveRows: ...
    def tail(self, after_seq: int, limit: int = 1000) -> list[LogEntry]: ...
    def find_job(self, job_id: str) -> Job | None: ...


class Rows(NamedTuple):
    """Rows as they stand after turn `seq` of an epoch."""

    epoch: int
    seq: int
    at_s: float
    jobs: Sequence[Job]
    attempts: Sequence[Attempt]
    workers: Sequence[Worker]
    gone_workers: Sequence[str]


class Notes(NamedTuple):
    """What one turn has to tell."""

    seq: int
    at_ms: int
    at_s: float
    notes: Sequence[Note]


class Inbox:
    """Filled by the hub's loop, emptied by the mirror's thread."""

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most_rows = most_rows
        self._items: deque[Rows | Notes] = deque()
        self._held = 0
        self._lock = threading.Lock()
        self._overflowed = False
        self.ring: Callable[[], None] = lambda: None

    def put_rows(self, epoch: int, projection: Projection) -> None:
        """Hand in rows that were written."""
        jobs = [row.job for row in projection.jobs]
        attempts = [row.attempt for row in projection.attempts]
        also = (projection.workers, projection.gone_workers)
        rows = Rows(epoch, projection.applied_seq, time.monotonic(), jobs, attempts, *also)
        self._put(rows, len(jobs) + len(attempts) + len(rows.workers))

    def put_notes(self, seq: int, at_ms: int, notes: Sequence[Note]) -> None:
        """Hand in the notes of a turn that was committed."""
        self._put(Notes(seq, at_ms, time.monotonic(), notes), len(notes))

    def _put(self, item: Rows | Notes, size: int) -> None:
        with self._lock:
            self._held += size + 1
            if self._held > self._most_rows:
                self._items.clear()
                self._held, self._overflowed = 0, True
            else:
                self._items.append(item)
            first = len(self._items) <= 1
        if first:
            self.ring()

    def drain(self) -> tuple[list[Rows | Notes], bool]:
        """Take all that is there, and whether something before it was thrown away."""
        with self._lock:
            items, overflowed = list(self._items), self._overflowed
            self._items.clear()
            self._held, self._overflowed = 0, False
        return items, overflowed
