"""A workload's counts: moved on by what the counts of one of its jobs have moved on by since they were last looked at.

Asked wherever a job's own counts change, so that each event costs one look at one job and none costs a walk. The
surprising rule: what was counted of a job is kept beside it in memory alone; after a restart it is what the job's row
says, since rows of jobs and of workloads are written together.
"""

from __future__ import annotations

from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.parties import Tally, gpus_of
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job
from dray.core.model.records.workload import WorkloadRecord
from dray.core.model.specs.resources import Ask

_NOTHING = (0,) * 10
# A look at a purse that comes so much too late is moved forward: not one look per start, nor any that is late for long.
LATE_MS, LATE_PART = 1_000, 64


def find(state: State, job: Job) -> Tally | None:
    """The tally that a job is counted in."""
    tally = state.workloads.get(job.workload)
    return tally if tally is not None and job.id in tally.jobs else None


def counts_of(job: Job) -> tuple[int, ...]:
    """What a job adds to its workload, in the order of `_add`."""
    return (
        *(1, int(job.state.final), job.total, job.running, job.succeeded),
        *(job.failed, job.killed, job.worker_failed, job.unschedulable, job.money),
    )


def join(state: State, job: Job) -> None:
    """Count a job that was not counted before, with what it holds."""
    tally = state.workloads.get(job.workload) if job.workload else None
    if tally is None or job.id in tally.jobs:
        return
    tally.jobs[job.id] = _NOTHING
    # What failed of it runs again, and it has not ended after all.
    tally.record.ended_at_ms = 0
    recount(state, job)
    for uid in state.live_of.get(job.id, ()):
        if not (attempt := state.attempts[uid]).behind:
            shift(state, job, attempt, state.ask(attempt), 1)


def leave(state: State, job: Job) -> None:
    """Count a job no longer; what it has used stays used."""
    tally = find(state, job)
    if tally is None:
        return
    for uid in state.live_of.get(job.id, ()):
        if not (attempt := state.attempts[uid]).behind:
            ask = state.ask(attempt)
            shift(state, job, attempt, ask, -1)
            _charge(state, tally.record, attempt, ask)
    _add(tally.record, tally.jobs.pop(job.id), -1)
    touch(state, tally.record)


def recall(state: State, job: Job) -> None:
    """Take a job in that was read from its row: all of it is counted."""
    if job.workload and (tally := state.workloads.get(job.workload)) is not None:
        tally.jobs[job.id] = counts_of(job)


def forget(state: State, job: Job) -> None:
    """A job leaves memory."""
    if job.workload and (tally := state.workloads.get(job.workload)) is not None:
        tally.jobs.pop(job.id, None)


def recount(state: State, job: Job) -> None:
    """Bring the record in line with a job whose counts may have changed."""
    tally = find(state, job) if job.workload else None
    if tally is None:
        return
    before, after = tally.jobs[job.id], counts_of(job)
    if after != before:
        tally.jobs[job.id] = after
        _add(tally.record, before, -1)
        _add(tally.record, after, 1)
        touch(state, tally.record)


def settle(state: State, job: Job, clock: Clock) -> list[Effect]:
    """The same once a job was settled: it may have been the last."""
    recount(state, job)
    tally = state.workloads.get(job.workload)
    return conclude(state, tally, clock) if tally is not None else []


def conclude(state: State, tally: Tally, clock: Clock) -> list[Effect]:
    """Note the end of a workload, or that there is more of it again."""
    record = tally.record
    if record.is_over == bool(record.ended_at_ms):
        return []
    touch(state, record)
    if not record.is_over:
        record.ended_at_ms = 0
        return []
    record.ended_at_ms = clock.at_ms
    data = {"workload": record.id, "state": record.state.value, "user": record.user}
    return [Note("workload_ended", data=data)]


def touch(state: State, record: WorkloadRecord) -> None:
    """Its row is to be written."""
    state.touched.ledger["workload", record.id] = None


def hold(state: State, job: Job, attempt: Attempt, ask: Ask, sign: int, start: bool) -> None:
    """Follow an attempt that begins or ceases to hold; at its end what it has used is in the record."""
    tally = find(state, job)
    if tally is None:
        return
    tally.hold(sign, gpus_of(ask), attempt.rate, attempt.assigned_ms)
    record = tally.record
    if sign < 0:
        _charge(state, record, attempt, ask)
    elif start:
        record.started += 1
        record.last_start_ms = state.now_ms
        record.first_start_ms = record.first_start_ms or state.now_ms
        touch(state, record)
    if sign > 0:
        watch_purse(state, tally)


def shift(state: State, job: Job, attempt: Attempt, ask: Ask, sign: int) -> None:
    """Follow what an attempt holds where that neither begins nor ends: it is counted anew, or elsewhere."""
    tally = find(state, job)
    if tally is not None:
        tally.hold(sign, gpus_of(ask), attempt.rate, attempt.assigned_ms)


def watch_purse(state: State, tally: Tally) -> None:
    """Have its purse looked at when it may be empty."""
    record, now_ms = tally.record, state.now_ms
    if record.spent or not (record.terms.budget.money or record.terms.budget.gpu_hours):
        return
    at_ms = tally.empties_ms(now_ms)
    late_ms = max(LATE_MS, (tally.look_ms - now_ms) // LATE_PART)
    if at_ms and (not tally.look_ms or at_ms + late_ms < tally.look_ms):
        tally.look_ms = at_ms
        state.set_timer(at_ms, "purse", record.id)


def _charge(state: State, record: WorkloadRecord, attempt: Attempt, ask: Ask) -> None:
    span_ms = max(0, state.now_ms - attempt.assigned_ms)
    record.used_ms += gpus_of(ask) * span_ms
    touch(state, record)


def _add(record: WorkloadRecord, counts: tuple[int, ...], sign: int) -> None:
    jobs, ended, total, running, succeeded, failed, killed, worker_failed, unschedulable, money = counts
    record.jobs += sign * jobs
    record.ended_jobs += sign * ended
    record.total += sign * total
    record.running += sign * running
    record.succeeded += sign * succeeded
    record.failed += sign * failed
    record.killed += sign * killed
    record.worker_failed += sign * worker_failed
    record.unschedulable += sign * unschedulable
    record.paid += sign * money
