"""Who sits below whom by which rule, and what it costs to stop or to move somebody.

Knows nothing about room. The surprising rule: who is cheapest to stop is not who is cheapest to move, since one waits
afterwards and the other does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dray.core.lifecycle.holding.receipts import lost_ms, ran_ms
from dray.core.lifecycle.state.parties import cost_of, gpus_of
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.records.records import Attempt, Job
from dray.core.model.specs.resources import Ask
from dray.core.model.specs.spec import TIERS

NO_RULE = "none"
# Below every other: whom the policy has demoted goes first.
_IDLE_BAND = -NEVER
# What a stop and a start cost at least, besides work that was not saved.
RESTART_MS = 60_000
Cost = tuple[int, int, int, int, int]
# Whether an attempt sits below, also when these others are stopped with it.
Below = Callable[[Attempt, Sequence[Attempt]], bool]


class Given(NamedTuple):
    """By how much this pass has changed what users hold, and what others were stopped for that they do not hold yet."""

    held: dict[str, int]
    promised: dict[str, int]


def scarce_kind(ask: Ask) -> str:
    """The resource that decides where a task can go, by which the policy chooses its rule."""
    if ask.gpus:
        return "gpu"
    return "memory" if ask.memory_bytes and not ask.cpu_milli else "cpu"


def rule_for(state: State, job: Job, kind: str) -> str:
    """The rule by which a job may have others stopped; `none` where it may not."""
    return rule_in(state, job.queue, kind, job.ranked)


def rule_in(state: State, queue: str, kind: str, ranked: bool) -> str:
    """The rule by which jobs of a queue may have others stopped; `ranked`: those whose priority was given."""
    order = state.policy.queue(queue).order
    rule = state.policy.preemption.rule_for(kind)
    if rule == NO_RULE:
        return NO_RULE
    if order == "srsf":
        return "srsf"
    if rule == "fair_share":
        return rule if order == "fair_share" else NO_RULE
    return rule if order == "priority" and (ranked or state.policy.preemption.by_tier) else NO_RULE


def nobody_below(attempt: Attempt, others: Sequence[Attempt]) -> bool:
    """Nobody may be stopped, only moved."""
    return False


def _nobody(state: State, job: Job, ask: Ask, given: Given) -> Below:
    return nobody_below


def _by_priority(state: State, job: Job, ask: Ask, given: Given) -> Below:
    def is_below(attempt: Attempt, others: Sequence[Attempt]) -> bool:
        other = state.jobs[attempt.job_id]
        return other.priority < job.priority and state.policy.queue(other.queue).order == "priority"

    return is_below


def _by_share(state: State, job: Job, ask: Ask, given: Given) -> Below:
    users, weights, margin = (
        state.parties.users,
        state.policy.fair_share.weights,
        state.policy.preemption.fair_margin,
    )
    wanted = cost_of(state.policy, ask) * ask.nodes
    coming = given.held.get(job.user, 0) + given.promised.get(job.user, 0)
    mine = (users[job.user].cost + coming + wanted) / weights.get(job.user, 1.0)

    def is_below(attempt: Attempt, others: Sequence[Attempt]) -> bool:
        other = state.jobs[attempt.job_id]
        if other.user == job.user or other.queue != job.queue:
            return False
        weight = weights.get(other.user, 1.0)
        # What is only promised to him counts when he asks, not when others ask of him: he may never get it.
        whole = users[other.user].cost + given.held.get(other.user, 0)
        gone = sum(
            cost_of(state.policy, state.ask(one))
            for one in (attempt, *others)
            if state.jobs[one.job_id].user == other.user
        )
        return whole / weight > margin * mine and (whole - gone) / weight >= mine

    return is_below


def _by_service(state: State, job: Job, ask: Ask, given: Given) -> Below:
    task = state.tasks.get((job.id, 0))
    alone = task is not None and ((job.gang and not job.service) or not job.numbered)
    mine = _service(job, ask, task.used_ms if task is not None and alone else 0)

    def is_below(attempt: Attempt, others: Sequence[Attempt]) -> bool:
        other = state.jobs[attempt.job_id]
        if other.queue != job.queue:
            return False
        used_ms = _used_before(state, attempt) + ran_ms(state, attempt)
        return _service(other, state.ask(attempt), used_ms) > mine

    return is_below


def _used_before(state: State, attempt: Attempt) -> int:
    """What earlier attempts of its task have saved; a lane is an attempt of no task."""
    return 0 if attempt.lane else state.tasks[attempt.job_id, attempt.index].used_ms


def _service(job: Job, ask: Ask, used_ms: int) -> int:
    expected_ms = job.expected_ms or job.limit_ms or NEVER
    return max(1, expected_ms - used_ms) * max(1, gpus_of(ask)) * ask.nodes


BELOW: dict[str, Callable[[State, Job, Ask, Given], Below]] = {
    NO_RULE: _nobody,
    "priority": _by_priority,
    "pressure": _by_priority,
    "fair_share": _by_share,
    "srsf": _by_service,
}


def cost_of_stop(state: State, attempt: Attempt) -> Cost:
    job, task = state.jobs[attempt.job_id], state.tasks.get((attempt.job_id, attempt.index))
    risk = 2 * (task.preemptions if task is not None else 0) + (not attempt.saved_ms)
    if job.deadline_ms:
        grace_ms = TIERS[job.tier].grace_s * 1000
        risk += 2 + (attempt.limit_ms + grace_ms > job.deadline_ms - attempt.started_at_ms)
    members = job.group_size
    ask = state.ask(attempt)
    size = (gpus_of(ask) * 1000 + ask.cpu_milli) * members
    band = job.priority
    if state.policy.queue(job.queue).order == "srsf":
        # Who has most left to do is the least loss: what is nearly done frees its room by itself.
        band = -_service(job, ask, _used_before(state, attempt) + ran_ms(state, attempt))
    if attempt.idling == "demote":
        band = _IDLE_BAND
    return band, risk, lost_ms(state, attempt) * members, ran_ms(state, attempt), size


def cost_of_move(state: State, attempt: Attempt) -> Cost:
    """What it costs to move an attempt: it waits for nothing, so what it does again counts, by how much it holds."""
    _, risk, lost, ran, size = cost_of_stop(state, attempt)
    return 0, (lost + RESTART_MS) * size, risk, ran, size
