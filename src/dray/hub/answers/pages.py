"""Pages of lists: they end at a number or at a size, and are read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job, JobState
from dray.errors import InvalidInput, Problem
from dray.hub.documents.records import Document
from dray.hub.store.base import JobFilter, Store

# A page ends here, however few it shows: `next_cursor` says where to go on.
PAGE_BYTES = 2 << 20
PAGE_ROWS = 32
# So many jobs are counted in a part of a millisecond.
COUNT_STEP = 4096
# A million index entries take the store a sixth of a second.
MOST_COUNTED = 100_000
_state_of = attrgetter("state")


def read_page(store: Store, wanted: JobFilter) -> tuple[list[Job], bool]:
    """Read the rows of one page, a few at a time, and whether there may be more: it ends at a number or at a size."""
    rows: list[Job] = []
    size = 0
    while len(rows) < wanted.limit and size <= PAGE_BYTES:
        asked = min(PAGE_ROWS, wanted.limit - len(rows))
        found = store.list_jobs(msgspec.structs.replace(wanted, limit=asked))
        rows += found
        if found:
            ended_ms = found[-1].ended_at_ms if wanted.sort == "ended" else 0
            wanted = msgspec.structs.replace(wanted, before_seq=found[-1].seq, before_ended_ms=ended_ms)
        size += sum(len(row.spec) for row in found)
        if len(found) < asked:
            return rows, False
    return rows, True


def spell_cursor(wanted: JobFilter, last: Job) -> str:
    """Where the page after one that ends with this job begins."""
    return f"{last.ended_at_ms}.{last.seq}" if wanted.sort == "ended" else str(last.seq)


def read_cursor(cursor: str, sort: str) -> tuple[int, int]:
    """The same read back: when the last one ended (0: lists by number), and its number."""
    first, _, second = cursor.partition(".")
    if cursor and (sort == "ended") != bool(second):
        what = "is not of this list: a cursor goes with the order that gave it"
        raise InvalidInput(f"cursor {what}", [Problem("cursor", what)])
    return (int(first), int(second)) if second else (0, int(first or 0))


def is_countable(wanted: JobFilter) -> bool:
    """Whether somebody wants to know how many there are in all, and not every job of before had to be looked at."""
    return wanted.count and wanted.plain


def count_living(state: State, wanted: JobFilter) -> Iterator[int]:
    """Count what lives, in memory, by lists: one job at a time takes five times as long. What is said last holds."""
    wants = [one for one in JobState if not one.final and (not wanted.states or one.value in wanted.states)]
    jobs, counted = list(state.jobs.values()), 0
    yield counted
    for first in range(0, len(jobs), COUNT_STEP):
        some: Iterable[Job] = jobs[first : first + COUNT_STEP]
        if wanted.user:
            some = [job for job in some if job.user == wanted.user]
        found = list(map(_state_of, some))
        counted += sum(found.count(one) for one in wants)
        yield counted


def count_ended(store: Store, wanted: JobFilter) -> int | None:
    """Count what has ended, in the store; None where that is more than anybody counts."""
    states = tuple(state.value for state in JobState if state.final)
    wants = tuple(state for state in states if not wanted.states or state in wanted.states)
    counted = store.count_ended(wanted.user, wants, MOST_COUNTED + 1) if wants else 0
    return counted if counted <= MOST_COUNTED else None


def weigh_task(document: Document) -> int:
    """About how many bytes a task's document takes."""
    return 1024 * (1 + len(document["attempts"])) + len(document["error"])
