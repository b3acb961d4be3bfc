"""What happens to services as wholes: another size, another revision, back to the last that was whole, and each step of
a replacement as `steps` has it.

While replicas are replaced a change of size is a change of what is aimed at. Whatever comes meanwhile is decided anew
at each step, so that there is nothing to be undone: an update that comes before another has ended takes its place.
"""

from __future__ import annotations

import msgspec

from dray.core.lifecycle.happenings import cancels
from dray.core.lifecycle.holding import groups, rollouts
from dray.core.lifecycle.services import steps
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import ArrayExtended, Clock
from dray.core.lifecycle.state.service_events import (
    RolloutStepped,
    ServiceScaled,
    ServiceUpdated,
    UpdateAbandoned,
)
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs, replicas, revisions
from dray.core.model.records.ledger import Revision
from dray.core.model.records.records import Job
from dray.core.model.specs.spec import pack_spec, unpack_spec

# What is said of the job and not of how its replicas run: no revision changes it, an edit does.
OF_THE_JOB = tuple(
    "id type user_id job_tier priority queue name labels plugin scheduling_timeout_s expected_runtime_s deadline after"
    " hold notify notify_to replicas restart node_count array function template params rendered share uses".split()
)


def _living(state: State, job_id: str) -> Job | None:
    job = state.jobs.get(job_id)
    return job if job is not None and job.service and not job.state.final else None


def scaled(state: State, event: ServiceScaled, clock: Clock) -> list[Effect]:
    """Give a service more replicas; or aim at fewer, and who goes is decided step by step.

    Results never change, so an index is never used twice.
    """
    job = _living(state, event.job_id)
    if job is None:
        return []
    before = replicas.wanted(job)
    data = {"user": event.user, "replicas": event.replicas, "before": before}
    effects: list[Effect] = [Note("service_scaled", job.id, data=data)]
    if job.aim < 0 and event.replicas > before:
        more = ArrayExtended(job.id, (event.replicas - before) * job.group_size)
        return effects + jobs.extended(state, more, clock)
    _aim(state, job, event.replicas, clock)
    return effects


def _aim(state: State, job: Job, replicas_wanted: int, clock: Clock) -> None:
    job.aim, job.stepped_ms = replicas_wanted, clock.now_ms
    state.touched.jobs[job.id] = None
    rollouts.watch(state, job.id, clock.now_ms)


def updated(state: State, event: ServiceUpdated, clock: Clock) -> list[Effect]:
    """Begin to replace all replicas by such of another revision."""
    job = _living(state, event.job_id)
    number = event.revision or (job.newest + 1 if job is not None else 0)
    if job is None or number == job.revision:
        return []
    known, before = rollouts.revisions_of(state, job), job.revision
    leaves = known.get(before) or Revision(
        before, job.spec, job.user, job.submitted_at_ms, "submit", steps.DONE
    )
    outcome, why = leaves.outcome, leaves.why
    if before != job.stable:
        outcome, why = "replaced", f"revision {number} came before it was whole"
    leaves = msgspec.structs.replace(leaves, spec=job.spec, outcome=outcome, why=why, ended_at_ms=clock.at_ms)
    aim = event.replicas if event.replicas >= 0 else replicas.wanted(job)
    rollouts.write(state, job, leaves)
    rollouts.write(state, job, Revision(number, event.spec, event.user, clock.at_ms, event.kind))
    job.newest = max(job.newest, number)
    effects = _switch(state, job, number, event.spec, clock)
    _aim(state, job, aim, clock)
    data = {"user": event.user, "kind": event.kind, "revision": number, "before": before}
    return [Note("service_update_began", job.id, data=data), *effects]


def abandoned(state: State, event: UpdateAbandoned, clock: Clock) -> list[Effect]:
    """Go back to the revision that was whole; the receipt says why."""
    job = _living(state, event.job_id)
    if job is None or job.revision == job.stable:
        return []
    known, number = rollouts.revisions_of(state, job), job.revision
    rolled_back = msgspec.structs.replace(
        known[number], spec=job.spec, outcome="rolled_back", why=event.why, ended_at_ms=clock.at_ms
    )
    rollouts.write(state, job, rolled_back)
    back = known[job.stable]
    rollouts.write(state, job, msgspec.structs.replace(back, ended_at_ms=0))
    effects = _switch(state, job, back.number, keep_of_the_job(back.spec, job.spec), clock)
    _aim(state, job, job.aim, clock)
    data = {"user": event.user, "revision": number, "to": back.number, "reason": event.why}
    return [Note("service_rolled_back", job.id, data=data), *effects]


def keep_of_the_job(packed: bytes, now: bytes) -> bytes:
    """An earlier spec with what has been said of the job itself since."""
    kept = {name: getattr(unpack_spec(now), name) for name in OF_THE_JOB}
    return pack_spec(msgspec.structs.replace(unpack_spec(packed), **kept))


def _switch(state: State, job: Job, number: int, packed: bytes, clock: Clock) -> list[Effect]:
    """Let what is placed from here on run by another revision. What waits and could not stand in its line ends."""
    job.revision = number
    effects = revisions.revise(state, job, packed, job.after, clock)
    for task in list(rollouts.standing(state, job)):
        if (task.queued or task.again_ms) and rollouts.is_over(state, job, task):
            effects += cancels.end_replica(state, job, task.index, _why(state, job, task.index), clock)
    return effects


def stepped(state: State, event: RolloutStepped, clock: Clock) -> list[Effect]:
    """Take the step that the records ask for now."""
    job = _living(state, event.job_id)
    step = steps.decide(state, job, clock.now_ms) if job is not None else steps.Step()
    if job is None:
        return []
    rollouts.watch(state, job.id, clock.now_ms)
    if not step.due:
        return []
    if job.aim < 0:
        job.aim = replicas.wanted(job)
    effects: list[Effect] = []
    for index in step.stop:
        effects += cancels.end_replica(state, job, index, _why(state, job, index), clock)
    for index in step.leave:
        effects += _leave(state, job, index, clock)
    if step.more:
        effects += jobs.extended(state, ArrayExtended(job.id, step.more * job.group_size), clock)
    if step.more or step.leave:
        job.stepped_ms = clock.now_ms
    if step.outcome == steps.DONE:
        effects += _finish(state, job, clock)
    elif step.outcome == steps.OVER:
        job.aim = -1
    state.touched.jobs[job.id] = None
    return effects


def _leave(state: State, job: Job, index: int, clock: Clock) -> list[Effect]:
    """Send a replica no new requests; one that has had none is stopped at once."""
    serves = replicas.ready_since_ms(state, job, index) >= 0
    if not serves or not unpack_spec(job.spec).replacing.drain_s:
        return cancels.end_replica(state, job, index, _why(state, job, index), clock)
    for task in groups.tasks_of(state, job, index):
        task.leaving_ms = clock.now_ms
        state.touched.tasks[job.id, task.index] = None
    attempt = groups.members(state, job, index)[0]
    data = {"attempt": attempt.no, "revision": attempt.revision, "reason": _why(state, job, index)}
    return [Note("replica_leaving", job.id, state.spell(attempt), attempt.worker, data)]


def _why(state: State, job: Job, index: int) -> str:
    task = state.tasks.get((job.id, index))
    if job.aim >= 0 and (task is None or not steps.is_old(state, job, task)):
        return f"scaled down to {job.aim}"
    return f"another replica of revision {job.revision} took its place"


def _finish(state: State, job: Job, clock: Clock) -> list[Effect]:
    """A revision is whole: from here on it is the one to go back to."""
    known, before = rollouts.revisions_of(state, job), job.stable
    mine = known[job.revision]
    rollouts.write(state, job, msgspec.structs.replace(mine, outcome=steps.DONE, why="", ended_at_ms=0))
    job.stable = job.revision
    if mine.kind == "restart" and known[before].spec == job.spec:
        # The same by another number: there is nothing to go back to.
        rollouts.merge(state, job, before)
    return [Note("service_updated", job.id, data={"revision": job.revision, "before": before})]
