"""Who stands in a queue: the first of its line, and since when the longest has waited. Reads the backlog alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

from dray.core.lifecycle.backlog import RANGE, BucketKey, Entry
from dray.core.lifecycle.state import State
from dray.core.model.records import Job


def waiting_in_order(state: State, queue: str, limit: int, now_ms: int) -> list[tuple[str, int]]:
    """The first jobs of a queue as (job, index), -1 for a job's tasks that were never placed."""
    keys = [key for key in state.backlog.buckets if key.queue == queue]
    lines = heapq.merge(*(_standing(state, key) for key in keys))
    return [
        (entry.job_id, -1 if entry.position == RANGE else entry.position) for entry in islice(lines, limit)
    ]


def oldest_in(state: State, queue: str) -> Job | None:
    """The job of a queue that was submitted first among those that wait."""
    heads = [
        entry
        for key in state.backlog.buckets
        if key.queue == queue and (entry := next(_standing(state, key), None)) is not None
    ]
    return state.jobs[min(heads).job_id] if heads else None


def _standing(state: State, key: BucketKey) -> Iterator[Entry]:
    for entry in state.backlog.entries(key):
        job = state.jobs.get(entry.job_id)
        if job is None or job.seq != entry.seq:
            continue
        if job.untouched if entry.position == RANGE else entry.position in state.requeued_of.get(job.id, ()):
            yield entry
