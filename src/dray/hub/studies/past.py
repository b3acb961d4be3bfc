"""The hub's past as rows for a process beside it: what was submitted since a moment, with attempts, and workers.

Read page by page beside the loop, from whichever store there is; bounded, the newest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from dray.core.model.records.records import Attempt, Job
from dray.hub.engine.engine import Engine
from dray.hub.store.base import JobFilter, Store

PAGE = 50
MOST_JOBS = 20_000
MOST_ATTEMPTS = 5_000
WORKERS = 400
_encode = msgspec.msgpack.Encoder().encode


async def read_past(
    question: msgspec.Struct, engine: Engine, store: Store, since_ms: int
) -> AsyncIterator[bytes]:
    """The question, then pieces of the past; what stands in memory alone is written first."""
    yield _encode(question)
    workers = await engine.read(lambda state: list(state.workers.values()))
    for first in range(0, len(workers), WORKERS):
        yield _encode(([], workers[first : first + WORKERS]))
    before, count = 0, 0
    while count < MOST_JOBS:
        packed, before = await asyncio.to_thread(_page, store, before, since_ms)
        yield packed
        count += PAGE
        if not before:
            return


def _page(store: Store, before: int, since_ms: int) -> tuple[bytes, int]:
    """A page of jobs, and where the next begins; 0: that was the last."""
    page = store.list_jobs(JobFilter(before_seq=before, limit=PAGE))
    jobs: list[tuple[Job, list[Attempt]]] = [
        (job, store.find_attempts(job.id, None, MOST_ATTEMPTS))
        for job in page
        if job.submitted_at_ms >= since_ms
    ]
    is_last = len(page) < PAGE or page[-1].submitted_at_ms < since_ms
    return _encode((jobs, [])), 0 if is_last else page[-1].seq
