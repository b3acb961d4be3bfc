"""What attempts use, as their workers see it, and what follows where they hold cards and leave them idle.

Use is a signal; that an attempt has idled for longer than the policy says is a fact: warned of, demoted or stopped.
Surprising rule: nobody is called idle by default. A card that nobody could look at, an attempt that holds none, one in
its grace, and a gang of which one member works are all as good as busy; lanes come and go by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import CancelRequested, Clock, IdleReached, UsesSeen
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import IDLE_STEPS
from dray.core.model.records.records import Attempt, Phase
from dray.core.model.units import format_seconds

_RANK = {"": 0, **{step: rank for rank, step in enumerate(IDLE_STEPS, 1)}}
_WORDS = {
    "warn": "told so",
    "demote": "the first to go where room is made for work of higher priority",
    "stop": "stopped",
}


def uses_seen(state: State, event: UsesSeen, clock: Clock) -> list[Effect]:
    """Keep the latest that a worker says of its own attempts that live; of others it is left unread."""
    for uid, use in event.uses.items():
        attempt = state.attempts.get(uid)
        if attempt is not None and attempt.worker == event.worker and attempt.phase.live:
            state.uses[uid] = use._replace(at_ms=clock.at_ms)
    return []


def find_steps(state: State, worker: str, uid: str) -> Iterator[IdleReached | CancelRequested]:
    """What the policy wants done about an attempt of which its worker has just told the use."""
    attempt = state.attempts.get(uid)
    if attempt is None or attempt.worker != worker or not _may_idle(attempt):
        return
    idle_s = _idle_s(state, attempt)
    if idle_s is None:
        return
    if not idle_s:
        if attempt.idling:
            yield IdleReached(uid)
        return
    rules = state.policy.idle
    due = [step for step in IDLE_STEPS if 0 < rules.limit_s(step) <= idle_s]
    if due and _RANK[due[-1]] > _RANK[attempt.idling]:
        yield IdleReached(uid, due[-1], idle_s, rules.limit_s(due[-1]))
        if due[-1] == "stop":
            yield CancelRequested(attempt.job_id, attempt.index, policy=_tell(due[-1], idle_s))


def _may_idle(attempt: Attempt) -> bool:
    return (
        bool(attempt.devices) and attempt.phase is Phase.RUNNING and not attempt.lane and not attempt.cancel
    )


def _idle_s(state: State, attempt: Attempt) -> float | None:
    """For how long an attempt, or the gang that it is of, has used none of its cards; None where nobody knows."""
    members = [attempt]
    if (job := state.jobs[attempt.job_id]).gang:
        live = (state.attempts[uid] for uid in state.live_of[job.id])
        members = [member for member in live if member.index in job.group_of(attempt.index)]
    spans = [_own_idle_s(state, member) for member in members]
    return None if None in spans else min(span for span in spans if span is not None)


def _own_idle_s(state: State, attempt: Attempt) -> float | None:
    use = state.uses.get(attempt.uid)
    if use is None or not _may_idle(attempt) or not state.presence[attempt.worker].session:
        return None
    seen = {card.card: card.idle_s for card in use.cards}
    if not all(index in seen for index in attempt.devices):
        return None
    ran_s = (state.now_ms - attempt.started_ms) / 1000 - state.policy.idle.grace_s
    return max(0.0, min(ran_s, *(seen[index] for index in attempt.devices)))


def _tell(step: str, idle_s: float) -> str:
    return f"its GPUs have been idle for {format_seconds(round(idle_s))}: {_WORDS[step]} by the policy"


def idle_reached(state: State, event: IdleReached, clock: Clock) -> list[Effect]:
    """Note how far it has come with an attempt that idles, or that it works again."""
    attempt = state.attempts.get(event.uid)
    if attempt is None or not _may_idle(attempt) or attempt.idling == event.step:
        return []
    attempt.idling = event.step
    state.touched.attempts[attempt.uid] = None
    kind = "task_idle" if event.step else "task_busy"
    text = _tell(event.step, event.idle_s) if event.step else "it uses its GPUs again"
    data = {"attempt": attempt.no, "step": event.step, "idle_s": event.idle_s, "limit_s": event.limit_s}
    return [Note(kind, attempt.job_id, state.spell(attempt), attempt.worker, {**data, "message": text})]
