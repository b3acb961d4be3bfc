"""A new policy comes into force: whom work belongs to, its lines and its gates are made anew.

Costs in proportion to what waits and runs, once per change. Nothing that runs is touched.
"""

from __future__ import annotations

from dray.core.lifecycle.holding.attempts import account
from dray.core.lifecycle.providers import launches
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock, GateDue, LookDue, PolicyChanged, ProtectDue
from dray.core.lifecycle.state.lines import Backlog
from dray.core.lifecycle.state.pass_events import PlacementWeighed
from dray.core.lifecycle.state.service_events import PlacementChosen
from dray.core.lifecycle.state.state import Leaning, State
from dray.core.model.policies.policy import AUTO, unpack_policy
from dray.core.model.records.ledger import ChoiceRecord, PolicyRecord

CHOICE = ("placement", "")


def policy_changed(state: State, event: PolicyChanged, clock: Clock) -> list[Effect]:
    """Replace the policy whole."""
    record = PolicyRecord(event.policy, event.origin, event.user, event.digest, clock.at_ms)
    state.enter("policy", "", record)
    state.policy = unpack_policy(event.policy)
    if state.policy.placement.strategy != AUTO and CHOICE in state.ledger:
        state.enter(*CHOICE, None)
    state.leaning = Leaning()
    regroup(state)
    launches.arm(state)
    return [Note("policy_changed", data={"origin": event.origin, "user": event.user})]


def placement_chosen(state: State, event: PlacementChosen, clock: Clock) -> list[Effect]:
    """Place by another strategy from here on."""
    before = state.ledger.get(CHOICE)
    was = before if isinstance(before, ChoiceRecord) else None
    record = ChoiceRecord(
        event.strategy,
        event.rule,
        event.why,
        clock.now_ms,
        clock.at_ms,
        was.times + 1 if was else 0,
        was.strategy if was else "",
    )
    state.enter(*CHOICE, record)
    told = {"strategy": event.strategy, "rule": event.rule, "why": event.why, "before": record.before}
    return [Note("placement_chosen", data=told)]


def placement_weighed(state: State, event: PlacementWeighed, clock: Clock) -> list[Effect]:
    """Remember which way things lean."""
    state.leaning = Leaning(*event)
    return []


def gate_due(state: State, event: GateDue, clock: Clock) -> list[Effect]:
    """Look again at the lines behind a gate."""
    state.open_gate(event.gate)
    return []


def protect_due(state: State, event: ProtectDue, clock: Clock) -> list[Effect]:
    """The next pass gives this job a reservation."""
    state.note_due(event.job_id)
    return []


def look_due(state: State, event: LookDue, clock: Clock) -> list[Effect]:
    """Look again for room, or for victims."""
    job = state.jobs.get(event.job_id)
    if job is not None:
        state.rouse(job)
    return []


def regroup(state: State) -> None:
    """Sort everything that waits and runs under the policy in force."""
    state.parties.begin(state.policy)
    state.reservations.clear()
    state.unprotected.clear()
    state.watched.clear()
    depth, state.backlog = state.backlog.depth, Backlog(state)
    state.backlog.depth, state.backlog.eager = depth, state.policy.preempts
    for job in state.jobs.values():
        state.join_party(job)
        state.queue_all(job)
    for uids in state.held.values():
        for uid in uids:
            attempt = state.attempts[uid]
            account(state, state.jobs[attempt.job_id], attempt, state.ask(attempt), 1, start=False)
