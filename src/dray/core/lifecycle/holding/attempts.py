"""The life of an attempt as a table: which phase follows which, and on what; and what it holds meanwhile.

Keeps rooms, quotas and meters in step with the phase. What an end means for the task is concluded in `tasks.results`.
A pair that is not in the table changes nothing: it is a duplicate, or comes from an attempt whose time is over.
An attempt that stands behind another lives and holds nothing: it takes over what that one held when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dray.core.lifecycle.counts import counting
from dray.core.lifecycle.holding import moves, rollouts
from dray.core.lifecycle.providers import endings
from dray.core.lifecycle.providers import records as providers
from dray.core.lifecycle.providers.prices import MOST_MONEY, rate_of, spent_by
from dray.core.lifecycle.state.columns import Offer, kind_of
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.experience import SpeedSample
from dray.core.lifecycle.state.parties import Party, QuotaGate, cost_of, decayed
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import Meter
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.resources import WHOLE, Ask

ACCEPT, START, STOP, SILENCE, RETURN = "accepted", "started", "stop", "silent", "returned"
SUCCEED, FAIL, KILL, PREEMPT, LOSE, REVOKE, ADOPT = (
    "succeeded",
    "failed",
    "killed",
    "preempted",
    "lost",
    "revoked",
    "adopted",
)
TRIGGERS = (ACCEPT, START, STOP, SILENCE, RETURN, SUCCEED, FAIL, KILL, PREEMPT, LOSE, REVOKE, ADOPT)

_ENDS = {
    SUCCEED: Phase.SUCCEEDED,
    FAIL: Phase.FAILED,
    KILL: Phase.KILLED,
    PREEMPT: Phase.PREEMPTED,
    LOSE: Phase.LOST,
}
TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.ASSIGNED, ACCEPT): Phase.ACCEPTED,
    (Phase.ASSIGNED, START): Phase.RUNNING,
    (Phase.ASSIGNED, STOP): Phase.STOPPING,
    (Phase.ASSIGNED, REVOKE): Phase.REVOKED,
    (Phase.ACCEPTED, START): Phase.RUNNING,
    (Phase.ACCEPTED, STOP): Phase.STOPPING,
    (Phase.ACCEPTED, SILENCE): Phase.UNKNOWN,
    (Phase.RUNNING, STOP): Phase.STOPPING,
    # Cancelled before it was accepted, and never heard of again: a worker that does not have it cannot confirm its end.
    (Phase.STOPPING, REVOKE): Phase.REVOKED,
    (Phase.RUNNING, SILENCE): Phase.UNKNOWN,
    (Phase.UNKNOWN, RETURN): Phase.RUNNING,
    (Phase.UNKNOWN, START): Phase.RUNNING,
    (Phase.UNKNOWN, STOP): Phase.STOPPING,
    (Phase.LOST, ADOPT): Phase.RUNNING,
    **{
        (phase, trigger): end
        for phase in (Phase.ASSIGNED, Phase.ACCEPTED, Phase.RUNNING, Phase.STOPPING, Phase.UNKNOWN)
        for trigger, end in _ENDS.items()
    },
}


def move(state: State, attempt: Attempt, trigger: str) -> bool:
    """Follow the table; False where the pair is not in it. Keeps `held` and the columns in step with the phase."""
    after = TRANSITIONS.get((attempt.phase, trigger))
    if after is None:
        return False
    before, attempt.phase = attempt.phase, after
    state.touched.attempts[attempt.uid] = None
    if before.live != after.live:
        if after.live:
            hold(state, attempt, 1)
            return True
        _let_go(state, attempt)
        if not attempt.lane:
            state.ends[after] = state.ends.get(after, 0) + 1
        if state.workers[attempt.worker].trial == attempt.uid:
            state.set_timer(state.now_ms, "trial", attempt.worker)
    return True


def _let_go(state: State, attempt: Attempt) -> None:
    """Give back what an ended attempt held, or pass it on to whoever stands behind it."""
    ahead, uid = attempt.behind, state.followers.pop(attempt.uid, "")
    if ahead and attempt.started:
        # It ran before the end of the one ahead of it was heard of: a start is counted, and no room.
        job, ask = state.jobs[attempt.job_id], state.ask(attempt)
        attempt.assigned_ms = max(attempt.assigned_ms, attempt.started_ms)
        account(state, job, attempt, ask, 1, start=True)
        account(state, job, attempt, ask, -1, start=False)
    if not uid:
        hold(state, attempt, -1)
        attempt.behind = ""
        state.taken_over.pop(attempt.uid, None)
        return
    follower = state.attempts[uid]
    state.touched.attempts[uid] = None
    if ahead:
        hold(state, attempt, -1)
        attempt.behind, follower.behind = "", ahead
        state.followers[ahead] = uid
        return
    _list(state, attempt, -1)
    state.taken_over[uid] = state.taken_over.pop(attempt.uid, attempt.assigned_ms)
    follower.behind, follower.assigned_ms = "", state.now_ms
    if attempt.started and attempt.phase is not Phase.LOST:
        # Where the one ahead never ran, or its worker lost it, those behind it come back, and more would as well.
        state.leads[uid] = None
    if attempt.yielded:
        _book(state, attempt, -1, start=False)
        _book(state, follower, 1, start=True)
        return
    # It holds the same: nobody gains or loses room.
    held, job, ask = state.held[attempt.worker], state.jobs[attempt.job_id], state.ask(attempt)
    del held[attempt.uid]
    held[uid] = None
    account(state, job, attempt, ask, -1, start=False)
    account(state, job, follower, ask, 1, start=True)


def may_follow(state: State, job: Job, lead: Attempt | None, worker: str) -> bool:
    """Whether a task of a job can stand directly behind this attempt: it would hold the same, and nobody does yet."""
    if lead is None or lead.uid in state.followers or lead.cancel or not lead.phase.live:
        return False
    return (lead.job_id, lead.shape, lead.worker) == (job.id, job.shape, worker) and not lead.lane


def with_followers(state: State, uids: Iterable[str]) -> Iterator[str]:
    """These attempts, and those that stand behind them."""
    for uid in uids:
        yield uid
        while uid := state.followers.get(uid, ""):
            yield uid


def may_return(state: State, attempt: Attempt) -> bool:
    """Whether a lost attempt could hold its place again: neither its cards nor its part of the array's own cap were
    given away meanwhile.
    """
    job = state.jobs[attempt.job_id]
    if job.limit and job.live >= job.limit:
        return False
    share = state.ask(attempt).gpu_milli
    used = state.columns.card_used[state.columns.row_of[attempt.worker]]
    return all(used.get(index, 0) + share <= WHOLE for index in attempt.devices)


def hold(state: State, attempt: Attempt, sign: int, start: bool = False) -> None:
    """Book or give back what an attempt holds on its worker, if anything. `start`: it was placed just now."""
    if start and state.policy.providers:
        _price(state, attempt)
    _list(state, attempt, sign)
    if state.ending and sign > 0 and attempt.worker in state.ending:
        endings.began(state, attempt, Clock(state.now_ms, state.at_ms))
    if not attempt.behind:
        _book(state, attempt, sign, start)
    elif sign > 0:
        state.followers[attempt.behind] = attempt.uid
    else:
        del state.followers[attempt.behind]


def _list(state: State, attempt: Attempt, sign: int) -> None:
    uid, job_id, touched = attempt.uid, attempt.job_id, state.touched
    touched.jobs[job_id] = touched.tasks[job_id, attempt.index] = None
    if sign > 0:
        live = state.live_of.get(job_id)
        if live is None:
            state.live_of[job_id] = {uid: None}
        else:
            live[uid] = None
    else:
        live = state.live_of[job_id]
        del live[uid]
        if (said := state.progress.pop(uid, None)) is not None:
            measured(state, attempt, state.experience.speeds.ended(uid, said.step, said.at_ms))
        state.uses.pop(uid, None)
        if not live:
            del state.live_of[job_id]
            if (job := state.jobs[job_id]).service and job.state.final:
                rollouts.forget(state, job)


def _book(state: State, attempt: Attempt, sign: int, start: bool) -> None:
    job, worker = state.jobs[attempt.job_id], attempt.worker
    job.live += sign
    held = state.held.get(worker)
    if held is None:
        held = state.held[worker] = {}
    if sign > 0:
        held[attempt.uid] = None
        if job.limit:
            state.backlog.doubt(state.line_of(job))
    else:
        del held[attempt.uid]
        if job.limit:
            # The array's own cap held it back, not a lack of room: no worker need gain any for the next one to start.
            state.rouse(job)
    ask = state.ask(attempt)
    account(state, job, attempt, ask, sign, start)
    state.columns.hold(worker, ask, attempt.devices, sign)
    if attempt.yielded:
        state.columns.lend(attempt.worker, ask, sign)
        stop_resuming(state, attempt)


def saw_answer(state: State, attempt: Attempt, now_ms: int) -> None:
    """A worker says its first word about an assignment: remember how late, the slow ones of late above all."""
    since_ms = max(attempt.assigned_ms, state.started_ms)
    lag_ms = min(max(0, now_ms - since_ms), state.rules.accept_ms)
    state.accept_lag_ms = max(lag_ms, state.accept_lag_ms * 7 // 8)
    state.accept_seen_ms = now_ms


def patience_ms(state: State, now_ms: int) -> int:
    """How long an assignment may stay unanswered before it is taken for lost on its way.

    Twice as long as others took lately: where all of them are late it is the hub, or the road, that has too much to do,
    and whatever is sent again makes it later. Nothing gets lost on a socket that lives, so there is no hurry either.
    """
    first_ms = state.rules.resend_ms[0] if state.rules.resend_ms else 0
    if now_ms - state.accept_seen_ms > state.rules.accept_ms:
        return first_ms
    return max(first_ms, 2 * state.accept_lag_ms)


def stop_resuming(state: State, attempt: Attempt) -> None:
    """An attempt no longer waits to go on: it does, or it has ended."""
    if attempt.uid in state.resuming:
        del state.resuming[attempt.uid]
        state.presence[attempt.worker].resuming -= 1
        state.touch_worker(attempt.worker)


def give_credit_back(state: State, lane: Attempt) -> None:
    """Let a worker have another attempt in the place of a lane that it was not told of the end of.

    What it asked for on another session is void.
    """
    session, worker_id = state.spent_on.pop(lane.uid, 0), lane.worker
    presence = state.presence[worker_id]
    slots = presence.slots
    most = min(presence.asked, slots.batch_total + slots.service_total)
    if session and session == presence.session and presence.credit < most:
        presence.credit += 1
        state.columns.set_presence(state.columns.row_of[worker_id], state.workers[worker_id], presence)


def _offer_of(state: State, worker_id: str) -> Offer:
    columns = state.columns
    return columns.offers[columns.get("offer", columns.row_of[worker_id])]


def measured(state: State, attempt: Attempt, rate: float) -> None:
    """Have it put on record how many steps a second an attempt made, where it said enough to say that."""
    name, fresh = state.jobs[attempt.job_id].name, state.experience.speeds.fresh
    if rate and name:
        if not fresh:
            state.set_timer(state.now_ms, "speed", "")
        fresh.append(SpeedSample(name, kind_of(_offer_of(state, attempt.worker)), rate))


def learn_end(state: State, attempt: Attempt) -> None:
    """Let later placements know how it went here."""
    kind = kind_of(_offer_of(state, attempt.worker))
    had = len(state.experience.speeds.fresh)
    state.experience.learn_end(state.jobs[attempt.job_id], attempt, kind)
    if not had and state.experience.speeds.fresh:
        state.set_timer(state.now_ms, "speed", "")
    if attempt.rate:
        _charge(state, attempt, spent_by(attempt))
    if attempt.uid in state.moved_to:
        moves.judge(state, attempt)
    if state.provider_of:
        providers.ended(state, attempt)
        if attempt.phase is Phase.LOST:
            providers.spoilt(state, attempt.worker, attempt.started, spent_by(attempt))


def account(state: State, job: Job, attempt: Attempt, ask: Ask, sign: int, start: bool) -> None:
    """Count an attempt for its party: what it holds, and at its end what it has used."""
    party, now_ms = state.parties.all[job.party], state.now_ms
    cost, begin_ms = cost_of(state.policy, ask), attempt.assigned_ms - party.entry_charge_ms
    party.count(sign, cost, begin_ms)
    if sign < 0:
        state.parties.eased[job.user] = None
    if sign < 0 and attempt.started:
        used = decayed(state.policy, state.ledger, job.user, now_ms) + cost * max(0, now_ms - begin_ms)
        state.enter("meter", party.usage_key, Meter(since_ms=now_ms, decayed=used))
    for gate in party.gates:
        charge = gate.hold(sign, gate.measure(ask), attempt.assigned_ms, now_ms)
        if start:
            gate.start(now_ms)
        if charge and isinstance(gate, QuotaGate):
            state.enter("meter", gate.key, gate.meter_after(charge, now_ms))
        if sign < 0:
            state.open_gate(gate.key)
    if job.workload:
        counting.hold(state, job, attempt, ask, sign, start)


def _count(state: State, party: Party, attempt: Attempt, ask: Ask, sign: int) -> None:
    state.parties.eased[party.user] = None
    state.parties.recounted += 1
    party.count(sign, cost_of(state.policy, ask), attempt.assigned_ms - party.entry_charge_ms)


def _charge(state: State, attempt: Attempt, money: int) -> None:
    job = state.jobs[attempt.job_id]
    job.money = max(0, min(MOST_MONEY, job.money + money))
    state.touched.jobs[job.id] = None
    counting.recount(state, job)


def refund(state: State, attempt: Attempt) -> None:
    """A lost attempt goes on: what it costs is counted when it ends, from its beginning."""
    if attempt.rate:
        _charge(state, attempt, -spent_by(attempt))


def _price(state: State, attempt: Attempt) -> None:
    """Settle what an hour of an attempt costs: whatever becomes of the price list, it is charged at this."""
    columns, offer = state.columns, _offer_of(state, attempt.worker)
    row, ask = columns.row_of[attempt.worker], state.ask(attempt)
    gpus, cores = columns.get("total_gpu", row), columns.get("total_cpu", row)
    attempt.rate = rate_of(state.policy, offer, ask, gpus, cores)


def count_anew(state: State, attempt: Attempt) -> None:
    """Count an attempt from this moment on: it is sent again."""
    if attempt.behind:
        attempt.assigned_ms = state.now_ms
        state.touched.attempts[attempt.uid] = None
        return
    job, ask, now_ms = state.jobs[attempt.job_id], state.ask(attempt), state.now_ms
    party = state.parties.all[job.party]
    for sign in (-1, 1):
        _count(state, party, attempt, ask, sign)
        for gate in party.gates:
            gate.hold(sign, gate.measure(ask), attempt.assigned_ms, now_ms)
        counting.shift(state, job, attempt, ask, sign)
        attempt.assigned_ms = now_ms
    for gate in party.gates:
        # It has used less than was counted: a budget may have room again.
        state.open_gate(gate.key)
    state.touched.attempts[attempt.uid] = None


def change_party(state: State, job: Job) -> None:
    """A job was edited: what runs of it is counted where it belongs from now on."""
    before = state.parties.all[job.party]
    state.stir(job)
    state.join_party(job)
    after = state.parties.all[job.party]
    if before is after:
        return
    for uid in state.live_of.get(job.id, ()):
        attempt = state.attempts[uid]
        if attempt.behind:
            continue
        ask = state.ask(attempt)
        for party, sign in ((before, -1), (after, 1)):
            _count(state, party, attempt, ask, sign)
            for gate in party.gates:
                gate.hold(sign, gate.measure(ask), attempt.assigned_ms, state.now_ms)
    for gate in before.gates:
        state.open_gate(gate.key)


def adoptable(state: State, attempt: Attempt) -> bool:
    """A lost attempt may still be adopted while its task waits and no newer one was made."""
    task = state.tasks.get((attempt.job_id, attempt.index))
    waits = task is not None and task.queued and task.last_uid == attempt.uid
    return attempt.phase is Phase.LOST and waits and not state.jobs[attempt.job_id].gang
