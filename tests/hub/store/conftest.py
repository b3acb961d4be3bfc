"""Rows to store, and small stores that open fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.core.model.records.records import Attempt, Job, Task
from dray.hub.store.base import AttemptRow, JobRow, Projection, Store, Turn
from dray.hub.store.memory import MemoryFile, MemoryStore
from dray.hub.store.postgres.address import Address
from dray.hub.store.postgres.store import PgStore
from dray.hub.store.sqlite.store import SqliteStore


class Make:
    """Builds rows with the fields that a test leaves out filled in."""

    @staticmethod
    def job(seq: int, **fields: Any) -> Job:
        given: dict[str, Any] = {"id": f"j{seq}", "user": "ana", "name": "train", "queue": "default"}
        rest: dict[str, Any] = {
            "priority": 0,
            "tier": "normal",
            "spec": b"spec",
            "numbered": False,
            "total": 1,
        }
        return Job(seq=seq, **{**given, **rest, **fields})

    @classmethod
    def row(cls, seq: int, labels: dict[str, str] | None = None, **fields: Any) -> JobRow:
        return JobRow(cls.job(seq, **fields), labels or {})

    @staticmethod
    def task(job_id: str, index: int = -1, **fields: Any) -> Task:
        return Task(job_id=job_id, index=index, **fields)

    @staticmethod
    def attempt(uid: str, job_id: str, index: int = -1, **fields: Any) -> AttemptRow:
        given: dict[str, Any] = {"no": 1, "fence": 1, "worker": "w1", "shape": 0}
        return AttemptRow(
            Attempt(uid=uid, job_id=job_id, index=index, **{**given, **fields}), "train", "ana", "cpu", ""
        )

    @staticmethod
    def turn(seq: int, **fields: Any) -> Turn:
        given: dict[str, Any] = {"now_ms": seq, "at_ms": seq, "facts": b"facts %d" % seq, "notes": b""}
        return Turn(seq, **{**given, **fields})

    @staticmethod
    def projection(applied_seq: int = 1, **rows: Any) -> Projection:
        return Projection(applied_seq, applied_seq, b"counters", **rows)


@pytest.fixture
def make() -> type[Make]:
    return Make


@pytest.fixture
def open_sqlite(tmp_path: Path) -> Iterator[Callable[..., SqliteStore]]:
    """Opens stores with a small log; those that a test leaves open are closed as after a crash."""
    opened: list[SqliteStore] = []

    def open_(path: Path = tmp_path / "hub.db", **settings: Any) -> SqliteStore:
        store = SqliteStore.open(path, **{"reserve_bytes": 4096, "wal_bytes": 1 << 17, **settings})
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close(clean=False)


@pytest.fixture
def open_postgres(database: str, tmp_path: Path) -> Iterator[Callable[..., PgStore]]:
    """Opens stores in one database, with a lease that no test outlasts; each has a home of its own."""
    opened: list[PgStore] = []

    def open_(url: str = database, **settings: Any) -> PgStore:
        home = tmp_path / f"home{len(opened)}"
        home.mkdir()
        store = PgStore.open(Address(url), settings.pop("home", home), **{"lease_s": 60.0, **settings})
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close(clean=False)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest) -> Callable[[], Store]:
    """Opens another store on the same file, or database, at each call."""
    if request.param == "memory":
        file = MemoryFile()
        return lambda: MemoryStore(file)
    opener: Callable[[], Store] = request.getfixturevalue(f"open_{request.param}")
    return opener
