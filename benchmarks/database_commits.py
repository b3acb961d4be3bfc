"""What a turn and its rows cost in PostgreSQL beside SQLite, in turns within one run; and what the fence adds.

The stores are the hub's own. Bare statements, for the fence, go over a connection of the driver's.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.cluster import temporary_home
from benchmarks.figures import Bar, Figure, quantile
from benchmarks.progress import tell
from benchmarks.servers import running_postgres
from dray.core.model.records.records import Attempt, Job
from dray.hub.store.base import AttemptRow, JobRow, Projection, Store, Turn
from dray.hub.store.postgres import turns
from dray.hub.store.postgres.address import Address
from dray.hub.store.postgres.store import PgStore
from dray.hub.store.sqlite.store import SqliteStore

SIZES = (500, 5_000, 50_000)
ROWS = 500
BARE = """INSERT INTO dray.log (epoch, seq, now_ms, at_ms, facts, notes)
    SELECT $1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::bytea, $6::bytea RETURNING seq"""


def measure(quick: bool) -> dict[str, Figure]:
    count, rounds = (20, 3) if quick else (1_000, 30)
    with temporary_home() as home, running_postgres() as server:
        url = server.url("postgres")
        there, here = PgStore.open(Address(url), home, lease_s=60.0), SqliteStore.open(home / "hub.sqlite")
        try:
            for store in (there, here):
                store.begin_epoch()
            figures = _measure_commits(there, here, count) | _measure_rows(there, here, rounds)
        finally:
            there.close(clean=True)
            here.close(clean=True)
        return figures | asyncio.run(_measure_fence(url, home, count))


class Log:
    """Commits one turn after another to one store."""

    def __init__(self, store: Store) -> None:
        self._store, self.seq = store, store.position().seq

    def commit(self, size: int) -> float:
        self.seq += 1
        turn = Turn(self.seq, self.seq, self.seq, bytes(size), b"")
        began = time.perf_counter()
        self._store.commit(turn)
        return time.perf_counter() - began


def _measure_commits(there: Store, here: Store, count: int) -> dict[str, Figure]:
    logs, figures = (Log(there), Log(here)), {}
    for size in SIZES:
        spans = [(logs[0].commit(size), logs[1].commit(size)) for _ in range(count)]
        ours, theirs = (statistics.median(column) * 1e6 for column in zip(*spans, strict=True))
        tell(f"a turn of {size:,} bytes: PostgreSQL {ours:.0f} us, SQLite {theirs:.0f} us")
        what = f"commit of a turn of {size:,} bytes in PostgreSQL, p50"
        bars = [Bar(at_most=3.5, of="SQLite")]
        figures[f"commit_{size}"] = Figure(what, "µs", ours, floors={"SQLite": theirs}, bars=bars)
    return figures


def _measure_rows(there: Store, here: Store, rounds: int) -> dict[str, Figure]:
    """Rows alone, then turns while rows are written beside them."""
    spans = [(_write_rows(there, turn), _write_rows(here, turn)) for turn in range(rounds)]
    ours, theirs = (statistics.median(column) * 1e3 for column in zip(*spans, strict=True))
    tell(f"{2 * ROWS:,} rows: PostgreSQL {ours:.1f} ms, SQLite {theirs:.1f} ms")
    log, over = Log(there), threading.Event()

    def write() -> None:
        turn = rounds
        while not over.is_set():
            _write_rows(there, turn)
            turn += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        beside = [log.commit(SIZES[0]) for _ in range(10 * rounds)]
    finally:
        over.set()
        writing.join()
    late = quantile(beside, 0.99) * 1e3
    tell(f"commit beside rows: p99 {late:.1f} ms")
    return {
        "rows": Figure(
            f"{2 * ROWS:,} rows of jobs and attempts written to PostgreSQL, p50",
            "ms",
            ours,
            floors={"SQLite": theirs},
            bars=[Bar(at_most=60.0)],
        ),
        "commit_beside_rows": Figure(
            "commit of a small turn in PostgreSQL while rows are written, p99",
            "ms",
            late,
            bars=[Bar(at_most=30.0)],
        ),
    }


def _write_rows(store: Store, turn: int) -> float:
    """Half of them new, half of them there already from the second time on."""
    first = turn * ROWS // 2
    jobs = [JobRow(_job(first + place), {}) for place in range(ROWS)]
    attempts = [AttemptRow(_attempt(first + place), "train", "ana", "", "") for place in range(ROWS)]
    projection = Projection(store.position().seq, turn, b"", jobs, (), attempts)
    began = time.perf_counter()
    store.project(projection)
    return time.perf_counter() - began


def _job(seq: int) -> Job:
    fixed: dict[str, Any] = {
        "user": "ana",
        "name": "train",
        "queue": "default",
        "priority": 0,
        "tier": "normal",
    }
    return Job(id=f"j{seq}", seq=seq + 1, spec=bytes(200), numbered=False, total=1, **fixed)


def _attempt(seq: int) -> Attempt:
    return Attempt(uid=f"1-{seq}", job_id=f"j{seq}", index=-1, no=1, fence=1, worker="w", shape=0)


async def _measure_fence(url: str, home: Path, count: int) -> dict[str, Figure]:
    connection = await asyncpg.connect(url)
    try:
        epoch = await connection.fetchval("SELECT epoch FROM dray.leader")
        seq = 1 + int(await connection.fetchval("SELECT max(seq) FROM dray.log"))
        spans: dict[str, list[float]] = {BARE: [], turns.BARE: []}
        for number in range(2 * count):
            for statement in sorted(spans, reverse=bool(number % 2)):
                began = time.perf_counter()
                await connection.fetch(statement, epoch, seq, 0, 0, bytes(SIZES[0]), b"")
                spans[statement].append(time.perf_counter() - began)
                seq += 1
    finally:
        await connection.close()
    bare, fenced = (statistics.median(spans[statement]) * 1e6 for statement in (BARE, turns.BARE))
    tell(f"a bare INSERT {bare:.0f} us, with a share of the leader's row {fenced:.0f} us")
    what = "a turn with a share of the leader's row, p50"
    bars = [Bar(at_most=1.15, of="bare INSERT")]
    return {"fence": Figure(what, "µs", fenced, floors={"bare INSERT": bare}, bars=bars)}
