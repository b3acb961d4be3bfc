"""What the engine needs of a store, and the values that pass between them.

A store knows nothing of scheduling: it keeps opaque turns in order, rows keyed by id, tokens and audit records.
Every write carries the epoch and fails with `EpochLost` when another hub has taken the store over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import msgspec

from dray.core.model.records.records import Attempt, Job, Task
from dray.core.model.records.worker import Worker
from dray.errors import BrokenInvariant


class AuditRecord(NamedTuple):
    """Who changed what; one for every mutation."""

    at_ms: int
    user: str
    token_id: str
    action: str
    target: str
    detail: str


class KeyRow(NamedTuple):
    """An idempotency key of one user and the jobs that the first request under it made."""

    user: str
    key: str
    at_ms: int
    job_ids: tuple[str, ...]


class ArgsChunk(NamedTuple):
    """Arguments of `calls` calls from index `first` on, as they came in one message."""

    job_id: str
    first: int
    calls: int
    blob: bytes


class ResultsChunk(NamedTuple):
    """Results of calls that one message of a worker brought; their indices lie from `lo` to `hi`, not all of them.

    `seq` and `at_ms` are those of the turn that recorded them, and are filled in by the store.
    """

    job_id: str
    lo: int
    hi: int
    worker: str
    lane: str
    blob: bytes
    seq: int = 0
    at_ms: int = 0


# A name that begins so is none of a job: behind it is the digest of a blob, which holds others as long as it is there.
HOLDS = "holds:"


class BlobRef(NamedTuple):
    """A job needs this blob: it stays as long as the job does. Or another blob does: `HOLDS` and its digest."""

    digest: str
    job_id: str


Chunk = ArgsChunk | ResultsChunk | BlobRef


class Position(NamedTuple):
    """How far a store has come: the epoch of its hub and the number of its newest turn."""

    epoch: int
    seq: int


class Lost(NamedTuple):
    """A store that opened with less than a witness outside it knows to have been committed: as after a backup."""

    found: Position
    known: Position


class Turn(NamedTuple):
    """All that one turn must make durable before its effects leave. `facts` and `notes` are packed by the engine."""

    seq: int
    now_ms: int
    at_ms: int
    facts: bytes
    notes: bytes
    keys: Sequence[KeyRow] = ()
    audit: Sequence[AuditRecord] = ()
    chunks: Sequence[Chunk] = ()


class JobRow(NamedTuple):
    """A job with the columns that lists filter by."""

    job: Job
    labels: dict[str, str]


class AttemptRow(NamedTuple):
    """An attempt with the columns that history is read by."""

    attempt: Attempt
    name: str
    user: str
    shape: str
    gpu_type: str
    queue: str = ""
    plugin: str = ""
    template: str = ""


class UseQuery(NamedTuple):
    """By what, whose (empty: everybody's), from when to when."""

    by: str
    user: str
    since_ms: int
    until_ms: int


class UseRow(NamedTuple):
    """One sum; `number` names the attempt where it is that of one that still runs, and `part` how much of its run time
    lies in the window. `money`: what it has cost there, in millionths.
    """

    key: str
    shape: str
    attempts: int
    asked_ms: float
    held_ms: float
    cpu_s: float = 0
    gpu_s: float = 0
    gpu_seen_s: float = 0
    number: int = 0
    part: float = 1
    money: float = 0


class PastQuery(NamedTuple):
    """Attempts that ended since `since_ms` and began before `until_ms`: of one worker, of one job, or those that failed
    (of anybody, or of one user).
    """

    since_ms: int
    until_ms: int
    worker: str = ""
    job_id: str = ""
    user: str = ""
    limit: int = 1000


class PastRow(NamedTuple):
    """One attempt that has ended, with whose it was."""

    attempt: Attempt
    name: str
    user: str
    gpu_type: str
    queue: str


class LedgerRow(NamedTuple):
    """One record of the ledger; None strikes it out."""

    kind: str
    key: str
    record: bytes | None


class Projection(NamedTuple):
    """Rows as they stand after turn `applied_seq`, and the counters to go on from."""

    applied_seq: int
    now_ms: int
    counters: bytes
    jobs: Sequence[JobRow] = ()
    tasks: Sequence[Task] = ()
    attempts: Sequence[AttemptRow] = ()
    workers: Sequence[Worker] = ()
    gone_workers: Sequence[str] = ()
    ledger: Sequence[LedgerRow] = ()


class Snapshot(NamedTuple):
    """What a hub starts from: rows of live work as of `applied_seq`; the log's tail comes after it.

    All of it is of one moment, also while another hub goes on writing rows: `find_attempt` looks at that moment too,
    and `close` ends it. `epoch` is that of the turn `applied_seq`, 0 where the log does not tell.
    """

    applied_seq: int
    now_ms: int
    at_ms: int
    clock_base: bytes
    counters: bytes
    jobs: Iterator[Job]
    tasks: Iterator[Task]
    attempts: Iterator[Attempt]
    workers: Iterator[Worker]
    ledger: Iterator[LedgerRow]
    find_attempt: Callable[[str], Attempt | None]
    epoch: int = 0
    close: Callable[[], None] = lambda: None


class LiveRows(NamedTuple):
    """Rows of live work for one who reads beside the hub: jobs, then live attempts, then workers, while the hub goes on
    writing. Each was true at some moment since turn `applied_seq`, not all of them at the same one.
    """

    applied_seq: int
    rows: Iterator[Job | Attempt | Worker]


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which finished or live jobs a list wants; empty fields do not filter. `before_seq` pages downwards, among those
    that ended at `before_ended_ms` where they are sorted by that.

    `count`: also how many there are in all. `worker`, `exit_class`: an attempt of theirs was there, or ended so. `q`:
    their name or their id has this in it. `sort`: `submitted`, newest first, or `ended`, and those alone that have.
    """

    states: tuple[str, ...] = ()
    user: str = ""
    queue: str = ""
    name: str = ""
    workload: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    before_seq: int = 0
    limit: int = 100
    count: bool = False
    submitted_after_ms: int = 0
    submitted_before_ms: int = 0
    ended_after_ms: int = 0
    ended_before_ms: int = 0
    worker: str = ""
    exit_class: str = ""
    q: str = ""
    sort: str = "submitted"
    before_ended_ms: int = 0

    @property
    def ended_only(self) -> bool:
        """Whether only jobs that have ended are meant."""
        return self.sort == "ended" or bool(self.ended_after_ms or self.ended_before_ms)

    @property
    def spans(self) -> list[tuple[str, int]]:
        """Conditions about moments, each with its value."""
        told = (
            ("submitted_at_ms >= ?", self.submitted_after_ms),
            ("submitted_at_ms < ?", self.submitted_before_ms),
            ("ended_at_ms >= ?", self.ended_after_ms),
            ("ended_at_ms < ?", self.ended_before_ms),
        )
        return [(term, value) for term, value in told if value]

    @property
    def plain(self) -> bool:
        """Whether nothing but states and a user is asked for: such jobs can be counted."""
        others = (
            self.queue,
            self.name,
            self.workload,
            self.labels,
            self.worker,
            self.exit_class,
            self.q,
            self.spans,
        )
        return not any(others) and self.sort == "submitted"


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token as stored: its hash, never itself."""

    id: str
    hash: bytes
    user: str
    scopes: tuple[str, ...]
    created_at_ms: int
    expires_at_ms: int = 0
    revoked: bool = False
    single: bool = False
    """Whether it speaks for one worker only: the first that registers with it. Older ones speak for any number."""
    worker: str = ""
    """The worker that it was made for, and that nobody else may be while it is good."""
    parent: str = ""
    """Of the session of a browser: the token that signed in, with which it ends."""


class LogEntry(NamedTuple):
    """One turn read back; `epoch` is that of the hub that committed it, 0 where the store does not tell."""

    seq: int
    now_ms: int
    at_ms: int
    facts: bytes
    notes: bytes
    epoch: int = 0


class Followed(NamedTuple):
    """What one who follows the log needs at each look: how far rows and log are, the epoch of the turn that it has
    reached (0 where the log has it no more), hub time, and the next turns. `at_ms` is when the reached turn was taken:
    after a failover two hubs may have had one epoch, and a turn of each the same number.
    """

    applied_seq: int
    last_seq: int
    epoch: int
    now_ms: int
    clock_base: bytes
    entries: list[LogEntry]
    at_ms: int = 0


class Followable(Protocol):
    """A store whose turns another hub commits; read from any thread."""

    def load(self) -> Snapshot: ...
    def follow(self, after_seq: int, limit: int = 1000) -> Followed: ...


class BlobRow(NamedTuple):
    """A blob that is filed; `at_ms` is when somebody last wanted it to be there."""

    size: int
    at_ms: int


class Retention(NamedTuple):
    """What may go: finished jobs beyond an age or a number, log rows, keys and audit records beyond an age."""

    finished_before_ms: int
    finished_max: int
    log_before_ms: int
    keys_before_ms: int
    audit_before_ms: int
    batch: int = 1000
    samples_before_ms: int = 0


class ReadGuard:
    """Refuses reads to the thread that decides a turn: what a turn needs is fetched before it (`hub.rows`).

    Other threads read on meanwhile. Always on: where it is open, asking it costs one look at a number.
    """

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread = 0

    @property
    def closed(self) -> bool:
        return self._thread != 0

    def close(self) -> None:
        """A turn is decided by this thread from now on."""
        self._thread = threading.get_ident()

    def open(self) -> None:
        """It is decided."""
        self._thread = 0

    def check(self) -> None:
        """Raise for a read inside a turn."""
        if self._thread and self._thread == threading.get_ident():
            raise BrokenInvariant(
                "the store is read while a turn is decided: fetch it before the turn, by `hub.rows`"
            )


class HubSeen(NamedTuple):
    """A hub of a database by its own last word, and how long ago that was. `fingerprint` is that of its certificate,
    empty where it listens on its own machine alone; `workers` are those that are connected to it.
    """

    id: str
    holder: str
    url: str
    seq: int
    version: str
    age_s: float
    fingerprint: str = ""
    workers: int = 0


class HubsSeen(NamedTuple):
    """Who leads, and all hubs that were heard of lately. `standbys`: servers of the database that a commit waits for,
    in its own words; `ahead_s`: how far its clock is before that of this machine.
    """

    epoch: int
    holder: str
    url: str
    last_seq: int
    standbys: str
    ahead_s: float
    hubs: list[HubSeen]

    def find(self, holder: str) -> HubSeen | None:
        """The one that signs with a name."""
        return next((hub for hub in self.hubs if hub.holder == holder), None)

    def leads(self, hub: HubSeen) -> bool:
        """Whether this is the one that leads."""
        return hub.holder == self.holder


class Led(NamedTuple):
    """How a hub came to lead: from whom, why, and how long after the last sign of that one."""

    before: str
    why: str
    after_s: float


class Remote(Protocol):
    """What a store on a server does without anybody waiting for it; from any thread."""

    @property
    def is_trusted(self) -> bool:
        """Whether no other hub can lead yet; raises `EpochLost` where one is known to."""

    def commit_soon(self, turn: Turn) -> Future[None]: ...
    def project_soon(self, projection: Projection) -> Future[None]: ...
    def find_soon(self, keys: Sequence[tuple[str, tuple[Any, ...]]]) -> Future[list[Any]]: ...
    def trust_soon(self) -> Future[None]: ...
    def hurry(self) -> None: ...
    def follow(self, after_seq: int, limit: int = 1000) -> Followed: ...
    def list_hubs_soon(self) -> Future[HubsSeen]: ...

    @property
    def id(self) -> str:
        """This hub's name among those of the database."""

    @property
    def holder(self) -> str:
        """What this very process signs with there."""

    def keep_secret(self, name: str, drawn: bytes) -> bytes:
        """Give a secret of all hubs of the database; where there is none, the one that was drawn is it from now on."""

    @property
    def led(self) -> Led | None:
        """How this hub came to lead; None while it does not."""

    @property
    def hubs(self) -> HubsSeen | None:
        """Who was there a moment ago; None where nobody has looked yet."""

    def describe(self) -> tuple[bool, str]:
        """Whether it answers, and who leads where: for people."""


class Store(Protocol):
    """Written by one thread; read by any, and by the loop where a read is short and no turn is decided (`guard`)."""

    epoch: int
    guard: ReadGuard
    """Every read asks it first."""
    sweep_pending: bool
    """Whether the last `sweep` ended at its bound, so that another one finds more."""
    lost: Lost | None
    """What was missing when the store was opened; such a store goes on after what was known, never at numbers that
    were given out before."""
    set_aside: list[str]
    """Words for rows that could not be read or written and were left out; whoever tells of them empties it."""
    remote: Remote | None
    """How to ask a store on a server, where every question is a journey; None where it is a look at a disk."""

    def verify(self) -> None:
        """Raise `StoreGone` unless a restart would open the very store that this one writes to; every turn asks."""

    def position(self) -> Position: ...
    def begin_epoch(self) -> int: ...
    def raise_epoch(self, at_least: int) -> int: ...
    def load(self) -> Snapshot: ...
    def live_rows(self) -> LiveRows:
        """As `load`, for others than the hub itself: from any thread, while it goes on. Read to the end, or close."""

    def tail(self, after_seq: int, limit: int = 1000) -> list[LogEntry]: ...
    def commit(self, turn: Turn) -> None: ...
    def project(self, projection: Projection) -> None: ...
    def save_clock(self, now_ms: int, at_ms: int, clock_base: bytes) -> None: ...
    def find_job(self, job_id: str) -> Job | None: ...
    def list_jobs(self, wanted: JobFilter) -> list[Job]: ...
    def count_ended(self, user: str, states: tuple[str, ...], most: int) -> int: ...
    def find_tasks(
        self, job_id: str, after_index: int, limit: int, states: tuple[str, ...] = ()
    ) -> list[Task]: ...
    def find_task(self, job_id: str, index: int) -> Task | None: ...
    def find_attempts(self, job_id: str, index: int | None = None, limit: int = 1000) -> list[Attempt]: ...
    def sum_uses(self, asked: UseQuery) -> list[UseRow]: ...
    def find_attempt(self, uid: str) -> Attempt | None: ...
    def newest_attempt(self, worker: str, job_id: str, index: int) -> Attempt | None: ...
    def recent_runs(self, limit: int) -> list[tuple[str, int, int]]: ...
    def find_key(self, user: str, key: str) -> KeyRow | None: ...
    def tokens(self) -> list[TokenRow]: ...
    def save_token(self, token: TokenRow) -> None: ...
    def audit(self, limit: int, before_ms: int = 0) -> list[AuditRecord]: ...
    def save_sample(self, at_ms: int, record: bytes) -> None: ...
    def samples(self, since_ms: int, until_ms: int, limit: int) -> list[tuple[int, bytes]]: ...
    def past_attempts(self, asked: PastQuery) -> list[PastRow]: ...
    def group_jobs(self, by: Sequence[str], wanted: JobFilter) -> list[tuple[tuple[str, ...], int]]: ...
    def count_jobs(self, user: str, ended_since_ms: int, most: int) -> dict[str, int]: ...
    def find_args(self, job_id: str, index: int) -> ArgsChunk | None: ...
    def find_results(self, job_id: str, first: int, end: int) -> list[ResultsChunk]: ...
    def results_from(self, job_id: str, seq: int, limit: int) -> list[ResultsChunk]: ...
    def save_blobs(self, rows: Mapping[str, BlobRow]) -> None: ...
    def find_blobs(self, digests: Sequence[str]) -> dict[str, BlobRow]: ...
    def is_referred(self, digest: str) -> bool: ...
    def count_user_blobs(self, user: str, digests: Sequence[str]) -> tuple[int, list[str]]: ...
    def job_refers(self, digest: str, job_ids: Sequence[str]) -> bool: ...
    def user_refers(self, digest: str, user: str) -> bool: ...
    def fresh_refs(self, digest: str) -> list[str]: ...
    def sweep_blobs(self, before_ms: int, limit: int) -> list[str]: ...
    def drop_holds(self, digests: Sequence[str]) -> None: ...
    def sweep(self, retention: Retention) -> list[str]: ...
    def size_bytes(self) -> int: ...
    def free_bytes(self) -> int: ...
    def low_space(self, min_free_bytes: int) -> bool: ...
    def close(self, clean: bool) -> None: ...
