"""Pages of lists: they end at a number or at a size, and are read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job, JobState
from dray.hub.documents.records import Document
from dray.hub.store.base import JobFilter, Store

# A page ends here, however few it shows: `next_cursor` says where to go on.
PAGE_BYTES = 2 << 20
PAGE_ROWS = 32
# So many jobs are counted in a part of a millisecond.
COUNT_STEP = 2048
# A million index entries take the store a sixth of a second.
MOST_COUNTED = 100_000


def read_page(store: Store, wanted: JobFilter) -> tuple[list[Job], bool]:
    """Read the rows of one page, a few at a time, and whether there may be more: it ends at a number or at a size."""
    rows: list[Job] = []
    size = 0
    while len(rows) < wanted.limit and size <= PAGE_BYTES:
        asked = min(PAGE_ROWS, wanted.limit - len(rows))
        before = rows[-1].seq if rows else wanted.before_seq
        found = store.list_jobs(msgspec.structs.replace(wanted, limit=asked, before_seq=before))
        rows += found
        size += sum(len(row.spec) for row in found)
        if len(found) < asked:
            return rows, False
    return rows, True


def is_countable(wanted: JobFilter) -> bool:
    """Whether somebody wants to know how many there are in all, and not every job of before had to be looked at."""
    return wanted.count and not (wanted.queue or wanted.name or wanted.labels)


def count_living(state: State, wanted: JobFilter) -> Iterator[int]:
    """Count what lives, in memory; what is said last holds."""
    counted = 0
    yield counted
    for place, job in enumerate(list(state.jobs.values())):
        counted += (
            not job.state.final
            and wanted.user in ("", job.user)
            and (not wanted.states or job.state.value in wanted.states)
        )
        if not place % COUNT_STEP:
            yield counted
    yield counted


def count_ended(store: Store, wanted: JobFilter) -> int | None:
    """Count what has ended, in the store; None where that is more than anybody counts."""
    states = tuple(state.value for state in JobState if state.final)
    wants = tuple(state for state in states if not wanted.states or state in wanted.states)
    counted = store.count_ended(wanted.user, wants, MOST_COUNTED + 1)
    return counted if counted <= MOST_COUNTED else None


def weigh_task(document: Document) -> int:
    """About how many bytes a task's document takes."""
    return 1024 * (1 + len(document["attempts"])) + len(document["error"])
