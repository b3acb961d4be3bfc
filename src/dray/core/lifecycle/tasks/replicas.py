"""Replicas of a service: tasks that start again whenever they end, until the service is stopped.

A start after an end is no retry and charged to nobody. After each end that was the replica's own it rests, twice as
long as the last time; once it has been well for long that is forgotten. Many ends in a short time are a crash loop, and
stay one until then. What was nobody's doing (a worker that is lost, a place that is given up for others, a restart that
somebody asked for) costs no rest. The surprising rule: of a service without checks a replica is ready once it runs.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import rollouts
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.service_events import ReplicaRested
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs
from dray.core.model.records.records import Attempt, Job, JobState, Phase, Task
from dray.core.model.specs.spec import unpack_spec

STARTING, READY, UNHEALTHY, STOPPING, SILENT = "starting", "ready", "unhealthy", "stopping", "silent"
LEAVING = "draining"
# For these reasons a replica is asked to stop: to be started again by the rule, at once, or because of a takeover.
NOT_WELL = "unhealthy"
_AT_ONCE = {
    "requeued": "restarted on request",
    "revoked": "taken back before it was accepted",
    "preempted": "preempted",
}
LAST_CHARS = 200


def health_of(state: State, job: Job, attempt: Attempt) -> str:
    """How a replica that lives is: starting, ready, unhealthy, draining, stopping, or of a worker that is silent."""
    if attempt.cancel or attempt.phase is Phase.STOPPING:
        return STOPPING
    if attempt.phase is Phase.UNKNOWN:
        return SILENT
    if state.tasks[job.id, attempt.index].leaving_ms:
        return LEAVING
    if not attempt.started:
        return STARTING
    return attempt.health or (STARTING if _is_checked(state, job, attempt) else READY)


def _is_checked(state: State, job: Job, attempt: Attempt) -> bool:
    return unpack_spec(rollouts.spec_of(state, job, attempt.revision)).health_check is not None


def ready_replicas(state: State, job: Job) -> list[Attempt]:
    """The current attempts of a service that may be sent requests, by index."""
    live = (state.attempts[uid] for uid in state.live_of.get(job.id, ()))
    ready = [
        attempt
        for attempt in live
        if state.tasks[job.id, attempt.index].current == attempt.uid
        and health_of(state, job, attempt) == READY
    ]
    return sorted(ready, key=lambda attempt: attempt.index)


def wanted(job: Job) -> int:
    """How many replicas a service is to have; while some are replaced there may be more."""
    return job.aim if job.aim >= 0 else job.total - job.ended


def ended(state: State, job: Job, task: Task, attempt: Attempt, clock: Clock) -> list[Effect]:
    """The current attempt of a replica has ended, however: it is queued again, at once or after a rest."""
    task.exit_class, task.error = attempt.exit_class, _words(attempt)
    if was_well(state, job, attempt):
        recover(task)
    why = _free(attempt)
    if why:
        task.preemptions += attempt.phase is Phase.PREEMPTED
        task.ahead = attempt.cancel == "preempted"
        return jobs.requeue(state, job, task, clock, why, afresh=True)
    if job.cancelled:
        return jobs.end_task(state, job, task, JobState.KILLED, clock, "cancelled", "cancelled")
    if rollouts.is_over(state, job, task):
        return jobs.end_task(state, job, task, JobState.KILLED, clock, "cancelled", task.error)
    return _rest(state, job, task, attempt, clock)


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


def was_well(state: State, job: Job, attempt: Attempt) -> bool:
    """Whether a replica was ready until now for so long that earlier ends count no more."""
    if not attempt.started:
        return False
    if attempt.health != READY and (attempt.health or _is_checked(state, job, attempt)):
        return False
    since_ms = attempt.health_ms if attempt.health else attempt.started_ms
    return state.now_ms - since_ms >= state.rules.well_ms


def recover(task: Task) -> None:
    """Forget earlier ends."""
    task.restarts, task.ends_ms, task.looping = 0, (), False


def _rest(state: State, job: Job, task: Task, attempt: Attempt, clock: Clock) -> list[Effect]:
    rules = state.rules
    if task.state is JobState.RUNNING:
        job.running -= 1
    pause_ms = min(rules.restart_ms << min(task.restarts, 20), rules.longest_restart_ms)
    task.restarts += 1
    task.ends_ms = (*task.ends_ms, clock.now_ms)[-rules.loop_ends :]
    task.state, task.current, task.used_ms = JobState.PENDING, "", 0
    task.again_ms = clock.now_ms + pause_ms
    job.resting += 1
    state.touched.jobs[job.id] = state.touched.tasks[job.id, task.index] = None
    state.set_timer(task.again_ms, "replica", f"{job.id} {task.index}")
    name = state.spell(attempt)
    data = {"attempt": attempt.no, "error": task.error, "exit_code": task.exit_code, "pause_ms": pause_ms}
    effects: list[Effect] = [Note("replica_ended", job.id, name, attempt.worker, data)]
    often = len(task.ends_ms) == rules.loop_ends
    if often and not task.looping and clock.now_ms - task.ends_ms[0] <= rules.loop_window_ms:
        task.looping = True
        effects.append(Note("replica_crash_looping", job.id, name, attempt.worker, data))
    return effects + jobs.settle(state, job, clock)


def wake(state: State, job: Job, task: Task, clock: Clock, why: str) -> list[Effect]:
    """End a replica's rest: it is queued again."""
    job.resting -= 1
    task.again_ms = 0
    return jobs.requeue(state, job, task, clock, why, afresh=True)


def rested(state: State, event: ReplicaRested, clock: Clock) -> list[Effect]:
    """A replica that had ended is queued again."""
    job, task = state.jobs.get(event.job_id), state.tasks.get((event.job_id, event.index))
    if job is None or task is None or not task.again_ms:
        return []
    return wake(state, job, task, clock, f"start {task.restarts} after an end")


def arm_rests(state: State, job: Job) -> None:
    """Look at the replicas of a service that rest when they have done so."""
    if job.resting:
        for index in range(job.cursor):
            task = state.tasks.get((job.id, index))
            if task is not None and task.again_ms:
                state.set_timer(task.again_ms, "replica", f"{job.id} {index}")
