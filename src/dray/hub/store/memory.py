"""The store in plain dicts: for simulation and tests, where nothing has to outlive the process.

`MemoryFile` is what would be on the disk; several stores may share one, as two hubs might share a file, and the
same epoch rules hold. Records are copied on their way in and out, so a stored row never changes with the engine's
live object.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from dray.core.model.ids import attempt_number
from dray.core.model.records.records import Attempt, Job, Phase, Task
from dray.core.model.records.worker import Worker
from dray.errors import BrokenInvariant, EpochLost
from dray.hub.store.base import (
    HOLDS,
    ArgsChunk,
    AttemptRow,
    AuditRecord,
    BlobRow,
    Chunk,
    Followed,
    JobFilter,
    JobRow,
    KeyRow,
    LedgerRow,
    LiveRows,
    LogEntry,
    Lost,
    PastQuery,
    PastRow,
    Position,
    Projection,
    ReadGuard,
    Remote,
    ResultsChunk,
    Retention,
    Snapshot,
    TokenRow,
    Turn,
    UseQuery,
    UseRow,
)
from dray.hub.store.past import find_past, is_meant
from dray.hub.store.uses import sum_up

Record = TypeVar("Record", Job, Task, Attempt)
Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


def _read(
    find: Callable[Concatenate[MemoryStore, Asked], Answer],
) -> Callable[Concatenate[MemoryStore, Asked], Answer]:
    """A read, which the guard may refuse."""

    @wraps(find)
    def ask(store: MemoryStore, /, *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        store.guard.check()
        return find(store, *args, **kwargs)

    return ask


class MemoryFile:
    """What would be on the disk."""

    def __init__(self) -> None:
        self.epoch = 0
        self.applied_seq = 0
        self.last_seq = 0
        self.now_ms = 0
        self.at_ms = 0
        self.clock_base = b""
        self.counters = b""
        self.ledger: dict[tuple[str, str], bytes] = {}
        self.log: dict[int, LogEntry] = {}
        self.keys: dict[tuple[str, str], KeyRow] = {}
        self.audit: list[AuditRecord] = []
        self.tokens: dict[str, TokenRow] = {}
        self.jobs: dict[str, JobRow] = {}
        self.tasks: dict[str, dict[int, Task]] = {}
        self.attempts: dict[int, AttemptRow] = {}
        self.numbers_by_job: dict[str, dict[int, None]] = {}
        self.workers: dict[str, Worker] = {}
        self.call_args: dict[str, dict[int, ArgsChunk]] = {}
        self.call_results: dict[str, list[ResultsChunk]] = {}
        self.blobs: dict[str, BlobRow] = {}
        self.blob_refs: dict[str, dict[str, None]] = {}
        self.samples: dict[int, bytes] = {}


class MemoryStore:
    """A hub's view of a `MemoryFile`."""

    def __init__(self, file: MemoryFile | None = None) -> None:
        self.file = file if file is not None else MemoryFile()
        self.epoch, self.guard = 0, ReadGuard()
        self.sweep_pending = False
        self.lost: Lost | None = None
        self.set_aside: list[str] = []
        self.remote: Remote | None = None

    def verify(self) -> None:
        """Nobody can take a dict away."""

    def position(self) -> Position:
        """Give epoch and newest turn of the file."""
        return Position(self.file.epoch, max(self.file.last_seq, self.file.applied_seq))

    def begin_epoch(self) -> int:
        """Take the file over: from here on every other store's writes fail."""
        self.epoch = self.file.epoch = self.file.epoch + 1
        return self.epoch

    def raise_epoch(self, at_least: int) -> int:
        """Pass an epoch that somebody has seen; only the file's owner may."""
        self._check_epoch()
        self.epoch = self.file.epoch = max(self.file.epoch + 1, at_least)
        return self.epoch

    def commit(self, turn: Turn) -> None:
        """Keep one turn, with the keys and audit records that belong to it."""
        file = self.file
        self._check_epoch()
        if turn.seq <= file.last_seq:
            raise BrokenInvariant(
                f"turn {turn.seq} comes after turn {file.last_seq}: turns are committed in order"
            )
        file.log[turn.seq] = LogEntry(turn.seq, *turn[1:5], self.epoch)
        file.last_seq = turn.seq
        for row in turn.keys:
            # Out first: a key that is used anew goes to the back, where the young ones are.
            file.keys.pop((row.user, row.key), None)
            file.keys[row.user, row.key] = row
        file.audit.extend(turn.audit)
        for chunk in turn.chunks:
            self._keep(chunk, turn)

    def _keep(self, chunk: Chunk, turn: Turn) -> None:
        if isinstance(chunk, ArgsChunk):
            self.file.call_args.setdefault(chunk.job_id, {})[chunk.first] = chunk
        elif isinstance(chunk, ResultsChunk):
            kept = chunk._replace(seq=turn.seq, at_ms=turn.at_ms)
            self.file.call_results.setdefault(chunk.job_id, []).append(kept)
        else:
            self.file.blob_refs.setdefault(chunk.job_id, {})[chunk.digest] = None

    def project(self, projection: Projection) -> None:
        """Keep rows as they stand after a turn."""
        file, seq = self.file, projection.applied_seq
        self._check_epoch()
        if seq > file.last_seq:
            raise BrokenInvariant(
                f"projection ahead of the log: rows of turn {seq}, last turn {file.last_seq}"
            )
        if seq < file.applied_seq:
            raise BrokenInvariant(
                f"projection behind the rows: rows of turn {seq} after those of {file.applied_seq}"
            )
        numbers = [attempt_number(row.attempt.uid) for row in projection.attempts]
        if any(number < 0 for number in numbers):
            raise BrokenInvariant("an attempt of the projection has no uid of the form epoch-seq")
        for job, labels in projection.jobs:
            file.jobs[job.id] = JobRow(copy.copy(job), dict(labels))
        for task in projection.tasks:
            file.tasks.setdefault(task.job_id, {})[task.index] = copy.copy(task)
        for number, row in zip(numbers, projection.attempts, strict=True):
            file.attempts[number] = row._replace(attempt=copy.copy(row.attempt))
            file.numbers_by_job.setdefault(row.attempt.job_id, {})[number] = None
        for worker in projection.workers:
            file.workers[worker.id] = copy.deepcopy(worker)
        for worker_id in projection.gone_workers:
            file.workers.pop(worker_id, None)
        for kind, key, record in projection.ledger:
            if record is None:
                file.ledger.pop((kind, key), None)
            else:
                file.ledger[kind, key] = record
        file.applied_seq = seq
        file.now_ms = max(file.now_ms, projection.now_ms)
        file.counters = projection.counters

    def save_clock(self, now_ms: int, at_ms: int, clock_base: bytes) -> None:
        """Keep the hub's time."""
        self._check_epoch()
        self.file.now_ms = max(self.file.now_ms, now_ms)
        self.file.at_ms = at_ms
        self.file.clock_base = clock_base

    def save_token(self, token: TokenRow) -> None:
        """Add a token, or change the one of that id."""
        self._check_epoch()
        self.file.tokens[token.id] = token

    def sweep(self, retention: Retention) -> list[str]:
        """Remove at most `batch` of each kind of what may go; gives the jobs that are gone."""
        self._check_epoch()
        file = self.file
        final = sorted(
            (row.job for row in file.jobs.values() if row.job.state.final),
            key=lambda job: (job.ended_at_ms, job.seq),
        )
        surplus = len(final) - retention.finished_max
        due = [
            job.id
            for position, job in enumerate(final)
            if position < surplus or job.ended_at_ms < retention.finished_before_ms
        ]
        gone = due[: retention.batch]
        for job_id in gone:
            del file.jobs[job_id]
            file.tasks.pop(job_id, None)
            for number in file.numbers_by_job.pop(job_id, {}):
                del file.attempts[number]
            for calls in (file.call_args, file.call_results, file.blob_refs):
                calls.pop(job_id, None)
        for job in final:
            file.call_args.pop(job.id, None)
        self.sweep_pending = len(due) > len(gone) or self._sweep_fronts(retention)
        return gone

    def _sweep_fronts(self, retention: Retention) -> bool:
        file = self.file
        applied = ((seq, entry.at_ms) for seq, entry in file.log.items() if seq <= file.applied_seq)
        seqs = _front(applied, retention.log_before_ms, retention.batch)
        for seq in seqs:
            del file.log[seq]
        keys = _front(
            ((key, row.at_ms) for key, row in file.keys.items()), retention.keys_before_ms, retention.batch
        )
        for key in keys:
            del file.keys[key]
        old = _front(((None, row.at_ms) for row in file.audit), retention.audit_before_ms, retention.batch)
        del file.audit[: len(old)]
        samples = sorted(at_ms for at_ms in file.samples if at_ms < retention.samples_before_ms)
        for at_ms in samples[: retention.batch]:
            del file.samples[at_ms]
        return retention.batch in (len(seqs), len(keys), len(old)) or len(samples) > retention.batch

    def save_blobs(self, rows: Mapping[str, BlobRow]) -> None:
        """List blobs, or note that they are wanted."""
        self._check_epoch()
        for digest, row in rows.items():
            known = self.file.blobs.get(digest, row)
            self.file.blobs[digest] = BlobRow(known.size, max(row.at_ms, known.at_ms))

    @_read
    def find_blobs(self, digests: Sequence[str]) -> dict[str, BlobRow]:
        """Find those of the blobs that are filed."""
        return {digest: self.file.blobs[digest] for digest in digests if digest in self.file.blobs}

    @_read
    def is_referred(self, digest: str) -> bool:
        """Whether any job uses a blob."""
        return any(digest in refs for refs in self.file.blob_refs.values())

    @_read
    def count_user_blobs(self, user: str, digests: Sequence[str]) -> tuple[int, list[str]]:
        """How many bytes of blobs the jobs of a user use, and which of these any job uses."""
        owned = ((self.find_job(job_id), refs) for job_id, refs in self.file.blob_refs.items())
        used = {digest for job, refs in owned if job is not None and job.user == user for digest in refs}
        used |= {held for digest in used for held in self.file.blob_refs.get(HOLDS + digest, ())}
        size = sum(row.size for row in self.find_blobs(list(used)).values())
        return size, [digest for digest in digests if self.is_referred(digest)]

    @_read
    def job_refers(self, digest: str, job_ids: Sequence[str]) -> bool:
        """Whether one of these jobs uses a blob."""
        return any(digest in self.file.blob_refs.get(job_id, ()) for job_id in job_ids)

    @_read
    def user_refers(self, digest: str, user: str) -> bool:
        """Whether a job of this user, of those that have a row, uses a blob."""
        rows = (self.find_job(job_id) for job_id, refs in self.file.blob_refs.items() if digest in refs)
        return any(job is not None and job.user == user for job in rows)

    @_read
    def fresh_refs(self, digest: str) -> list[str]:
        """Jobs that use a blob and have no row yet."""
        using = [job_id for job_id, refs in self.file.blob_refs.items() if digest in refs]
        return [job_id for job_id in using if self.find_job(job_id) is None]

    def sweep_blobs(self, before_ms: int, limit: int) -> list[str]:
        """Strike at most `limit` blobs off that no job refers to."""
        self._check_epoch()
        needed = {digest for refs in self.file.blob_refs.values() for digest in refs}
        idle = [
            item for item in self.file.blobs.items() if item[1].at_ms < before_ms and item[0] not in needed
        ]
        gone = [digest for digest, _ in sorted(idle, key=lambda item: item[1].at_ms)[:limit]]
        for digest in gone:
            del self.file.blobs[digest]
        return gone

    def drop_holds(self, digests: Sequence[str]) -> None:
        """Forget what these blobs held: they are gone."""
        self._check_epoch()
        for digest in digests:
            self.file.blob_refs.pop(HOLDS + digest, None)

    @_read
    def find_args(self, job_id: str, index: int) -> ArgsChunk | None:
        """Find the chunk that holds a call's arguments."""
        chunks = self.file.call_args.get(job_id, {})
        first = max((first for first in chunks if first <= index), default=-1)
        chunk = chunks.get(first)
        return chunk if chunk is not None and index < first + chunk.calls else None

    @_read
    def find_results(self, job_id: str, first: int, end: int) -> list[ResultsChunk]:
        """Give the chunks that may hold results of the calls `first` to `end - 1`, oldest first."""
        chunks = self.file.call_results.get(job_id, ())
        return [chunk for chunk in chunks if chunk.hi >= first and chunk.lo < end]

    @_read
    def results_from(self, job_id: str, seq: int, limit: int) -> list[ResultsChunk]:
        """Give chunks of results from a turn on, in order of arrival."""
        return [chunk for chunk in self.file.call_results.get(job_id, ()) if chunk.seq >= seq][:limit]

    def _check_epoch(self) -> None:
        if self.epoch != self.file.epoch:
            raise EpochLost(
                f"another hub has taken the store over (this one holds epoch {self.epoch}, it is at "
                f"{self.file.epoch}): stop this hub, and let only one run on a store"
            )

    @_read
    def load(self) -> Snapshot:
        """Give the rows of live work."""
        file = self.file
        stopping = {row.attempt.job_id for row in file.attempts.values() if row.attempt.phase.live}
        rows = (row.job for row in file.jobs.values() if not row.job.state.final or row.job.id in stopping)
        jobs = sorted(rows, key=lambda job: job.seq)
        tasks = (task for job in jobs for _, task in sorted(file.tasks.get(job.id, {}).items()))
        attempts = (row.attempt for _, row in sorted(file.attempts.items()) if row.attempt.phase.live)
        return Snapshot(
            applied_seq=file.applied_seq,
            now_ms=file.now_ms,
            at_ms=file.at_ms,
            clock_base=file.clock_base,
            counters=file.counters,
            jobs=_copies(jobs),
            tasks=_copies(tasks),
            attempts=map(_twin, attempts),
            workers=(copy.deepcopy(worker) for _, worker in sorted(file.workers.items())),
            ledger=(LedgerRow(*key, record) for key, record in sorted(file.ledger.items())),
            find_attempt=self.find_attempt,
            epoch=self._epoch_at(file.applied_seq),
        )

    def _epoch_at(self, seq: int) -> int:
        return self.file.log[seq].epoch if seq in self.file.log else 0

    @_read
    def follow(self, after_seq: int, limit: int = 1000) -> Followed:
        """Give what one who follows needs, with the turns after `after_seq`."""
        file, epoch = self.file, self._epoch_at(after_seq)
        entries = self.tail(after_seq, limit)
        at_ms = file.log[after_seq].at_ms if after_seq in file.log else 0
        return Followed(
            file.applied_seq, self.position().seq, epoch, file.now_ms, file.clock_base, entries, at_ms
        )

    @_read
    def live_rows(self) -> LiveRows:
        """Give the rows of live work, for one who reads beside the hub."""
        found = self.load()
        return LiveRows(found.applied_seq, iter([*found.jobs, *found.attempts, *found.workers]))

    @_read
    def tail(self, after_seq: int, limit: int = 1000) -> list[LogEntry]:
        """Give the turns after `after_seq`, oldest first."""
        log = self.file.log
        first = max(after_seq + 1, next(iter(log), 1))
        found = (log[seq] for seq in range(first, self.file.last_seq + 1) if seq in log)
        return list(itertools.islice(found, limit))

    @_read
    def find_job(self, job_id: str) -> Job | None:
        """Find a job by its id."""
        row = self.file.jobs.get(job_id)
        return copy.copy(row.job) if row else None

    @_read
    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """List jobs newest first."""
        file = self.file
        tried: dict[str, list[Attempt]] = {}
        for one in file.attempts.values() if wanted.worker or wanted.exit_class else ():
            tried.setdefault(one.attempt.job_id, []).append(one.attempt)
        found = [row.job for row in file.jobs.values() if is_meant(row, wanted, tried)]
        found.sort(key=lambda job: (-job.ended_at_ms if wanted.sort == "ended" else 0, -job.seq))
        return list(_copies(found[: wanted.limit]))

    @_read
    def count_ended(self, user: str, states: tuple[str, ...], most: int) -> int:
        """Count jobs in these states, of one user or of all; no further than to `most`."""
        wanted = JobFilter(user=user, states=states)
        return min(most, sum(1 for row in self.file.jobs.values() if is_meant(row, wanted)))

    @_read
    def find_tasks(
        self, job_id: str, after_index: int, limit: int, states: tuple[str, ...] = ()
    ) -> list[Task]:
        """Give a job's tasks after an index, in order."""
        tasks = sorted(self.file.tasks.get(job_id, {}).items())
        found = [
            task for index, task in tasks if index > after_index and (not states or task.state in states)
        ]
        return list(_copies(found[:limit]))

    @_read
    def find_task(self, job_id: str, index: int) -> Task | None:
        """Find one task."""
        task = self.file.tasks.get(job_id, {}).get(index)
        return copy.copy(task) if task else None

    @_read
    def find_attempts(self, job_id: str, index: int | None = None, limit: int = 1000) -> list[Attempt]:
        """Give the attempts of a task, or of a whole job, in order of task and age."""
        numbers = self.file.numbers_by_job.get(job_id, {})
        rows = sorted((self.file.attempts[number].attempt.index, number) for number in numbers)
        found = [self.file.attempts[number].attempt for at, number in rows if index is None or at == index]
        return list(_copies(found[:limit]))

    @_read
    def recent_runs(self, limit: int) -> list[tuple[str, int, int]]:
        """Give name, run time and limit of the last attempts of named jobs that came to their own end, oldest first."""
        found = []
        for number in sorted(self.file.attempts)[-limit:]:
            row = self.file.attempts[number]
            attempt = row.attempt
            if row.name and attempt.started and attempt.phase in (Phase.SUCCEEDED, Phase.FAILED):
                found.append((row.name, max(1, attempt.span_ms), attempt.limit_ms))
        return found

    @_read
    def sum_uses(self, asked: UseQuery) -> list[UseRow]:
        """Sum up what attempts asked for, held and used."""
        return sum_up(list(self.file.attempts.values()), asked)

    @_read
    def past_attempts(self, asked: PastQuery) -> list[PastRow]:
        """Give attempts that ended within a while, newest first."""
        rows = find_past(list(self.file.attempts.values()), asked)
        return [PastRow(_twin(row.attempt), row.name, row.user, row.gpu_type, row.queue) for row in rows]

    @_read
    def group_jobs(self, by: Sequence[str], wanted: JobFilter) -> list[tuple[tuple[str, ...], int]]:
        """Count jobs that are all of what is wanted, by columns: the largest groups first."""
        met = (row.job for row in self.file.jobs.values() if is_meant(row, wanted))
        groups = Counter(tuple(str(getattr(job, name)) for name in by) for job in met)
        return sorted(groups.items(), key=lambda group: (-group[1], group[0]))[: wanted.limit]

    @_read
    def count_jobs(self, user: str, ended_since_ms: int, most: int) -> dict[str, int]:
        """Count jobs by the state in which they ended since a moment; no further than to `most` of them."""
        jobs = (row.job for row in self.file.jobs.values() if user in ("", row.job.user))
        ended = [job for job in jobs if job.state.final and job.ended_at_ms >= ended_since_ms]
        ended.sort(key=lambda job: -job.ended_at_ms)
        return dict(Counter(job.state.value for job in ended[:most]))

    @_read
    def samples(self, since_ms: int, until_ms: int, limit: int) -> list[tuple[int, bytes]]:
        """Give samples of a while, oldest first."""
        return [one for one in sorted(self.file.samples.items()) if since_ms <= one[0] < until_ms][:limit]

    def save_sample(self, at_ms: int, record: bytes) -> None:
        """Keep how the cluster stood at a moment."""
        self._check_epoch()
        self.file.samples[at_ms] = record

    @_read
    def find_attempt(self, uid: str) -> Attempt | None:
        """Find an attempt by its uid."""
        row = self.file.attempts.get(attempt_number(uid))
        return _twin(row.attempt) if row and row.attempt.uid == uid else None

    @_read
    def newest_attempt(self, worker: str, job_id: str, index: int) -> Attempt | None:
        """Find the last attempt of a task on one worker."""
        found = [
            attempt for attempt in self.find_attempts(job_id, index, 1 << 62) if attempt.worker == worker
        ]
        return found[-1] if found else None

    @_read
    def find_key(self, user: str, key: str) -> KeyRow | None:
        """Find what the first request under a key made."""
        return self.file.keys.get((user, key))

    @_read
    def tokens(self) -> list[TokenRow]:
        """Give all tokens, revoked ones too."""
        return [token for _, token in sorted(self.file.tokens.items())]

    @_read
    def audit(self, limit: int, before_ms: int = 0) -> list[AuditRecord]:
        """Give audit records, newest first."""
        found = [row for row in reversed(self.file.audit) if not before_ms or row.at_ms < before_ms]
        return found[:limit]

    def size_bytes(self) -> int:
        """Give the bytes of the log, the only part whose size is known."""
        return sum(len(entry.facts) + len(entry.notes) for entry in self.file.log.values())

    def free_bytes(self) -> int:
        """Give a number that nobody fills."""
        return 1 << 62

    def low_space(self, min_free_bytes: int) -> bool:
        """There is no disk that could be full."""
        return False

    def close(self, clean: bool) -> None:
        """Nothing to let go."""


Key = TypeVar("Key")


def _copies(records: Iterable[Record]) -> Iterator[Record]:
    return (copy.copy(record) for record in records)


def _front(rows: Iterable[tuple[Key, int]], before_ms: int, batch: int) -> list[Key]:
    """Give the leading rows that are older than `before_ms`, at most `batch` of them."""
    found: list[Key] = []
    for key, at_ms in rows:
        if at_ms >= before_ms or len(found) == batch:
            break
        found.append(key)
    return found


def _twin(attempt: Attempt) -> Attempt:
    """A copy that nothing done to it reaches this one through: what is outstanding in a lane changes in place."""
    twin = copy.copy(attempt)
    twin.calls = None if attempt.calls is None else dict(attempt.calls)
    return twin
