"""Replicas of a service: tasks that start again whenever they end, until the service is stopped; of one with several
nodes groups of tasks, each of which is one replica: what is said here of a replica goes for a group as one.

A start after an end is no retry and charged to nobody. After each end that was the replica's own it rests, twice as
long as the last time; once it has been well for long that is forgotten. Many ends in a short time are a crash loop, and
stay one until then. What was nobody's doing (a worker that is lost, a place that is given up for others, a restart that
somebody asked for) costs no rest. A group is ready when all its members are, and callers are sent to the first of them.
The surprising rule: of a service without checks a replica is ready once it runs.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import groups, rollouts
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.service_events import ReplicaRested
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs
from dray.core.model.records.records import Attempt, Job, JobState, Phase, Task
from dray.core.model.specs.health import member_health
from dray.core.model.specs.spec import unpack_spec

STARTING, READY, UNHEALTHY, STOPPING, SILENT = "starting", "ready", "unhealthy", "stopping", "silent"
LEAVING = "draining"
_WORST_FIRST = (STOPPING, SILENT, LEAVING, STARTING, UNHEALTHY, READY)
# For these reasons a replica is asked to stop: to be started again by the rule, at once, or because of a takeover.
NOT_WELL = "unhealthy"
_AT_ONCE = {
    "requeued": "restarted on request",
    "revoked": "taken back before it was accepted",
    "preempted": "preempted",
}
LAST_CHARS = 200


def health_of(state: State, job: Job, attempt: Attempt) -> str:
    """How a current attempt is: starting, ready, unhealthy, draining, stopping, or of a worker that is silent."""
    if attempt.cancel or attempt.phase is Phase.STOPPING or not attempt.phase.live:
        return STOPPING
    if attempt.phase is Phase.UNKNOWN:
        return SILENT
    if state.tasks[job.id, attempt.index].leaving_ms:
        return LEAVING
    if not attempt.started:
        return STARTING
    return attempt.health or (STARTING if _is_checked(state, job, attempt) else READY)


def furthest(state: State, job: Job, group: list[Attempt]) -> Attempt:
    """The member of a group that is the furthest from being ready: it tells how the group is."""
    return min(group, key=lambda member: _WORST_FIRST.index(health_of(state, job, member)))


def _is_checked(state: State, job: Job, attempt: Attempt) -> bool:
    spec = unpack_spec(rollouts.spec_of(state, job, attempt.revision))
    return member_health(spec.health_check, attempt.index % job.group_size) is not None


def ready_since_ms(state: State, job: Job, index: int) -> int:
    """Since when a replica is ready, with all its members; -1 where it is not."""
    group = groups.members(state, job, index)
    if not group or any(health_of(state, job, member) != READY for member in group):
        return -1
    return _well_since_ms(group)


def _well_since_ms(group: list[Attempt]) -> int:
    return max(member.health_ms if member.health else member.started_ms for member in group)


def ready_replicas(state: State, job: Job) -> list[Attempt]:
    """The current attempts of a service that callers are sent to, by index: of a group that is ready its first."""
    live = (state.attempts[uid] for uid in state.live_of.get(job.id, ()))
    ready = [
        attempt
        for attempt in live
        if attempt.index % job.group_size == 0
        and groups.is_member(state, attempt)
        and ready_since_ms(state, job, attempt.index) >= 0
    ]
    return sorted(ready, key=lambda attempt: attempt.index)


def wanted(job: Job) -> int:
    """How many replicas a service is to have; while some are replaced there may be more."""
    return job.aim if job.aim >= 0 else (job.total - job.ended) // job.group_size


def tell_name(job: Job, index: int) -> str:
    """A replica as people are told of it, by one of its tasks."""
    return f"group {index // job.group_size}" if job.gang else f"replica {index}"


def ended(
    state: State, job: Job, tasks: list[Task], attempt: Attempt, clock: Clock, free: str = ""
) -> list[Effect]:
    """The current attempts of a replica have ended, however: it is queued again, at once or after a rest.

    `attempt` is the one that counts, of a group the first that ended; `free`: why that costs nothing, if it is known.
    """
    well = was_well(state, job, tasks)
    said = f"{state.spell(attempt)} on {attempt.worker} ended its group: " if job.gang else ""
    for task in tasks:
        task.exit_class, task.error = attempt.exit_class, f"{said}{_words(attempt)}"
        if well:
            recover(task)
    if why := free or _free(attempt):
        effects: list[Effect] = []
        for task in tasks:
            task.preemptions += attempt.phase is Phase.PREEMPTED
            task.ahead = task.ahead or attempt.cancel == "preempted"
            effects += jobs.requeue(state, job, task, clock, why, afresh=True)
        return effects
    if job.cancelled or rollouts.is_over(state, job, tasks[0]):
        end = (JobState.KILLED, clock, "cancelled", "cancelled" if job.cancelled else tasks[0].error)
        return [effect for task in tasks for effect in jobs.end_task(state, job, task, *end)]
    return _rest(state, job, tasks, attempt, clock)


def _free(attempt: Attempt) -> str:
    """Why an end was not the replica's own; empty where it was."""
    if attempt.phase is Phase.LOST:
        began = "was lost" if attempt.started else "did not start it"
        return f"its worker {attempt.worker} {began}: {attempt.error or 'no reason given'}"
    if attempt.phase is Phase.PREEMPTED:
        return attempt.error or "preempted"
    return _AT_ONCE.get(attempt.cancel, "")


def _words(attempt: Attempt) -> str:
    """How it ended, for people: the last line that it printed says most."""
    lines = [line.strip() for line in attempt.last.splitlines() if line.strip()]
    said = attempt.error
    if attempt.cancel == NOT_WELL:
        said = f"restarted: {attempt.health_note or 'its checks failed'}"
    elif not said and attempt.signal:
        said = f"ended by signal {attempt.signal}"
    elif not said and attempt.exit_code is not None:
        said = f"ended with exit code {attempt.exit_code}"
    last = f" (it printed last: {lines[-1][-LAST_CHARS:]})" if lines else ""
    return f"{said}{last}"


def was_well(state: State, job: Job, tasks: list[Task]) -> bool:
    """Whether a replica was ready until now for so long that earlier ends count no more."""
    group = [state.attempts[task.current] for task in tasks]
    if not all(_was_ready(state, job, member) for member in group):
        return False
    return state.now_ms - _well_since_ms(group) >= state.rules.well_ms


def _was_ready(state: State, job: Job, attempt: Attempt) -> bool:
    if not attempt.started:
        return False
    return attempt.health == READY or not (attempt.health or _is_checked(state, job, attempt))


def recover(task: Task) -> None:
    """Forget earlier ends."""
    task.restarts, task.ends_ms, task.looping = 0, (), False


def _rest(state: State, job: Job, tasks: list[Task], attempt: Attempt, clock: Clock) -> list[Effect]:
    """Count one end of a replica, with all its tasks alike, and let it pause."""
    rules, first = state.rules, tasks[0]
    pause_ms = min(rules.restart_ms << min(first.restarts, 20), rules.longest_restart_ms)
    ends_ms = (*first.ends_ms, clock.now_ms)[-rules.loop_ends :]
    often = len(ends_ms) == rules.loop_ends and clock.now_ms - ends_ms[0] <= rules.loop_window_ms
    restarts, looping, began = first.restarts + 1, first.looping or often, often and not first.looping
    for task in tasks:
        if task.state is JobState.RUNNING:
            job.running -= 1
        task.restarts, task.ends_ms, task.looping = restarts, ends_ms, looping
        task.state, task.current, task.used_ms = JobState.PENDING, "", 0
        task.again_ms = clock.now_ms + pause_ms
        state.touched.tasks[job.id, task.index] = None
    job.resting += len(tasks)
    state.touched.jobs[job.id] = None
    state.set_timer(first.again_ms, "replica", f"{job.id} {first.index}")
    name = state.spell(attempt)
    data = {
        "attempt": attempt.no,
        "error": first.error,
        "exit_code": attempt.exit_code,
        "pause_ms": pause_ms,
    }
    effects: list[Effect] = [Note("replica_ended", job.id, name, attempt.worker, data)]
    if began:
        effects.append(Note("replica_crash_looping", job.id, name, attempt.worker, data))
    return effects + jobs.settle(state, job, clock)


def wake(state: State, job: Job, tasks: list[Task], clock: Clock, why: str) -> list[Effect]:
    """End a replica's rest: it is queued again."""
    effects: list[Effect] = []
    for task in tasks:
        job.resting -= 1
        task.again_ms = 0
        effects += jobs.requeue(state, job, task, clock, why, afresh=True)
    return effects


def rested(state: State, event: ReplicaRested, clock: Clock) -> list[Effect]:
    """A replica that had ended is queued again."""
    job, task = state.jobs.get(event.job_id), state.tasks.get((event.job_id, event.index))
    if job is None or task is None or not task.again_ms:
        return []
    tasks = groups.tasks_of(state, job, event.index)
    return wake(state, job, tasks, clock, f"start {task.restarts} after an end")


def arm_rests(state: State, job: Job) -> None:
    """Look at the replicas of a service that rest when they have done so."""
    if job.resting:
        for index in range(0, job.cursor, job.group_size):
            task = state.tasks.get((job.id, index))
            if task is not None and task.again_ms:
                state.set_timer(task.again_ms, "replica", f"{job.id} {index}")
