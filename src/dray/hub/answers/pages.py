"""Pages of lists: they end at a number or at a size, and are read a few rows at a time."""

from __future__ import annotations

import msgspec

from dray.core.model.records.records import Job
from dray.hub.documents.records import Document
from dray.hub.store.base import JobFilter, Store

# A page ends here, however few it shows: `next_cursor` says where to go on.
PAGE_BYTES = 2 << 20
PAGE_ROWS = 32


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


def weigh_task(document: Document) -> int:
    """About how many bytes a task's document takes."""
    return 1024 * (1 + len(document["attempts"])) + len(document["error"])
