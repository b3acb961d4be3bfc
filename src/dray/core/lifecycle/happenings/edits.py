"""What people change about a job after its submit: hold and release, edit, requeue.

The shell has checked what may be changed; here it is carried out. None of these searches a line for an entry: one that
no longer stands is skipped where it is (see `scheduling.ordering`), and the job joins the line where it now belongs.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import attempts, dependencies, receipts
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock, HoldChanged, JobEdited, RequeueRequested
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import asks_of_packed
from dray.core.model.specs.spec import TIERS, JobSpec, unpack_spec
from dray.core.model.units import parse_moment

REQUEUED = "requeued"


def hold_changed(state: State, event: HoldChanged, clock: Clock) -> list[Effect]:
    """Take a job out of every line, or let it join again; what runs goes on either way."""
    job = state.jobs.get(event.job_id)
    if job is None or job.state.final or job.held == event.on:
        return []
    job.held, job.held_by = event.on, event.user if event.on else ""
    state.touched.jobs[job.id] = None
    effects = receipts.close(state, job, "rolled_back", clock) if event.on else []
    if not job.barred:
        jobs.join_all(state, job, clock)
    elif job.id in state.watched:
        state.backlog.wake(job.shape)
    return [*effects, Note("job_held" if event.on else "job_released", job.id, data={"user": event.user})]


def edited(state: State, event: JobEdited, clock: Clock) -> list[Effect]:
    """Replace a job's spec; it keeps its number and so its age in whatever line it stands now."""
    job = state.jobs.get(event.job_id)
    if job is None or job.state.final:
        return []
    spec, was_barred = unpack_spec(event.spec), job.barred
    was_limited_to, waited_ms, timeout_ms = job.limit, job.waiting_since_ms, job.timeout_ms
    was_promised_as = job.queue, job.shape
    state.backlog.count(job.queue, -job.waiting)
    job.original = job.original or job.spec
    reshape(state, job, event.spec)
    take_over(job, spec)
    attempts.change_party(state, job)
    effects = receipts.close(state, job, "rolled_back", clock)
    if (job.queue, job.shape) != was_promised_as:
        _give_up_promise(state, job, clock)
    job.lost_after_ms = round(spec.lost_after_s * 1000) or jobs.default_lost_after_ms(state, spec)
    state.backlog.count(job.queue, job.waiting)
    if job.after != event.after:
        dependencies.withdraw(state, job)
        job.after = event.after
        dependencies.register(state, job)
    state.touched.jobs[job.id] = None
    if not job.barred:
        jobs.join_all(state, job, clock)
        if not was_barred and job.timeout_ms == timeout_ms:
            # It waited before and waits on: only a release, or another timeout, starts the scheduling timeout anew.
            job.waiting_since_ms = waited_ms
            jobs.arm_wait(state, job)
        if job.limit != was_limited_to:
            state.backlog.wake(job.shape)
    return [*effects, Note("job_edited", job.id, data={"user": event.user})]


def _give_up_promise(state: State, job: Job, clock: Clock) -> None:
    """Let go of what was reserved for a job as it was: each queue keeps room for one of its own, and for what it asks.

    Whether it is protected as it is now, its new queue says.
    """
    due = job.id in state.unprotected
    state.unprotected.pop(job.id, None)
    for queue, kept in list(state.reservations.items()):
        if kept.job_id == job.id:
            del state.reservations[queue]
            # Room that was kept is there for others now, and nobody else will say so.
            state.columns.roomier.update(dict.fromkeys(spot[1] for spot in kept.spots))
            due = True
    if due:
        state.watched[job.id] = 0
        state.set_timer(clock.now_ms, "protect", job.id)


def take_over(job: Job, spec: JobSpec) -> None:
    """Bring the fields that a job's record keeps of its spec in line with a new one."""
    job.name, job.queue, job.priority, job.tier = spec.name, spec.queue, spec.priority, spec.job_tier
    job.limit = spec.array.limit if spec.array else 0
    job.retries, job.losses_allowed = spec.retries, spec.losses
    job.timeout_ms = round(spec.scheduling_timeout_s * 1000)
    job.limit_ms = round(spec.limit_s * 1000)
    job.plugin = spec.plugin
    job.ranked = spec.priority != TIERS[spec.job_tier].priority
    job.expected_ms = round(spec.expected_runtime_s * 1000)
    job.deadline_ms = parse_moment(spec.deadline) if spec.deadline else 0


def reshape(state: State, job: Job, packed: bytes) -> None:
    """Give a job the shape of its new spec; the lines of a shape that nobody has any more go with it."""
    before, job.spec = job.shape, packed
    job.shape = state.shapes.take(asks_of_packed(packed))
    if state.shapes.release(before):
        for key in list(state.backlog.of_shape.get(before, ())):
            state.backlog.remove_bucket(key)


def requeue_requested(state: State, event: RequeueRequested, clock: Clock) -> list[Effect]:
    """Stop what runs of a job, or one task of it; each is queued again once it is confirmed gone, free of charge.

    The tasks of a gang go together, whichever was named.
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
            wanted = task.current == uid and (job.gang or event.index in (-1, attempt.index))
        if wanted:
            effects += jobs.stop_attempt(state, attempt, REQUEUED, TIERS[job.tier].grace_s, clock)
    return effects
