"""What people change about a job after its submit: hold and release, edit, requeue.

The shell has checked what may be changed; here it is carried out.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import groups, receipts
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock, HoldChanged, JobEdited, RequeueRequested
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs, replicas, revisions
from dray.core.model.records.records import Job
from dray.core.model.specs.spec import TIERS

REQUEUED = "requeued"


def hold_changed(state: State, event: HoldChanged, clock: Clock) -> list[Effect]:
    """Take a job out of every line, or let it join again; what runs goes on either way."""
    job = state.jobs.get(event.job_id)
    if job is None or job.state.final or job.held == event.on:
        return []
    job.held, job.held_by = event.on, event.user if event.on else ""
    state.touched.jobs[job.id] = None
    state.stir(job)
    effects = receipts.close(state, job, "rolled_back", clock) if event.on else []
    if not job.barred:
        jobs.join_all(state, job, clock)
        # What it was held for is not the fault of what an update starts.
        job.stepped_ms = clock.now_ms
    elif job.id in state.watched:
        state.rouse(job)
    return [*effects, Note("job_held" if event.on else "job_released", job.id, data={"user": event.user})]


def edited(state: State, event: JobEdited, clock: Clock) -> list[Effect]:
    """Replace a job's spec; it keeps its number and so its age in whatever line it stands now."""
    job = state.jobs.get(event.job_id)
    if job is None or job.state.final:
        return []
    effects = revisions.revise(state, job, event.spec, event.after, clock)
    # What a person says of it counts from here on.
    job.outgrown_bytes, job.outgrown_by = 0, ""
    return [*effects, Note("job_edited", job.id, data={"user": event.user})]


def requeue_requested(state: State, event: RequeueRequested, clock: Clock) -> list[Effect]:
    """Stop what runs of a job, or one task of it; each is queued again once it is confirmed gone, free of charge.

    The tasks of a group go together, whichever was named.
    """
    job = state.jobs.get(event.job_id)
    if job is None or job.state.final:
        return []
    effects: list[Effect] = [
        Note("requeue_requested", job.id, data={"user": event.user, "index": event.index})
    ]
    for uid in list(state.live_of.get(job.id, ())):
        attempt = state.attempts[uid]
        if attempt.lane:
            wanted = event.index == -1 or (attempt.calls or {}).get(event.index, 0) > 0
        else:
            task = state.tasks[job.id, attempt.index]
            wanted = task.current == uid and (event.index < 0 or event.index in job.group_of(attempt.index))
        if wanted:
            effects += jobs.stop_attempt(state, attempt, REQUEUED, TIERS[job.tier].grace_s, clock)
    return effects + _end_rests(state, job, event.index, clock)


def _end_rests(state: State, job: Job, index: int, clock: Clock) -> list[Effect]:
    """Replicas that rest are tried at once, as if they had never ended."""
    effects: list[Effect] = []
    for place in range(0, job.cursor, job.group_size) if job.resting else ():
        tasks = groups.tasks_of(state, job, place)
        if tasks and tasks[0].again_ms and (index < 0 or index in job.group_of(place)):
            for task in tasks:
                replicas.recover(task)
            effects += replicas.wake(state, job, tasks, clock, "restarted on request")
    return effects
