"""What a worker says of its attempts: accepted, started, ended. Each message is checked against who is current.

A worker speaks only for its own attempts. A message that names no attempt (base-only peer) is read as this
worker's newest attempt of that task.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import attempts, lanes, quarantines, receipts, refusals, retries, rollouts
from dray.core.lifecycle.holding.attempts import ACCEPT, FAIL, KILL, LOSE, PREEMPT, REVOKE, START, SUCCEED
from dray.core.lifecycle.providers import records as providers
from dray.core.lifecycle.state.effects import Ack, Cancel, CloseSession, Effect, LookUp, Note, Refuse
from dray.core.lifecycle.state.events import (
    AttemptAccepted,
    AttemptEnded,
    AttemptRevoked,
    AttemptsLost,
    AttemptStarted,
    Clock,
    LimitPassed,
    Outcome,
)
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import calls, gangs, jobs, replicas, revisions
from dray.core.model.ids import task_id
from dray.core.model.records.records import Attempt, Job, JobState, Phase, Task
from dray.core.model.specs.spec import TIERS

_TRIGGER = {"succeeded": SUCCEED, "completed": SUCCEED, "failed": FAIL, "killed": KILL, "preempted": PREEMPT}
# What a worker lost, and whether user code had begun: its word counts even where `job_started` never came through.
LOST_CLASSES = {"lost": True, refusals.NEVER_BEGAN: False}
GIVEN_UP = 4408


def find(state: State, worker: str, job_id: str, index: int, uid: str) -> Attempt | None:
    """Find the attempt a message of `worker` speaks of; `index` as spelled, -1 for a job's only task."""
    if not uid:
        uid = state.newest.get((worker, job_id, max(index, 0)), "")
    attempt = state.attempts.get(uid)
    if attempt is None or attempt.worker != worker or attempt.job_id != job_id:
        return None
    if attempt.lane:
        # Also where one call of it is named: a worker that was asked to stop it says that it does not have its lane.
        return attempt
    if index < 0 if state.jobs[job_id].numbered else index == 0:
        return None
    return attempt if attempt.index == max(index, 0) else None


def accepted(state: State, event: AttemptAccepted, clock: Clock) -> list[Effect]:
    """The worker holds the task durably; for a peer that never says `job_started` this is the start as well."""
    attempt = find(state, event.worker, event.job_id, event.index, event.uid)
    if attempt is None:
        return [_unknown(state, event.worker, "job_accepted", event.job_id, event.index, event.uid)]
    effects: list[Effect] = [Ack(event.worker, "job_accepted")]
    if not attempt.accepted_at_ms:
        attempts.saw_answer(state, attempt, clock.now_ms)
    if attempt.phase is Phase.REVOKED:
        return [*effects, Cancel(event.worker, state.spell(attempt), attempt.uid, "revoked", 0)]
    moved = attempts.move(state, attempt, ACCEPT)
    if attempt.lane and attempt.phase.live:
        lanes.begin(state, state.jobs[attempt.job_id], attempt, clock.at_ms)
    if attempt.phase.live:
        attempt.accepted_at_ms = attempt.accepted_at_ms or clock.at_ms
        if event.ports:
            # Said again where the first word was lost: the start alone does not name them.
            attempt.address, attempt.ports = event.address, event.ports
        state.touched.attempts[attempt.uid] = None
    if not moved:
        if not event.uid and not attempt.phase.live:
            # A peer that names no attempts begins what is over: nobody would answer for it, nor keep its time limit.
            effects.append(Cancel(event.worker, state.spell(attempt), attempt.uid, "superseded", 0))
        return effects
    attempt.address, attempt.ports = event.address, event.ports
    effects.append(
        Note("task_accepted", attempt.job_id, state.spell(attempt), attempt.worker, {"attempt": attempt.no})
    )
    job = state.jobs[attempt.job_id]
    if attempt.lane:
        return effects
    task = state.tasks[attempt.job_id, attempt.index]
    if job.gang:
        return effects + gangs.accepted(state, job, attempt, clock)
    jobs.started(state, job, task, attempt, clock)
    if not says_started(state, attempt.worker):
        mark_started(state, attempt, clock)
        effects.append(_started_note(state, job, attempt, clock))
    return effects


def says_started(state: State, worker_id: str) -> bool:
    """Whether this worker tells acceptance and start apart."""
    return "job_started" in state.workers[worker_id].features


def mark_started(state: State, attempt: Attempt, clock: Clock) -> None:
    """From here on user code may have run: a loss is charged, the time limit runs."""
    if attempt.started:
        return
    attempt.started = True
    job = state.jobs[attempt.job_id]
    if job.aim >= 0:
        rollouts.watch(state, job.id, state.now_ms)
    refusals.began(state, attempt.worker)
    attempt.started_ms, attempt.started_at_ms = clock.now_ms, clock.at_ms
    quarantines.began(state, job, attempt)
    arm_limit(state, attempt)


def arm_limit(state: State, attempt: Attempt) -> None:
    """Watch the time limit of what a base-only worker runs."""
    if attempt.started and attempt.limit_ms and state.workers[attempt.worker].base:
        due_ms = attempt.started_ms + attempt.limit_ms + state.rules.limit_margin_ms
        state.set_timer(due_ms, "limit", attempt.uid)


def started(state: State, event: AttemptStarted, clock: Clock) -> list[Effect]:
    """User code runs."""
    attempt = find(state, event.worker, event.job_id, event.index, event.uid)
    if attempt is None:
        return [_unknown(state, event.worker, "job_started", event.job_id, event.index, event.uid)]
    effects: list[Effect] = [Ack(event.worker, "job_started")]
    if not attempt.phase.live:
        return effects
    if attempt.lane:
        lanes.begin(state, state.jobs[attempt.job_id], attempt, clock.at_ms)
    attempt.accepted_at_ms = attempt.accepted_at_ms or clock.at_ms
    attempt.pid = event.pid
    first = not attempt.started
    mark_started(state, attempt, clock)
    attempts.move(state, attempt, START)
    state.touched.attempts[attempt.uid] = None
    if attempt.lane:
        return effects
    job, task = state.jobs[attempt.job_id], state.tasks[attempt.job_id, attempt.index]
    gangs.saw_running(state, job, attempt, clock)
    if first:
        jobs.started(state, job, task, attempt, clock)
        effects.append(_started_note(state, job, attempt, clock))
    return effects


def _started_note(state: State, job: Job, attempt: Attempt, clock: Clock) -> Note:
    data = {"attempt": attempt.no, "waited_ms": max(0, clock.at_ms - job.submitted_at_ms)}
    return Note("task_started", attempt.job_id, state.spell(attempt), attempt.worker, data)


def ended(state: State, event: AttemptEnded, clock: Clock) -> list[Effect]:
    """Record a result, or say why it changes nothing; either way the worker may forget it."""
    outcome = event.outcome
    attempt = find(state, event.worker, outcome.job_id, outcome.index, outcome.uid)
    if attempt is None:
        return [LookUp(event.worker, outcome.job_id, outcome.index, outcome.uid)]
    if (
        not outcome.uid
        and outcome.state == "killed"
        and attempt.phase is Phase.ASSIGNED
        and not attempt.cancel
    ):
        # A peer that names no attempts was told to stop an earlier one of the same task: this is how that one ended.
        return [Ack(event.worker, "job_result", {attempt.uid: "superseded"})]
    verdict, effects = record(state, attempt, outcome, clock)
    return [Ack(event.worker, "job_result", {attempt.uid: verdict}), *effects]


def record(state: State, attempt: Attempt, outcome: Outcome, clock: Clock) -> tuple[str, list[Effect]]:
    """Give the verdict on a result: recorded, duplicate or superseded."""
    if attempt.lane:
        return calls.lane_ended(state, attempt, outcome, clock)
    job, task = state.jobs[attempt.job_id], state.tasks[attempt.job_id, attempt.index]
    assigned_ms = attempt.fed_ms or attempt.assigned_ms
    if attempt.phase is Phase.LOST:
        jobs.adopt(state, job, task, attempt, clock)
    if not attempt.phase.live:
        return ("superseded" if attempt.phase in (Phase.LOST, Phase.REVOKED) else "duplicate"), []
    if not attempt.accepted_at_ms:
        attempts.saw_answer(state, attempt, clock.now_ms)
    _fill(attempt, outcome, clock)
    ended_itself = outcome.state in ("succeeded", "completed", "failed")
    ran = LOST_CLASSES.get(outcome.exit_class, ended_itself or outcome.wall_s > 0)
    effects: list[Effect] = []
    if ran and not attempt.started:
        # The result was quicker than the word of its start, or the worker never says it.
        ran_ms = min(round(outcome.wall_s * 1000), max(0, clock.now_ms - assigned_ms))
        since = Clock(clock.now_ms - ran_ms, clock.at_ms - ran_ms)
        mark_started(state, attempt, since)
        jobs.started(state, job, task, attempt, since)
        effects.append(_started_note(state, job, attempt, since))
    if outcome.state == "succeeded":
        gangs.saw_running(state, job, attempt, clock)
    if outcome.exit_class == refusals.NEVER_BEGAN:
        refusals.refused(state, attempt, clock)
    trigger = LOSE if outcome.exit_class in LOST_CLASSES else _TRIGGER[outcome.state]
    if attempt.cancel == "preempted" and trigger in (FAIL, KILL):
        # A peer that does not know the word says how its process ended; it ended because it was asked to.
        trigger = PREEMPT
    attempts.move(state, attempt, trigger)
    receipts.victim_gone(state, attempt)
    attempts.learn_end(state, attempt)
    quarantines.ended(state, job, attempt)
    if task.current != attempt.uid:
        return "superseded", effects
    return "recorded", effects + conclude(state, job, task, attempt, clock)


def conclude(state: State, job: Job, task: Task, attempt: Attempt, clock: Clock) -> list[Effect]:
    """Decide what the end of its current attempt means for a task."""
    if job.gang:
        return gangs.member_ended(state, job, attempt, clock)
    task.exit_code, task.signal = attempt.exit_code, attempt.signal
    if job.service:
        return replicas.ended(state, job, [task], attempt, clock)
    phase = attempt.phase
    if phase is Phase.SUCCEEDED:
        return jobs.end_task(state, job, task, JobState.SUCCEEDED, clock, attempt.exit_class or "ok", "")
    if phase is Phase.PREEMPTED:
        task.preemptions += 1
        task.ahead = attempt.cancel == "preempted"
        return _hand_back(state, job, task, attempt, clock, attempt.error or "preempted")
    if phase is Phase.LOST:
        return _conclude_loss(state, job, task, attempt, clock)
    if phase is Phase.KILLED and attempt.cancel == "revoked":
        return _hand_back(state, job, task, attempt, clock, "taken back before it was accepted")
    if phase in (Phase.KILLED, Phase.FAILED) and attempt.cancel == "requeued":
        # Whatever the program made of the signal: it was asked to go, and that is nobody's failure.
        return _hand_back(state, job, task, attempt, clock, "requeued on request")
    if phase is Phase.KILLED and attempt.cancel != "time_limit":
        error = attempt.error or "stopped on its worker"
        return jobs.end_task(
            state, job, task, JobState.KILLED, clock, attempt.exit_class or "cancelled", error
        )
    if attempt.cancel == "time_limit":
        attempt.exit_class = "time_limit"
    follows = retries.after_failure(state, job, task, attempt, (task,))
    if isinstance(follows, retries.End):
        return jobs.end_task(state, job, task, follows.state, clock, follows.exit_class, follows.error)
    larger = follows.outgrown_bytes
    effects = revisions.outgrow(state, job, larger, clock) if larger else []
    return effects + jobs.requeue(state, job, task, clock, follows.why, afresh=True)


def _hand_back(state: State, job: Job, task: Task, attempt: Attempt, clock: Clock, why: str) -> list[Effect]:
    """Queue a task again that its worker gave back; one that may start once only and has started ends here."""
    end = retries.hand_back(job, attempt.started, why)
    return _requeue_or_end(state, job, task, end, why, clock)


def _requeue_or_end(
    state: State, job: Job, task: Task, end: retries.End | None, why: str, clock: Clock
) -> list[Effect]:
    if end is None:
        return jobs.requeue(state, job, task, clock, why)
    return jobs.end_task(state, job, task, end.state, clock, end.exit_class, end.error)


def _conclude_loss(state: State, job: Job, task: Task, attempt: Attempt, clock: Clock) -> list[Effect]:
    if not attempt.started:
        told = f"{attempt.worker} did not start it: {attempt.error}"
        why = told if attempt.exit_class == refusals.NEVER_BEGAN and attempt.error else ""
        return jobs.requeue(state, job, task, clock, why or "its worker was lost before it started")
    end = retries.charge_loss(job, task, (task,))
    retries.blame(job, attempt)
    why = f"its worker {attempt.worker} was lost (loss {task.losses})"
    return _requeue_or_end(state, job, task, end, why, clock)


def lose(state: State, attempt: Attempt, reason: str, clock: Clock) -> list[Effect]:
    """Give an attempt up: its worker is gone, or no longer knows it."""
    if attempt.lane:
        return calls.lose_lane(state, attempt, reason, clock)
    if not attempts.move(state, attempt, LOSE):
        return []
    attempt.ended_at_ms, attempt.exit_class, attempt.error = clock.at_ms, "lost", reason
    receipts.victim_gone(state, attempt)
    attempts.learn_end(state, attempt)
    job, task = state.jobs[attempt.job_id], state.tasks[attempt.job_id, attempt.index]
    return conclude(state, job, task, attempt, clock) if task.current == attempt.uid else []


def lost(state: State, event: AttemptsLost, clock: Clock) -> list[Effect]:
    """A worker was silent too long: its attempts are lost."""
    data = {"attempts": len(event.uids), "reason": event.reason}
    effects: list[Effect] = [Note("worker_lost", worker=event.worker, data=data)]
    for uid in event.uids:
        attempt = state.attempts.get(uid)
        if attempt is not None:
            effects += lose(state, attempt, event.reason, clock)
    return effects + _end_session(state, event.worker)


def _end_session(state: State, worker_id: str) -> list[Effect]:
    """Make a worker that was given up register again: it may still run what others now do, and only that tells."""
    presence = state.presence.get(worker_id)
    if presence is None or not presence.session:
        return []
    session, presence.session, presence.credit = presence.session, 0, 0
    state.touch_worker(worker_id)
    return [
        CloseSession(worker_id, session, GIVEN_UP, "silent too long: its tasks were given up, register again")
    ]


def revoked(state: State, event: AttemptRevoked, clock: Clock) -> list[Effect]:
    """Take an assignment back that was never accepted: free of charge, back to its old place."""
    attempt = state.attempts.get(event.uid)
    if attempt is None:
        return []
    if not state.workers[attempt.worker].left:
        refusals.refused(state, attempt, clock)
        if attempt.phase is Phase.ASSIGNED and not attempt.cancel:
            providers.spoilt(state, attempt.worker, started=False)
    if attempt.lane:
        return calls.revoke_lane(state, attempt, event.reason, clock)
    job, task = state.jobs[attempt.job_id], state.tasks[attempt.job_id, attempt.index]
    if job.gang and attempt.phase is Phase.ASSIGNED:
        attempt.error = event.reason
        return gangs.release(state, job, attempt, clock)
    if is_fenced(state, attempt):
        # It may have been accepted and run all the same: the next attempt waits until this one is surely gone.
        return jobs.stop_attempt(state, attempt, "revoked", 0, clock)
    if not attempts.move(state, attempt, REVOKE):
        return []
    attempt.ended_at_ms, attempt.error = clock.at_ms, event.reason
    effects: list[Effect] = [Cancel(attempt.worker, state.spell(attempt), attempt.uid, "revoked", 0)]
    if task.current == attempt.uid:
        effects += (
            gangs.member_ended(state, job, attempt, clock)
            if job.gang
            else jobs.requeue(state, job, task, clock, event.reason)
        )
    return effects


def is_fenced(state: State, attempt: Attempt) -> bool:
    """Whether two attempts of its task must never run at the same time."""
    return "lease" in state.ask(attempt).features


def limit_passed(state: State, event: LimitPassed, clock: Clock) -> list[Effect]:
    """Stop what a base-only worker runs past its limit; other agents keep the limit themselves."""
    attempt = state.attempts.get(event.uid)
    if attempt is None:
        return []
    grace_s = TIERS[state.jobs[attempt.job_id].tier].grace_s
    return jobs.stop_attempt(state, attempt, "time_limit", grace_s, clock)


def _fill(attempt: Attempt, outcome: Outcome, clock: Clock) -> None:
    attempt.exit_code, attempt.signal, attempt.exit_class = (
        outcome.exit_code,
        outcome.signal,
        outcome.exit_class,
    )
    attempt.error, attempt.value, attempt.digest = outcome.error, outcome.value, outcome.digest
    attempt.last = outcome.last
    attempt.wall_s, attempt.cpu_s, attempt.max_rss_bytes = (
        outcome.wall_s,
        outcome.cpu_s,
        outcome.max_rss_bytes,
    )
    attempt.gpu_s, attempt.gpu_seen_s = outcome.gpu_s, outcome.gpu_seen_s
    attempt.max_gpu_bytes = outcome.max_gpu_bytes
    attempt.accepted_at_ms = attempt.accepted_at_ms or clock.at_ms
    attempt.ended_at_ms = clock.at_ms


def _unknown(state: State, worker: str, kind: str, job_id: str, index: int, uid: str) -> Refuse:
    named = f" (attempt {uid})" if uid else ""
    return Refuse(worker, f"{kind}: this worker has no attempt of task {task_id(job_id, index)}{named}")
