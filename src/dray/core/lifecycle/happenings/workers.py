"""Workers come, speak, fall silent, return and leave.

The session side (credit, slots, when last heard) is made of signals. Registering reconciles what both sides hold;
a new session under an id takes over from the old one, and two machines that keep doing so are both refused for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dray.core.lifecycle.happenings.reconcile import (
    ADOPT,
    ASK,
    KEEP,
    LOSE,
    QUARANTINE,
    RESEND,
    STOP,
    Reported,
    reconcile,
)
from dray.core.lifecycle.holding import attempts, lanes, refusals, rollouts
from dray.core.lifecycle.holding.attempts import ACCEPT, RETURN, SILENCE, adoptable
from dray.core.lifecycle.providers import endings, launches
from dray.core.lifecycle.providers import records as providers
from dray.core.lifecycle.state.effects import (
    Ack,
    Alarm,
    Assign,
    Cancel,
    CloseSession,
    Effect,
    Go,
    Note,
    StopIfOver,
)
from dray.core.lifecycle.state.events import (
    Activity,
    AttemptRevoked,
    Clock,
    CreditSet,
    GoDue,
    Heard,
    ResendDue,
    SessionClosed,
    SessionOpened,
    SessionsResumed,
    SlotsSeen,
    StopDue,
    Suspected,
    WorkerChanged,
    WorkerDrained,
    WorkerForgotten,
    WorkerLabelled,
    WorkerLeft,
    WorkerRegistered,
    WorkerReturned,
    WorkerSilent,
)
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import gangs, jobs, prewarms, results
from dray.core.model.ids import task_id
from dray.core.model.records.records import Attempt, Phase
from dray.core.model.records.worker import Presence, ResumedSession, Worker

TAKEN_OVER, FLAPPING = 4409, 4429
# "Service restart": whoever hears it dials again, and registers.
NOT_RESUMED = 1012
# Of what one heartbeat names and memory does not hold: each is looked for in the store.
MOST_UNKNOWN = 16
# A wall clock may be set meanwhile: a moment that is far away is looked at again now and then.
LONGEST_LOOK_MS = 60_000
# What people said of a worker holds whatever it says itself when it registers again.
KEPT_FIELDS = (
    "draining",
    "drained_by",
    "drain_reason",
    "drain_until_ms",
    "given",
    "faults",
    "trial",
    "ends_given_ms",
)


def registered(state: State, event: WorkerRegistered, clock: Clock) -> list[Effect]:
    """Take a worker in (again): its session, its capabilities, and what it still runs or finished meanwhile."""
    presence = state.presence.setdefault(event.worker, Presence())
    before = state.workers.get(event.worker)
    same_journal = before is None or not event.journal_id or event.journal_id == before.journal_id
    worker = Worker(
        id=event.worker,
        capability=event.capability,
        devices=event.devices,
        labels=event.labels,
        slots=event.slots or (before.slots if before else Presence().slots),
        features=event.features,
        base=event.base,
        address=event.address,
        incarnation=event.incarnation,
        journal_id=event.journal_id or (before.journal_id if before else ""),
        boot_id=event.boot_id,
        registered_at_ms=clock.at_ms,
        resources=event.resources,
        ports=event.ports,
        owner=event.owner,
        ends_said_ms=event.ends_at_ms,
        version=event.version,
    )
    if before is not None:
        state.disown(before)
        if before.incarnation != worker.incarnation:
            prewarms.gone(state, event.worker)
        for name in KEPT_FIELDS:
            setattr(worker, name, getattr(before, name))
    joined = launches.registered(state, worker, clock)
    worker.ends_at_ms = endings.soonest(worker.ends_said_ms, worker.ends_given_ms)
    state.workers[event.worker] = worker
    state.own(worker)
    presence.session, presence.credit, presence.suspect = event.session, 0, False
    presence.not_ready = ""
    presence.slots = event.slots or Presence().slots
    _hear(presence, clock)
    watch_silence(state, event.worker, clock)
    state.touched.workers[event.worker] = None
    providers.follow(state, event.worker)
    endings.follow(state, worker, clock)
    state.touch_worker(event.worker)
    note = Note("worker_registered", worker=event.worker, data={"backend": event.capability.gpu_backend})
    return [note, *joined, *_reconcile(state, event, worker, same_journal, clock)]


def session_opened(state: State, event: SessionOpened, clock: Clock) -> list[Effect]:
    """Let a new session take its id over; it was let in when `presence.session` names it afterwards.

    Before the fact of registering, not part of it: a replay has no sessions and must not depend on them.
    """
    presence = state.presence.setdefault(event.worker, Presence())
    if presence.refused_until_ms > clock.now_ms:
        text = f"worker id {event.worker} is refused for a minute: two machines keep registering under it"
        return [CloseSession(event.worker, event.session, FLAPPING, text)]
    old, presence.session, presence.credit = presence.session, event.session, 0
    if not old or old == event.session:
        return []
    state.polls.pop(event.worker, None)  # asked on the old socket; nobody waits for the answer on the new one
    before = state.workers.get(event.worker)
    other = before is not None and bool(event.incarnation) and before.incarnation != event.incarnation
    recent = tuple(at for at in presence.takeovers if clock.now_ms - at < state.rules.flap_window_ms)
    presence.takeovers = (*recent, clock.now_ms) if other or not event.incarnation else recent
    if len(presence.takeovers) < state.rules.flap_takeovers:
        return [
            CloseSession(event.worker, old, TAKEN_OVER, "another session registered under this worker id")
        ]
    presence.refused_until_ms = clock.now_ms + state.rules.flap_refuse_ms
    presence.takeovers, presence.session, presence.credit = (), 0, 0
    if before is not None:
        state.touch_worker(event.worker)
    text = f"two machines keep registering as worker {event.worker}: both are refused for a minute; give each a --name"
    closing = [CloseSession(event.worker, session, FLAPPING, text) for session in (old, event.session)]
    return [*closing, Alarm(text)]


def sessions_resumed(state: State, event: SessionsResumed, clock: Clock) -> list[Effect]:
    """Go on with sockets that another hub has kept, where they stand for the very registration that is on record."""
    effects: list[Effect] = []
    for one in event.sessions:
        if why := _why_not_resumed(state, one, clock):
            effects.append(CloseSession(one.worker, one.session, NOT_RESUMED, why))
        else:
            effects += _resume(state, one, clock)
    return effects


def _why_not_resumed(state: State, one: ResumedSession, clock: Clock) -> str:
    worker, presence = state.workers.get(one.worker), state.presence.get(one.worker)
    if worker is None or presence is None or worker.left:
        return "this hub does not know that worker: register"
    if (worker.incarnation, worker.registered_at_ms) != (one.incarnation, one.registered_at_ms):
        return "that worker has registered since, or the hub has lost that it did: register"
    if "resend" not in worker.features:
        return "this worker takes what it is told twice for two things: register"
    if presence.session not in (0, one.session) or presence.refused_until_ms > clock.now_ms:
        return "another session goes on under this worker id"
    return ""


def _resume(state: State, one: ResumedSession, clock: Clock) -> list[Effect]:
    """Take presence up, and say again what may have been lost on the way; the worker knows what it has."""
    presence, messages = state.presence[one.worker], list[Effect]()
    unheard = 0
    for uid in attempts.with_followers(state, state.held.get(one.worker, ())):
        attempt = state.attempts[uid]
        if attempt.phase is Phase.STOPPING:
            messages.append(_ask_to_stop(state, attempt, clock))
        elif attempt.phase is Phase.ASSIGNED or attempt.lane:
            messages.append(Assign(one.worker, uid))
            unheard += attempt.phase is Phase.ASSIGNED
        elif gangs.waits_for_go(attempt):
            messages.append(Go(one.worker, uid))
    # Whether it was told of them before its last word on credit nobody knows: it asks again for what it misses.
    presence.session, presence.credit = one.session, max(0, one.credit - unheard)
    presence.asked, presence.slots = one.credit, one.slots
    presence.suspect, presence.not_ready = False, ""
    _hear(presence, clock)
    watch_silence(state, one.worker, clock)
    state.touch_worker(one.worker)
    lanes.wake_worker(state, one.worker)
    return messages


def _reconcile(
    state: State, event: WorkerRegistered, worker: Worker, same_journal: bool, clock: Clock
) -> list[Effect]:
    verdicts: dict[str, str] = {}
    effects: list[Effect] = []
    finished: list[str] = []
    for outcome in event.finished:
        attempt = results.find(state, event.worker, outcome.job_id, outcome.index, outcome.uid)
        if attempt is not None:
            verdict, consequences = results.record(state, attempt, outcome, clock)
            verdicts[attempt.uid] = verdict
            finished.append(attempt.uid)
            effects += consequences
        elif outcome.uid:
            verdicts[outcome.uid] = "superseded"
    reports = {
        report.key: (report, activity)
        for activity in event.active
        for report in [_report(state, event, activity)]
    }
    # A second registration within one session may be an old one, late: it cannot testify about what came after it.
    silent_about = () if event.again else attempts.with_followers(state, state.held.get(event.worker, ()))
    held = {uid: state.attempts[uid].phase for uid in silent_about}
    reported = [report for report, _ in reports.values()]
    keep, stop, strange = [], [], []
    messages: list[Effect] = []
    own = [uid for uid in held if state.attempts[uid].lane]
    unanswered = () if worker.base else [uid for uid in held if _awaits_word(state.attempts[uid])]
    for decision in reconcile(held, reported, finished, same_journal, own, unanswered):
        attempt, action = state.attempts.get(decision.key), decision.action
        if action == ADOPT and attempt is not None and not attempts.may_return(state, attempt):
            action = STOP
        if action == KEEP and attempt is not None:
            keep.append(attempt.uid)
            messages += _keep(state, attempt, reports[decision.key][1].running, clock)
        elif action == ADOPT and attempt is not None:
            job, task = state.jobs[attempt.job_id], state.tasks[attempt.job_id, attempt.index]
            jobs.adopt(state, job, task, attempt, clock)
            if reports[decision.key][1].running:
                results.mark_started(state, attempt, clock)
            results.arm_limit(state, attempt)
            keep.append(attempt.uid)
        elif action == STOP:
            stop.append(decision.key)
            if attempt is not None and attempt.phase.live:
                if attempt.lane:
                    lanes.begin(state, state.jobs[attempt.job_id], attempt, clock.at_ms)
                attempt.accepted_at_ms = attempt.accepted_at_ms or clock.at_ms
                state.touched.attempts[attempt.uid] = None
            messages.append(_stop(state, event.worker, reports[decision.key][1], attempt, clock))
        elif action == RESEND and attempt is not None:
            messages.append(_resend(state, attempt, clock))
        elif action == ASK and attempt is not None:
            messages += stop_due(state, StopDue(attempt.uid), clock)
        elif action == LOSE and attempt is not None:
            why = (
                "its worker came back without it"
                if same_journal
                else "its worker came back with a new journal"
            )
            effects += results.lose(state, attempt, why, clock)
        elif action == QUARANTINE:
            strange.append(decision.key)
    lanes.wake_worker(state, event.worker)
    rollouts.watch_worker(state, event.worker)
    worker.quarantined = tuple(strange)
    state.touch_worker(event.worker)
    return [Ack(event.worker, "register", verdicts, tuple(keep), tuple(stop)), *effects, *messages]


def _awaits_word(attempt: Attempt) -> bool:
    return attempt.phase is Phase.STOPPING and not attempt.accepted_at_ms and not attempt.lane


def _resend(state: State, attempt: Attempt, clock: Clock) -> Assign:
    attempts.move(state, attempt, RETURN)
    if attempt.phase is Phase.ASSIGNED:
        state.set_timer(clock.now_ms + state.rules.accept_ms, "accept", attempt.uid)
        attempts.count_anew(state, attempt)
    return Assign(attempt.worker, attempt.uid)


def _report(state: State, event: WorkerRegistered, activity: Activity) -> Reported:
    if activity.over:
        # Said by the fact, not found in memory: a replay no longer holds attempts whose rows were written.
        return Reported(activity.uid, True, Phase.REVOKED)
    attempt = results.find(state, event.worker, activity.job_id, activity.index, activity.uid)
    if attempt is None:
        return Reported(task_id(activity.job_id, activity.index), False)
    if attempt.lane:
        return Reported(attempt.uid, True, attempt.phase, bool(attempt.cancel))
    task = state.tasks[attempt.job_id, attempt.index]
    adoptable = task.queued and task.last_uid == attempt.uid and not state.jobs[attempt.job_id].gang
    return Reported(attempt.uid, True, attempt.phase, bool(attempt.cancel), adoptable)


def _keep(state: State, attempt: Attempt, running: bool, clock: Clock) -> list[Effect]:
    if attempt.lane:
        return _keep_lane(state, attempt, running, clock)
    job, task = state.jobs[attempt.job_id], state.tasks[attempt.job_id, attempt.index]
    if job.gang and attempt.phase is Phase.ASSIGNED and not running:
        # Its acceptance carries where it can be met, and a registration does not: let it be said again.
        return [Assign(attempt.worker, attempt.uid)]
    if attempts.move(state, attempt, ACCEPT):
        attempt.accepted_at_ms = clock.at_ms
        jobs.started(state, job, task, attempt, clock)
    if running:
        results.mark_started(state, attempt, clock)
        gangs.saw_running(state, job, attempt, clock)
    attempts.move(state, attempt, RETURN)
    state.touched.attempts[attempt.uid] = None
    return [Go(attempt.worker, attempt.uid)] if gangs.waits_for_go(attempt) else []


def _keep_lane(state: State, lane: Attempt, running: bool, clock: Clock) -> list[Effect]:
    """It does not say which calls it has: all of them are sent again, and it leaves out what it knows."""
    lanes.begin(state, state.jobs[lane.job_id], lane, clock.at_ms)
    attempts.move(state, lane, ACCEPT)
    if running:
        results.mark_started(state, lane, clock)
    attempts.move(state, lane, RETURN)
    state.touched.attempts[lane.uid] = None
    return [Assign(lane.worker, lane.uid)]


def _stop(state: State, worker: str, activity: Activity, attempt: Attempt | None, clock: Clock) -> Cancel:
    name = task_id(activity.job_id, activity.index)
    if attempt is None or not attempt.cancel:
        return Cancel(worker, name, activity.uid or (attempt.uid if attempt else ""), "superseded", 0)
    spent_s = (clock.now_ms - attempt.cancel_ms) / 1000
    return Cancel(worker, name, attempt.uid, attempt.cancel, max(0.0, attempt.grace_s - spent_s))


def watch_silence(state: State, worker_id: str, clock: Clock) -> None:
    """Keep one timer per worker; it moves itself on while the worker speaks.

    Of one that comes back after a silence the next look may be far away, at the end of the longest patience there was.
    """
    presence = state.presence[worker_id]
    if not clock.now_ms < presence.loss_timer_ms <= clock.now_ms + state.rules.suspect_ms:
        presence.loss_timer_ms = clock.now_ms + state.rules.suspect_ms
        state.set_timer(presence.loss_timer_ms, "silence", worker_id)


def _hear(presence: Presence, clock: Clock) -> None:
    presence.seen_ms, presence.seen_at_ms = clock.now_ms, clock.at_ms


def heard(state: State, event: Heard, clock: Clock) -> list[Effect]:
    """Any message is a sign of life."""
    presence = state.presence.get(event.worker)
    if presence is not None:
        _hear(presence, clock)
        if presence.suspect:
            presence.suspect = False
            watch_silence(state, event.worker, clock)
            state.touch_worker(event.worker)
            lanes.wake_worker(state, event.worker)
    return []


def slots_seen(state: State, event: SlotsSeen, clock: Clock) -> list[Effect]:
    """A heartbeat says how many slots there are and how many are in use."""
    presence = state.presence[event.worker]
    if presence.slots != event.slots:
        presence.slots = event.slots
        state.touch_worker(event.worker)
    return []


def stop_over(state: State, worker: str, active: Iterable[str], beat: int = 0) -> Iterator[Effect]:
    """Ask a worker again to stop what it says it runs and the hub has given up: it was asked once, when that was
    decided, and nobody answers for what is over.

    It may not have heard that, and a task that waits for the hub would wait for ever. What it speaks of that this
    hub never heard of is left alone, as it is when it registers; of many such the heartbeats, by their number `beat`,
    go through a few each, or what is over behind them would run for as long as they do.
    """
    unknown: list[str] = []
    for uid in active:
        attempt = state.attempts.get(uid)
        if attempt is None:
            unknown.append(uid)
        elif attempt.worker == worker and not attempt.phase.live and not adoptable(state, attempt):
            yield Cancel(worker, state.spell(attempt), uid, "superseded", 0)
    if len(unknown) > MOST_UNKNOWN:
        first = (beat or state.now_ms // 1000) * MOST_UNKNOWN % len(unknown)
        unknown = (unknown[first:] + unknown[:first])[:MOST_UNKNOWN]
    for uid in unknown:
        yield StopIfOver(worker, uid)


def credit_set(state: State, event: CreditSet, clock: Clock) -> list[Effect]:
    """Readiness is credit; the poll is answered after this turn's pass."""
    presence = state.presence[event.worker]
    presence.credit, presence.asked, presence.slots = event.credits, event.credits, event.slots
    alarms: list[Effect] = []
    if presence.not_ready != event.not_ready:
        presence.not_ready = event.not_ready
        if event.not_ready:
            alarms.append(Alarm(f"worker {event.worker} is not ready: {event.not_ready}"))
        else:
            # It has tried: until it is given something there is nothing to say against it.
            refusals.resume(state, event.worker)
    state.columns.set_presence(state.columns.row_of[event.worker], state.workers[event.worker], presence)
    state.polls[event.worker] = state.polls.get(event.worker, 0) + 1
    return alarms


def session_closed(state: State, event: SessionClosed, clock: Clock) -> list[Effect]:
    """A socket that merely breaks costs nothing until the timers run out."""
    presence = state.presence.get(event.worker)
    if presence is not None and presence.session == event.session:
        presence.session = presence.credit = 0
        state.touch_worker(event.worker)
    return []


def suspected(state: State, event: Suspected, clock: Clock) -> list[Effect]:
    """No new work for a worker that has been silent for a while."""
    state.presence[event.worker].suspect = True
    state.touch_worker(event.worker)
    return []


def resend_due(state: State, event: ResendDue, clock: Clock) -> list[Effect]:
    """Ask again for an assignment that was not accepted yet."""
    attempt = state.attempts.get(event.uid)
    if attempt is None or not state.presence[attempt.worker].session:
        return []
    if attempt.phase is not Phase.ASSIGNED and not (attempt.calls and attempt.phase.live):
        return []
    return [Assign(attempt.worker, attempt.uid)]


def stop_due(state: State, event: StopDue, clock: Clock) -> list[Effect]:
    """Ask again for the end of an attempt: the first request, or its confirmation, may have been lost."""
    attempt = state.attempts.get(event.uid)
    if attempt is None or attempt.phase is not Phase.STOPPING or not state.presence[attempt.worker].session:
        return []
    return [_ask_to_stop(state, attempt, clock)]


def _ask_to_stop(state: State, attempt: Attempt, clock: Clock) -> Cancel:
    left_s = attempt.grace_s - (clock.now_ms - attempt.cancel_ms) / 1000
    return Cancel(attempt.worker, state.spell(attempt), attempt.uid, attempt.cancel, max(0.0, left_s))


def go_due(state: State, event: GoDue, clock: Clock) -> list[Effect]:
    """Tell a member of a gang again that it may start."""
    attempt = state.attempts.get(event.uid)
    due = attempt is not None and gangs.waits_for_go(attempt)
    return [Go(attempt.worker, attempt.uid)] if due and attempt is not None else []


def changed(state: State, event: WorkerChanged, clock: Clock) -> list[Effect]:
    """Capabilities may change at any heartbeat."""
    worker = state.workers[event.worker]
    worker.capability, worker.devices = event.capability, event.devices
    state.touched.workers[event.worker] = None
    state.touch_worker(event.worker)
    return [Note("worker_changed", worker=event.worker)]


def silent(state: State, event: WorkerSilent, clock: Clock) -> list[Effect]:
    """Nobody knows how its attempts are doing."""
    worker = state.workers[event.worker]
    worker.silent = True
    worker.gone_at_ms = worker.gone_at_ms or clock.at_ms
    state.touched.workers[event.worker] = None
    for uid in list(attempts.with_followers(state, state.held.get(event.worker, ()))):
        attempts.move(state, state.attempts[uid], SILENCE)
    rollouts.watch_worker(state, event.worker)
    providers.follow(state, event.worker)
    state.touch_worker(event.worker)
    return [Note("worker_silent", worker=event.worker)]


def returned(state: State, event: WorkerReturned, clock: Clock) -> list[Effect]:
    """It speaks again on the same session: what was unknown runs."""
    worker = state.workers[event.worker]
    worker.silent, worker.gone_at_ms = False, 0
    state.touched.workers[event.worker] = None
    for uid in list(attempts.with_followers(state, state.held.get(event.worker, ()))):
        attempts.move(state, state.attempts[uid], RETURN)
    rollouts.watch_worker(state, event.worker)
    providers.follow(state, event.worker)
    state.touch_worker(event.worker)
    lanes.wake_worker(state, event.worker)
    return [Note("worker_returned", worker=event.worker)]


def drained(state: State, event: WorkerDrained, clock: Clock) -> list[Effect]:
    """No new work until it is resumed, or its time has come; what runs goes on."""
    worker = state.workers[event.worker]
    worker.draining = event.on
    told = (event.user, event.reason, event.until_ms) if event.on else ("", "", 0)
    worker.drained_by, worker.drain_reason, worker.drain_until_ms = told
    worker.faults, worker.trial = event.faults, ""
    worker.emptying = event.on and event.move
    watch_emptying(state, worker)
    state.suspicions.acquit(event.worker)
    watch_drain(state, worker, clock)
    state.touched.workers[event.worker] = None
    state.touch_worker(event.worker)
    lanes.wake_worker(state, event.worker)
    rollouts.watch_worker(state, event.worker)
    data = {"user": event.user} | ({"reason": event.reason} if event.reason else {})
    if event.on and event.faults:
        providers.spoilt(state, event.worker, started=False)
        text = f"worker {event.worker} is in quarantine: {event.reason}"
        alarm = {
            "key": f"quarantine/{event.worker}",
            "kind": "quarantine",
            "subject": event.worker,
            "text": text,
        }
        return [Note("worker_quarantined", worker=event.worker, data=data | alarm), Alarm(text)]
    kind = "worker_draining" if event.on else "worker_on_trial" if event.faults else "worker_resumed"
    return [Note(kind, worker=event.worker, data=data)]


def watch_emptying(state: State, worker: Worker) -> None:
    """Look from now on for places for what runs on a worker that is emptied, or no longer."""
    if worker.emptying:
        state.emptying[worker.id] = state.now_ms
    else:
        state.emptying.pop(worker.id, None)


def watch_drain(state: State, worker: Worker, clock: Clock) -> None:
    """Look again when a drain is to end by itself."""
    if worker.draining and worker.drain_until_ms:
        wait_ms = min(max(0, worker.drain_until_ms - clock.at_ms), LONGEST_LOOK_MS)
        state.set_timer(clock.now_ms + wait_ms, "drain", worker.id)


def labelled(state: State, event: WorkerLabelled, clock: Clock) -> list[Effect]:
    """People call a worker something; whoever asks for that may go there from now on."""
    state.workers[event.worker].given = event.given
    providers.follow(state, event.worker)
    state.touched.workers[event.worker] = None
    state.touch_worker(event.worker)
    return [Note("worker_labelled", worker=event.worker, data={"user": event.user})]


def left(state: State, event: WorkerLeft, clock: Clock) -> list[Effect]:
    """A goodbye: unaccepted assignments go back at once, accepted ones keep their timers."""
    worker = state.workers.get(event.worker)
    if worker is None:
        return []
    worker.left = True
    prewarms.gone(state, event.worker)
    providers.follow(state, event.worker)
    worker.gone_at_ms = worker.gone_at_ms or clock.at_ms
    state.touched.workers[event.worker] = None
    effects: list[Effect] = [Note("worker_left", worker=event.worker)]
    for uid in list(attempts.with_followers(state, state.held.get(event.worker, ()))):
        if state.attempts[uid].phase is Phase.ASSIGNED:
            effects += results.revoked(state, AttemptRevoked(uid, "its worker said goodbye"), clock)
    return effects


def forgotten(state: State, event: WorkerForgotten, clock: Clock) -> list[Effect]:
    """Drop a worker that left long ago and holds nothing."""
    if event.worker in state.workers and not state.held.get(event.worker):
        state.disown(state.workers.pop(event.worker))
        providers.follow(state, event.worker)
        state.presence.pop(event.worker, None)
        state.held.pop(event.worker, None)
        state.ending.pop(event.worker, None)
        state.columns.forget(event.worker)
        state.experience.forget_worker(event.worker)
        prewarms.gone(state, event.worker)
        state.suspicions.acquit(event.worker)
        state.touched.workers[event.worker] = None
    return []
