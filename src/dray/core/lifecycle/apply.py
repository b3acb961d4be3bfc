"""`apply(state, event, clock)`: the one place where state changes. A table from event to rule, nothing else.

A fact's rule reads durable state only, so that a replay of the log, which has no signals, ends in the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.core.lifecycle import control, events, jobs, results, workers
from dray.core.lifecycle.effects import Effect, Note
from dray.core.lifecycle.events import Clock, EpochStarted, Event, PolicyChanged
from dray.core.lifecycle.state import State
from dray.core.model.ledger import PolicyRecord
from dray.core.model.policy import unpack_policy


def _epoch_started(state: State, event: EpochStarted, clock: Clock) -> list[Effect]:
    if event.epoch <= state.counters.epoch:
        # Raised further before the first one was folded in: going back would draw the same uids twice.
        return []
    state.counters.epoch = event.epoch
    state.counters.next_attempt = 1
    return [Note("hub_started", data={"epoch": event.epoch})]


def _policy_changed(state: State, event: PolicyChanged, clock: Clock) -> list[Effect]:
    record = PolicyRecord(event.policy, event.origin, event.user, event.digest, clock.at_ms)
    state.enter("policy", "", record)
    state.policy = unpack_policy(event.policy)
    return [Note("policy_changed", data={"origin": event.origin, "user": event.user})]


RULES: dict[type[Any], Callable[[State, Any, Clock], list[Effect]]] = {
    events.JobsSubmitted: jobs.submitted,
    events.ArrayExtended: jobs.extended,
    events.PlanDecided: jobs.planned,
    events.CancelRequested: jobs.cancelled,
    events.WaitTimedOut: jobs.timed_out,
    events.AttemptAccepted: results.accepted,
    events.AttemptStarted: results.started,
    events.AttemptEnded: results.ended,
    events.AttemptsLost: results.lost,
    events.AttemptRevoked: results.revoked,
    events.LimitPassed: results.limit_passed,
    events.WorkerRegistered: workers.registered,
    events.WorkerChanged: workers.changed,
    events.WorkerSilent: workers.silent,
    events.WorkerReturned: workers.returned,
    events.WorkerDrained: workers.drained,
    events.WorkerLeft: workers.left,
    events.WorkerForgotten: workers.forgotten,
    events.EpochStarted: _epoch_started,
    events.PolicyChanged: _policy_changed,
    events.HoldChanged: control.hold_changed,
    events.JobEdited: control.edited,
    events.RequeueRequested: control.requeue_requested,
    events.Heard: workers.heard,
    events.SlotsSeen: workers.slots_seen,
    events.CreditSet: workers.credit_set,
    events.SessionOpened: workers.session_opened,
    events.SessionClosed: workers.session_closed,
    events.Suspected: workers.suspected,
    events.ResendDue: workers.resend_due,
    events.StopDue: workers.stop_due,
}


def apply(state: State, event: Event, clock: Clock) -> list[Effect]:
    """Fold one event in and say what must be done about it once it is committed."""
    return RULES[type(event)](state, event, clock)
