"""A store carried from a file to a database and back is the same, and a hub goes on from it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.hub.asking import ask, wait_until
from tests.postgres import Server

from dray.core.model.records.records import JobState, Phase
from dray.core.model.records.worker import Worker
from dray.errors import StoreError
from dray.hub.store.base import (
    ArgsChunk,
    AuditRecord,
    BlobRef,
    BlobRow,
    JobFilter,
    KeyRow,
    LedgerRow,
    ResultsChunk,
    Retention,
    TokenRow,
)
from dray.hub.store.copying import TABLES, Copied, copy_store
from dray.hub.store.postgres.store import PgStore
from dray.hub.store.sqlite.store import SqliteStore
from dray.testing.hub_process import RunningHub


def fill(store: Any, make: Any) -> None:
    store.begin_epoch()
    chunks = [
        ArgsChunk("j1", 0, 2, b"\0args"),
        ResultsChunk("j1", 0, 1, "w", "l", b"r"),
        BlobRef("ab" * 32, "j1"),
    ]
    audit = [AuditRecord(1, "ana\0", "t", "submit", "j1", "")]
    store.commit(make.turn(1, keys=[KeyRow("ana", "k", 1, ("j1",))], audit=audit, chunks=chunks))
    store.commit(make.turn(2, keys=[KeyRow("ana", "l", 2, ())]))
    store.save_blobs({"ab" * 32: BlobRow(5, 6)})
    store.save_token(TokenRow(id="t", hash=b"\0h", user="ana", scopes=("admin",), created_at_ms=1))
    states = (JobState.PENDING, JobState.SUCCEEDED)
    jobs = [
        make.row(seq, {"team": "v", "ü": '"x"'}, state=states[seq % 2], ended_at_ms=seq)
        for seq in range(1, 40)
    ]
    attempts = [
        make.attempt(f"1-{n}", f"j{n}", phase=Phase.RUNNING, exit_class="a\0b", wall_s=n / 3)
        for n in range(1, 40)
    ]
    tasks = [make.task(f"j{n}", index) for n in range(1, 40) for index in range(-1, 3)]
    ledger = [LedgerRow("kind", "key", b"\0record")]
    rows = {
        "jobs": jobs,
        "attempts": attempts,
        "tasks": tasks,
        "workers": [Worker(id="w1")],
        "ledger": ledger,
    }
    store.project(make.projection(2, **rows))
    store.save_sample(60_000, b"\0sample")
    store.save_clock(77, 88, b"boot|1")
    store.close(clean=True)


def test_there_and_back_all_is_the_same(
    open_sqlite: Callable[..., SqliteStore],
    open_postgres: Callable[..., PgStore],
    database: str,
    tmp_path: Path,
    make: Any,
) -> None:
    first, last = tmp_path / "first.sqlite", tmp_path / "last.sqlite"
    fill(open_sqlite(first), make)
    there: list[Copied] = []
    back: list[Copied] = []
    assert copy_store(str(first), database, there.append) == (2, 2)
    assert [table.table for table in there] == list(TABLES)
    assert all(table.rows for table in there)
    assert copy_store(database, str(last), back.append) == (3, 2)
    assert back == there
    for path in (first, last):
        with closing(sqlite3.connect(path)) as file:
            tables = {row[0] for row in file.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        assert tables - {"meta", "sqlite_sequence"} == set(TABLES)
    for store in (open_postgres(), open_sqlite(last)):
        assert store.begin_epoch() > 2
        found = store.load()
        assert (found.applied_seq, found.now_ms, found.clock_base, found.counters) == (
            2,
            77,
            b"boot|1",
            b"counters",
        )
        assert len(list(found.jobs)) == 39
        assert len(list(found.ledger)) == 1
        assert store.list_jobs(JobFilter(labels=(("ü", '"x"'),), limit=1))[0].id == "j39"
        with pytest.raises(Exception, match="in order"):
            store.commit(make.turn(2))
        # Numbers of arrival go on after those that came along.
        store.commit(
            make.turn(
                3, keys=[KeyRow("ana", "m", 3, ("j9",))], audit=[AuditRecord(9, "b", "t", "x", "y", "")]
            )
        )
        assert [row.at_ms for row in store.audit(10)] == [9, 1]
        store.sweep(Retention(0, 10**9, 0, 3, 0))
        assert [store.find_key("ana", key) is None for key in "klm"] == [True, True, False]


def test_what_is_there_is_not_written_over(
    open_sqlite: Callable[..., SqliteStore],
    open_postgres: Callable[..., PgStore],
    database: str,
    tmp_path: Path,
    make: Any,
) -> None:
    path = tmp_path / "a.sqlite"
    fill(open_sqlite(path), make)
    store = open_postgres(lease_s=3.0)
    store.begin_epoch()
    with pytest.raises(StoreError, match="holds a store already"):
        copy_store(str(path), database, print)
    with pytest.raises(StoreError, match="is there already"):
        copy_store(database, str(path), print)
    with pytest.raises(StoreError, match="stop that hub first"):
        copy_store(database, str(tmp_path / "b.sqlite"), print)
    assert not list(tmp_path.glob("b.sqlite*"))
    with pytest.raises(StoreError, match="there is no store"):
        copy_store(str(tmp_path / "none"), database, print)
    with pytest.raises(StoreError, match="one of the two is a file"):
        copy_store(database, database, print)


def test_a_copy_that_fails_leaves_nothing(
    open_sqlite: Callable[..., SqliteStore], database: str, shared_postgres: Server, tmp_path: Path, make: Any
) -> None:
    path = tmp_path / "a.sqlite"
    fill(open_sqlite(path), make)
    told: list[Copied] = []

    def stop(table: Copied) -> None:
        told.append(table)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_store(str(path), database, stop)
    assert shared_postgres.run("SELECT count(*) FROM dray.log") == "0"
    assert copy_store(str(path), database, print) == (2, 2)


def test_a_hub_moves_to_a_database_by_the_command(database: str, tmp_path: Path) -> None:
    hub = RunningHub(tmp_path, {"reserve_bytes": 4096})
    hub.start()
    try:
        assert ask(hub, "POST", "/jobs", {"id": "a1", "command": ["true"]})[0] == 201
        command = [
            sys.executable,
            "-m",
            "dray.cli.main",
            "store",
            "copy",
            str(tmp_path / "hub.sqlite"),
            "DRAY_STORE",
        ]

        def copy() -> subprocess.CompletedProcess[str]:
            env = {"DRAY_STORE": database, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
            return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

        refused = copy()
        assert (refused.returncode != 0, "stop it first" in refused.stderr) == (True, True)
        hub.stop()
        done = copy()
        assert done.returncode == 0, done.stderr
        assert "the same at both ends" in done.stdout
        moved = RunningHub(tmp_path, {"store": database})
        moved.start()
        try:
            assert ask(moved, "GET", "/jobs/a1")[1]["state"] == "pending"
            with moved.worker("w1") as worker:
                worker.register()
                worker.run_one()
                wait_until(lambda: ask(moved, "GET", "/jobs/a1")[1]["state"] == "succeeded")
        finally:
            moved.stop()
    finally:
        hub.stop()
