"""What happens to workloads as wholes: made, changed, started, paused, sealed, cancelled, archived, forgotten.

A pause costs its lines, not its tasks: what waits stays where it is, behind a gate that is shut. Only where a workload
had no gate yet its jobs in memory join parties of their own, one entry per job. The surprising rule: a workload that
was started has no gates until it needs one, so that thousands that nothing bounds share the lines of their users.
"""

from __future__ import annotations

from dray.core.lifecycle.counts import counting
from dray.core.lifecycle.happenings import cancels, edits
from dray.core.lifecycle.holding import attempts, receipts
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import ArrayExtended, CancelRequested, Clock, RequeueRequested
from dray.core.lifecycle.state.parties import WORKLOAD_GATES, GateKey, Tally
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.workload_events import (
    ARCHIVE,
    CANCEL,
    PAUSE,
    SEAL,
    START,
    WorkloadChanged,
    WorkloadDropped,
    WorkloadMade,
    WorkloadRetried,
    WorkloadSpent,
    WorkloadSwitched,
)
from dray.core.lifecycle.tasks import jobs
from dray.core.model.records.records import Job
from dray.core.model.records.workload import STOP, WorkloadRecord
from dray.core.model.specs.spec import unpack_spec

# So many jobs go back to the lines that they share with others when nothing bounds their workload any more.
FEW_JOBS = 256


def made(state: State, event: WorkloadMade, clock: Clock) -> list[Effect]:
    """There is one more. An id that is there is left alone: the shell has compared the two."""
    if event.id in state.workloads:
        return []
    record = WorkloadRecord(
        id=event.id,
        seq=state.counters.next_workload,
        user=event.user,
        terms=event.terms,
        created_at_ms=clock.at_ms,
        started_at_ms=clock.at_ms if event.start else 0,
        is_started=event.start,
        first_job=state.counters.next_job,
        made_ms=clock.now_ms,
    )
    state.counters.next_workload += 1
    state.workloads[event.id] = Tally(record)
    state.enter("workload", event.id, record)
    return [_note("workload_created", record, event.user)]


def changed(state: State, event: WorkloadChanged, clock: Clock) -> list[Effect]:
    """Other terms; whoever waits behind one of its gates is looked at again."""
    tally = state.workloads.get(event.id)
    if tally is None:
        return []
    record = tally.record
    record.terms, record.changes = event.terms, record.changes + 1
    record.spent = record.spent and tally.is_empty(clock.now_ms)
    _follow(state, tally)
    counting.watch_purse(state, tally)
    return [_note("workload_changed", record, event.user), *counting.conclude(state, tally, clock)]


def switched(state: State, event: WorkloadSwitched, clock: Clock) -> list[Effect]:
    """Carry one verb out; the shell has asked whether it makes sense as the workload stands."""
    tally = state.workloads.get(event.id)
    if tally is None:
        return []
    record, effects = tally.record, list[Effect]()
    record.switched_by, record.changes = event.user, record.changes + 1
    if event.verb == START:
        record.is_started, record.is_paused = True, False
        record.started_at_ms = record.started_at_ms or clock.at_ms
    elif event.verb == PAUSE:
        record.is_paused = True
    elif event.verb == SEAL:
        record.is_sealed = True
        effects = _close_calls(state, tally, clock)
    elif event.verb == CANCEL:
        record.is_sealed = record.is_cancelled = True
        effects = _cancel(state, tally, event, clock)
    elif event.verb == ARCHIVE:
        record.is_archived = True
    _follow(state, tally)
    if record.is_off:
        effects += _give_back(state, tally, clock)
    if event.verb == PAUSE and event.stop:
        effects += _stop(state, tally, event.user, clock)
    note = _note(_SAID[event.verb], record, event.user)
    return [note, *effects, *counting.conclude(state, tally, clock)]


def dropped(state: State, event: WorkloadDropped, clock: Clock) -> list[Effect]:
    """Forget it; what is left of its jobs goes when that of other jobs does."""
    tally = state.workloads.pop(event.id, None)
    if tally is None:
        return []
    state.enter("workload", event.id, None)
    return [_note("workload_deleted", tally.record, event.user)]


def spent(state: State, event: WorkloadSpent, clock: Clock) -> list[Effect]:
    """Its purse is empty: people are told, what waits stays where it is, what runs is stopped where they said so."""
    tally = state.workloads.get(event.id)
    if tally is None or tally.record.spent:
        return []
    record = tally.record
    record.spent = True
    counting.touch(state, record)
    effects = _give_back(state, tally, clock) if record.is_held_by_purse else []
    if record.terms.budget.when_spent == STOP:
        effects += _stop(state, tally, "", clock)
    return [_note("workload_spent", record, record.user), *effects]


def retried(state: State, event: WorkloadRetried, clock: Clock) -> list[Effect]:
    """Failed tasks of it run again as new jobs: it is not over."""
    tally = state.workloads.get(event.id)
    if tally is None:
        return []
    record = tally.record
    record.retried = {**record.retried, **event.tasks}
    counting.touch(state, record)
    return [_note("workload_retried", record, event.user), *counting.conclude(state, tally, clock)]


def _follow(state: State, tally: Tally) -> None:
    """Let its gates be where they are needed, and look again at the lines behind them."""
    counting.touch(state, tally.record)
    apart = tally.bounds or (tally.apart and len(tally.jobs) > FEW_JOBS)
    if apart != tally.apart:
        tally.apart = apart
        _regroup(state, tally)
    for rule in WORKLOAD_GATES:
        state.open_gate(str(GateKey(rule, "workload", tally.record.id)))


def _regroup(state: State, tally: Tally) -> None:
    for job in _jobs(state, tally):
        before = job.party
        attempts.change_party(state, job)
        if job.party != before:
            state.queue_all(job)


def _jobs(state: State, tally: Tally) -> list[Job]:
    """Its jobs in memory that have not ended, or still hold something."""
    known = (state.jobs[job_id] for job_id in tally.jobs)
    return [job for job in known if not job.state.final or job.id in state.live_of]


def _give_back(state: State, tally: Tally, clock: Clock) -> list[Effect]:
    """Room that is kept for its tasks is there for others."""
    owners = [state.jobs[job_id] for job_id in tally.jobs if job_id in state.receipts]
    return [effect for job in owners for effect in receipts.close(state, job, "rolled_back", clock)]


def _stop(state: State, tally: Tally, user: str, clock: Clock) -> list[Effect]:
    """Stop what runs; it is queued again once it is confirmed gone, but for what may start only once."""
    effects: list[Effect] = []
    for job in _jobs(state, tally):
        if not job.state.final and job.id in state.live_of and not unpack_spec(job.spec).at_most_once:
            effects += edits.requeue_requested(state, RequeueRequested(job.id, -1, user), clock)
    return effects


def _cancel(state: State, tally: Tally, event: WorkloadSwitched, clock: Clock) -> list[Effect]:
    effects: list[Effect] = []
    for job in _jobs(state, tally):
        effects += cancels.cancelled(state, CancelRequested(job.id, -1, event.user, event.grace_s), clock)
    return effects


def _close_calls(state: State, tally: Tally, clock: Clock) -> list[Effect]:
    """Arrays of calls that were open for more take no more: whoever streams them in is told so."""
    effects: list[Effect] = []
    for job in _jobs(state, tally):
        if job.calls and job.open:
            effects += jobs.extended(state, ArrayExtended(job.id, 0, close=True), clock)
    return effects


def _note(kind: str, record: WorkloadRecord, user: str) -> Note:
    return Note(
        kind, data={"workload": record.id, "user": user, "owner": record.user, "state": record.state.value}
    )


_SAID = {
    START: "workload_started",
    PAUSE: "workload_paused",
    SEAL: "workload_sealed",
    CANCEL: "workload_cancelled",
    ARCHIVE: "workload_archived",
}
