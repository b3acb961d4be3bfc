"""The store in one SQLite file: the log of turns is the truth, the rows are its projection.

Owns the writing connection, its transactions and the epoch check inside each of them. Writes come from one thread
at a time; reads go through a connection of their own and may run beside them in the loop thread. What a commit
holds is opaque here. A failed write leaves the file at the last good transaction; whether the failed one is on the
disk after all is known only after the file was opened anew, so the hub must reload and not go on.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from dray.core.model.records.records import Attempt, Job, Task
from dray.errors import BrokenInvariant, EpochLost
from dray.hub.store.base import (
    ArgsChunk,
    AuditRecord,
    BlobRow,
    JobFilter,
    KeyRow,
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
from dray.hub.store.columns import ODD_VALUES, mend_rows
from dray.hub.store.space import free_bytes
from dray.hub.store.sqlite import chunks
from dray.hub.store.sqlite.checkpoint import Checkpointer, grow_wal, keep_aside, wal_path
from dray.hub.store.sqlite.chunks import write_chunks
from dray.hub.store.sqlite.errors import is_full, translate, translated
from dray.hub.store.sqlite.file_guard import FileGuard
from dray.hub.store.sqlite.opening import Check, connect_writer, create_file, inspect
from dray.hub.store.sqlite.queries import Reader, read_live
from dray.hub.store.sqlite.reserve import Reserve
from dray.hub.store.sqlite.retention import Swept, sweep_step
from dray.hub.store.sqlite.schema import migrate
from dray.hub.store.sqlite.upserts import write_rows
from dray.hub.store.witness import Witness, read_witness

Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode

RESERVE_BYTES = 32 << 20
WAL_BYTES = 16 << 20
START_BYTES = 1 << 20
_APPEND = "INSERT INTO log (seq, now_ms, at_ms, facts, notes) SELECT ?, ?, ?, ?, ? FROM meta WHERE epoch = ?"
# REPLACE gives a key that is used anew a new place at the end, where retention expects the young ones.
_SAVE_KEY = "INSERT OR REPLACE INTO keys (user, key, at_ms, job_ids) VALUES (?, ?, ?, ?)"
_SAVE_AUDIT = "INSERT INTO audit (at_ms, user, token_id, action, target, detail) VALUES (?, ?, ?, ?, ?, ?)"
_SAVE_TOKEN = (
    "INSERT INTO tokens (id, record) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET record = excluded.record"
)
_MARK_APPLIED = "UPDATE meta SET applied_seq = ?, now_ms = max(now_ms, ?), counters = ? WHERE epoch = ?"
_SAVE_CLOCK = "UPDATE meta SET now_ms = max(now_ms, ?), at_ms = ?, clock_base = ? WHERE epoch = ?"
_BEGIN_EPOCH = "UPDATE meta SET epoch = max(epoch + 1, ?), clean = 0 RETURNING epoch"
_RAISE_EPOCH = "UPDATE meta SET epoch = ? WHERE epoch = ?"


class SqliteStore:
    """A store file that is open. Nothing is written before `begin_epoch` has made this hub its owner."""

    def __init__(self, path: Path, reserve: Reserve, wal_bytes: int, lost: Lost | None = None) -> None:
        self.path = path
        self.epoch, self.guard = 0, ReadGuard()
        self.sweep_pending = False
        self.lost = lost
        self.set_aside: list[str] = []
        self.remote: Remote | None = None
        self._closed = False
        with contextlib.ExitStack() as stack:
            self._writer = connect_writer(path)
            stack.callback(self._writer.close)
            migrate(self._writer, path)
            self._writer.execute("UPDATE meta SET clean = 0 WHERE clean <> 0")
            grow_wal(self._writer, path, wal_bytes)
            self._reserve = reserve
            if free_bytes(path.parent) >= reserve.size_bytes + START_BYTES:
                self._reserve.take()
            self._reader = Reader(path, self.set_aside, self.guard)
            stack.callback(self._reader.close)
            # Lists may have to walk over many rows: on a connection of their own they can run in another thread
            # without holding up the loop's short reads.
            self._lister = Reader(path, self.set_aside, self.guard)
            stack.callback(self._lister.close)
            self._note_positions()
            self._witness = Witness(path)
            stack.callback(self._witness.close)
            self._checkpointer = Checkpointer(path, wal_bytes, self._witness.sync)
            self._guard = FileGuard(path, lambda: self._checkpointer.copies)
            self._open = stack.pop_all()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        wal_bytes: int | None = None,
        check: Check = "unclean",
    ) -> SqliteStore:
        """Open a store file, made where there is none; a file that was not closed cleanly is checked first."""
        if wal_bytes is None:
            wal_bytes = WAL_BYTES
        known = read_witness(path)
        create_file(path, known)
        found = inspect(path, check)
        lost = None
        if known is not None and (found.epoch < known.epoch or found.seq < known.seq):
            lost = Lost(found, known)
            keep_aside(path, known)
        path.chmod(0o600)
        reserve = Reserve(path.with_name(path.name + ".reserve"), reserve_bytes)
        if free_bytes(path.parent) < START_BYTES:
            # What a hub writes beside its store before it can serve anybody needs room too.
            reserve.release()
        with translated(path, "open the store"):
            try:
                return cls(path, reserve, wal_bytes, lost)
            except sqlite3.Error as error:
                if not (is_full(error) and reserve.release()):
                    raise
            return cls(path, reserve, wal_bytes, lost)

    # --- writes: one thread at a time ---

    def begin_epoch(self) -> int:
        """Take the store over: from here on every other hub's writes fail."""
        known = self.lost.known.epoch + 1 if self.lost is not None else 0

        def begin(connection: sqlite3.Connection) -> int:
            return int(connection.execute(_BEGIN_EPOCH, (known,)).fetchone()[0])

        self.epoch = self._write("take the store over", begin)
        self._note_positions()
        self._witness.note(self.epoch, self._last_seq)
        return self.epoch

    def raise_epoch(self, at_least: int) -> int:
        """Pass an epoch that somebody has seen; only the store's owner may.

        One that was taken over meanwhile would take the store back, behind turns that it does not know.
        """
        wanted = max(self.epoch + 1, at_least)

        def raise_it(connection: sqlite3.Connection) -> None:
            self._own(connection.execute(_RAISE_EPOCH, (wanted, self.epoch)))

        self._write("raise the epoch", raise_it)
        self.epoch = wanted
        self._witness.note(self.epoch, self._last_seq)
        return wanted

    def _note_positions(self) -> None:
        self._applied_seq, self._last_seq = self._reader.positions()
        if self.lost is not None:
            # Numbers that were given out once are not given out again: whoever reads on from one would miss the new.
            self._last_seq = max(self._last_seq, self.lost.known.seq)

    def position(self) -> Position:
        """Give epoch and newest turn, that of a witness where the file has lost some."""
        return Position(self.epoch, self._last_seq)

    def verify(self) -> None:
        """Raise where a restart would open other files than those that are written to."""
        self._guard.check()

    def commit(self, turn: Turn) -> None:
        """Make one turn durable, with the keys, audit records and chunks that belong to it."""
        if turn.seq <= self._last_seq:
            raise BrokenInvariant(
                f"turn {turn.seq} comes after turn {self._last_seq}: turns are committed in order"
            )
        values = (turn.seq, turn.now_ms, turn.at_ms, turn.facts, turn.notes, self.epoch)

        def append(connection: sqlite3.Connection) -> None:
            self._own(connection.execute(_APPEND, values))
            for row in turn.keys:
                connection.execute(_SAVE_KEY, (row.user, row.key, row.at_ms, _encode(row.job_ids)))
            if turn.audit:
                connection.executemany(_SAVE_AUDIT, turn.audit)
            if turn.chunks:
                write_chunks(connection, turn)

        # With nothing beside the log the one statement is its own transaction: two statements less per turn.
        self._write("commit a turn", append, bare=not (turn.keys or turn.audit or turn.chunks))
        self._last_seq = turn.seq
        self._witness.note(self.epoch, turn.seq)

    def project(self, projection: Projection) -> None:
        """Write rows as they stand after a turn, with that turn's number, in one transaction."""
        seq = projection.applied_seq
        if seq > self._last_seq:
            raise BrokenInvariant(
                f"projection ahead of the log: rows of turn {seq}, last turn {self._last_seq}"
            )
        if seq < self._applied_seq:
            raise BrokenInvariant(
                f"projection behind the rows: rows of turn {seq} after those of {self._applied_seq}"
            )

        def write(connection: sqlite3.Connection, rows: Projection) -> None:
            values = (seq, projection.now_ms, projection.counters, self.epoch)
            self._own(connection.execute(_MARK_APPLIED, values))
            write_rows(connection, rows)

        try:
            self._write("write rows", lambda connection: write(connection, projection))
        except ODD_VALUES:
            # One value that no row can hold must not keep all the others from theirs, now and at every start.
            mended = mend_rows(projection, self.set_aside)
            self._write("write rows", lambda connection: write(connection, mended))
        self._applied_seq = seq

    def save_clock(self, now_ms: int, at_ms: int, clock_base: bytes) -> None:
        """Keep the hub's time, so that it goes on from there after a restart."""

        def save(connection: sqlite3.Connection) -> None:
            self._own(connection.execute(_SAVE_CLOCK, (now_ms, at_ms, clock_base, self.epoch)))

        self._write("save the clock", save)

    def save_token(self, token: TokenRow) -> None:
        """Add a token, or change the one of that id."""

        def save(connection: sqlite3.Connection) -> None:
            self._check_epoch(connection)
            connection.execute(_SAVE_TOKEN, (token.id, _encode(token)))

        self._write("save a token", save)

    def save_sample(self, at_ms: int, record: bytes) -> None:
        """Keep how the cluster stood at a moment."""

        def save(connection: sqlite3.Connection) -> None:
            self._check_epoch(connection)
            connection.execute("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", (at_ms, at_ms, record))

        self._write("save a sample", save)

    def save_blobs(self, rows: Mapping[str, BlobRow]) -> None:
        """List blobs whose files are there, or note that they are wanted."""

        def save(connection: sqlite3.Connection) -> None:
            self._check_epoch(connection)
            chunks.save_blobs(connection, rows)

        self._write("list blobs", save)

    def sweep_blobs(self, before_ms: int, limit: int) -> list[str]:
        """Strike at most `limit` blobs off that no job refers to; their files are the caller's to remove."""

        def step(connection: sqlite3.Connection) -> list[str]:
            self._check_epoch(connection)
            return chunks.sweep_blobs(connection, before_ms, limit)

        return self._write("remove blobs", step)

    def drop_holds(self, digests: Sequence[str]) -> None:
        """Forget what these blobs held: they are gone."""

        def drop(connection: sqlite3.Connection) -> None:
            self._check_epoch(connection)
            chunks.drop_holds(connection, digests)

        self._write("forget snapshots", drop)

    def sweep(self, retention: Retention) -> list[str]:
        """Remove one bounded portion of what may go; gives the jobs that are gone. `sweep_pending`: call again."""

        def step(connection: sqlite3.Connection) -> Swept:
            self._check_epoch(connection)
            return sweep_step(connection, retention, self._applied_seq)

        swept = self._write("remove old records", step)
        self.sweep_pending = swept.more
        return swept.job_ids

    def close(self, clean: bool) -> None:
        """Let the file go; `clean` says that nothing was cut short, so the next opening need not check it."""
        if self._closed:
            return
        self._closed = True
        self._checkpointer.close()
        with self._open:
            if clean:
                try:
                    self._writer.execute("UPDATE meta SET clean = 1 WHERE epoch = ?", (self.epoch,))
                    self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                except sqlite3.Error as error:
                    # All that was promised is in the log: the next opening has more to do, and nothing is lost.
                    _log.warning("%s", translate(error, self.path, "bring the store to its end"))
                self._witness.sync()

    def _write(
        self, asked: str, work: Callable[[sqlite3.Connection], Answer], *, bare: bool = False
    ) -> Answer:
        """Run one transaction; a full disk is tried once more with the reserve given up."""
        try:
            try:
                answer = self._transact(work, bare)
            except sqlite3.Error as error:
                if not (is_full(error) and self._reserve.release()):
                    raise
                answer = self._transact(work, bare)
        except sqlite3.Error as error:
            raise translate(error, self.path, asked) from error
        self._checkpointer.after_commit(self._writer)
        return answer

    def _transact(self, work: Callable[[sqlite3.Connection], Answer], bare: bool) -> Answer:
        connection = self._writer
        if bare:
            return work(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            answer = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                # SQLite has often rolled back by itself; the first error is the one to tell.
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        return answer

    def _own(self, done: sqlite3.Cursor) -> None:
        """Check that a statement bound to the epoch found it."""
        if done.rowcount != 1:
            raise EpochLost(
                f"another hub has taken {self.path} over (this one holds epoch {self.epoch}): stop this hub, "
                f"and let only one run on a store"
            )

    def _check_epoch(self, connection: sqlite3.Connection) -> None:
        self._own(connection.execute("UPDATE meta SET epoch = epoch WHERE epoch = ?", (self.epoch,)))

    # --- reads: any thread, beside the writer ---

    def load(self) -> Snapshot:
        """Give the rows of live work, streamed; read them to the end before the first projection."""
        return self._reader.load()

    def live_rows(self) -> LiveRows:
        """Give the rows of live work, for one who reads beside the hub, through a connection of its own."""
        return read_live(self.path, self.set_aside)

    def tail(self, after_seq: int, limit: int = 1000) -> list[LogEntry]:
        """Give the turns after `after_seq`, oldest first."""
        return self._reader.tail(after_seq, limit)

    def find_job(self, job_id: str) -> Job | None:
        """Find a job by its id."""
        return self._reader.find_job(job_id)

    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """List jobs newest first; with a name or labels and no user it may walk over all jobs: use a thread."""
        return self._lister.list_jobs(wanted)

    def count_ended(self, user: str, states: tuple[str, ...], most: int) -> int:
        """Count jobs in these states, which are final, of one user or of all; no further than to `most`."""
        return self._lister.count_ended(user, states, most)

    def find_tasks(
        self, job_id: str, after_index: int, limit: int, states: tuple[str, ...] = ()
    ) -> list[Task]:
        """Give a job's tasks after an index, in order."""
        return self._lister.find_tasks(job_id, after_index, limit, states)

    def find_task(self, job_id: str, index: int) -> Task | None:
        """Find one task."""
        return self._reader.find_task(job_id, index)

    def find_attempts(self, job_id: str, index: int | None = None, limit: int = 1000) -> list[Attempt]:
        """Give the attempts of a task, or of a whole job."""
        return self._reader.find_attempts(job_id, index, limit)

    def recent_runs(self, limit: int) -> list[tuple[str, int, int]]:
        """Give name, run time and limit of the last attempts that came to their own end."""
        return self._reader.recent_runs(limit)

    def sum_uses(self, asked: UseQuery) -> list[UseRow]:
        """Sum up what attempts asked for, held and used: use a thread."""
        return self._lister.sum_uses(asked)

    def past_attempts(self, asked: PastQuery) -> list[PastRow]:
        """Give attempts that ended within a while, newest first: use a thread."""
        return self._lister.past_attempts(asked)

    def group_jobs(self, by: Sequence[str], wanted: JobFilter) -> list[tuple[tuple[str, ...], int]]:
        """Count jobs by columns: use a thread."""
        return self._lister.group_jobs(by, wanted)

    def count_jobs(self, user: str, ended_since_ms: int, most: int) -> dict[str, int]:
        """Count jobs by the state in which they ended since a moment: use a thread."""
        return self._lister.count_jobs(user, ended_since_ms, most)

    def samples(self, since_ms: int, until_ms: int, limit: int) -> list[tuple[int, bytes]]:
        """Give samples of a while, oldest first: use a thread."""
        return self._lister.samples(since_ms, until_ms, limit)

    def find_attempt(self, uid: str) -> Attempt | None:
        """Find an attempt by its uid."""
        return self._reader.find_attempt(uid)

    def newest_attempt(self, worker: str, job_id: str, index: int) -> Attempt | None:
        """Find the last attempt of a task on one worker."""
        return self._reader.newest_attempt(worker, job_id, index)

    def find_key(self, user: str, key: str) -> KeyRow | None:
        """Find what the first request under a key made."""
        return self._reader.find_key(user, key)

    def find_args(self, job_id: str, index: int) -> ArgsChunk | None:
        """Find the chunk that holds a call's arguments."""
        return self._reader.find_args(job_id, index)

    def find_results(self, job_id: str, first: int, end: int) -> list[ResultsChunk]:
        """Give the chunks that may hold results of the calls `first` to `end - 1`, oldest first."""
        return self._reader.find_results(job_id, first, end)

    def results_from(self, job_id: str, seq: int, limit: int) -> list[ResultsChunk]:
        """Give chunks of results from a turn on, in order of arrival."""
        return self._reader.results_from(job_id, seq, limit)

    def find_blobs(self, digests: Sequence[str]) -> dict[str, BlobRow]:
        """Find those of the blobs that are filed."""
        return self._reader.find_blobs(digests)

    def is_referred(self, digest: str) -> bool:
        """Whether any job uses a blob."""
        return self._reader.is_referred(digest)

    def count_user_blobs(self, user: str, digests: Sequence[str]) -> tuple[int, list[str]]:
        """How many bytes of blobs the jobs of a user use, and which of these any job uses; use a thread."""
        return self._lister.count_user_blobs(user, digests)

    def job_refers(self, digest: str, job_ids: Sequence[str]) -> bool:
        """Whether one of these jobs uses a blob."""
        return self._reader.job_refers(digest, job_ids)

    def user_refers(self, digest: str, user: str) -> bool:
        """Whether a job of this user, of those that have a row, uses a blob."""
        return self._reader.user_refers(digest, user)

    def fresh_refs(self, digest: str) -> list[str]:
        """Jobs that use a blob and have no row yet."""
        return self._reader.fresh_refs(digest)

    def tokens(self) -> list[TokenRow]:
        """Give all tokens, revoked ones too."""
        return self._reader.tokens()

    def audit(self, limit: int, before_ms: int = 0) -> list[AuditRecord]:
        """Give audit records, newest first."""
        return self._lister.audit(limit, before_ms)

    def size_bytes(self) -> int:
        """Give the size of the database and its log on the disk."""
        return sum(file.stat().st_size for file in (self.path, wal_path(self.path)) if file.exists())

    def free_bytes(self) -> int:
        """Give the space left on the disk under the store."""
        return free_bytes(self.path.parent)

    def low_space(self, min_free_bytes: int) -> bool:
        """Tell whether new work should be refused; takes the reserve again once there is room for both."""
        free = self.free_bytes()
        if not self._reserve.held and free >= min_free_bytes + self._reserve.size_bytes:
            self._reserve.take()
        return free < min_free_bytes or not self._reserve.held
