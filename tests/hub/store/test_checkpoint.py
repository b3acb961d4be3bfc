"""The write-ahead log keeps its size while commits go on, and outgrows it only while a reader holds it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from dray.hub.store.sqlite.checkpoint import WalGauge, wal_path
from dray.hub.store.sqlite.store import SqliteStore

Open = Callable[..., SqliteStore]
WAL_BYTES = 1 << 20


def wal_size(tmp_path: Path) -> int:
    return wal_path(tmp_path / "hub.db").stat().st_size


def commit(store: SqliteStore, make: Any, first: int, count: int) -> int:
    for seq in range(first, first + count):
        store.commit(make.turn(seq, facts=bytes(3000)))
    return first + count


def commit_until_it_starts_over(store: SqliteStore, make: Any, seq: int) -> int:
    """Commit until the log is written from its beginning again, however slow the copying thread is."""
    gauge = WalGauge(store.path)
    salt = gauge.salt()
    while gauge.salt() == salt:
        assert seq < 50_000, "the log never started over"
        seq = commit(store, make, seq, 1)
    gauge.close()
    return seq


def test_the_log_is_grown_at_once_and_then_overwritten(open_sqlite: Open, tmp_path: Path, make: Any) -> None:
    store = open_sqlite(wal_bytes=WAL_BYTES)
    store.begin_epoch()
    assert wal_size(tmp_path) == WAL_BYTES
    seq = 1
    for _ in range(3):
        seq = commit_until_it_starts_over(store, make, seq)
    before = wal_size(tmp_path)
    seq = commit(store, make, seq, 10)
    assert wal_size(tmp_path) == before, "commits overwrite what is there"
    assert [entry.seq for entry in store.tail(0, limit=100_000)] == list(range(1, seq))


def test_a_reader_that_holds_a_snapshot_delays_but_loses_nothing(
    open_sqlite: Open, tmp_path: Path, make: Any
) -> None:
    store = open_sqlite(wal_bytes=WAL_BYTES)
    store.begin_epoch()
    seq = commit(store, make, 1, 10)
    with closing(sqlite3.connect(tmp_path / "hub.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM log").fetchone() == (10,)
        seq = commit(store, make, seq, 600)
        assert reader.execute("SELECT count(*) FROM log").fetchone() == (10,)
        assert wal_size(tmp_path) > 2 * WAL_BYTES
    seq = commit_until_it_starts_over(store, make, seq)
    assert [entry.seq for entry in store.tail(0, limit=100_000)] == list(range(1, seq))


def test_the_gauge_reads_how_far_the_log_is_used(open_sqlite: Open, tmp_path: Path, make: Any) -> None:
    store = open_sqlite(wal_bytes=WAL_BYTES)
    store.begin_epoch()
    gauge = WalGauge(tmp_path / "hub.db")
    with closing(sqlite3.connect(tmp_path / "hub.db")) as other:
        commit(store, make, 1, 20)
        frames = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    assert frames > 20
    assert gauge.reached(frames, gauge.salt())
    assert not gauge.reached(frames + 1, gauge.salt())
    gauge.close()
