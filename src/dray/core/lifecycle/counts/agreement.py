"""Whether what is counted of workloads is what their jobs and attempts sum up to; `invariants` asks it."""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.counts.counting import counts_of
from dray.core.lifecycle.state.parties import gpus_of
from dray.core.lifecycle.state.state import State
from dray.core.model.records.workload import WorkloadRecord


def workload_problems(state: State) -> Iterator[str]:
    """Every disagreement, in words."""
    recorded = {key for (kind, key), one in state.ledger.items() if isinstance(one, WorkloadRecord)}
    if recorded != set(state.workloads):
        yield f"workloads {sorted(recorded)} are recorded, counted are {sorted(state.workloads)}"
    held: dict[str, list[int]] = {name: [0] * 5 for name in state.workloads}
    for uids in state.held.values():
        for uid in uids:
            attempt = state.attempts[uid]
            job = state.jobs[attempt.job_id]
            if job.id in getattr(state.workloads.get(job.workload), "jobs", ()):
                milli, since_ms, sums = gpus_of(state.ask(attempt)), attempt.assigned_ms, held[job.workload]
                more = (1, milli, milli * since_ms, attempt.rate, attempt.rate * since_ms)
                sums[:] = [before + one for before, one in zip(sums, more, strict=True)]
    for name, tally in state.workloads.items():
        found = [tally.live, tally.gpu_milli, tally.starts, tally.price, tally.price_starts]
        if found != held[name]:
            yield f"workload {name} counts {found} of what its attempts hold, they sum to {held[name]}"
        record = tally.record
        sums = [0] * 10
        for job_id, counted in tally.jobs.items():
            own = state.jobs.get(job_id)
            if own is None or own.workload != name:
                yield f"workload {name} counts job {job_id}, which is not its own"
            elif counts_of(own) != counted:
                yield f"workload {name} has counted {counted} of job {job_id}, which has {counts_of(own)}"
            sums = [before + one for before, one in zip(sums, counted, strict=True)]
        known = [record.jobs, record.ended_jobs, record.total, record.running, record.succeeded]
        known += [record.failed, record.killed, record.worker_failed, record.unschedulable, record.paid]
        if (
            any(one > all_of_it for one, all_of_it in zip(sums, known, strict=True))
            or record.running != sums[3]
        ):
            yield f"workload {name} records {known}, its jobs in memory alone sum to {sums}"
        if record.is_over != bool(record.ended_at_ms):
            yield f"workload {name} is {record.state} and ended at {record.ended_at_ms}"
        if (going := record.jobs - record.ended_jobs) != sums[0] - sums[1]:
            yield f"workload {name} counts {going} jobs that go on, there are {sums[0] - sums[1]}"
        if tally.bounds and not tally.apart:
            yield f"workload {name} bounds what starts of it and has no gates"
