"""A job's spec is replaced while it waits or runs: by a person's edit, or because a larger card is needed.

No line is searched for an entry: one that no longer stands is skipped where it is (see `scheduling.ordering`), and the
job joins the line where it now belongs, with its number and so its age. The surprising rule: what runs of a job goes on
under its new shape, since a restart would find it so; a change of shape while something runs never changes what that
holds.
"""

from __future__ import annotations

from dray.core.lifecycle.counts import counting
from dray.core.lifecycle.holding import attempts, dependencies, lessons, receipts, using
from dray.core.lifecycle.state.effects import Effect
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs
from dray.core.model.records.records import Job
from dray.core.model.specs.larger import ask_beyond
from dray.core.model.specs.resources import asks_of_packed
from dray.core.model.specs.spec import TIERS, JobSpec, unpack_spec


def outgrow(state: State, job: Job, vram_bytes: int, clock: Clock) -> list[Effect]:
    """Cards with so much memory were too small for a job: it asks for larger ones, and so will the next of its name."""
    effects = revise(state, job, ask_beyond(job.spec, vram_bytes), job.after, clock)
    job.outgrown_bytes, job.outgrown_by = vram_bytes, job.id
    lessons.learn(state, job, vram_bytes, clock)
    return effects


def revise(state: State, job: Job, packed: bytes, after: tuple[str, ...], clock: Clock) -> list[Effect]:
    """Replace a job's spec and what it waits for, and let it stand where it belongs now."""
    spec, was_barred = unpack_spec(packed), job.barred
    was_limited_to, waited_ms, timeout_ms = job.limit, job.waiting_since_ms, job.timeout_ms
    was_promised_as = job.queue, job.shape
    state.backlog.count(job.queue, -job.waiting)
    state.stir(job)
    job.original = job.original or job.spec
    moves = job.workload != spec.workload
    if moves:
        counting.leave(state, job)
    _reshape(state, job, packed)
    _take_over(job, spec)
    if moves:
        counting.join(state, job)
    attempts.change_party(state, job)
    effects = receipts.close(state, job, "rolled_back", clock)
    if (job.queue, job.shape) != was_promised_as:
        _give_up_promise(state, job, clock)
    job.lost_after_ms = round(spec.lost_after_s * 1000) or jobs.default_lost_after_ms(state, spec)
    state.backlog.count(job.queue, job.waiting)
    if job.uses != tuple(spec.uses):
        using.withdraw(state, job)
        using.register(state, job, tuple(spec.uses))
    if job.after != after:
        dependencies.withdraw(state, job)
        job.after = after
        dependencies.register(state, job)
    state.touched.jobs[job.id] = None
    if not job.barred:
        jobs.join_all(state, job, clock)
        if not was_barred and job.timeout_ms == timeout_ms:
            # It waited before and waits on: only a release, or another timeout, starts the scheduling timeout anew.
            job.waiting_since_ms = waited_ms
            jobs.arm_wait(state, job)
        if job.limit != was_limited_to:
            state.rouse(job)
    else:
        state.note_wait(job)
    return effects


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


def _take_over(job: Job, spec: JobSpec) -> None:
    """Bring the fields that a job's record keeps of its spec in line with a new one."""
    job.name, job.queue, job.priority, job.tier = spec.name, spec.queue, spec.priority, spec.job_tier
    job.limit = spec.array.limit if spec.array else 0
    job.retries, job.losses_allowed = spec.rules.code, spec.losses
    job.timeout_ms = round(spec.scheduling_timeout_s * 1000)
    job.limit_ms = round(spec.limit_s * 1000)
    job.plugin, job.workload = spec.plugin, spec.workload
    job.ranked = spec.priority != TIERS[spec.job_tier].priority
    job.expected_ms = round(spec.expected_runtime_s * 1000)
    job.objective = spec.packed_objective
    job.deadline_ms = spec.deadline_ms


def _reshape(state: State, job: Job, packed: bytes) -> None:
    """Give a job the shape of its new spec. A replica of a service holds what its own revision asks for."""
    before, job.spec = job.shape, packed
    job.shape = state.shapes.take(asks_of_packed(packed))
    if job.shape != before and not job.service:
        waiting = (state.tasks[job.id, index].last_uid for index in state.requeued_of.get(job.id, ()))
        # What has just ended has yet to be written: by then the number it had may be that of another shape.
        for uid in (*state.live_of.get(job.id, ()), *waiting, *state.touched.attempts):
            if (attempt := state.attempts.get(uid)) is not None and attempt.job_id == job.id:
                attempt.shape = job.shape
    state.release_shape(before)
