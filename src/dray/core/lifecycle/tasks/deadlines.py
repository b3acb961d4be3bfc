"""Deadlines that can no longer be met, in queues that go by deadline.

Such work goes behind all whose deadline can be met still, and there the shortest comes first: while too much waits,
whoever is late already must not make others late as well. Each job has one look, at the moment when the next of what
waits of it should have begun at the latest. The surprising rule: how long it runs is what its user expects, and not its
limit, so that without a word of that it is late only once the deadline has passed.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock, DeadlineLost
from dray.core.lifecycle.state.lines import RANGE
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job


def is_overdue(state: State, job: Job, position: int) -> bool:
    """Whether what waits at a position was found unable to meet its deadline."""
    return bool(job.deadline_ms) and job.judged_at_ms > state.latest_start_ms(job, position)


def look(state: State, job_id: str, clock: Clock) -> list[DeadlineLost]:
    """Find out whether some of a job has become late, and watch the rest."""
    due_ms = state.judging.get(job_id)
    if due_ms is None or due_ms > clock.now_ms:
        # Another look stands for this one.
        return []
    del state.judging[job_id]
    job = state.jobs.get(job_id)
    if job is None or job.barred or not job.deadline_ms or state.policy.queue(job.queue).order != "edf":
        return []
    starts = [state.latest_start_ms(job, position) for position in _positions(state, job)]
    later = [start for start in starts if start >= clock.at_ms]
    if later:
        # By this clock: since the last event a look may be longer ago than the longest wait for the next.
        state.watch_deadline(job, min(later), *clock)
    late = any(job.judged_at_ms <= start < clock.at_ms for start in starts)
    return [DeadlineLost(job_id)] if late else []


def lost(state: State, event: DeadlineLost, clock: Clock) -> list[Effect]:
    """Let what is late stand where it belongs now."""
    job = state.jobs.get(event.job_id)
    if job is None or not job.deadline_ms:
        return []
    job.judged_at_ms = clock.at_ms
    state.touched.jobs[job.id] = None
    state.queue_all(job)
    return [Note("deadline_lost", job.id)]


def recall(state: State, clock: Clock) -> None:
    """Watch all deadlines anew, after a load."""
    state.judging.clear()
    for job in state.jobs.values():
        if job.deadline_ms and not job.barred and state.policy.queue(job.queue).order == "edf":
            for position in _positions(state, job):
                state.watch_deadline(job, state.latest_start_ms(job, position), *clock)


def _positions(state: State, job: Job) -> Iterator[int]:
    if job.untouched:
        yield RANGE
    yield from state.requeued_of.get(job.id, ())
