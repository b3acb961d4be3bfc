"""Where work stands in its line: which entries still mean work, and what they are ordered by within their queue.

Knows nothing about other lines, or room.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.lines import RANGE, BucketKey, Entry
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job


def rank_of(state: State, line: BucketKey, job: Job, entry: Entry) -> tuple[int, int, Entry]:
    """What an entry is ordered by within its queue; the smaller is served first."""
    party = state.parties.all[line.party]
    if not party.budgets and party.rules.order != "priority":
        return 0, 0, entry
    late = int(party.is_late(state.now_ms)) if party.budgets else 0
    return late, -aged_priority(state, job) if party.rules.order == "priority" else 0, entry


def next_entry(state: State, job: Job) -> Entry:
    """The entry that stands for a job's next task: one that is queued again goes before the range."""
    return entry_of(state, job, min(state.requeued_of.get(job.id, ()), default=RANGE))


def entry_of(state: State, job: Job, position: int) -> Entry:
    """The entry that stands for a job's range, or for one of its tasks that is queued again."""
    return Entry(*state.place_of(job, position), job.seq, position, job.id)


def aged_priority(state: State, job: Job) -> int:
    """The priority a job waits with: read by the `priority` policy only, one point more per `ageing_s` of waiting."""
    queue = state.parties.all[job.party].rules
    if queue.order != "priority":
        return 0
    waited_ms = max(0, state.now_ms - job.waiting_since_ms)
    return job.priority + (int(waited_ms / (queue.ageing_s * 1000)) if queue.ageing_s else 0)


def standing(state: State, line: BucketKey) -> Iterator[tuple[Job, Entry]]:
    """The entries of a line that still mean work."""
    bucket, jobs = state.backlog.buckets[line], state.jobs
    entries = bucket.entries
    for place in range(bucket.head, len(entries)):
        entry = entries[place]
        if stands(state, line, entry):
            yield jobs[entry.job_id], entry


def stands(state: State, line: BucketKey, entry: Entry) -> bool:
    """Whether an entry still means work: its job waits here with a range, or this very task is queued again."""
    job, position = state.jobs.get(entry.job_id), entry.position
    if job is None:
        return False
    # What most often is over is asked first.
    if job.untouched <= 0 if position == RANGE else position not in state.requeued_of.get(job.id, ()):
        return False
    if job.barred or (job.party, job.priority, job.shape) != line:
        return False
    # Its place in the line may have changed since: then another entry stands for it, and this one is what is left.
    return state.place_of(job, position) == (entry.ahead, entry.order)
