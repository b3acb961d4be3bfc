"""The cluster as the hub sees it. Only `apply` changes it; the shell reads it between turns.

Durable: jobs, tasks, attempts, workers, the ledger (of which `policy` is read), counters. Everything else is either a
signal (presence, polls) or a cache that can be derived (columns, backlog, held, live_of, requeued_of, dependents,
newest, timers).
Memory holds live work: ended entities leave once their rows are written.
"""

from __future__ import annotations

import heapq

import msgspec

from dray.core.lifecycle.backlog import Backlog, Shapes
from dray.core.lifecycle.columns import Columns
from dray.core.lifecycle.rules import Rules
from dray.core.model.ids import task_id
from dray.core.model.ledger import LedgerKey, LedgerRecord
from dray.core.model.policy import Policy
from dray.core.model.records import Attempt, Job, Task
from dray.core.model.resources import Ask, Asks
from dray.core.model.worker import Presence, Worker

TaskKey = tuple[str, int]


class Counters(msgspec.Struct, array_like=True):
    """Numbers that ids are drawn from. They only grow, and travel with the rows."""

    epoch: int = 0
    next_job: int = 1
    next_attempt: int = 1


class Touched:
    """What changed since the rows were last written, in order of first change."""

    def __init__(self) -> None:
        self.jobs: dict[str, None] = {}
        self.tasks: dict[TaskKey, None] = {}
        self.attempts: dict[str, None] = {}
        self.workers: dict[str, None] = {}
        self.ledger: dict[LedgerKey, None] = {}

    def __len__(self) -> int:
        return len(self.jobs) + len(self.tasks) + len(self.attempts) + len(self.workers) + len(self.ledger)


class State:
    """All of it. `started_ms` is the hub's start in hub time: no loss is decided for a while after it."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.policy = Policy()
        self.counters = Counters()
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[TaskKey, Task] = {}
        self.attempts: dict[str, Attempt] = {}
        self.workers: dict[str, Worker] = {}
        self.ledger: dict[LedgerKey, LedgerRecord] = {}
        self.presence: dict[str, Presence] = {}
        self.held: dict[str, dict[str, None]] = {}
        self.live_of: dict[str, dict[str, None]] = {}
        self.requeued_of: dict[str, dict[int, None]] = {}
        self.dependents: dict[str, dict[str, None]] = {}
        self.newest: dict[tuple[str, str, int], str] = {}
        self.shapes = Shapes()
        self.columns = Columns()
        self.backlog = Backlog()
        self.touched = Touched()
        self.polls: dict[str, int] = {}
        self.timers: list[tuple[int, str, str]] = []
        self.started_ms = 0
        self.braked = False

    def asks(self, shape: int) -> Asks:
        """The alternatives behind a shape's number."""
        return self.shapes.asks[shape]

    def ask(self, attempt: Attempt) -> Ask:
        """What an attempt holds: the alternative by which it runs."""
        return self.shapes.asks[attempt.shape][attempt.variant]

    def set_timer(self, at_ms: int, kind: str, key: str) -> None:
        """Ask for a look at `key` at `at_ms`; a look finds out by itself whether there is anything to do."""
        heapq.heappush(self.timers, (at_ms, kind, key))

    def touch_worker(self, worker_id: str) -> None:
        """Bring a worker's columns in line after any change to it or its presence."""
        self.columns.update(self.workers[worker_id], self.presence[worker_id])

    def enter(self, kind: str, key: str, record: LedgerRecord | None) -> None:
        """Set a record of the ledger, or strike it out."""
        if record is None:
            self.ledger.pop((kind, key), None)
        else:
            self.ledger[kind, key] = record
        self.touched.ledger[kind, key] = None

    def spell(self, attempt: Attempt) -> str:
        """The task id of an attempt, as peers and people know it."""
        job = self.jobs.get(attempt.job_id)
        numbered = job is None or job.numbered
        return task_id(attempt.job_id, attempt.index if numbered else -1)
