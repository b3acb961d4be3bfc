"""What jobs have waited for becomes part of their records: at the end of a turn in which they waited no longer, and now
and then while they wait, so that a hub that is killed loses little of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from dray.core.lifecycle.state.effects import Effect
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.waiting.facts import WaitsCharged
from dray.core.lifecycle.waiting.marks import settle
from dray.core.model.records.waits import add

# So much of a ledger is at risk where the hub is killed, for as many jobs as are brought up to date at a time.
STALE_MS = 60_000
MOST_CHARGED = 1_000


def due_charges(state: State, clock: Clock) -> Iterator[WaitsCharged]:
    """What is owed to jobs that wait no longer."""
    if state.waits.due:
        yield from _charge(state, list(state.waits.due), clock)


def stale_charges(state: State, clock: Clock) -> Iterator[WaitsCharged]:
    """What is owed to those that wait and were not charged for a while, the oldest of them."""
    marks, last_ms = state.waits.of, clock.now_ms - STALE_MS
    oldest = islice(marks, MOST_CHARGED)
    yield from _charge(state, [job_id for job_id in oldest if marks[job_id].first_ms <= last_ms], clock)


def waits_charged(state: State, event: WaitsCharged, clock: Clock) -> list[Effect]:
    """Put down in each job's ledger what it is charged."""
    for job_id, sums in event.charges:
        job = state.jobs.get(job_id)
        if job is not None:
            job.waits, job.waits_ms = add(job.waits, sums), clock.now_ms
            state.touched.jobs[job_id] = None
        state.waits.charged(job_id, clock.now_ms)
    return []


def _charge(state: State, job_ids: Iterable[str], clock: Clock) -> Iterator[WaitsCharged]:
    marks, jobs = state.waits.of, state.jobs
    charges = tuple((job_id, settle(jobs[job_id], marks[job_id], clock.now_ms)) for job_id in job_ids)
    if charges:
        yield WaitsCharged(charges)
