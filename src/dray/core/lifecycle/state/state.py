"""The cluster as the hub sees it. Only `apply` changes it; the shell reads it between turns.

Durable: jobs, tasks, attempts, workers, the ledger (of which `policy` is read), counters. Everything else is either a
signal (presence, progress, uses, polls, resuming, accept_lag_ms: how late assignments were answered of late; ends: how
many attempts of tasks ended in which phase), learnt in passing (experience, suspicions) or a cache that can be derived
(columns, backlog, waits: since when each job waits; parties, workloads, services, revised: the shapes of their
revisions, rollouts: when those are looked at of which replicas are replaced, held, live_of, requeued_of, dependents,
task_waiters, using, newest, timers, reservations, first_missing: up to which task a group is accepted; hungry: lanes to
be looked at, busy: lanes whose call takes longer than was thought, lingering: until when some without calls are kept,
spent_on: on which session each was opened; followers: who stands directly behind whom, leads: who may get more behind
them, taken_over: since when a place goes from one attempt to the next; use_notes: why jobs that use services wait;
provider_of, provided: whose workers there are, and whether each is here; providers_here: how many are; provider_looks:
when each is judged again; bad_providers; leaning: towards which placement strategy; batch: tasks that are placed
together; batches: how many; solver: whether one may be asked; eyed: lines in which somebody waits for whom a snapshot
or an environment is to be brought; prewarms: which workers were told to get them ahead of time, prewarm_ends: how that
went, foresee_ms: when to look again; ending: when workers end that say so; launches: those of each launcher, oldest
first, launch_idle: since when which of their workers idle, launch_look_ms, launch_due: when launchers are looked at;
moves: room kept for tasks on their way, origins: that which they came from, moving: the open
receipts of moves that are carried out for their own sake, moved_to: by which of them an attempt is where it is;
emptying: when places are looked for again for what runs on a worker that is emptied; outlook: what the rebalancer has
seen). Memory holds live work: ended entities leave once their rows are written.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.columns import Columns
from dray.core.lifecycle.state.experience import Experience, Needs, needs_of
from dray.core.lifecycle.state.lines import RANGE, Backlog, BucketKey, Entry, Shapes
from dray.core.lifecycle.state.parties import Parties, gpus_of
from dray.core.lifecycle.state.suspicions import Suspicions
from dray.core.lifecycle.state.timings import Rules
from dray.core.lifecycle.waiting.marks import Marks
from dray.core.model.ids import task_id
from dray.core.model.policies.policy import Policy
from dray.core.model.records.ledger import LedgerKey, LedgerRecord, Receipt
from dray.core.model.records.records import Attempt, Job, Phase, Task
from dray.core.model.records.worker import Presence, Progress, Use, Worker
from dray.core.model.specs.resources import Ask, Asks

TaskKey = tuple[str, int]
# A user and the services that jobs of his use: such jobs wait and start alike.
Using = tuple[str, tuple[str, ...]]
NEVER = 1 << 60
NO_HINTS: Mapping[TaskKey, str] = MappingProxyType({})
# What can no longer meet its deadline goes between all that can and what has none, the shortest first.
OVERDUE, UNKNOWN_MS = 1 << 58, 1 << 50
LONGEST_LOOK_MS = 86_400_000


class Reservation(NamedTuple):
    """Room kept for the first task of a job, or its whole gang: (moment, row, alternative, cards) for each member.

    `promised_ms` is the first start it was given, `since_ms` from when on the job has waited for it.
    """

    job_id: str
    start_ms: int
    promised_ms: int
    since_ms: int
    spots: tuple[tuple[int, int, int, tuple[int, ...]], ...]


class Moving(NamedTuple):
    """Room kept for a task that is being moved: which attempt leaves, for where, and until when at most.

    `receipt`: the move that was decided for its own sake, which ends by its own rules; empty where it is moved aside.
    """

    uid: str
    worker: str
    devices: tuple[int, ...]
    variant: int
    until_ms: int
    receipt: str = ""


class Prewarm(NamedTuple):
    """A worker was told to get ready for a task of a job, at which moment."""

    job_id: str
    user: str
    at_ms: int


class Leaning(NamedTuple):
    """Which rule on placement strategies applies (-1: nobody has looked), since when, and when to look again."""

    rule: int = -1
    since_ms: int = 0
    look_ms: int = 0


class Swing(NamedTuple):
    """How much there was to gain by one strategy, minute by minute (moment, share), and on how many looks in a row it
    was much. It acts only while it is `armed`.
    """

    samples: tuple[tuple[int, float], ...] = ()
    streak: int = 0
    armed: bool = True
    acted_ms: int = 0


class Watching(NamedTuple):
    """What the rebalancer remembers: when it looks again, and how it stands with each strategy."""

    look_ms: int = 0
    swings: tuple[tuple[str, Swing], ...] = ()


class Batch(NamedTuple):
    """Tasks that are placed together. `shapes` are left out of passes until a solver has said where their tasks are
    best placed, `hints` says so of each; either way it is over at `until_ms`. One with neither is spent: the next is
    opened when it is over.
    """

    number: int
    until_ms: int
    shapes: tuple[int, ...] = ()
    hints: Mapping[TaskKey, str] = NO_HINTS


class Counters(msgspec.Struct, array_like=True):
    """Numbers that ids are drawn from. They only grow, and travel with the rows."""

    epoch: int = 0
    next_job: int = 1
    next_attempt: int = 1
    next_receipt: int = 1
    next_workload: int = 1


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
    """All of it. `started_ms` is the hub's start in hub time: no loss is decided for a while after it. `now_ms` is when
    the newest event happened, or the turn in which a pass is made began; `at_ms` the same by the wall
    clock. `uid_key` makes the uids of attempts that are drawn from here on unguessable; they travel with the facts, so
    a replay needs none.
    """

    launch_look_ms, launch_due = 0, False
    outlook = Watching()

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.uid_key = b""
        self.policy = Policy()
        self.counters = Counters()
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[TaskKey, Task] = {}
        self.attempts: dict[str, Attempt] = {}
        self.workers: dict[str, Worker] = {}
        self.services: dict[str, None] = {}
        self.revised: dict[str, dict[int, int]] = {}
        self.rollouts: dict[str, int] = {}
        self.ledger: dict[LedgerKey, LedgerRecord] = {}
        self.provider_of: dict[str, str] = {}
        self.provided: dict[str, dict[str, bool]] = {}
        self.providers_here: dict[str, int] = {}
        self.provider_looks: dict[str, int] = {}
        self.bad_providers: dict[str, None] = {}
        self.ending: dict[str, int] = {}
        self.launches: dict[str, dict[str, None]] = {}
        self.launch_idle: dict[str, int] = {}
        self.owned: dict[str, str] = {}
        self.presence: dict[str, Presence] = {}
        self.progress: dict[str, Progress] = {}
        self.uses: dict[str, Use] = {}
        self.held: dict[str, dict[str, None]] = {}
        self.live_of: dict[str, dict[str, None]] = {}
        self.followers: dict[str, str] = {}
        self.requeued_of: dict[str, dict[int, None]] = {}
        self.dependents: dict[str, dict[str, None]] = {}
        self.using: dict[Using, dict[str, None]] = {}
        self.use_notes: dict[Using, str] = {}
        self.newest: dict[tuple[str, str, int], str] = {}
        self.shapes = Shapes()
        self.columns = Columns()
        self.parties = Parties()
        self.workloads = self.parties.workloads
        self.backlog = Backlog(self)
        self.waits = Marks()
        self.reservations: dict[str, Reservation] = {}
        self.unprotected: dict[str, None] = {}
        self.watched: dict[str, int] = {}
        self.looking: dict[str, int] = {}
        self.receipts: dict[str, Receipt] = {}
        self.moves: dict[TaskKey, Moving] = {}
        self._lay_out_moves()
        self._lay_out_strategy()
        self.experience = Experience()
        self.suspicions = Suspicions()
        self.touched = Touched()
        self.ends: dict[Phase, int] = {}
        self.eyed: dict[BucketKey, None] = {}
        self.prewarms: dict[str, dict[Needs, Prewarm]] = {}
        self.prewarm_ends: dict[str, int] = {}
        self.foresee_ms = 0
        self.polls: dict[str, int] = {}
        self.first_missing: dict[TaskKey, int] = {}
        self.hungry: dict[str, None] = {}
        self.busy: dict[str, None] = {}
        self.lingering: dict[str, int] = {}
        self.leads: dict[str, None] = {}
        self.taken_over: dict[str, int] = {}
        self.spent_on: dict[str, int] = {}
        self.resuming: dict[str, None] = {}
        self.task_waiters: dict[str, dict[int, dict[str, None]]] = {}
        self.timers: list[tuple[int, str, str]] = []
        self.judging: dict[str, int] = {}
        self.started_ms = self.now_ms = self.at_ms = 0
        self.braked = False
        self.accept_lag_ms = self.accept_seen_ms = 0

    def _lay_out_moves(self) -> None:
        self.origins: dict[TaskKey, Moving] = {}
        self.moving: dict[str, Receipt] = {}
        self.moved_to: dict[str, str] = {}
        self.emptying: dict[str, int] = {}

    def _lay_out_strategy(self) -> None:
        self.leaning = Leaning()
        self.batch: Batch | None = None
        self.batches, self.solver = 0, False

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

    def own(self, worker: Worker) -> None:
        """Note which worker a token speaks for: the last one that registered with it."""
        if worker.owner:
            self.owned[worker.owner] = worker.id

    def disown(self, worker: Worker) -> None:
        """A worker goes, or changes hands."""
        if self.owned.get(worker.owner) == worker.id:
            del self.owned[worker.owner]

    def open_gate(self, gate: str) -> None:
        """Look again at the lines behind a gate. Room that is kept for one is there, though its shape finds none."""
        if parked := self.backlog.open(gate):
            owners = (*self.receipts, *(kept.job_id for kept in self.reservations.values()))
            for job in (self.jobs[job_id] for job_id in owners if job_id in self.jobs):
                line = self.line_of(job)
                if line in parked or self.parties.crowd_of(line) in parked:
                    self.backlog.rouse(line)

    def release_shape(self, shape: int) -> None:
        """Give one reference to a shape back; the lines of one that nobody has any more go with it."""
        if self.shapes.release(shape):
            for key in list(self.backlog.lines_of(shape)):
                self.backlog.remove_bucket(key)

    def join_party(self, job: Job) -> None:
        """Find the party that a job belongs to under the present policy."""
        job.party = self.parties.take(self.policy, job, self.ledger)

    def queue_up(self, job: Job, position: int = RANGE) -> None:
        """Put a job's range, or one task again, into its line; a job that is barred is in none."""
        if job.barred:
            self.waits.stand(job, None, self.now_ms)
            return
        ahead, rank = self.place_of(job, position)
        line = self.line_of(job)
        if needs_of(job) is not None:
            self.eyed[line] = None
        self.backlog.add(line, Entry(ahead, rank, job.seq, position, job.id), self.parties.crowd_of(line))
        if job.deadline_ms and self.parties.all[job.party].rules.order == "edf":
            self.watch_deadline(job, self.latest_start_ms(job, position), self.now_ms, self.at_ms)
        self.waits.stand(job, self.backlog.buckets[line].times, self.now_ms)

    def queue_all(self, job: Job) -> None:
        """Put all that waits of a job into its line."""
        if job.untouched:
            self.queue_up(job)
        for index in self.requeued_of.get(job.id, ()):
            self.queue_up(job, index)

    def stir(self, job: Job) -> None:
        """Something of a job has left its line, or may go on in it: the next pass over its shape looks at the line."""
        self.backlog.stir(self.line_of(job))
        self.note_wait(job)

    def note_wait(self, job: Job) -> None:
        """A job waits no longer, or for something of its own; who joins a line is seen by `queue_up`."""
        if not job.waiting:
            self.waits.leave(job.id, self.now_ms)
        elif job.barred:
            self.waits.stand(job, None, self.now_ms)

    def note_due(self, job_id: str) -> None:
        """A job is due for a reservation."""
        self.unprotected[job_id] = None
        if self.backlog.doubts is None:
            self.backlog.doubts = {}
        self.backlog.doubts[job_id] = None

    def leave(self, job: Job, count: int) -> None:
        """So many tasks of a job's range were placed; behind the last of them others come forward in the line."""
        self.backlog.count(job.queue, -count)
        if not job.untouched:
            self.stir(job)

    def rouse(self, job: Job) -> None:
        """Look again at the line that a job stands in, or stood in just now."""
        self.backlog.rouse(self.line_of(job))

    def place_of(self, job: Job, position: int) -> tuple[int, int]:
        """Where in its line a job's range, or one task, belongs now: an edit or another run may have moved it."""
        name = self.parties.all[job.party].rules.order
        order = _ORDERS.get(name)
        if order is None and position == RANGE:
            return 0, 0
        task = None if position == RANGE else self.tasks.get((job.id, position))
        # By service alone: a victim is one because more of it is left, and must not go before what it was stopped for.
        ahead = -1 if task is not None and task.ahead and name != "srsf" else 0
        return ahead, order(job, task, self.shapes.asks[job.shape][0]) if order else 0

    def latest_start_ms(self, job: Job, position: int) -> int:
        """By when a job's range, or one task, has to begin to meet the deadline, as long as it is said to run."""
        task = None if position == RANGE else self.tasks.get((job.id, position))
        return job.deadline_ms - _told_ms(job, task)

    def watch_deadline(self, job: Job, start_ms: int, now_ms: int, at_ms: int) -> None:
        """Look at a job when some of it can no longer begin in time; one look at a time."""
        due_ms = now_ms + min(max(0, start_ms - at_ms) + 1, LONGEST_LOOK_MS)
        if due_ms < self.judging.get(job.id, NEVER):
            self.judging[job.id] = due_ms
            self.set_timer(due_ms, "deadline", job.id)

    def line_of(self, job: Job) -> BucketKey:
        """The line that a job's tasks wait in."""
        return BucketKey(job.party, job.priority, job.shape)

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
        return task_id(attempt.job_id, attempt.index if job is None else job.spelled(attempt.index))


def _expected_ms(job: Job, task: Task | None) -> int:
    """How long a task will still run: as told, else by its time limit; what checkpoints have saved is over."""
    whole = job.expected_ms or job.limit_ms or NEVER
    return max(1, whole - (task.used_ms if task is not None else 0))


def _sjf(job: Job, task: Task | None, ask: Ask) -> int:
    return _expected_ms(job, task)


def _told_ms(job: Job, task: Task | None) -> int:
    """How long a task is at least said to run still: its limit says only how long it may."""
    return max(0, job.expected_ms - (task.used_ms if task is not None else 0))


def _edf(job: Job, task: Task | None, ask: Ask) -> int:
    if not job.deadline_ms:
        return NEVER
    if job.judged_at_ms + _told_ms(job, task) > job.deadline_ms:
        return OVERDUE + min(_expected_ms(job, task), UNKNOWN_MS)
    return job.deadline_ms


def _srsf(job: Job, task: Task | None, ask: Ask) -> int:
    return _expected_ms(job, task) * max(1, gpus_of(ask)) * ask.nodes


# What a queue's policy sorts by before the job's number; the other policies need nothing that a job brings along.
_ORDERS = {"sjf": _sjf, "edf": _edf, "srsf": _srsf}
