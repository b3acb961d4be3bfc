"""Reads of the SQLite store, through a connection that cannot write.

Each query is its own snapshot: it sees every projection that was committed before it. Called in the loop thread, so
a query must find its rows by an index; the texts repeat the conditions of the partial indexes for that reason.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dray.core.model.ids import attempt_number
from dray.core.model.records.records import Attempt, Job, JobState, Task
from dray.core.model.records.worker import Worker
from dray.hub.store.base import (
    ArgsChunk,
    AuditRecord,
    BlobRow,
    JobFilter,
    KeyRow,
    LedgerRow,
    LiveRows,
    LogEntry,
    PastQuery,
    PastRow,
    ReadGuard,
    ResultsChunk,
    Snapshot,
    TokenRow,
    UseQuery,
    UseRow,
)
from dray.hub.store.past import NAMED, grouping, spell_past
from dray.hub.store.records import ATTEMPT, IDS, JOB, TASK, TOKEN, WORKER, Records
from dray.hub.store.sqlite.chunks import (
    FIND_ARGS,
    FIND_RESULTS,
    FRESH_REFS,
    RESULTS_FROM,
    USER_BYTES,
    USER_REFERS,
    blob_queries,
    ref_queries,
)
from dray.hub.store.sqlite.errors import translate, translated
from dray.hub.store.sqlite.opening import connect
from dray.hub.store.sqlite.schema import FINAL_JOB, LIVE_JOB, ODD_TASK, RUNNING_JOB
from dray.hub.store.uses import spell_query, spell_values

Record = TypeVar("Record")
# The condition of the index that has the jobs of a state.
_LIVE_INDEX = {"pending": LIVE_JOB, "running": RUNNING_JOB}
_COMMON_TASK_STATES = frozenset({"pending", "running", "succeeded"})
_END = 1 << 62
# By what lists of jobs are sorted.
_PLACES = {"submitted": "seq", "ended": "ended_at_ms, seq"}
_PAST = "SELECT record, name, user, gpu_type, queue FROM attempts "
_TRIED_ON = "EXISTS (SELECT 1 FROM attempts WHERE job_id = jobs.id AND worker = ?)"
_TRIED_SO = "EXISTS (SELECT 1 FROM attempts WHERE job_id = jobs.id AND exit_class = ?)"
_ORDERS = {"submitted": "seq DESC", "ended": "ended_at_ms DESC, seq DESC"}

# A job that has ended may still have an attempt that is stopping: it holds its worker's resources until it is gone.
_STOPPING = """SELECT DISTINCT job_id FROM attempts INDEXED BY attempts_live
    WHERE phase IN ('assigned', 'accepted', 'running', 'stopping', 'unknown')"""
_LIVE_JOBS = f"""SELECT record FROM (
    SELECT seq, record FROM jobs INDEXED BY jobs_live WHERE state IN ('pending', 'running')
    UNION ALL
    SELECT seq, record FROM jobs WHERE id IN ({_STOPPING}) AND state NOT IN ('pending', 'running')
    ) ORDER BY seq"""  # noqa: S608 - joins constants of this module, nothing from outside
# CROSS JOIN keeps the order of the two tables: live jobs are asked for their tasks, never every task for its job.
_LIVE_TASKS = f"""SELECT record FROM (
    SELECT jobs.seq AS seq, tasks.idx AS idx, tasks.record AS record
    FROM jobs INDEXED BY jobs_live CROSS JOIN tasks ON tasks.job_id = jobs.id WHERE jobs.state IN ('pending', 'running')
    UNION ALL
    SELECT jobs.seq, tasks.idx, tasks.record FROM jobs CROSS JOIN tasks ON tasks.job_id = jobs.id
    WHERE jobs.id IN ({_STOPPING}) AND jobs.state NOT IN ('pending', 'running')
    ) ORDER BY seq, idx"""  # noqa: S608 - joins constants of this module, nothing from outside
_LIVE_ATTEMPTS = """SELECT record FROM attempts INDEXED BY attempts_live
    WHERE phase IN ('assigned', 'accepted', 'running', 'stopping', 'unknown') ORDER BY number"""
# The same in portions: a query that is read to its end at once keeps no snapshot, and the log can start over.
_PORTION = 2_000
_SOME_JOBS = """SELECT seq, record FROM jobs INDEXED BY jobs_live
    WHERE state IN ('pending', 'running') AND seq > ? ORDER BY seq LIMIT ?"""
_SOME_ATTEMPTS = """SELECT number, record FROM attempts INDEXED BY attempts_live
    WHERE phase IN ('assigned', 'accepted', 'running', 'stopping', 'unknown') AND number > ? ORDER BY number LIMIT ?"""
_ENDED_JOBS = f"""SELECT record FROM jobs
    WHERE id IN ({_STOPPING}) AND state NOT IN ('pending', 'running')"""  # noqa: S608 - as above


class Reader:
    """The questions that the loop asks of the rows."""

    def __init__(
        self, path: Path, set_aside: list[str] | None = None, guard: ReadGuard | None = None
    ) -> None:
        self._guard = guard or ReadGuard()
        self._connection = connect(path, read_only=True)
        self._path = path
        # Lists may be asked for from several threads, and not every build of SQLite lets two share a connection.
        self._lock = threading.Lock()
        self._records = Records([] if set_aside is None else set_aside)

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def _all(self, asked: str, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        self._guard.check()
        try:
            with self._lock:
                return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise translate(error, self._path, asked) from error

    def _one(self, asked: str, query: str, values: Sequence[Any]) -> tuple[Any, ...] | None:
        self._guard.check()
        try:
            # Fetched whole: a statement not read to its end keeps its snapshot, and so the log from starting over.
            with self._lock:
                rows = self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise translate(error, self._path, asked) from error
        return rows[0] if rows else None

    def load(self) -> Snapshot:
        """Give the rows that a starting hub needs, streamed; nothing may be projected until they are read."""
        row = self._one("load", "SELECT applied_seq, now_ms, at_ms, clock_base, counters FROM meta", ())
        applied_seq, now_ms, at_ms, clock_base, counters = row or (0, 0, 0, b"", b"")
        return Snapshot(
            applied_seq=applied_seq,
            now_ms=now_ms,
            at_ms=at_ms,
            clock_base=clock_base,
            counters=counters,
            jobs=self._stream("jobs", _LIVE_JOBS, JOB),
            tasks=self._stream("tasks", _LIVE_TASKS, TASK),
            attempts=self._stream("attempts", _LIVE_ATTEMPTS, ATTEMPT),
            workers=self._stream("workers", "SELECT record FROM workers ORDER BY id", WORKER),
            ledger=self._ledger(),
            find_attempt=self.find_attempt,
        )

    def _ledger(self) -> Iterator[LedgerRow]:
        with translated(self._path, "load"):
            for row in self._connection.execute("SELECT kind, key, record FROM ledger ORDER BY kind, key"):
                yield LedgerRow(*row)

    def _stream(self, table: str, query: str, decoder: msgspec.msgpack.Decoder[Record]) -> Iterator[Record]:
        with translated(self._path, "load"):
            for (packed,) in self._connection.execute(query):
                record = self._records.read(table, decoder, packed)
                if record is not None:
                    yield record

    def tail(self, after_seq: int, limit: int) -> list[LogEntry]:
        """Give turns after `after_seq`, oldest first."""
        query = "SELECT seq, now_ms, at_ms, facts, notes FROM log WHERE seq > ? ORDER BY seq LIMIT ?"
        return [LogEntry(*row) for row in self._all("read the log", query, (after_seq, limit))]

    def positions(self) -> tuple[int, int]:
        """Give the turn that the rows have reached and the newest turn; the rows know both where the log was swept."""
        query = "SELECT applied_seq, max(applied_seq, ifnull((SELECT max(seq) FROM log), 0)) FROM meta"
        row = self._one("read the log", query, ())
        return (int(row[0]), int(row[1])) if row else (0, 0)

    def find_job(self, job_id: str) -> Job | None:
        """Find a job by its id."""
        row = self._one("find a job", "SELECT record FROM jobs WHERE id = ?", (job_id,))
        return self._records.read("jobs", JOB, row[0]) if row else None

    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """List jobs newest first. Each state is asked for by itself, in order, and the answers are merged."""
        found: list[tuple[Any, ...]] = []
        # With a user given all states are asked for one by one as well: the index by user holds them apart.
        # Of one workload they are few, and found by it whatever else is asked.
        each = () if wanted.workload else tuple(JobState) if wanted.user else ()
        for state in wanted.states or each or ("",):
            found.extend(self._jobs_of_state(wanted, str(state)))
        found.sort(reverse=True)
        return self._records.read_all("jobs", JOB, (row[-1] for row in found[: wanted.limit]))

    def _jobs_of_state(self, wanted: JobFilter, state: str) -> list[tuple[Any, ...]]:
        terms: list[str] = ["seq < ?"]
        values: list[Any] = [wanted.before_seq or _END]
        # A sign before a column keeps the database from looking for an index on it.
        plain = "+" if wanted.workload else ""
        if wanted.workload:
            terms.append("workload = ? AND workload <> ''")
            values.append(wanted.workload)
        if state:
            terms.append(f"{plain}state = ?")
            values.append(state)
        if wanted.user:
            terms.append(f"{plain}user = ?")
            values.append(wanted.user)
        elif state and not wanted.workload:
            terms.append(_LIVE_INDEX.get(state, FINAL_JOB))
        for column, value in (("queue = ?", wanted.queue), ("name = ?", wanted.name)):
            if value:
                terms.append(column)
                values.append(value)
        for term, moment in wanted.spans:
            terms.append(term)
            values.append(moment)
        if wanted.ended_only:
            terms.append(FINAL_JOB)
        if wanted.before_ended_ms:
            terms[0], values[0] = "(ended_at_ms, seq) < (?, ?)", wanted.before_ended_ms
            values.insert(1, wanted.before_seq)
        for tried, value in ((_TRIED_ON, wanted.worker), (_TRIED_SO, wanted.exit_class)):
            if value:
                terms.append(tried)
                values.append(value)
        if wanted.q:
            terms.append("(instr(name, ?) > 0 OR instr(id, ?) > 0)")
            values += [wanted.q, wanted.q]
        for key, value in wanted.labels:
            terms.append("EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ? AND value = ?)")
            values += [key, value]
        values.append(wanted.limit)
        chosen = ("SELECT", _PLACES[wanted.sort], ", record FROM jobs WHERE", " AND ".join(terms))
        query = " ".join((*chosen, "ORDER BY", _ORDERS[wanted.sort], "LIMIT ?"))
        return self._all("list jobs", query, values)

    def count_ended(self, user: str, states: tuple[str, ...], most: int) -> int:
        """Count jobs in final states, each by the index that holds it apart: no row is looked at."""
        terms, values = ["state = ?", "user = ?" if user else FINAL_JOB], (user,) if user else ()
        query = " ".join(("SELECT count(*) FROM (SELECT 1 FROM jobs WHERE", " AND ".join(terms), "LIMIT ?)"))
        counted = 0
        for state in states:
            row = self._one("count jobs", query, (state, *values, most - counted))
            counted += int(row[0]) if row else 0
        return counted

    def find_tasks(self, job_id: str, after_index: int, limit: int, states: tuple[str, ...]) -> list[Task]:
        """Give a job's tasks after an index, in order; each state is asked for by itself, as with jobs."""
        found: list[tuple[Any, ...]] = []
        for state in states or ("",):
            terms = ["job_id = ?", "idx > ?"]
            values: list[Any] = [job_id, after_index]
            if state:
                terms.append("state = ?")
                values.append(state)
                if state not in _COMMON_TASK_STATES:
                    terms.append(ODD_TASK)
            query = " ".join(
                ("SELECT idx, record FROM tasks WHERE", " AND ".join(terms), "ORDER BY idx LIMIT ?")
            )
            found.extend(self._all("find tasks", query, (*values, limit)))
        found.sort()
        return self._records.read_all("tasks", TASK, (record for _index, record in found[:limit]))

    def find_task(self, job_id: str, index: int) -> Task | None:
        """Find one task."""
        row = self._one(
            "find a task", "SELECT record FROM tasks WHERE job_id = ? AND idx = ?", (job_id, index)
        )
        return self._records.read("tasks", TASK, row[0]) if row else None

    def find_attempts(self, job_id: str, index: int | None, limit: int) -> list[Attempt]:
        """Give the attempts of one task, or of a whole job, in order of task and age."""
        query = "SELECT record FROM attempts WHERE job_id = ? ORDER BY idx, number LIMIT ?"
        values: tuple[Any, ...] = (job_id, limit)
        if index is not None:
            query = "SELECT record FROM attempts WHERE job_id = ? AND idx = ? ORDER BY number LIMIT ?"
            values = (job_id, index, limit)
        rows = self._all("find attempts", query, values)
        return self._records.read_all("attempts", ATTEMPT, (record for (record,) in rows))

    def recent_runs(self, limit: int) -> list[tuple[str, int, int]]:
        """Name, run time and limit of the last attempts of named jobs that came to their own end, oldest first."""
        query = "SELECT name, phase, record FROM attempts ORDER BY number DESC LIMIT ?"
        found = []
        for name, phase, record in self._all("recent runs", query, (limit,)):
            attempt = (
                self._records.read("attempts", ATTEMPT, record) if phase in ("succeeded", "failed") else None
            )
            if attempt is not None and attempt.started and name:
                found.append((name, max(1, attempt.span_ms), attempt.limit_ms))
        return found[::-1]

    def sum_uses(self, asked: UseQuery) -> list[UseRow]:
        """What was asked for, held and used; walks over all attempts, so it has a connection of its own for that."""
        self._guard.check()
        with (
            translated(self._path, "sum up usage"),
            contextlib.closing(connect(self._path, read_only=True)) as own,
        ):
            return [UseRow(*row) for row in own.execute(spell_query(asked.by), spell_values(asked))]

    def past_attempts(self, asked: PastQuery) -> list[PastRow]:
        """Attempts that ended within a while, newest first."""
        where, values = spell_past(asked, "?", "user")
        rows = self._all("read what ran", _PAST + where, values)
        found = ((self._records.read("attempts", ATTEMPT, row[0]), row[1:]) for row in rows)
        return [PastRow(attempt, *rest) for attempt, rest in found if attempt is not None]

    def group_jobs(self, by: Sequence[str], wanted: JobFilter) -> list[tuple[tuple[str, ...], int]]:
        """Count jobs that are all of what is wanted, by columns: the largest groups first."""
        given = [(name, text) for name in NAMED if (text := getattr(wanted, name))]
        states = [f"state IN ({', '.join('?' * len(wanted.states))})"] if wanted.states else []
        met = " AND ".join([*(f"{name} = ?" for name, _ in given), *states, "1"])
        chosen, end = grouping(by)
        words = ("SELECT", chosen, "FROM jobs WHERE", met, end, "LIMIT ?")
        query = " ".join(words)
        rows = self._all("count jobs", query, (*(text for _, text in given), *wanted.states, wanted.limit))
        return [(tuple(row[1:]), int(row[0])) for row in rows if row[0]]

    def count_jobs(self, user: str, ended_since_ms: int, most: int) -> dict[str, int]:
        """How many jobs ended in each state since a moment; no further than to `most` of them."""
        terms = [FINAL_JOB, "ended_at_ms >= ?", *(["user = ?"] if user else [])]
        chosen = ("SELECT state FROM jobs WHERE", " AND ".join(terms), "ORDER BY ended_at_ms DESC LIMIT ?")
        query = " ".join(("SELECT state, count(*) FROM (", *chosen, ") GROUP BY state"))
        rows = self._all("count jobs", query, (ended_since_ms, *((user,) if user else ()), most))
        return {state: int(count) for state, count in rows}

    def samples(self, since_ms: int, until_ms: int, limit: int) -> list[tuple[int, bytes]]:
        """Samples of a while, oldest first."""
        query = "SELECT at_ms, record FROM samples WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        return [(row[0], row[1]) for row in self._all("read samples", query, (since_ms, until_ms, limit))]

    def find_attempt(self, uid: str) -> Attempt | None:
        """Find an attempt by its uid."""
        number = attempt_number(uid)
        row = self._one("find an attempt", "SELECT record FROM attempts WHERE number = ?", (number,))
        attempt = self._records.read("attempts", ATTEMPT, row[0]) if row else None
        # The number is the part of a uid that can be guessed.
        return attempt if attempt is not None and attempt.uid == uid else None

    def newest_attempt(self, worker: str, job_id: str, index: int) -> Attempt | None:
        """Find the last attempt of a task on one worker."""
        query = """SELECT record FROM attempts WHERE job_id = ? AND idx = ? AND worker = ?
            ORDER BY number DESC LIMIT 1"""
        row = self._one("find an attempt", query, (job_id, index, worker))
        return self._records.read("attempts", ATTEMPT, row[0]) if row else None

    def find_key(self, user: str, key: str) -> KeyRow | None:
        """Find what the first request under a key made."""
        query = "SELECT at_ms, job_ids FROM keys WHERE user = ? AND key = ?"
        row = self._one("find a key", query, (user, key))
        return KeyRow(user, key, row[0], IDS.decode(row[1])) if row else None

    def find_args(self, job_id: str, index: int) -> ArgsChunk | None:
        """Find the chunk that holds a call's arguments."""
        row = self._one("find arguments", FIND_ARGS, (job_id, index))
        chunk = ArgsChunk(*row) if row else None
        return chunk if chunk is not None and index < chunk.first + chunk.calls else None

    def find_results(self, job_id: str, first: int, end: int) -> list[ResultsChunk]:
        """Give the chunks whose range of calls meets this one, oldest first."""
        return [ResultsChunk(*row) for row in self._all("find results", FIND_RESULTS, (job_id, first, end))]

    def results_from(self, job_id: str, seq: int, limit: int) -> list[ResultsChunk]:
        """Give chunks of results from a turn on, in order of arrival."""
        return [ResultsChunk(*row) for row in self._all("read results", RESULTS_FROM, (job_id, seq, limit))]

    def find_blobs(self, digests: Sequence[str]) -> dict[str, BlobRow]:
        """Find those of the blobs that are filed."""
        found: dict[str, BlobRow] = {}
        for query, part in blob_queries(digests):
            found |= {digest: BlobRow(size, at) for digest, size, at in self._all("find blobs", query, part)}
        return found

    def is_referred(self, digest: str) -> bool:
        """Whether any job uses a blob."""
        return (
            self._one("find a blob", "SELECT 1 FROM blob_refs WHERE digest = ? LIMIT 1", (digest,))
            is not None
        )

    def count_user_blobs(self, user: str, digests: Sequence[str]) -> tuple[int, list[str]]:
        """How many bytes of blobs the jobs of a user use; and which of these blobs any job uses."""
        row = self._one("count blobs", USER_BYTES, (user,))
        return int(row[0]) if row else 0, [digest for digest in digests if self.is_referred(digest)]

    def job_refers(self, digest: str, job_ids: Sequence[str]) -> bool:
        """Whether one of these jobs uses a blob."""
        return any(self._all("find a blob", query, part) for query, part in ref_queries(digest, job_ids))

    def user_refers(self, digest: str, user: str) -> bool:
        """Whether a job of this user, of those that have a row, uses a blob."""
        return self._one("find a blob", USER_REFERS, (digest, user)) is not None

    def fresh_refs(self, digest: str) -> list[str]:
        """Jobs that use a blob and have no row yet."""
        return [job_id for (job_id,) in self._all("find a blob", FRESH_REFS, (digest,))]

    def tokens(self) -> list[TokenRow]:
        """Give all tokens, revoked ones too."""
        rows = self._all("read tokens", "SELECT record FROM tokens ORDER BY id", ())
        return self._records.read_all("tokens", TOKEN, (record for (record,) in rows))

    def audit(self, limit: int, before_ms: int) -> list[AuditRecord]:
        """Give audit records, newest first."""
        query = """SELECT at_ms, user, token_id, action, target, detail FROM audit
            WHERE at_ms < ? ORDER BY id DESC LIMIT ?"""
        rows = self._all("read the audit record", query, (before_ms or _END, limit))
        return [AuditRecord(*row) for row in rows]


def read_live(path: Path, set_aside: list[str]) -> LiveRows:
    """Rows of live work in portions, each of its own moment, through a connection that ends with them."""
    with translated(path, "load"):
        connection = connect(path, read_only=True)
        (applied_seq,) = connection.execute("SELECT applied_seq FROM meta").fetchone() or (0,)
    return LiveRows(applied_seq, _read_portions(path, connection, Records(set_aside)))


def _read_portions(
    path: Path, connection: sqlite3.Connection, records: Records
) -> Iterator[Job | Attempt | Worker]:
    def read(
        query: str, table: str, decoder: msgspec.msgpack.Decoder[Record], portion: int
    ) -> Iterator[Record]:
        last = -_END
        while True:
            rows = connection.execute(query, (last, portion)).fetchall()
            yield from records.read_all(table, decoder, (record for _, record in rows))
            if len(rows) < portion:
                return
            last = rows[-1][0]

    with contextlib.closing(connection), translated(path, "load"):
        yield from read(_SOME_JOBS, "jobs", JOB, _PORTION)
        ended = connection.execute(_ENDED_JOBS).fetchall()
        yield from records.read_all("jobs", JOB, (record for (record,) in ended))
        yield from read(_SOME_ATTEMPTS, "attempts", ATTEMPT, _PORTION)
        workers = connection.execute("SELECT record FROM workers").fetchall()
        yield from records.read_all("workers", WORKER, (record for (record,) in workers))
