"""A worker on which everything fails at once is taken out for a while, before it has eaten the queue.

A failure is held against its worker if it came within seconds of its start, or names the machine in its own words; not
if the same work of the same user fails as much elsewhere. So many different jobs within a minute, and nothing that went
well there meanwhile, are enough where it is known that the work can go well: it did elsewhere, or the machine was
named; or where that many users agree. The surprising rule: with one worker and one user nothing but the machine's own
words is enough, since who mends his script has three failures in a minute too.

When its time is over it is on trial: it gets one attempt, and the next only once that has gone well.
"""

from __future__ import annotations

from dray.core.lifecycle.state.events import WorkerDrained
from dray.core.lifecycle.state.experience import work_of
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.suspicions import ILL, WELL, Failure
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.records.worker import Worker
from dray.core.model.specs.spec import unpack_spec
from dray.core.model.units import format_seconds
from dray.core.model.verdicts import KINDS, judge_attempt

# Of these a machine may be the reason where they come at once; a node fault counts whenever it comes.
_AT_ONCE = ("code", "environment", "gpu_memory")
_NODE, _TOO_SMALL = "node", "gpu_memory"
# How long it is remembered that some work went well on a worker.
WELL_MS = 3_600_000
_WORDS = 160
# Of so many workers one may be out by the word of one user alone.
MOST_BY_ONE = 10


def began(state: State, job: Job, attempt: Attempt) -> None:
    """User code begins there; of a trial it is looked at how that goes."""
    if state.workers[attempt.worker].trial == attempt.uid:
        state.set_timer(state.now_ms + state.rules.at_once_ms, "trial", attempt.worker)
    if not attempt.lane:
        state.suspicions.began(job.user, work_of(job), attempt.worker, attempt.uid)


def ended(state: State, job: Job, attempt: Attempt) -> None:
    """Take in what the end of an attempt says of its worker."""
    if attempt.lane or not attempt.started or attempt.phase is Phase.LOST:
        return
    suspicions, worker, now_ms = state.suspicions, attempt.worker, state.now_ms
    work = work_of(job)
    if attempt.phase is Phase.FAILED and not attempt.cancel:
        known = suspicions.failures.get(worker, {}).get(job.id)
        if known is not None and now_ms - known.at_ms < state.rules.at_once_ms:
            return  # one more task of an array says nothing new, and is not worth a second look
        if (failure := _hold_against(state, job, attempt)) is not None:
            suspicions.add(worker, failure)
            suspicions.ended(job.user, work, worker, ILL, now_ms)
            state.set_timer(now_ms, "faulty", worker)
            return
    if attempt.phase is not Phase.SUCCEEDED and attempt.span_ms < state.rules.at_once_ms:
        return
    suspicions.acquit(worker)
    suspicions.ended(job.user, work, worker, WELL, now_ms)


def _hold_against(state: State, job: Job, attempt: Attempt) -> Failure | None:
    verdict = judge_attempt(attempt)
    if verdict is None or (verdict.kind == _TOO_SMALL and unpack_spec(job.spec).rules.oom):
        # Work that says of itself that a card may be too small for it says nothing against the machine.
        return None
    at_once = verdict.kind in _AT_ONCE and attempt.span_ms < state.rules.at_once_ms
    if not at_once and verdict.kind != _NODE:
        return None
    words = f"{KINDS[verdict.kind].title}: {verdict.evidence[0] if verdict.evidence else attempt.error}"
    named = verdict.kind == _NODE
    return Failure(job.id, job.user, work_of(job), state.now_ms, named, words[:_WORDS])


def find_fault(state: State, worker: Worker) -> str:
    """Why a worker is to be taken out; empty where what is known is not enough."""
    rules, now_ms = state.rules, state.now_ms
    enough = rules.quarantine_failures
    known = state.suspicions.failures.get(worker.id, {}).values()
    recent = [one for one in known if now_ms - one.at_ms <= rules.quarantine_window_ms]
    if not enough or len(recent) < enough or _runs_well(state, worker.id, recent[0].at_ms):
        return ""
    agree = len({one.user for one in recent}) >= enough
    counted = [one for one in recent if _counts(state, worker.id, one, agree)]
    if len(counted) < enough or (len({one.user for one in counted}) == 1 and _has_many_out(state)):
        return ""
    names = ", ".join(one.job_id for one in counted[-enough:])
    window = format_seconds(rules.quarantine_window_ms // 1000)
    return f"{enough} different jobs failed there within {window} ({names}), the last by {counted[-1].words}"


def _has_many_out(state: State) -> bool:
    """Whether a tenth of all workers is out: what one user's jobs say of themselves must not take a whole site down."""
    out = sum(1 for worker in state.workers.values() if worker.draining and worker.faults)
    return out >= max(1, len(state.workers) // MOST_BY_ONE)


def _runs_well(state: State, worker_id: str, since_ms: int) -> bool:
    """Whether something that began there since then has lived for longer than what fails at once."""
    held = (state.attempts[uid] for uid in state.held.get(worker_id, ()))
    return any(attempt.started_ms >= since_ms and _has_lived(state, attempt) for attempt in held)


def _has_lived(state: State, attempt: Attempt) -> bool:
    span_ms = state.now_ms - attempt.started_ms if attempt.phase.live else attempt.span_ms
    return attempt.started and span_ms >= state.rules.at_once_ms


def _counts(state: State, worker_id: str, failure: Failure, agree: bool) -> bool:
    well = ill = 0
    for other, trace in state.suspicions.traces.get((failure.user, failure.work), {}).items():
        if other == worker_id or other not in state.workers:
            continue
        age_ms, last = state.now_ms - trace.at_ms, state.attempts.get(trace.uid)
        lives = last is not None and last.phase.live and _has_lived(state, last)
        well += lives or (trace.how == WELL and age_ms <= WELL_MS)
        ill += not lives and trace.how == ILL and age_ms <= state.rules.quarantine_window_ms
    return ill <= well and (failure.node or well > 0 or agree)


def quarantine(state: State, worker: Worker, reason: str, at_ms: int) -> WorkerDrained:
    """Take a worker out, for twice as long as the last time in a row."""
    rules = state.rules
    span_ms = min(rules.quarantine_ms << min(worker.faults, 30), rules.longest_quarantine_ms)
    return WorkerDrained(worker.id, True, "", reason, at_ms + span_ms, worker.faults + 1)


def weigh_trial(state: State, worker: Worker, at_ms: int) -> WorkerDrained | None:
    """What the one attempt of a worker on trial comes to; None while it cannot be told."""
    attempt = state.attempts.get(worker.trial)
    if attempt is None:
        return WorkerDrained(worker.id, False, reason="its trial left no trace", faults=worker.faults)
    lived = _has_lived(state, attempt)
    if attempt.phase.live and not lived:
        return None
    if attempt.phase is Phase.FAILED and not attempt.cancel:
        failure = _hold_against(state, state.jobs[attempt.job_id], attempt)
        if failure is not None:
            reason = f"job {attempt.job_id}, its trial, failed there too, by {failure.words}"
            return quarantine(state, worker, reason, at_ms)
        lived = True
    if lived or attempt.phase is Phase.SUCCEEDED:
        return WorkerDrained(worker.id, False, reason=f"job {attempt.job_id} goes well there")
    return WorkerDrained(worker.id, False, reason="its trial was stopped", faults=worker.faults)
