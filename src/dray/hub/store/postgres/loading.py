"""What a starting hub reads: rows of live work, streamed in portions from a transaction that only reads.

It holds no share of the leader's row, so it may take as long as it likes. Whoever reads leads already: nobody else
changes rows meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import asyncpg
import msgspec

from dray.hub.loop_thread import LoopThread
from dray.hub.store.base import LedgerRow, Snapshot
from dray.hub.store.postgres.connection import Target, open_connection
from dray.hub.store.postgres.errors import translate
from dray.hub.store.records import ATTEMPT, JOB, TASK, WORKER, Records

Record = TypeVar("Record")
BATCH = 10_000
_META = """SELECT applied_seq, greatest(meta.now_ms, leader.now_ms), at_ms, clock_base, counters
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


class Loader:
    """Reads one snapshot."""

    def __init__(self, loop: LoopThread, target: Target, records: Records) -> None:
        self._loop, self._target, self._records = loop, target, records

    def load(self) -> Snapshot:
        """Give the rows; each kind is read when it is asked for."""
        ((applied_seq, now_ms, at_ms, clock_base, counters),) = self._stream(_META)
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
        )

    def _read(self, table: str, query: str, decoder: msgspec.msgpack.Decoder[Record]) -> Iterator[Record]:
        for (packed,) in self._stream(query):
            record = self._records.read(table, decoder, packed)
            if record is not None:
                yield record

    def _stream(self, query: str) -> Iterator[Any]:
        cursor = Cursor(self._target, query)
        try:
            self._loop.call(cursor.open())
            while rows := self._loop.call(cursor.fetch()):
                yield from rows
        finally:
            self._loop.call(cursor.close())


class Cursor:
    """One query, read in portions."""

    def __init__(self, target: Target, query: str) -> None:
        self._target, self._query = target, query
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._cursor: Any = None

    async def open(self) -> None:
        """Begin."""
        self._connection = await open_connection(self._target)
        try:
            # Whoever decodes a portion may take longer than a lock may be held.
            await self._connection.execute("SET idle_in_transaction_session_timeout = 0")
            await self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            self._cursor = await self._connection.cursor(self._query)
        except Exception as error:
            raise translate(error, self._target.address, "read the store") from error

    async def fetch(self) -> list[Any]:
        """The next portion; empty at the end."""
        try:
            return list(await self._cursor.fetch(BATCH))
        except Exception as error:
            raise translate(error, self._target.address, "read the store") from error

    async def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            with contextlib.suppress(Exception):
                await self._connection.close(timeout=1)
