"""Why nobody is stopped for a job that has the right to it: which of the policy's terms stands in the way.

Asks the search of the passes under other terms, one relaxed after the other: the first under which it finds victims is
the one that withholds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from dray.core.lifecycle.holding.receipts import ran_ms, recent
from dray.core.lifecycle.state.events import Preemption
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import Limits, PreemptionPolicy
from dray.core.model.records.records import Job
from dray.core.scheduling.claims.victims import share_held
from dray.core.scheduling.explain.reason import Blocker, count, span
from dray.core.scheduling.passes.overlay import look_through
from dray.core.scheduling.turns.gates import Gates
from dray.core.scheduling.turns.victim_rules import NO_RULE, rule_for, scarce_kind

_NO_LIMIT = Limits(per_job=1 << 30, per_user=1 << 30, cluster=1 << 30)


class _Term(NamedTuple):
    """One term: how it is relaxed, and its words, given whom it spares."""

    relax: Callable[[PreemptionPolicy], PreemptionPolicy]
    word: Callable[[State, Job, Preemption], tuple[str, int]]


def find_withheld(state: State, job: Job, gates: Gates) -> Blocker | None:
    """The term that keeps others where they are though they sit below the job; None where no term does."""
    kind = scarce_kind(state.asks(job.shape)[0])
    if rule_for(state, job, kind) == NO_RULE or gates.room_for(job)[0] <= 0:
        return None
    terms = state.policy.preemption
    # Each search walks over all that runs: most often nobody could be stopped under any terms, which one of them tells.
    if _seek(state, job, terms) is not None or _seek(state, job, _relax_all(terms)) is None:
        return None
    for term in _TERMS:
        relaxed = term.relax(terms)
        found = _seek(state, job, relaxed) if relaxed != terms else None
        if found is not None:
            text, in_ms = term.word(state, job, found)
            spared = state.attempts[found.victims[0]]
            return Blocker("withheld", "work that may be stopped", "spared", message=text, in_ms=in_ms,
                           who=spared.job_id)  # fmt: skip
    return None


def _seek(state: State, job: Job, terms: PreemptionPolicy) -> Preemption | None:
    search = look_through(state).search
    search.terms = terms
    return search.seek(job, 0)[0]


def _word_run(state: State, job: Job, found: Preemption) -> tuple[str, int]:
    least_ms = round(state.policy.preemption.min_run_s * 1000)
    in_ms = max(least_ms - ran_ms(state, state.attempts[uid]) for uid in found.victims)
    what = "work that would make room for it"
    return f"{what} may run for {span(max(in_ms, 1000))} more first (min_run_s is {span(least_ms)})", in_ms


def _word_limits(state: State, job: Job, found: Preemption) -> tuple[str, int]:
    limits, hits = state.policy.preemption.limits, recent(state)
    spared = state.attempts[found.victims[0]]
    user = state.jobs[spared.job_id].user
    of_job = sum(1 for hit in hits if hit.job_id == spared.job_id)
    of_user = sum(1 for hit in hits if hit.user == user)
    used = [
        f"its job was stopped {count(of_job, 'time')}, {limits.per_job} is the most"
        if of_job >= limits.per_job
        else "",
        f"its user was {count(of_user, 'time')}, {limits.per_user} is the most"
        if of_user >= limits.per_user
        else "",
        f"{len(hits)} were in all, {limits.cluster} is the most" if len(hits) >= limits.cluster else "",
    ]
    told = next(filter(None, used), "so many at once are more than the limits allow")
    within = span(round(limits.window_s * 1000))
    return f"work that would make room for it is spared: within {within} {told}", 0


def _word_wait(state: State, job: Job, found: Preemption) -> tuple[str, int]:
    wait_ms = round(state.policy.preemption.wait_s * 1000)
    in_ms = max(0, job.waiting_since_ms + wait_ms - state.now_ms)
    text = (
        f"others are stopped for it once it has waited {span(wait_ms)} (wait_s), in {span(max(in_ms, 1000))}"
    )
    return text, in_ms


def _word_pressure(state: State, job: Job, found: Preemption) -> tuple[str, int]:
    kind = scarce_kind(state.asks(job.shape)[0])
    least, held = state.policy.preemption.pressure_share, share_held(state, kind)
    what = {"gpu": "GPUs", "cpu": "cores"}.get(kind, kind)
    return f"others are stopped only while {least:.0%} of the {what} are held, {held:.0%} are", 0


def _relax_all(terms: PreemptionPolicy) -> PreemptionPolicy:
    return msgspec.structs.replace(terms, wait_s=0, min_run_s=0, limits=_NO_LIMIT, pressure_share=0)


_TERMS = (
    _Term(lambda terms: msgspec.structs.replace(terms, wait_s=0), _word_wait),
    _Term(lambda terms: msgspec.structs.replace(terms, min_run_s=0), _word_run),
    _Term(lambda terms: msgspec.structs.replace(terms, limits=_NO_LIMIT), _word_limits),
    _Term(lambda terms: msgspec.structs.replace(terms, pressure_share=0), _word_pressure),
    _Term(_relax_all, _word_run),
)
