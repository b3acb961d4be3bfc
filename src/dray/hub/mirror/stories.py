"""Events on their way into the streams: each to that of its job's queue, in the order of the feed.

A note comes before the row that tells its job's queue: it waits for that row, or a while. What nobody handed in, since
this hub was not there or too much came at once, is read from the log, as far back as a stream would keep it. Notes of
no job, and of jobs that were over before, go to the stream of the site.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from dray.hub.documents.public_feed import read_notes
from dray.hub.mirror.documents import spell_notes
from dray.hub.mirror.node import Common
from dray.hub.mirror.ports import Notes, Source
from dray.hub.mirror.shadow import Shadow

PATIENCE_S = 5.0
MOST_TURNS, BATCH = 2_000, 200
MOST_HELD = 20_000


class Stories:
    """Used on the mirror's loop alone."""

    def __init__(self, shadow: Shadow, common: Common, source: Source) -> None:
        self._shadow, self._common, self._source = shadow, common, source
        self._held: deque[Notes] = deque(maxlen=MOST_HELD)
        # The turn after which the log is to be read; None: nothing is missing.
        self._missing: int | None = None

    def add(self, notes: Notes) -> None:
        """Take the notes of one more turn."""
        self._held.append(notes)

    def missed(self) -> None:
        """Some were thrown away."""
        self._held.clear()
        self._missing = self._common.told_seq

    async def recall(self, told: bytes | None) -> None:
        """Go on where an earlier writer stopped, if one has told where."""
        if told is not None and told.isdigit() and int(told) and not self._common.told_seq:
            self._missing = int(told)

    def tell(self) -> None:
        """Hand on what may go."""
        while self._held and self._missing is None and self._may_go(self._held[0]):
            self._hand_on(self._held.popleft())

    async def go_on(self) -> None:
        """Read what is missing from the log, then hand on what has come since."""
        while self._missing is not None:
            after = self._missing
            upto = self._held[0].seq if self._held else None
            after = max(after, (upto or self._shadow.seq) - MOST_TURNS)
            try:
                entries = await asyncio.to_thread(self._source.tail, after, BATCH)
            except Exception:  # noqa: BLE001 - a store that is away is asked again with the next turn
                return
            for entry in entries:
                if upto is not None and entry.seq >= upto:
                    entries = []
                    break
                notes = Notes(entry.seq, entry.at_ms, time.monotonic(), read_notes(entry))
                queues = await asyncio.to_thread(self._look_up, notes)
                self._hand_on(notes, queues)
                self._missing = entry.seq
            if len(entries) < BATCH:
                self._missing = None
        self.tell()

    def _look_up(self, notes: Notes) -> dict[str, str]:
        found: dict[str, str] = {}
        for note in notes.notes:
            if note.job_id and note.job_id not in found and self._shadow.queue_of(note.job_id) is None:
                job = self._source.find_job(note.job_id)
                if job is not None:
                    found[note.job_id] = job.queue
        return found

    def _may_go(self, notes: Notes) -> bool:
        if notes.seq <= self._shadow.seq or time.monotonic() - notes.at_s > PATIENCE_S:
            return True
        return all(not note.job_id or self._shadow.queue_of(note.job_id) is not None for note in notes.notes)

    def _hand_on(self, notes: Notes, queues: dict[str, Any] | None = None) -> None:
        shadow = self._shadow
        for job_id, event in spell_notes(notes.seq, notes.at_ms, notes.notes):
            queue = shadow.queue_of(job_id) or (queues or {}).get(job_id) if job_id else None
            group = shadow.site if queue is None else shadow.line(queue, notes.at_s).group
            group.tell(event, notes.at_s)
        self._common.told_seq = max(self._common.told_seq, notes.seq)
