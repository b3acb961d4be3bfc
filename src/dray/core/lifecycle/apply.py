"""`apply(state, event, clock)`: the one place where state changes. A table from event to rule, nothing else.

A fact's rule reads durable state only, so that a replay of the log, which has no signals, ends in the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.core.lifecycle.counts import waits
from dray.core.lifecycle.happenings import (
    alarms,
    cancels,
    edits,
    idling,
    passes,
    policy,
    preemptions,
    saves,
    templates,
    workers,
    yields,
)
from dray.core.lifecycle.holding import refusals
from dray.core.lifecycle.moving import rules as moving
from dray.core.lifecycle.providers import endings, launches
from dray.core.lifecycle.providers import health as provider_health
from dray.core.lifecycle.services import updates
from dray.core.lifecycle.state import events, pass_events, service_events, workload_events
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock, EpochStarted, Event
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import (
    calls,
    deadlines,
    health,
    jobs,
    prewarms,
    replicas,
    results,
    speeds,
    uses,
)
from dray.core.lifecycle.waiting.facts import WaitsCharged
from dray.core.lifecycle.workloads import verbs


def _epoch_started(state: State, event: EpochStarted, clock: Clock) -> list[Effect]:
    if event.epoch <= state.counters.epoch:
        # Raised further before the first one was folded in: going back would draw the same uids twice.
        return []
    state.counters.epoch = event.epoch
    state.counters.next_attempt = 1
    return [Note("hub_started", data={"epoch": event.epoch})]


RULES: dict[type[Any], Callable[[State, Any, Clock], list[Effect]]] = {
    events.JobsSubmitted: jobs.submitted,
    service_events.ProviderJudged: provider_health.judged,
    service_events.PlacementChosen: policy.placement_chosen,
    service_events.MovesDecided: moving.decided,
    service_events.MoveStepped: moving.stepped,
    events.AlarmChanged: alarms.alarm_changed,
    service_events.AdviceGiven: alarms.advice_given,
    events.IdleReached: idling.idle_reached,
    events.ArrayExtended: jobs.extended,
    service_events.ServiceScaled: updates.scaled,
    service_events.ServiceUpdated: updates.updated,
    service_events.UpdateAbandoned: updates.abandoned,
    service_events.RolloutStepped: updates.stepped,
    service_events.ReplicaRested: replicas.rested,
    service_events.HealthChanged: health.health_changed,
    service_events.UseChanged: uses.use_changed,
    events.PlanDecided: preemptions.planned,
    events.CancelRequested: cancels.cancelled,
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
    events.WorkerLabelled: workers.labelled,
    events.WorkerLeft: workers.left,
    events.WorkerForgotten: workers.forgotten,
    events.EpochStarted: _epoch_started,
    events.PolicyChanged: policy.policy_changed,
    events.TemplateAdded: templates.template_added,
    events.TemplateRemoved: templates.template_removed,
    workload_events.WorkloadMade: verbs.made,
    workload_events.WorkloadChanged: verbs.changed,
    workload_events.WorkloadSwitched: verbs.switched,
    workload_events.WorkloadDropped: verbs.dropped,
    workload_events.WorkloadSpent: verbs.spent,
    workload_events.WorkloadRetried: verbs.retried,
    service_events.LaunchAsked: launches.asked,
    service_events.LaunchMoved: launches.moved,
    service_events.LaunchSaid: launches.said,
    service_events.LaunchForgotten: launches.forgotten,
    service_events.WorkerEnding: endings.ending,
    service_events.LaunchersDue: launches.due,
    service_events.LaunchersSeen: launches.seen,
    events.AttemptSaved: saves.saved,
    events.HoldChanged: edits.hold_changed,
    events.DeadlineLost: deadlines.lost,
    service_events.SpeedsSeen: speeds.seen,
    events.JobEdited: edits.edited,
    events.RequeueRequested: edits.requeue_requested,
    WaitsCharged: waits.waits_charged,
    events.Heard: workers.heard,
    events.SlotsSeen: workers.slots_seen,
    events.CreditSet: workers.credit_set,
    events.SessionOpened: workers.session_opened,
    events.SessionClosed: workers.session_closed,
    events.SessionsResumed: workers.sessions_resumed,
    events.Suspected: workers.suspected,
    events.ResendDue: workers.resend_due,
    events.StopDue: workers.stop_due,
    events.GateDue: policy.gate_due,
    events.ProtectDue: policy.protect_due,
    events.LookDue: policy.look_due,
    events.GoDue: workers.go_due,
    events.Progressed: saves.progressed,
    events.UsesSeen: idling.uses_seen,
    events.CallsFed: calls.fed,
    events.CallsEnded: calls.ended,
    events.LanesClosed: calls.closed,
    events.CutDue: calls.cut_due,
    events.LingerDue: calls.linger_due,
    events.PauseOver: refusals.pause_over,
    events.AttemptYielded: yields.yielded,
    events.AttemptResumed: yields.resumed,
    events.ResumeAsked: yields.resume_asked,
    pass_events.TurnBegan: passes.turn_began,
    pass_events.Braked: passes.braked,
    pass_events.RoomReleased: passes.room_released,
    pass_events.PassBegan: passes.pass_began,
    pass_events.HeadsStale: passes.heads_stale,
    pass_events.PassSettled: passes.pass_settled,
    pass_events.PollsAnswered: passes.polls_answered,
    pass_events.LanesSeen: passes.lanes_seen,
    pass_events.LanesHungry: passes.lanes_hungry,
    pass_events.LanesKept: passes.lanes_kept,
    pass_events.LeadsSeen: passes.leads_seen,
    pass_events.Foreseen: prewarms.foreseen,
    pass_events.WarmSeen: prewarms.warm_seen,
    pass_events.PlacementWeighed: policy.placement_weighed,
    pass_events.EmptyingLooked: passes.emptying_looked,
    pass_events.RebalanceLooked: passes.rebalance_looked,
    pass_events.BatchOpened: passes.batch_opened,
    pass_events.HintsGiven: passes.hints_given,
    pass_events.BatchClosed: passes.batch_closed,
    pass_events.SolverTold: passes.solver_told,
}


def apply(state: State, event: Event, clock: Clock) -> list[Effect]:
    """Fold one event in and say what must be done about it once it is committed."""
    state.now_ms, state.at_ms = clock
    return RULES[type(event)](state, event, clock)
