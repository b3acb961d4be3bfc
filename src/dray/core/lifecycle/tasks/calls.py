"""Calls of functions: given into lanes, ended frame by frame, queued again where they had trouble.

The hot path is one dict operation and a counter per call: no note, no timer, no record. A call gets a record once it is
queued again or ends otherwise than by a result of its worker. Of a lane that is lost only the first call is charged:
it alone can have run, the others were waiting behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dray.core.lifecycle.holding import attempts, lanes, receipts, refusals, retries
from dray.core.lifecycle.holding.attempts import ACCEPT, KILL, LOSE, PREEMPT, REVOKE, START, SUCCEED
from dray.core.lifecycle.state.effects import CallsDone, Cancel, Effect, FeedCalls, Note
from dray.core.lifecycle.state.events import (
    CallsEnded,
    CallsFed,
    Clock,
    CutDue,
    LanesClosed,
    LingerDue,
    Outcome,
)
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs
from dray.core.model.ids import task_id
from dray.core.model.records.records import Attempt, Job, JobState, Phase, Task

# A lane has lingered long enough: no moment is as early as this.
OVER = 0
RAN = ("succeeded", "failed", "killed")
_STATES = {"succeeded": JobState.SUCCEEDED, "failed": JobState.FAILED, "killed": JobState.KILLED}


def fed(state: State, event: CallsFed, clock: Clock) -> list[Effect]:
    """Give waiting calls into lanes. Advice like any plan: what no longer holds is dropped."""
    effects: list[Effect] = []
    for feed in event.feeds:
        lane = state.attempts.get(feed.uid)
        if lane is None or lane.calls is None or not lane.phase.live or lane.cancel:
            continue
        job = state.jobs[lane.job_id]
        taken: dict[int, int] = {}
        for place in range(0, len(feed.ranges), 2):
            taken.update(_take(state, job, lane, feed.ranges[place], feed.ranges[place + 1]))
        if not taken:
            continue
        lanes.put_in(state, job, lane, taken)
        job.waiting_since_ms = lane.fed_ms = clock.now_ms
        state.touched.jobs[job.id] = state.touched.attempts[lane.uid] = None
        if state.lingering.get(lane.uid) == OVER:
            del state.lingering[lane.uid]
        effects.append(FeedCalls(lane.worker, lane.uid, tuple(taken)))
        if not job.waiting and job.id in state.receipts:
            effects += receipts.close(state, job, "rolled_back", clock)
    return effects


def _take(state: State, job: Job, lane: Attempt, first: int, count: int) -> Mapping[int, int]:
    if first >= job.cursor:
        indices = range(first, first + count)
        return dict.fromkeys(indices, 1) if lanes.take_range(state, job, first, count) else {}
    taken: dict[int, int] = {}
    for index in range(first, first + count):
        task = state.tasks.get((job.id, index))
        if task is not None and task.queued:
            jobs.take_waiting(state, job, index)
            taken[index] = assign(state, task, lane.uid)
    return taken


def assign(state: State, task: Task, uid: str) -> int:
    """A call that was queued again goes into a lane; gives the number of its try."""
    task.attempts += 1
    task.current = task.last_uid = uid
    task.ahead = False
    state.touched.tasks[task.job_id, task.index] = None
    return task.attempts


# --- a frame of results -----------------------------------------------------------------------------------------------


def ended(state: State, event: CallsEnded, clock: Clock) -> list[Effect]:
    """Count what ended; queue again what is to run once more."""
    lane = lanes.find_lane(state, event.worker, event.uid)
    if lane is None:
        return []
    calls, job = lanes.calls_of(lane), state.jobs[lane.job_id]
    word, had = event.state, bool(calls)
    _saw(state, job, lane, word if isinstance(word, str) else "", event, clock)
    for index in event.gone:
        calls.pop(index, None)
    if word == "succeeded":
        counts, effects = _succeeded(state, job, calls, event.index, clock)
    else:
        words = [word] * len(event.index) if isinstance(word, str) else word
        counts, effects = _sorted(state, job, lane, words, event, clock)
    if had and not calls:
        lanes.emptied(state, job, lane)
        if lane.uid in state.lingering:
            # Its timer is set already, and moves on to this moment when it fires.
            state.lingering[lane.uid] = clock.now_ms + state.rules.linger_ms
    if counts.keys() == {"returned"}:
        state.busy[lane.uid] = None
    else:
        state.busy.pop(lane.uid, None)
    if not calls or lane.uid not in state.busy:
        state.hungry[lane.uid] = None
    if state.reservations and lane.limit_ms:
        # It is gone sooner than it might have been: somebody may fit beside room that is kept, which goes by such ends.
        state.columns.roomier[state.columns.row_of[lane.worker]] = None
    state.touched.jobs[job.id] = state.touched.attempts[lane.uid] = None
    if not counts:
        return effects
    note = Note("calls_ended", job.id, worker=lane.worker, data=counts)
    if job.id in state.task_waiters:
        effects += _tell_waiters(state, job, lane, event, clock)
    return [note, *effects, *jobs.settle(state, job, clock)]


def _saw(state: State, job: Job, lane: Attempt, word: str, event: CallsEnded, clock: Clock) -> None:
    """A frame is the word of its lane's acceptance where that has not come, and of its start where anything ran."""
    lanes.begin(state, job, lane, clock.at_ms)
    if word == "returned" or not event.index:
        attempts.move(state, lane, ACCEPT)
        return
    if not lane.started:
        ran_ms = min(event.wall_us // 1000, max(0, clock.now_ms - lane.assigned_ms))
        lane.started = True
        refusals.began(state, lane.worker)
        lane.started_ms, lane.started_at_ms = clock.now_ms - ran_ms, clock.at_ms - ran_ms
    if lane.phase in (Phase.ASSIGNED, Phase.ACCEPTED):
        attempts.move(state, lane, START)
    # What is on record is not at stake any more.
    lane.saved_ms = max(1, clock.now_ms - lane.started_ms)
    state.experience.learn_calls(job, len(event.index), event.wall_us)


def _succeeded(
    state: State, job: Job, calls: dict[int, int], index: Sequence[int], clock: Clock
) -> tuple[dict[str, int], list[Effect]]:
    done = 0
    again: list[int] = []
    for one in index:
        number = calls.pop(one, 0)
        if number > 0:
            done += 1
            if number > 1:
                again.append(one)
    job.succeeded += done
    for one in again:
        _close_record(state, job, one, JobState.SUCCEEDED, clock, "ok", "")
    return ({"succeeded": done} if done else {}), []


def _sorted(
    state: State, job: Job, lane: Attempt, words: Sequence[str], event: CallsEnded, clock: Clock
) -> tuple[dict[str, int], list[Effect]]:
    """Follow each call's own word."""
    calls, counts, effects = lanes.calls_of(lane), dict[str, int](), list[Effect]()
    back: dict[int, int] = {}
    for index, said in zip(event.index, words, strict=True):
        number = calls.get(index, 0)
        if number <= 0:
            continue
        exit_class, error = event.details.get(index, ("", ""))
        if lanes.is_final(state, lane, index, said):
            del calls[index]
            final = _STATES[said]
            setattr(job, final.value, getattr(job, final.value) + 1)
            if number > 1:
                _close_record(state, job, index, final, clock, exit_class, error)
        elif said == "returned" or said in RAN:
            del calls[index]
            why = "failed" if said == "failed" and lane.cancel not in lanes.SENT_BACK else said
            effects += _try_again(state, job, lane, index, number, why, back, clock)
        else:
            del calls[index]
            effects += charge_loss(state, job, lane, index, number, back, clock)
            said = "lost"
        counts[said] = counts.get(said, 0) + 1
    return counts, effects + send_back(state, job, lane, back, clock, "")


def _try_again(
    state: State,
    job: Job,
    lane: Attempt,
    index: int,
    number: int,
    why: str,
    back: dict[int, int],
    clock: Clock,
) -> list[Effect]:
    """A call that did not come to its end: its failure is counted, a return is free unless it may begin only once."""
    if why == "failed":
        task = record(state, job, index, number, lane.uid)
        retries.charge_failure(job, task, (task,))
    elif end := retries.hand_back(job, why != "returned", why):
        return end_calls(state, job, lane, {index: number}, *end, clock)
    back[index] = number
    return []


def charge_loss(
    state: State, job: Job, lane: Attempt, index: int, number: int, back: dict[int, int], clock: Clock
) -> list[Effect]:
    """A call was under way when its worker, or its runner's agent, went."""
    task = record(state, job, index, number, lane.uid)
    if end := retries.charge_loss(job, task, (task,)):
        return end_calls(state, job, lane, {index: number}, *end, clock)
    back[index] = number
    return []


# --- records of calls that had trouble --------------------------------------------------------------------------------


def record(state: State, job: Job, index: int, number: int, uid: str) -> Task:
    """The record of a call, made now if it has none."""
    task = state.tasks.get((job.id, index))
    if task is None:
        task = state.tasks[job.id, index] = Task(
            job_id=job.id, index=index, attempts=number, current=uid, last_uid=uid
        )
    return task


def _close_record(
    state: State, job: Job, index: int, final: JobState, clock: Clock, exit_class: str, error: str
) -> None:
    task = state.tasks[job.id, index]
    task.state, task.current = final, ""
    task.exit_class, task.error, task.ended_at_ms = exit_class, error, clock.at_ms
    state.touched.tasks[job.id, index] = None


def end_calls(
    state: State,
    job: Job,
    lane: Attempt,
    calls: Mapping[int, int],
    final: JobState,
    exit_class: str,
    error: str,
    clock: Clock,
) -> list[Effect]:
    """Record ends that no worker reported. The job as a whole is looked at by the caller."""
    if not calls:
        return []
    for index, number in calls.items():
        record(state, job, index, number, lane.uid)
        _close_record(state, job, index, final, clock, exit_class, error)
    setattr(job, final.value, getattr(job, final.value) + len(calls))
    state.touched.jobs[job.id] = None
    effects: list[Effect] = [CallsDone(job.id, tuple(calls), final.value, exit_class, error)]
    if job.id in state.task_waiters:
        for index in calls:
            effects += jobs.tell_task_waiters(state, job, index, final, clock)
    return effects


def send_back(
    state: State, job: Job, lane: Attempt, calls: Mapping[int, int], clock: Clock, why: str
) -> list[Effect]:
    """Queue calls again, each in its old place in the line."""
    if not calls:
        return []
    again = state.requeued_of.setdefault(job.id, {})
    for index, number in calls.items():
        task = record(state, job, index, number, lane.uid)
        task.current, task.queued = "", True
        # Also what comes back unbegun while its lane makes way for another.
        task.ahead = lane.cancel == "preempted"
        again[index] = None
        state.queue_up(job, index)
        state.touched.tasks[job.id, index] = None
    job.requeued += len(calls)
    state.backlog.count(job.queue, len(calls))
    job.waiting_since_ms = clock.now_ms
    jobs.arm_wait(state, job)
    state.touched.jobs[job.id] = None
    lanes.wake_idle(state, job)
    if not why:
        return []
    data = {"reason": why, "calls": len(calls)}
    return [Note("calls_requeued", job.id, worker=lane.worker, data=data)]


def _tell_waiters(state: State, job: Job, lane: Attempt, event: CallsEnded, clock: Clock) -> list[Effect]:
    """See to the jobs that wait for one of these calls."""
    word = event.state
    words = [word] * len(event.index) if isinstance(word, str) else word
    effects: list[Effect] = []
    for index, said in zip(event.index, words, strict=True):
        task = state.tasks.get((job.id, index))
        if index in lanes.calls_of(lane) or (task is not None and not task.state.final):
            continue
        if said in _STATES:
            effects += jobs.tell_task_waiters(state, job, index, _STATES[said], clock)
    return effects


# --- the end of a lane ------------------------------------------------------------------------------------------------


def closed(state: State, event: LanesClosed, clock: Clock) -> list[Effect]:
    """Let lanes go that have no calls; their workers may have other work at once."""
    for uid in event.uids:
        lane = state.attempts.get(uid)
        if lane is not None and lane.calls is not None and not lane.calls:
            close(state, lane, clock)
    return []


def close(state: State, lane: Attempt, clock: Clock) -> None:
    """End a lane without calls: nothing of it is left on its worker, which need not be told."""
    if attempts.move(state, lane, SUCCEED):
        lane.ended_at_ms = clock.at_ms
        lane.accepted_at_ms = lane.accepted_at_ms or clock.at_ms
        attempts.give_credit_back(state, lane)
        _leave(state, lane)


def _leave(state: State, lane: Attempt) -> None:
    state.hungry.pop(lane.uid, None)
    state.busy.pop(lane.uid, None)
    state.lingering.pop(lane.uid, None)
    state.spent_on.pop(lane.uid, None)
    receipts.victim_gone(state, lane)
    attempts.learn_end(state, lane)


def lane_ended(state: State, lane: Attempt, outcome: Outcome, clock: Clock) -> tuple[str, list[Effect]]:
    """Its worker says that a lane is gone: what it had not ended goes back."""
    if not lane.phase.live:
        return ("superseded" if lane.phase in (Phase.LOST, Phase.REVOKED) else "duplicate"), []
    job = state.jobs[lane.job_id]
    lane.exit_class, lane.error = outcome.exit_class, outcome.error
    if outcome.exit_class == refusals.NEVER_BEGAN:
        refusals.refused(state, lane, clock)
    trigger = PREEMPT if outcome.state == "preempted" or lane.cancel == "preempted" else KILL
    why = lane.error or lane.cancel or "handed back by its worker"
    return "recorded", _end_lane(state, job, lane, trigger, why, clock)


def lose_lane(state: State, lane: Attempt, reason: str, clock: Clock) -> list[Effect]:
    """Give a lane up: of its calls only the first can have run, and only if the lane had started."""
    if not lane.phase.live:
        return []
    lane.exit_class, lane.error = "lost", reason
    return _end_lane(state, state.jobs[lane.job_id], lane, LOSE, f"its worker was lost: {reason}", clock)


def revoke_lane(state: State, lane: Attempt, reason: str, clock: Clock) -> list[Effect]:
    """Take a lane back that was never accepted."""
    if (lane.phase, REVOKE) not in attempts.TRANSITIONS:
        return []
    lane.error = reason
    effects = _end_lane(state, state.jobs[lane.job_id], lane, REVOKE, reason, clock)
    return [Cancel(lane.worker, state.spell(lane), lane.uid, "revoked", 0), *effects]


def _end_lane(state: State, job: Job, lane: Attempt, trigger: str, why: str, clock: Clock) -> list[Effect]:
    """What a lane had not ended goes back; the call that may have been under way by its own rules."""
    back = lanes.drop_calls(state, job, lane)
    attempts.move(state, lane, trigger)
    lane.accepted_at_ms, lane.ended_at_ms = lane.accepted_at_ms or clock.at_ms, clock.at_ms
    _leave(state, lane)
    effects: list[Effect] = []
    if back and lane.started and trigger != REVOKE:
        first, number = next(iter(back.items()))
        if trigger == LOSE:
            del back[first]
            effects = charge_loss(state, job, lane, first, number, back, clock)
        else:
            del back[first]
            effects = _try_again(state, job, lane, first, number, why, back, clock)
    if trigger == PREEMPT:
        for index, number in back.items():
            task = record(state, job, index, number, lane.uid)
            task.preemptions, task.ahead = task.preemptions + 1, lane.cancel == "preempted"
    return effects + send_back(state, job, lane, back, clock, why) + jobs.settle(state, job, clock)


# --- calls cancelled by themselves ------------------------------------------------------------------------------------


def cut(
    state: State, job: Job, lane: Attempt, index: int, grace_s: float, who: str, clock: Clock
) -> list[Effect]:
    """End one call for the record; it keeps its place in its lane until its worker confirms that it is gone."""
    calls = lanes.calls_of(lane)
    number = calls[index]
    calls[index] = -number
    state.touched.attempts[lane.uid] = None
    due_ms = clock.now_ms + round(grace_s * 1000) + state.rules.stop_again_ms
    state.set_timer(due_ms, "cut", f"{lane.uid} {index}")
    effects = end_calls(state, job, lane, {index: number}, JobState.KILLED, "cancelled", who, clock)
    name = task_id(job.id, index if job.numbered else -1)
    return [Cancel(lane.worker, name, lane.uid, "user", grace_s), *effects, *jobs.settle(state, job, clock)]


def cut_due(state: State, event: CutDue, clock: Clock) -> list[Effect]:
    """Ask again for the end of a call: the first request, or its confirmation, may have been lost."""
    lane = state.attempts.get(event.uid)
    if lane is None or not is_cut(lane, event.call) or not state.presence[lane.worker].session:
        return []
    job = state.jobs[lane.job_id]
    name = task_id(job.id, event.call if job.numbered else -1)
    return [Cancel(lane.worker, name, lane.uid, "user", 0)]


def is_cut(lane: Attempt, index: int) -> bool:
    """Whether a call was cancelled and its worker has yet to confirm that it is gone."""
    return lane.phase.live and lane.calls is not None and lane.calls.get(index, 0) < 0


def cuts_of(lane: Attempt) -> Iterable[int]:
    """The calls of a lane that were cancelled and not confirmed gone."""
    return [index for index, number in (lane.calls or {}).items() if number < 0]


def linger_due(state: State, event: LingerDue, clock: Clock) -> list[Effect]:
    """A lane was kept without calls long enough: it is looked at once more, and closed."""
    if event.uid in state.lingering:
        state.lingering[event.uid] = OVER
        state.hungry[event.uid] = None
    return []


def stop_all(state: State, job: Job, grace_s: float, who: str, clock: Clock) -> list[Effect]:
    """A job is cancelled: what is in its lanes ends for the record at once, the lanes hold their places until they
    are confirmed gone; one without calls has nothing to confirm.
    """
    effects: list[Effect] = []
    for uid in list(state.live_of.get(job.id, ())):
        lane = state.attempts[uid]
        idle = not lane.calls
        left = lanes.drop_calls(state, job, lane)
        effects += end_calls(state, job, lane, left, JobState.KILLED, "cancelled", who, clock)
        if idle and not lane.cancel:
            close(state, lane, clock)
        else:
            effects += jobs.stop_attempt(state, lane, "user", grace_s, clock)
    return effects
