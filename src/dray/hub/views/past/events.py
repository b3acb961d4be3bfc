"""What happened, by the page: events of the log from one moment to another, of one job, one worker or one kind.

Where a moment lies in the log is found by halves. A page ends at a number of events, or of turns that were looked
through for them: `next_cursor` goes on from there, also where nothing was found so far.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from dray.hub.access.caller import Caller
from dray.hub.documents.public_feed import FeedEvent, parse_position, read_notes, spell_events
from dray.hub.documents.records import Document
from dray.hub.engine.engine import Engine
from dray.hub.store.base import Store
from dray.hub.views.spans import Span

MOST_TURNS = 5_000
PORTION = 200


class ListEvents(NamedTuple):
    """From when to when, and of what; empty fields do not filter."""

    since: str = ""
    until: str = ""
    job: str = ""
    worker: str = ""
    types: tuple[str, ...] = ()
    limit: int = 100
    cursor: str = ""


def is_wanted(event: FeedEvent, job: str, worker: str, types: tuple[str, ...]) -> bool:
    """Whether an event passes the filters."""
    data = event.data
    return (
        (not job or data.get("job_id") == job)
        and (not worker or data.get("worker") == worker)
        and (not types or event.type in types)
    )


class EventsView:
    """One hub's log as pages."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine, self._store = engine, store

    async def show(self, caller: Caller, ask: ListEvents, span: Span) -> Document:
        """Events that a caller may see, oldest first."""
        await self._engine.settle()
        last = self._engine.seq
        # Off the loop: a night of turns may have to be looked through.
        return await asyncio.to_thread(self._read, caller, ask, span, last)

    def _read(self, caller: Caller, ask: ListEvents, span: Span, last: int) -> Document:
        place = parse_position(ask.cursor) if ask.cursor else (self._find_turn(span.since_ms, last), -1)
        owners: dict[str, str] = {}
        found: list[FeedEvent] = []
        seq, looked, is_over = place[0], 0, False
        oldest = self._store.tail(0, 1)
        while not is_over and len(found) < ask.limit and looked < MOST_TURNS:
            entries = self._store.tail(seq - 1, PORTION)
            is_over = not entries
            for entry in entries:
                if entry.at_ms >= span.until_ms:
                    is_over = True
                    break
                looked += 1
                for number, event in enumerate(spell_events(entry.seq, entry.at_ms, read_notes(entry))):
                    if (entry.seq, number) <= place or len(found) >= ask.limit:
                        continue
                    place = (entry.seq, number)
                    if is_wanted(event, ask.job, ask.worker, ask.types) and self._sees(caller, event, owners):
                        found.append(event)
                seq = entry.seq + 1
                if len(found) >= ask.limit:
                    break
        return {
            "events": [{"id": event.id, **event.data} for event in found],
            "cut": bool(oldest) and oldest[0].at_ms > span.since_ms and not ask.cursor,
            "next_cursor": None if is_over else f"{place[0]}.{max(place[1], 0)}",
        }

    def _sees(self, caller: Caller, event: FeedEvent, owners: dict[str, str]) -> bool:
        job_id = event.data.get("job_id", "")
        if not job_id or caller.may("admin"):
            return True
        if job_id not in owners:
            job = self._store.find_job(job_id)
            owners[job_id] = job.user if job is not None else ""
        return caller.sees(owners[job_id])

    def _find_turn(self, at_ms: int, last: int) -> int:
        """The first turn at a moment or later; the log may begin anywhere."""
        low, high = 1, last + 1
        while low < high:
            middle = (low + high) // 2
            entries = self._store.tail(middle - 1, 1)
            if entries and entries[0].at_ms < at_ms:
                low = entries[0].seq + 1
            else:
                high = middle
        return low
