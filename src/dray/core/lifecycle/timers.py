"""Which timers have run out, as events. A timer is only a reason to look: what it meant may be over.

Of workers: silence, a pause after refusals, a drain that ends by itself, faults and a trial. Of attempts: acceptance,
sending again, limits, a stop without an answer. Of jobs: the scheduling timeout, protection, an open array that idles,
a replica that rests, a service of which replicas are replaced. Of lanes: slices and lingering. Of gates: when they
open. The cost is in what is due, not in what exists.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from dray.core.lifecycle.counts import counting
from dray.core.lifecycle.happenings.workers import watch_drain
from dray.core.lifecycle.holding import attempts, quarantines, rollouts
from dray.core.lifecycle.providers import endings, health, launches
from dray.core.lifecycle.services import steps
from dray.core.lifecycle.state.events import (
    ArrayExtended,
    AttemptRevoked,
    AttemptsLost,
    Clock,
    CutDue,
    Event,
    GateDue,
    GoDue,
    LimitPassed,
    LingerDue,
    LookDue,
    PauseOver,
    ProtectDue,
    ResendDue,
    StopDue,
    Suspected,
    WaitTimedOut,
    WorkerDrained,
    WorkerSilent,
)
from dray.core.lifecycle.state.pass_events import BatchClosed, Braked
from dray.core.lifecycle.state.service_events import ReplicaRested, RolloutStepped, UpdateAbandoned
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.lifecycle.state.workload_events import WorkloadSpent
from dray.core.lifecycle.tasks import calls, deadlines, gangs, jobs, speeds
from dray.core.model.records.records import Attempt, Phase

Reasons = Callable[[str], str]
Unread = Callable[[], frozenset[str]]
_OF_ASSIGNMENTS = ("accept", "resend")
_UNREAD_MS = 1000
# So long does a look at a worker that may be silent wait for others.
SILENCE_WAITS_MS = 50


def next_due_ms(state: State) -> int | None:
    """When the next look is due; None while nothing is timed."""
    return state.timers[0][0] if state.timers else None


def next_look_ms(state: State) -> int | None:
    """When to look next, where looks at workers that may be silent wait a moment for each other.

    Each worker has one every so often, at a time of its own: of many workers each would take a turn by itself. What
    else falls due in that moment is late by it at most.
    """
    due_ms = next_due_ms(state)
    if due_ms is None or state.timers[0][1] != "silence":
        return due_ms
    return due_ms + SILENCE_WAITS_MS


def forget_answered(state: State) -> None:
    """Drop the first looks if they are at assignments that were answered: they would come to nothing.

    Nearly every assignment is answered long before it is to be sent again, and a shell that makes a turn for each look
    would make as many in vain as for the tasks themselves.
    """
    timers, known = state.timers, state.attempts
    while timers and timers[0][1] in _OF_ASSIGNMENTS:
        attempt = known.get(timers[0][2])
        if attempt is not None and unanswered(attempt):
            return
        heapq.heappop(timers)


def due(state: State, clock: Clock, reasons: Reasons, unread: Unread = frozenset) -> list[Event]:
    """Take the timers that have run out and say what follows. `reasons` words why a job could not be placed.

    `unread` names the workers of whom something waits for a later turn: whoever is behind with reading them, after its
    store stood still or while all of them come back at once, takes none of them for silent.
    """
    looks: list[tuple[str, str]] = []
    while state.timers and state.timers[0][0] <= clock.now_ms:
        _, kind, key = heapq.heappop(state.timers)
        looks.append((kind, key))
    if not looks:
        return []
    was_braked, speaking = state.braked, frozenset[str]()
    if state.braked or any(kind == "silence" and _is_quiet(state, key, clock) for kind, key in looks):
        speaking = unread()
        state.braked = brake(state, clock, speaking)
    events: list[Event] = []
    for kind, key in looks:
        if kind == "silence" and key in speaking:
            _put_off(state, key, clock)
        else:
            events += _LOOKS[kind](state, key, clock, reasons)
    if state.braked and not was_braked:
        events.append(Braked())
    return events


def _is_quiet(state: State, worker_id: str, clock: Clock) -> bool:
    """Whether a look at a worker may come to a decision: only then are all the others counted."""
    presence = state.presence.get(worker_id)
    return presence is not None and clock.now_ms - presence.seen_ms >= state.rules.unknown_ms


def brake(state: State, clock: Clock, speaking: frozenset[str]) -> bool:
    """Over half the workers fell silent within a minute: more likely the hub's fault than theirs. Decide nothing.

    A worker that somebody drained is not counted: that is how a person says that it is gone for good.
    """
    rules = state.rules
    present = [
        worker.id
        for worker in state.workers.values()
        if not (worker.left or (worker.draining and not worker.faults))
    ]
    silences = [clock.now_ms - state.presence[one].seen_ms for one in present if one not in speaking]
    gone = [silence for silence in silences if silence >= rules.unknown_ms]
    if len(gone) < rules.brake_min or len(gone) <= rules.brake_share * len(present):
        return False
    fresh = [silence for silence in gone if silence < rules.unknown_ms + rules.brake_window_ms]
    return state.braked or len(fresh) > rules.brake_share * len(present)


def _put_off(state: State, worker_id: str, clock: Clock) -> None:
    """Look at a worker again as soon as what it said must be read: that may turn out to be no sign of life."""
    presence = state.presence.get(worker_id)
    if presence is not None and presence.loss_timer_ms <= clock.now_ms:
        presence.loss_timer_ms = clock.now_ms + _UNREAD_MS
        state.set_timer(presence.loss_timer_ms, "silence", worker_id)


def _silence(state: State, worker_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    worker, presence = state.workers.get(worker_id), state.presence.get(worker_id)
    if worker is None or presence is None or presence.loss_timer_ms > clock.now_ms:
        # A worker that was forgotten and came back has a new timer: following the old one too would keep both going.
        return []
    rules, silence_ms = state.rules, clock.now_ms - presence.seen_ms
    held = [state.attempts[uid] for uid in attempts.with_followers(state, state.held.get(worker_id, ()))]
    waits = [rules.suspect_ms, rules.unknown_ms, *(attempt.lost_after_ms for attempt in held)]
    later = [presence.seen_ms + wait for wait in waits if wait > silence_ms]
    if state.braked:
        later.append(clock.now_ms + rules.suspect_ms)
    if (grace_ends_ms := state.started_ms + rules.start_grace_ms) > clock.now_ms:
        # What may not be decided yet is looked at as soon as it may, not at the next milestone of another attempt.
        later.append(grace_ends_ms)
    presence.loss_timer_ms = min(later) if later else clock.now_ms + rules.suspect_ms
    state.set_timer(presence.loss_timer_ms, "silence", worker_id)
    events: list[Event] = []
    if silence_ms >= rules.suspect_ms and not presence.suspect:
        events.append(Suspected(worker_id))
    if state.braked:
        return events
    if silence_ms >= rules.unknown_ms and not worker.silent:
        events.append(WorkerSilent(worker_id))
    if clock.now_ms - state.started_ms < rules.start_grace_ms:
        return events
    over = [a.uid for a in held if silence_ms >= a.lost_after_ms and a.phase is not Phase.ASSIGNED]
    if over:
        events.append(AttemptsLost(worker_id, tuple(sorted(over)), f"silent for {silence_ms // 1000} s"))
    return events


def _accept(state: State, uid: str, clock: Clock, reasons: Reasons) -> list[Event]:
    attempt = state.attempts.get(uid)
    if attempt is None or not unanswered(attempt):
        return []
    ready_ms = max(attempt.assigned_ms, attempt.cancel_ms, state.started_ms) + state.rules.accept_ms
    if clock.now_ms < ready_ms:
        state.set_timer(ready_ms, "accept", uid)
        return []
    return [AttemptRevoked(uid, f"not accepted within {state.rules.accept_ms // 1000} s")]


def unanswered(attempt: Attempt) -> bool:
    """Whether its worker never said a word about it: not accepted, or cancelled before it was."""
    stopping = attempt.phase is Phase.STOPPING and not attempt.accepted_at_ms
    return attempt.phase is Phase.ASSIGNED or stopping


def _wait(state: State, job_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    job = state.jobs.get(job_id)
    if job is None or job.state.final or not job.waiting or not job.timeout_ms or job.barred:
        return []
    if job.service and job.started_at_ms:
        return []
    due_ms = job.waiting_since_ms + job.timeout_ms
    if job.live:
        due_ms = max(due_ms, clock.now_ms + job.timeout_ms)
    if clock.now_ms < due_ms:
        state.set_timer(due_ms, "wait", job_id)
        return []
    return [WaitTimedOut(job_id, reasons(job_id))]


def _limit(state: State, uid: str, clock: Clock, reasons: Reasons) -> list[Event]:
    attempt = state.attempts.get(uid)
    live = attempt is not None and attempt.phase.live and not attempt.cancel
    return [LimitPassed(uid)] if live else []


def _resend(state: State, uid: str, clock: Clock, reasons: Reasons) -> list[Event]:
    attempt = state.attempts.get(uid)
    if attempt is None or not unanswered(attempt):
        return []
    due_ms = attempt.assigned_ms + attempts.patience_ms(state, clock.now_ms)
    if clock.now_ms < due_ms:
        # Others have become slower since this look was asked for.
        over_ms = attempt.assigned_ms + state.rules.accept_ms
        state.set_timer(min(due_ms, over_ms), "resend" if due_ms < over_ms else "accept", uid)
        return []
    jobs.arm_accept(state, attempt, state.workers[attempt.worker], clock)
    return [ResendDue(uid)] if attempt.phase is Phase.ASSIGNED else []


def _stop(state: State, uid: str, clock: Clock, reasons: Reasons) -> list[Event]:
    attempt = state.attempts.get(uid)
    if attempt is None or attempt.phase is not Phase.STOPPING:
        return []
    state.set_timer(clock.now_ms + state.rules.stop_again_ms, "stop", uid)
    return [StopDue(uid)]


def _gate(state: State, gate: str, clock: Clock, reasons: Reasons) -> list[Event]:
    # Also where nobody stands behind it any more: whoever comes next needs a timer of its own.
    state.backlog.opens.pop(gate, None)
    return [GateDue(gate)] if gate in state.backlog.behind else []


def _protect(state: State, job_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    job = state.jobs.get(job_id)
    if job_id not in state.watched:
        # Another policy came meanwhile, and whoever it is about is watched anew.
        return []
    hurried_ms = state.watched.pop(job_id)
    if job is None or not job.waiting:
        return []
    after_ms = round(state.policy.queue(job.queue).protect_after_s * 1000)
    if not after_ms:
        return []
    due_ms = job.waiting_since_ms + (hurried_ms or after_ms)
    if clock.now_ms < due_ms:
        state.watched[job_id] = hurried_ms
        state.set_timer(due_ms, "protect", job_id)
        return []
    return [ProtectDue(job_id)]


def _look(state: State, job_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    state.looking.pop(job_id, None)
    job = state.jobs.get(job_id)
    # Also where it waits no longer: others of its shape who look in vain may be waiting for this look.
    return [LookDue(job_id)] if job is not None else []


def _go(state: State, uid: str, clock: Clock, reasons: Reasons) -> list[Event]:
    attempt = state.attempts.get(uid)
    if attempt is None or not gangs.waits_for_go(attempt):
        return []
    gangs.arm_go(state, attempt, clock.now_ms + state.rules.resend_ms[-1])
    return [GoDue(uid)]


def _cut(state: State, key: str, clock: Clock, reasons: Reasons) -> list[Event]:
    uid, _, index = key.partition(" ")
    lane = state.attempts.get(uid)
    if lane is None or not calls.is_cut(lane, int(index)):
        return []
    state.set_timer(clock.now_ms + state.rules.stop_again_ms, "cut", key)
    return [CutDue(uid, int(index))]


def _linger(state: State, uid: str, clock: Clock, reasons: Reasons) -> list[Event]:
    due_ms, lane = state.lingering.get(uid, 0), state.attempts.get(uid)
    if not due_ms or lane is None or lane.calls:
        state.lingering.pop(uid, None)
        return []
    if clock.now_ms < due_ms:
        state.set_timer(due_ms, "linger", uid)
        return []
    return [LingerDue(uid)]


def _pause(state: State, worker_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    presence = state.presence.get(worker_id)
    over = presence is not None and presence.paused and clock.now_ms >= presence.paused_until_ms
    return [PauseOver(worker_id)] if over else []


def _drain(state: State, worker_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    worker = state.workers.get(worker_id)
    if worker is None or not (worker.draining and worker.drain_until_ms):
        return []
    if clock.at_ms < worker.drain_until_ms:
        watch_drain(state, worker, clock)
        return []
    return [WorkerDrained(worker_id, False, reason="its time is over", faults=worker.faults)]


def _faulty(state: State, worker_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    worker = state.workers.get(worker_id)
    # On trial one attempt decides; what somebody has drained gets nothing anyway.
    if worker is None or worker.draining or worker.on_trial:
        return []
    reason = quarantines.find_fault(state, worker)
    return [quarantines.quarantine(state, worker, reason, clock.at_ms)] if reason else []


def _trial(state: State, worker_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    worker = state.workers.get(worker_id)
    if worker is None or not (worker.on_trial and worker.trial):
        return []
    found = quarantines.weigh_trial(state, worker, clock.at_ms)
    if found is None and (attempt := state.attempts[worker.trial]).started:
        state.set_timer(attempt.started_ms + state.rules.at_once_ms, "trial", worker_id)
    return [found] if found is not None else []


def _idle(state: State, job_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    job = state.jobs.get(job_id)
    if job is None or not job.open:
        return []
    if job.ended == job.total and clock.now_ms >= job.waiting_since_ms + state.rules.open_idle_ms:
        return [ArrayExtended(job_id, 0, close=True)]
    due_ms = (
        max(job.waiting_since_ms, clock.now_ms - state.rules.open_idle_ms // 2) + state.rules.open_idle_ms
    )
    state.set_timer(due_ms, "idle", job_id)
    return []


def _replica(state: State, key: str, clock: Clock, reasons: Reasons) -> list[Event]:
    job_id, _, index = key.partition(" ")
    task = state.tasks.get((job_id, int(index)))
    # A later look stands for one that rests anew.
    rested = task is not None and 0 < task.again_ms <= clock.now_ms
    return [ReplicaRested(job_id, int(index))] if rested else []


def _rollout(state: State, job_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    job, due_ms = state.jobs.get(job_id), state.rollouts.get(job_id)
    if due_ms is None or due_ms > clock.now_ms:
        # An earlier look has stood for this one.
        return []
    del state.rollouts[job_id]
    if job is None or not job.service:
        return []
    step = steps.decide(state, job, clock.now_ms)
    if step.outcome == steps.FAILED:
        waits = f" ({reasons(job_id)})" if job.waiting else ""
        return [UpdateAbandoned(job_id, f"{step.why}{waits}")]
    if step.due:
        return [RolloutStepped(job_id)]
    if step.next_ms < NEVER:
        rollouts.watch(state, job_id, step.next_ms)
    return []


def _provider(state: State, name: str, clock: Clock, reasons: Reasons) -> list[Event]:
    return list(health.look(state, name, clock.now_ms))


def _deadline(state: State, job_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    return list(deadlines.look(state, job_id, clock))


def _ending(state: State, worker_id: str, clock: Clock, reasons: Reasons) -> list[Event]:
    return list(endings.look(state, worker_id, clock))


def _launch(state: State, key: str, clock: Clock, reasons: Reasons) -> list[Event]:
    return list(launches.look(state, clock.now_ms))


def _speed(state: State, key: str, clock: Clock, reasons: Reasons) -> list[Event]:
    return list(speeds.look(state))


def _purse(state: State, workload: str, clock: Clock, reasons: Reasons) -> list[Event]:
    tally = state.workloads.get(workload)
    if tally is None or tally.record.spent or tally.look_ms > clock.now_ms:
        # A later look stands for this one.
        return []
    tally.look_ms = 0
    if tally.is_empty(clock.now_ms):
        return [WorkloadSpent(workload)]
    counting.watch_purse(state, tally)
    return []


def _foresee(state: State, key: str, clock: Clock, reasons: Reasons) -> list[Event]:
    """The turn that this look brings about looks ahead by itself."""
    return []


def _move(state: State, receipt: str, clock: Clock, reasons: Reasons) -> list[Event]:
    # That there is a turn at all is enough: each of them looks at the moves under way.
    return []


def _batch(state: State, number: str, clock: Clock, reasons: Reasons) -> list[Event]:
    return [BatchClosed(int(number))] if state.batch is not None else []


_LOOKS: dict[str, Callable[[State, str, Clock, Reasons], list[Event]]] = {
    "silence": _silence,
    "accept": _accept,
    "wait": _wait,
    "limit": _limit,
    "resend": _resend,
    "stop": _stop,
    "gate": _gate,
    "protect": _protect,
    "look": _look,
    "go": _go,
    "cut": _cut,
    "linger": _linger,
    "idle": _idle,
    "pause": _pause,
    "drain": _drain,
    "faulty": _faulty,
    "trial": _trial,
    "replica": _replica,
    "rollout": _rollout,
    "provider": _provider,
    "launch": _launch,
    "ending": _ending,
    "purse": _purse,
    "batch": _batch,
    "deadline": _deadline,
    "foresee": _foresee,
    "move": _move,
    "speed": _speed,
}
