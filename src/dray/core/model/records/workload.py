"""Workloads: what people say of one, and its durable record.

A workload is a user's campaign: jobs of any kind under one id that have one switch, one purse, one verdict and one way
to lie on the cluster. Its state is derived from its record and stored nowhere. Counts are of all its jobs, those that
left memory included: they are kept by whatever changes the counts of a job. Fields are only ever appended, each with a
default.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

HOUR_MS = 3_600_000
# Money is counted in millionths, whatever the site's currency is.
MICRO = 1_000_000
HOLD, STOP, TELL = "hold", "stop", "tell"
WHEN_SPENT = (HOLD, STOP, TELL)
SITE, PACK, SPREAD, CAPACITY, SHARES = "site", "pack", "spread", "capacity", "shares"
MODES = (SITE, PACK, SPREAD, CAPACITY, SHARES)


class Budget(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How much may be used up, 0 where there is no bound; `when_spent`: nothing more starts (`hold`), what runs is
    stopped as well (`stop`), or people are told and nothing else happens (`tell`).
    """

    money: float = 0
    gpu_hours: float = 0
    when_spent: str = HOLD

    @property
    def bounds(self) -> bool:
        """Whether starts depend on it."""
        return bool(self.money or self.gpu_hours) and self.when_spent != TELL


class Distribution(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How its tasks lie over the values of one worker label (`by`; empty: over workers).

    `required`: a task waits rather than start where more than `max_skew` of them too many would be.
    """

    mode: str = SITE
    by: str = ""
    shares: dict[str, float] = {}
    max_skew: int = 1
    required: bool = False


class Objective(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What matters when its tasks are placed, each in weights of its own; the site's where all are 0."""

    cost: float = 0
    performance: float = 0
    reliability: float = 0
    latency: float = 0
    cheapest_in_time: bool = False


class Terms(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """All that is said of one. Of what is laid under its jobs at their submit `defaults` are further fields of a job.

    `width`: so many tasks at once, 0: as many as fit. `failures`: which share of its tasks may fail. `members`: other
    users who may add to it.
    """

    title: str = ""
    members: list[str] = []
    queue: str = ""
    priority: int | None = None
    labels: dict[str, str] = {}
    deadline: str = ""
    budget: Budget = Budget()
    width: int = 0
    distribution: Distribution = Distribution()
    objective: Objective = Objective()
    failures: float = 0
    defaults: dict[str, Any] = {}

    @property
    def bounds_starts(self) -> bool:
        """Whether its tasks pass a gate of its own, however it is switched."""
        return bool(self.width) or self.budget.bounds or self.distribution.required


class WorkloadState(StrEnum):
    """Where a workload stands."""

    DRAFT = "draft"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETING = "completing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ARCHIVED = "archived"

    @property
    def ended(self) -> bool:
        """Whether it takes no tasks any more."""
        return self in _ENDED


_ENDED = (WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.CANCELLED, WorkloadState.ARCHIVED)


class WorkloadRecord(msgspec.Struct, array_like=True, kw_only=True):
    """One workload. `switched_by` was the last to start, pause, seal or cancel it; `changes` counts what people have
    changed. `spent`: its purse was found empty. `jobs` and `ended_jobs` count jobs, the others tasks; `started` is how
    many attempts began, the last of them at `last_start_ms` (hub time), the first at `first_start_ms`. `used_ms` are
    milli-GPU milliseconds of attempts that ended, `paid` is what its jobs have cost, in millionths. `retried` says of
    which jobs how many failed tasks were submitted again: those are no failures any more. Jobs of lower numbers than
    `first_job` were of another workload that had its id. `made_ms` is when it was made, in hub time.
    """

    id: str
    seq: int
    user: str
    terms: Terms
    created_at_ms: int = 0
    started_at_ms: int = 0
    ended_at_ms: int = 0
    is_started: bool = False
    is_paused: bool = False
    is_sealed: bool = False
    is_cancelled: bool = False
    is_archived: bool = False
    spent: bool = False
    switched_by: str = ""
    changes: int = 1
    jobs: int = 0
    ended_jobs: int = 0
    total: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    killed: int = 0
    worker_failed: int = 0
    unschedulable: int = 0
    started: int = 0
    first_start_ms: int = 0
    last_start_ms: int = 0
    used_ms: int = 0
    paid: int = 0
    retried: dict[str, int] = {}
    first_job: int = 0
    made_ms: int = 0

    @property
    def ended(self) -> int:
        """Tasks that reached a final state."""
        return self.succeeded + self.failures + self.killed

    @property
    def failures(self) -> int:
        """Tasks that ended as somebody's fault, also those that were tried again."""
        return self.failed + self.worker_failed + self.unschedulable

    @property
    def open_failures(self) -> int:
        """Failures that nobody has submitted again."""
        return max(0, self.failures - sum(self.retried.values()))

    @property
    def failed_share(self) -> float:
        """Which share of what came to its own end has failed."""
        came = self.succeeded + self.open_failures
        return self.open_failures / came if came else 0.0

    @property
    def is_over(self) -> bool:
        """Whether it is sealed and its last job has ended."""
        return (self.is_sealed or self.is_cancelled) and self.ended_jobs == self.jobs

    @property
    def is_off(self) -> bool:
        """Whether nothing of it may start as it is switched; its purse is another matter."""
        return not self.is_started or self.is_paused or self.is_cancelled

    @property
    def state(self) -> WorkloadState:
        """Where it stands, by all of this."""
        if self.is_archived:
            return WorkloadState.ARCHIVED
        if self.is_cancelled:
            return WorkloadState.CANCELLED
        if self.is_over:
            failed = self.failed_share > self.terms.failures or (not self.succeeded and self.killed)
            return WorkloadState.FAILED if failed else WorkloadState.SUCCEEDED
        if not self.is_started:
            return WorkloadState.DRAFT
        if self.is_paused:
            return WorkloadState.PAUSED
        return WorkloadState.COMPLETING if self.is_sealed else WorkloadState.RUNNING

    def is_spent_by(self, used_ms: int, paid: int) -> bool:
        """Whether so much empties its purse."""
        budget = self.terms.budget
        hours = bool(budget.gpu_hours) and used_ms >= budget.gpu_hours * HOUR_MS * 1000
        return hours or (bool(budget.money) and paid >= budget.money * MICRO)

    @property
    def is_held_by_purse(self) -> bool:
        """Whether an empty purse keeps its tasks from starting."""
        return self.spent and self.terms.budget.when_spent != TELL
