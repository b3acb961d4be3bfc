"""Since when each job waits, and what its line had counted by then: all that is needed to say later what it waited for.

A job is looked at when it begins to wait, when what it waits for is its own affair (held, other jobs, a service), when
it changes lines and when it waits no longer: never while it merely waits. All of it is in memory alone; what is to
outlive a restart is charged to the job by `WaitsCharged`, which carries amounts.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.waiting.times import NONE, Ledger, Times, grown
from dray.core.model.records.records import Job
from dray.core.model.records.waits import AFTER, HELD, LIMIT, NOTHING, RESTART, SERVICE, TURN, add, put

# Whoever waits for less is not asked about.
LEAST_MS = 1_000


class Mark(NamedTuple):
    """How one job waits: from when on, behind which line or for what of its own, and what was counted before."""

    first_ms: int
    since_ms: int
    times: Times | None
    base: Ledger
    own: int
    sums: Ledger


class Marks:
    """Those of all jobs that wait, the one longest not charged first; `due`: who waits no longer, and is to be."""

    def __init__(self) -> None:
        self.of: dict[str, Mark] = {}
        self.due: dict[str, None] = {}

    def stand(self, job: Job, times: Times | None, now_ms: int) -> None:
        """A job waits from here on in a line, or for something of its own."""
        own, mark = _own_reason(job), self.of.get(job.id)
        self.due.pop(job.id, None)
        if own != NONE:
            times = None
        if mark is not None and mark.own == own and mark.times is times:
            return
        base = NOTHING if times is None else times.read(now_ms)
        if mark is None:
            self.of[job.id] = Mark(now_ms, now_ms, times, base, own, NOTHING)
        else:
            self.of[job.id] = Mark(mark.first_ms, now_ms, times, base, own, settle(job, mark, now_ms))

    def leave(self, job_id: str, now_ms: int) -> None:
        """A job waits no longer."""
        mark = self.of.get(job_id)
        if mark is not None:
            if now_ms - mark.first_ms < LEAST_MS:
                del self.of[job_id]
            else:
                self.due[job_id] = None

    def charged(self, job_id: str, now_ms: int) -> None:
        """What a job has waited until now is with it."""
        mark, is_over = self.of.pop(job_id, None), job_id in self.due
        self.due.pop(job_id, None)
        if mark is None or is_over:
            return
        base = NOTHING if mark.times is None else mark.times.read(now_ms)
        self.of[job_id] = Mark(now_ms, now_ms, mark.times, base, mark.own, NOTHING)

    def forget(self, job_id: str) -> None:
        """A job leaves memory."""
        self.of.pop(job_id, None)
        self.due.pop(job_id, None)

    def awake(self, job: Job, now_ms: int) -> None:
        """After a restart nobody knows what a job waited for since it was last charged."""
        mark = self.of.get(job.id)
        if mark is not None:
            gap_ms = max(0, now_ms - max(job.waits_ms, job.waiting_since_ms))
            self.of[job.id] = Mark(now_ms - gap_ms, now_ms, mark.times, mark.base, mark.own,
                                   put(NOTHING, RESTART, gap_ms))  # fmt: skip

    def read(self, job: Job, now_ms: int) -> Ledger:
        """For how long a job has waited for what, until now."""
        mark = self.of.get(job.id)
        return job.waits if mark is None else add(job.waits, settle(job, mark, now_ms))


def settle(job: Job, mark: Mark, now_ms: int) -> Ledger:
    """What a mark comes to by a moment. What its line counted for no reason went to others, or to its own limit."""
    span_ms = now_ms - mark.since_ms
    if span_ms <= 0:
        return mark.sums
    if mark.own != NONE:
        return put(mark.sums, mark.own, span_ms)
    if mark.times is None:
        return put(mark.sums, TURN, span_ms)
    sums = grown(mark.sums, mark.base, mark.times.read(now_ms))
    left_ms = span_ms - (sum(sums) - sum(mark.sums))
    return put(sums, LIMIT if job.limit else TURN, left_ms) if left_ms > 0 else sums


def _own_reason(job: Job) -> int:
    if job.held:
        return HELD
    if job.after:
        return AFTER
    return SERVICE if job.unserved else NONE
