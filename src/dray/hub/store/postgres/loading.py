"""What a starting hub reads: rows of live work, streamed in portions from a transaction that only reads.

It holds no share of the leader's row, so it may take as long as it likes. All is read as of one moment: one that
stands by loads while the leader goes on writing rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import asyncpg
import msgspec

from dray.core.model.ids import attempt_number
from dray.core.model.records.records import Attempt
from dray.errors import StoreError
from dray.hub.loop_thread import LoopThread
from dray.hub.store.base import LedgerRow, Snapshot
from dray.hub.store.postgres.connection import Target, open_connection
from dray.hub.store.postgres.errors import translate
from dray.hub.store.records import ATTEMPT, JOB, TASK, WORKER, Records

Record = TypeVar("Record")
BATCH = 10_000
_META = """SELECT applied_seq, greatest(meta.now_ms, leader.now_ms), at_ms, clock_base, counters,
    coalesce((SELECT epoch FROM dray.log WHERE seq = applied_seq), 0)
    FROM dray.meta, dray.leader WHERE meta.id = 1 AND leader.id = 1"""
_LIVE_PHASES = "phase IN ('assigned', 'accepted', 'running', 'stopping', 'unknown')"
# A job that has ended may still have an attempt that is stopping: it holds its worker's resources until it is gone.
_STOPPING = f"SELECT job_id FROM dray.attempts WHERE {_LIVE_PHASES}"
_WHICH = ("state IN ('pending', 'running')", f"state NOT IN ('pending', 'running') AND id IN ({_STOPPING})")
_JOBS = f"""SELECT record FROM (
    {" UNION ALL ".join(f"SELECT seq, record FROM dray.jobs WHERE {which}" for which in _WHICH)}
    ) AS found ORDER BY seq"""
_TASKS = f"""SELECT record FROM (
    {
    " UNION ALL ".join(
        f"SELECT found.seq, tasks.idx, tasks.record FROM (SELECT seq, id FROM dray.jobs WHERE {which}) AS found "
        "JOIN dray.tasks ON tasks.job_id = found.id"
        for which in _WHICH
    )
}
    ) AS every ORDER BY seq, idx"""
_ATTEMPTS = f"SELECT record FROM dray.attempts WHERE {_LIVE_PHASES} ORDER BY number"
_ATTEMPT = "SELECT record FROM dray.attempts WHERE number = $1"


class Loader:
    """Reads one snapshot."""

    def __init__(self, loop: LoopThread, target: Target, records: Records) -> None:
        self._loop, self._records = loop, records
        self._moment = Moment(target)

    def load(self) -> Snapshot:
        """Give the rows; each kind is read when it is asked for."""
        try:
            ((applied_seq, now_ms, at_ms, clock_base, counters, epoch),) = self._loop.call(
                self._moment.ask(_META)
            )
        except BaseException:
            self.close()
            raise
        return Snapshot(
            applied_seq=applied_seq,
            now_ms=now_ms,
            at_ms=at_ms,
            clock_base=clock_base,
            counters=counters,
            jobs=self._read("jobs", _JOBS, JOB),
            tasks=self._read("tasks", _TASKS, TASK),
            attempts=self._read("attempts", _ATTEMPTS, ATTEMPT),
            workers=self._read("workers", "SELECT record FROM dray.workers ORDER BY id", WORKER),
            ledger=(
                LedgerRow(*row)
                for row in self._stream("SELECT kind, key, record FROM dray.ledger ORDER BY kind, key")
            ),
            find_attempt=self._find_attempt,
            epoch=epoch,
            close=self.close,
        )

    def close(self) -> None:
        """Let the moment go."""
        self._loop.call(self._moment.close())

    def _find_attempt(self, uid: str) -> Attempt | None:
        rows = self._loop.call(self._moment.ask(_ATTEMPT, attempt_number(uid)))
        attempt = self._records.read("attempts", ATTEMPT, rows[0][0]) if rows else None
        return attempt if attempt is not None and attempt.uid == uid else None

    def _read(self, table: str, query: str, decoder: msgspec.msgpack.Decoder[Record]) -> Iterator[Record]:
        for (packed,) in self._stream(query):
            record = self._records.read(table, decoder, packed)
            if record is not None:
                yield record

    def _stream(self, query: str) -> Iterator[Any]:
        cursor = self._loop.call(self._moment.begin(query))
        while rows := self._loop.call(self._moment.fetch(cursor)):
            yield from rows


class Moment:
    """A connection whose transaction sees the database as it was at its first question."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def _open(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._connection is None:
            self._connection = await open_connection(self._target)
            # Whoever decodes a portion may take longer than a lock may be held.
            await self._connection.execute("SET idle_in_transaction_session_timeout = 0")
            await self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return self._connection

    async def ask(self, query: str, *values: Any) -> list[Any]:
        """Read little."""
        with self._translated():
            return list(await (await self._open()).fetch(query, *values))

    async def begin(self, query: str) -> Any:
        """Begin to read much."""
        with self._translated():
            return await (await self._open()).cursor(query)

    async def fetch(self, cursor: Any) -> list[Any]:
        """The next portion of much; empty at the end."""
        with self._translated():
            return list(await cursor.fetch(BATCH))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise translate(error, self._target.address, "read the store") from error

    async def close(self) -> None:
        """Let the connection go."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close(timeout=1)
