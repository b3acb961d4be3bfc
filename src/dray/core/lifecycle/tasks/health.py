"""What is said of replicas while they run: a fact where it changes something, and no result.

It counts for the current attempt alone. The surprising rule: not ready is no reason to stop a replica; only that it
does not live is, or the same word some times in a row from a worker that knows no other.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import groups, rollouts
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.service_events import HealthChanged
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import gangs, jobs, replicas
from dray.core.lifecycle.tasks.results import find
from dray.core.model.records.records import Attempt
from dray.core.model.specs.spec import TIERS


def is_news(state: State, attempt: Attempt, healthy: bool, live: bool) -> bool:
    """Whether a word about a replica changes anything: of the current attempt that runs, and new."""
    job, task = state.jobs[attempt.job_id], state.tasks.get((attempt.job_id, attempt.index))
    if not job.service or task is None or task.current != attempt.uid or attempt.cancel:
        return False
    said = replicas.READY if healthy else replicas.UNHEALTHY
    counts = not healthy and state.workers[attempt.worker].base
    return attempt.health != said or not live or counts


def health_changed(state: State, event: HealthChanged, clock: Clock) -> list[Effect]:
    """Note how a replica is; one that is not well for good is stopped, and starts again by the rule.

    A worker that knows no more than whether it is well says so some times in a row.
    """
    attempt = find(state, event.worker, event.job_id, event.index, event.uid)
    if attempt is None or not attempt.phase.live or not is_news(state, attempt, event.healthy, event.live):
        return []
    job = state.jobs[attempt.job_id]
    tasks = groups.tasks_of(state, job, attempt.index)
    said = replicas.READY if event.healthy else replicas.UNHEALTHY
    effects: list[Effect] = []
    if attempt.health != said:
        if replicas.was_well(state, job, tasks):
            for task in tasks:
                replicas.recover(task)
                state.touched.tasks[job.id, task.index] = None
        attempt.health, attempt.health_ms = said, clock.now_ms
        if job.aim >= 0:
            rollouts.watch(state, job.id, clock.now_ms)
        data = {"attempt": attempt.no, "health": said, "message": event.note}
        effects.append(Note("replica_health", job.id, state.spell(attempt), attempt.worker, data))
    attempt.health_note = event.note
    attempt.ills = 0 if event.healthy else attempt.ills + 1
    state.touched.attempts[attempt.uid] = None
    gives_up = state.workers[attempt.worker].base and attempt.ills >= state.rules.most_ills
    if gives_up or not event.live:
        effects += jobs.stop_attempt(state, attempt, replicas.NOT_WELL, TIERS[job.tier].grace_s, clock)
        if job.gang:
            # All of its group at once, not each a grace after the other.
            effects += gangs.break_up(state, job, attempt, gangs.KILLED, clock)
    return effects
