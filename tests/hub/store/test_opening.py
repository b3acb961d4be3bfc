"""What opening a file finds: nothing, an older one, a newer one, another program's, a damaged one."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.errors import StoreError
from dray.hub.store.sqlite.schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from dray.hub.store.sqlite.store import SqliteStore

Open = Callable[..., SqliteStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


def fill(open_sqlite: Open, make: Any, *, clean: bool) -> None:
    """Leave a file of some hundred pages behind."""
    store = open_sqlite()
    store.begin_epoch()
    store.commit(make.turn(1, facts=bytes(300_000)))
    store.project(make.projection(1, jobs=[make.row(seq, spec=bytes(500)) for seq in range(1, 500)]))
    store.close(clean)


def clean_flag(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT clean FROM meta").fetchone()[0])


def spoil(path: Path, first: int, last: int) -> None:
    """Overwrite a range of pages with something that is no page."""
    content = bytearray(path.read_bytes())
    content[first * 4096 : last * 4096] = b"\xa5" * ((last - first) * 4096)
    path.write_bytes(content)


def test_a_new_store_has_the_present_schema_and_is_private(open_sqlite: Open, path: Path) -> None:
    open_sqlite().begin_epoch()
    for name in ("hub.db", "hub.db-wal", "hub.db-shm", "hub.db.reserve"):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600, name
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_open_to_others_is_closed_to_them(open_sqlite: Open, path: Path) -> None:
    path.touch()
    path.chmod(0o644)
    open_sqlite()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_empty_file_is_brought_up_to_date(open_sqlite: Open, path: Path, make: Any) -> None:
    path.touch()
    store = open_sqlite()
    store.begin_epoch()
    store.commit(make.turn(1))
    assert [entry.seq for entry in store.tail(0)] == [1]


def test_a_migration_that_fails_leaves_the_old_version_whole(
    open_sqlite: Open, path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(open_sqlite, make, clean=True)
    steps = (*MIGRATIONS, ("ALTER TABLE jobs ADD COLUMN extra TEXT", "INSERT INTO nowhere VALUES (1)"))
    with monkeypatch.context() as patch:
        patch.setattr("dray.hub.store.sqlite.schema.MIGRATIONS", steps)
        patch.setattr("dray.hub.store.sqlite.schema.SCHEMA_VERSION", len(steps))
        with pytest.raises(StoreError, match="nowhere"):
            open_sqlite()
    store = open_sqlite()
    assert store.find_job("j1") is not None
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert "extra" not in [row[1] for row in connection.execute("PRAGMA table_info(jobs)")]


def test_a_newer_schema_is_refused_and_left_alone(open_sqlite: Open, path: Path, make: Any) -> None:
    fill(open_sqlite, make, clean=True)
    newer = SCHEMA_VERSION + 3
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {newer}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=rf"version {newer}.*up to {SCHEMA_VERSION}: upgrade dray"):
        open_sqlite()
    assert path.read_bytes() == before


def test_another_programs_database_is_refused(open_sqlite: Open, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (id INTEGER)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        open_sqlite()
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(open_sqlite: Open, path: Path) -> None:
    path.write_bytes(b"these are my notes\n" * 1000)
    with pytest.raises(
        StoreError, match=r"hub\.db is damaged: file is not a database.*restore a backup"
    ) as caught:
        open_sqlite()
    assert caught.value.code == "store_error"
    assert path.read_bytes() == b"these are my notes\n" * 1000


def test_a_folder_or_a_missing_folder_is_told(open_sqlite: Open, path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError, match="is not a file"):
        open_sqlite()
    with pytest.raises(StoreError, match="cannot create the store"):
        open_sqlite(path.parent / "missing" / "hub.db")


def test_a_truncated_file_is_refused_and_left_alone(open_sqlite: Open, path: Path, make: Any) -> None:
    fill(open_sqlite, make, clean=True)
    content = path.read_bytes()[: 40 * 4096]
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged: .*dray doctor"):
        open_sqlite()
    assert path.read_bytes() == content


def test_overwritten_pages_are_found_after_an_unclean_stop(open_sqlite: Open, path: Path, make: Any) -> None:
    fill(open_sqlite, make, clean=False)
    assert clean_flag(path) == 0
    spoil(path, 90, 120)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"is damaged: .*restore a backup"):
        open_sqlite()
    assert path.read_bytes() == before


def test_only_an_unclean_stop_makes_the_next_opening_read_everything(
    open_sqlite: Open, path: Path, make: Any
) -> None:
    fill(open_sqlite, make, clean=True)
    assert clean_flag(path) == 1
    spoil(path, 90, 120)
    with pytest.raises(StoreError, match="damaged"):
        open_sqlite(check="always")
    # A clean stop vouches for the file, so this opening does not look; its own unclean end makes the next one look.
    open_sqlite().close(clean=False)
    with pytest.raises(StoreError, match="damaged"):
        open_sqlite()
    open_sqlite(check="never")


def test_a_clean_stop_leaves_one_file_and_all_rows(open_sqlite: Open, path: Path, make: Any) -> None:
    fill(open_sqlite, make, clean=True)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "hub.db",
        "hub.db.reserve",
        "hub.db.witness",
    ]
    store = open_sqlite()
    assert clean_flag(path) == 0
    assert len(list(store.load().jobs)) == 499
    assert [entry.seq for entry in store.tail(0)] == [1]


def test_a_hub_that_was_taken_over_does_not_vouch_for_the_file(open_sqlite: Open, path: Path) -> None:
    first = open_sqlite()
    first.begin_epoch()
    second = open_sqlite()
    second.begin_epoch()
    first.close(clean=True)
    assert clean_flag(path) == 0
    second.close(clean=True)
    assert clean_flag(path) == 1


def test_a_lock_held_by_another_process_is_named(
    open_sqlite: Open, path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.hub.store.sqlite.opening.BUSY_S", 0.05)
    store = open_sqlite()
    store.begin_epoch()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process keeps"):
            store.commit(make.turn(1))
    store.commit(make.turn(1))
    assert [entry.seq for entry in store.tail(0)] == [1]
