"""Where a job stands in its queue: how many are served before it. Reads the backlog by the ordering's own rules.

Counts a bounded number of lines and entries, and says so where that was not all.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.lines import RANGE, BucketKey, Entry
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.deadlines import is_overdue
from dray.core.model.records.records import Job
from dray.core.scheduling.explain.reason import Place
from dray.core.scheduling.turns.ranks import rank_of, stands

MOST_LINES = 4_000
MOST_ENTRIES = 2_000
Rank = tuple[int, int, Entry]


def find_place(state: State, job: Job) -> Place | None:
    """How many jobs and tasks come before a job's next task in its queue; None where it stands in no line."""
    line, order = state.line_of(job), state.policy.queue(job.queue).order
    if job.barred:
        return None
    again = min(state.requeued_of.get(job.id, ()), default=RANGE)
    mine = rank_of(state, line, job, Entry(*state.place_of(job, again), job.seq, again, job.id))
    jobs, tasks, rivals, walked, exact = 0, 0, dict[str, None](), 0, True
    for number, other in enumerate(_lines(state, job.queue)):
        if number >= MOST_LINES or walked >= MOST_ENTRIES:
            exact = False
            break
        user = state.parties.all[other.party].user
        if order == "fair_share" and user != job.user:
            rivals[user] = None
            continue
        for before, entry in _ahead(state, other, mine, job):
            walked += 1
            jobs += 1
            tasks += before.untouched if entry.position == RANGE else 1
            if walked >= MOST_ENTRIES:
                break
    overdue = order == "edf" and is_overdue(state, job, again)
    return Place(job.queue, order, jobs, tasks, exact, len(rivals), overdue)


def _lines(state: State, queue: str) -> Iterator[BucketKey]:
    parties = state.parties.all
    return (line for line in state.backlog.buckets if parties[line.party].queue == queue)


def _ahead(state: State, line: BucketKey, mine: Rank, job: Job) -> Iterator[tuple[Job, Entry]]:
    """The entries of a line that come before a rank; a line is served in its own order, so the first behind ends it."""
    for entry in state.backlog.entries(line):
        if not stands(state, line, entry):
            continue
        other = state.jobs[entry.job_id]
        if other is job or rank_of(state, line, other, entry) >= mine:
            return
        yield other, entry
