"""Gangs: the tasks of a group start together or not at all, and end together. Batch work with several nodes is one
group, a service with several nodes has one for each replica.

One try of all of them is a generation. Accepted means prepared: when the last member's acceptance is folded in, the
generation passes its start barrier (`go`), and only then may user code run. The first member that ends otherwise than
with success breaks the generation, of a service the first that ends at all; the others are stopped, and once none is
live it is concluded, once, for the group as one. Until then a member that has ended stays its task's current attempt: a
result is recorded when it is sure.
"""

from __future__ import annotations

from dray.core.lifecycle.holding import attempts, groups, retries, rollouts
from dray.core.lifecycle.holding.attempts import REVOKE
from dray.core.lifecycle.state.effects import Cancel, Effect, Go
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs, replicas, revisions
from dray.core.model.records.records import Attempt, Job, JobState, Phase, Task
from dray.core.model.specs.spec import TIERS

FAILED, LOST, PREEMPTED, KILLED = "failed", "lost", "preempted", "killed"
RELEASED, REQUEUED, ENDED = "released", "requeued on request", "ended"
_HOW = {
    Phase.FAILED: FAILED,
    Phase.LOST: LOST,
    Phase.PREEMPTED: PREEMPTED,
    Phase.KILLED: KILLED,
    Phase.SUCCEEDED: ENDED,
}


# --- the start barrier ------------------------------------------------------------------------------------------------


def accepted(state: State, job: Job, attempt: Attempt, clock: Clock) -> list[Effect]:
    """A member is prepared; with the last one the generation passes its barrier."""
    if attempt.go:
        return [Go(attempt.worker, attempt.uid)]
    if _broken(state, job, attempt) or not _all_accepted(state, job, attempt):
        return []
    ready = groups.members(state, job, attempt.index)
    if any(member.cancel for member in ready):
        return []  # one was asked to stop meanwhile, and will break the generation by its end
    _open_barrier(state, job, attempt, clock)
    return [Go(member.worker, member.uid) for member in ready]


def _broken(state: State, job: Job, attempt: Attempt) -> str:
    return groups.first_of(state, job, attempt.index).broken


def _all_accepted(state: State, job: Job, attempt: Attempt) -> bool:
    """Looks on from the first member that was missing the last time, so that a generation costs its size once."""
    group = job.group_of(attempt.index)
    key = (job.id, group[0])
    index = state.first_missing.get(key, group[0])
    while index in group:
        member = state.attempts.get(state.tasks[job.id, index].current)
        if member is None or not member.accepted_at_ms:
            break
        index += 1
    state.first_missing[key] = index
    return index not in group


def _forget_missing(state: State, job: Job, attempt: Attempt) -> None:
    state.first_missing.pop((job.id, job.group_of(attempt.index)[0]), None)


def _open_barrier(state: State, job: Job, attempt: Attempt, clock: Clock) -> None:
    """From here on the tasks count as running; each member is told until it says that it has started."""
    _forget_missing(state, job, attempt)
    for member in groups.members(state, job, attempt.index):
        member.go = True
        state.touched.attempts[member.uid] = None
        jobs.started(state, job, state.tasks[job.id, member.index], member, clock)
        arm_go(state, member, clock.now_ms + state.rules.resend_ms[0])


def arm_go(state: State, attempt: Attempt, at_ms: int) -> None:
    """Tell a member again that it may start, unless it has said so by then."""
    if waits_for_go(attempt):
        state.set_timer(at_ms, "go", attempt.uid)


def waits_for_go(attempt: Attempt) -> bool:
    """Whether the hub has yet to hear that a member which may start has done so."""
    return attempt.go and attempt.phase.live and not attempt.started and not attempt.cancel


def saw_running(state: State, job: Job, attempt: Attempt, clock: Clock) -> None:
    """A member that runs proves that its generation passed the barrier: this hub was restored from before that."""
    if not job.gang or attempt.go or not groups.is_member(state, attempt) or _broken(state, job, attempt):
        return
    _open_barrier(state, job, attempt, clock)
    for member in groups.members(state, job, attempt.index):
        arm_go(state, member, clock.now_ms)


# --- the end of a generation ------------------------------------------------------------------------------------------


def release(state: State, job: Job, attempt: Attempt, clock: Clock) -> list[Effect]:
    """A member was not accepted in time, or handed back before: nobody starts, all are queued again together."""
    effects = [] if _broken(state, job, attempt) else break_up(state, job, attempt, RELEASED, clock)
    return effects + _conclude_if_over(state, job, attempt, clock)


def member_ended(state: State, job: Job, attempt: Attempt, clock: Clock) -> list[Effect]:
    """The current attempt of a member has ended: of batch work with success it waits for the others, else it breaks
    them up.
    """
    effects: list[Effect] = []
    if (job.service or attempt.phase is not Phase.SUCCEEDED) and not _broken(state, job, attempt):
        how, breaker = _how_ended(attempt), attempt
        if how == FAILED and not attempt.cancel and (victim := _victim(state, job, attempt)) is not None:
            # Its peer was told to go and may have gone: that it cannot do without is nobody's failure.
            how, breaker = PREEMPTED, victim
        effects = break_up(state, job, breaker, how, clock)
    return effects + _conclude_if_over(state, job, attempt, clock)


def _victim(state: State, job: Job, attempt: Attempt) -> Attempt | None:
    """The first member that was asked to stop for another job, if any was."""
    group = groups.members(state, job, attempt.index)
    return next((member for member in group if member.cancel == "preempted"), None)


def _how_ended(attempt: Attempt) -> str:
    how = _HOW.get(attempt.phase, RELEASED)
    if how in (KILLED, FAILED, ENDED) and attempt.cancel == "requeued":
        return REQUEUED
    if how == KILLED and attempt.cancel == "time_limit":
        attempt.exit_class = "time_limit"
        return FAILED
    return RELEASED if how == KILLED and attempt.cancel == "revoked" else how


def break_up(state: State, job: Job, breaker: Attempt, how: str, clock: Clock) -> list[Effect]:
    """One member has brought its generation to an end: the others are let go. It is concluded once all are gone."""
    first = groups.first_of(state, job, breaker.index)
    first.broken, first.breaker = how, breaker.uid
    if how not in (PREEMPTED, REQUEUED) and not job.service:
        job.blamed = breaker.worker
    _forget_missing(state, job, breaker)
    state.touched.jobs[job.id] = state.touched.tasks[job.id, first.index] = None
    if job.aim >= 0:
        rollouts.watch(state, job.id, clock.now_ms)
    effects: list[Effect] = []
    for member in groups.members(state, job, breaker.index):
        if member.phase.live:
            effects += _dismiss(state, job, member, clock)
    return effects


def _dismiss(state: State, job: Job, attempt: Attempt, clock: Clock) -> list[Effect]:
    """Let a member go. Without `go` nothing of it runs; what was never accepted is taken back."""
    fenced = "lease" in state.ask(attempt).features
    if attempt.phase is Phase.ASSIGNED and not attempt.go and not fenced:
        attempts.move(state, attempt, REVOKE)
        attempt.ended_at_ms = clock.at_ms
        attempt.error = attempt.error or "its gang was not accepted whole"
        return [Cancel(attempt.worker, state.spell(attempt), attempt.uid, "revoked", 0)]
    return jobs.stop_attempt(state, attempt, "gang", TIERS[job.tier].grace_s if attempt.go else 0, clock)


def _is_over(state: State, job: Job, attempt: Attempt) -> bool:
    """Whether nobody of a generation lives. Other groups of its job may, where it is a service."""
    if not job.live:
        return True
    return job.service and not any(one.phase.live for one in groups.members(state, job, attempt.index))


def _conclude_if_over(state: State, job: Job, attempt: Attempt, clock: Clock) -> list[Effect]:
    """Conclude once every member is confirmed gone or lost: the next generation never meets this one."""
    ended = groups.members(state, job, attempt.index) if _is_over(state, job, attempt) else []
    if not ended:
        return []
    tasks = [state.tasks[job.id, one.index] for one in ended]
    for task, one in zip(tasks, ended, strict=True):
        task.exit_code, task.signal = one.exit_code, one.signal
        # However the others ended: a gang that was stopped for another heads its band.
        task.ahead = any(other.phase is Phase.PREEMPTED and other.cancel == "preempted" for other in ended)
        # Kept in memory until now; from here on it may be let go.
        state.touched.attempts[one.uid] = None
    first = tasks[0]
    if not first.broken:
        effects: list[Effect] = []
        for task, one in zip(tasks, ended, strict=True):
            said = one.exit_class or "ok"
            effects += jobs.end_task(state, job, task, JobState.SUCCEEDED, clock, said, "")
        return effects
    how, breaker = first.broken, state.attempts[first.breaker]
    first.broken = first.breaker = ""
    if job.service:
        free = (
            f"{state.spell(breaker)} on {breaker.worker}: {breaker.error or how}" if how == RELEASED else ""
        )
        return replicas.ended(state, job, tasks, breaker, clock, free)
    return _judge(state, job, tasks, breaker, how, any(one.started for one in ended), clock)


def _judge(
    state: State, job: Job, tasks: list[Task], breaker: Attempt, how: str, ran: bool, clock: Clock
) -> list[Effect]:
    """Charge a broken generation once, and try again or end it, with every task alike."""
    first, name = tasks[0], state.spell(breaker)
    if how == KILLED:
        said = breaker.exit_class or "cancelled"
        return _end(state, job, tasks, breaker, JobState.KILLED, said, breaker.error, clock)
    if how == FAILED:
        follows = retries.after_failure(state, job, first, breaker, tasks)
        if isinstance(follows, retries.End):
            return _end(state, job, tasks, breaker, *follows, clock)
        larger = follows.outgrown_bytes
        effects = revisions.outgrow(state, job, larger, clock) if larger else []
        return effects + _try_again(state, job, tasks, f"{name} {follows.why}", clock, afresh=True)
    if how == LOST and ran:
        end = retries.charge_loss(job, first, tasks)
        why = f"{name} was lost with its worker {breaker.worker} (loss {first.losses})"
    else:
        for task in tasks:
            task.preemptions += how == PREEMPTED
        why = f"{name} on {breaker.worker}: {breaker.error or how}"
        end = retries.hand_back(job, ran, why, how)
    return _end(state, job, tasks, breaker, *end, clock) if end else _try_again(state, job, tasks, why, clock)


def _try_again(
    state: State, job: Job, tasks: list[Task], why: str, clock: Clock, afresh: bool = False
) -> list[Effect]:
    return [effect for task in tasks for effect in jobs.requeue(state, job, task, clock, why, afresh)]


def _end(
    state: State,
    job: Job,
    tasks: list[Task],
    breaker: Attempt,
    final: JobState,
    said: str,
    error: str,
    clock: Clock,
) -> list[Effect]:
    """End every task as the one that broke the generation did: what succeeded in it counts for nothing alone."""
    job.error = f"{state.spell(breaker)} on {breaker.worker} ended its gang: {error or said}"
    effects: list[Effect] = []
    for task in tasks:
        own = task.index == breaker.index
        effects += jobs.end_task(
            state, job, task, final, clock, said if own else "gang", error if own else job.error
        )
    return effects
