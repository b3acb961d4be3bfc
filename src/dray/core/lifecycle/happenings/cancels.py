"""A job, or one task of it, is cancelled: for the record at once, on its workers as soon as they confirm it.

"Killed" and "the process is gone" are two facts: what runs ends here and is asked to stop, and its place stays taken
until its worker says that it has.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import lanes
from dray.core.lifecycle.state.effects import CallsDone, Effect, Note
from dray.core.lifecycle.state.events import CancelRequested, Clock
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import calls, jobs
from dray.core.model.records.records import Job, JobState, Task
from dray.core.model.specs.spec import TIERS


def cancelled(state: State, event: CancelRequested, clock: Clock) -> list[Effect]:
    """End what waits at once; what runs is ended for the record and asked to stop, and holds its place until it has."""
    job = state.jobs.get(event.job_id)
    if job is None or job.state.final:
        return []
    effects: list[Effect] = [
        Note("cancel_requested", job.id, data={"user": event.user, "index": event.index})
    ]
    state.touched.jobs[job.id] = None
    if event.index >= 0 and (job.service or not job.gang):
        ended = _cancel_group(state, job, event.index, event, clock)
        job.aim -= bool(ended) and job.aim > 0
        return effects + ended
    job.cancelled, job.open = True, False
    if job.calls:
        effects += calls.stop_all(state, job, _grace_s(job, event), _who(event), clock)
    for index in list(state.requeued_of.get(job.id, ())):
        effects += _cancel_task(state, job, index, event, clock)
    # Of a gang also those that have ended and wait for the others' end, of a service those that rest.
    live = [] if job.calls else [state.attempts[uid].index for uid in state.live_of.get(job.id, ())]
    for index in range(job.cursor) if job.gang or job.service else live:
        effects += _cancel_task(state, job, index, event, clock)
    if job.untouched:
        left = job.untouched
        job.killed += left
        state.backlog.count(job.queue, -left)
        job.rest = JobState.KILLED
        state.stir(job)
        when = (
            f"when {left:,} of its {job.total:,} tasks had not started"
            if left < job.total
            else "before it started"
        )
        job.error = f"{_who(event)} {when}"
    return effects + jobs.settle(state, job, clock)


def end_replica(state: State, job: Job, index: int, why: str, clock: Clock) -> list[Effect]:
    """End one replica of a service for good; nothing where it has ended before."""
    return _cancel_group(state, job, index, CancelRequested(job.id, index), clock, why)


def _cancel_group(
    state: State, job: Job, index: int, event: CancelRequested, clock: Clock, why: str = ""
) -> list[Effect]:
    effects: list[Effect] = []
    for one in job.group_of(index):
        effects += _cancel_task(state, job, one, event, clock, why)
    return effects


def _cancel_task(
    state: State, job: Job, index: int, event: CancelRequested, clock: Clock, why: str = ""
) -> list[Effect]:
    task = state.tasks.get((job.id, index))
    if job.calls and (lane := lanes.lane_at(state, job, index)) is not None:
        return calls.cut(state, job, lane, index, _grace_s(job, event), _who(event), clock)
    if task is None:
        if job.rest.final or not job.cursor <= index < job.total:
            return []
        task = state.tasks[job.id, index] = Task(job_id=job.id, index=index)
        job.holes += 1
        state.backlog.count(job.queue, -1)
        state.stir(job)
    if task.state.final:
        return []
    effects: list[Effect] = []
    attempt = state.attempts.get(task.current)
    if attempt is not None:
        reason = "idle" if event.policy else "user"
        effects += jobs.stop_attempt(state, attempt, reason, _grace_s(job, event), clock)
        state.touched.attempts[attempt.uid] = None
    who = why or _who(event)
    exit_class = "idle" if event.policy else "cancelled"
    effects += jobs.end_task(state, job, task, JobState.KILLED, clock, exit_class, who)
    if job.calls:
        effects.append(CallsDone(job.id, (index,), JobState.KILLED.value, "cancelled", who))
    return effects


def _grace_s(job: Job, event: CancelRequested) -> float:
    return event.grace_s if event.grace_s >= 0 else TIERS[job.tier].grace_s


def _who(event: CancelRequested) -> str:
    return event.policy or (f"cancelled by {event.user}" if event.user else "cancelled")
