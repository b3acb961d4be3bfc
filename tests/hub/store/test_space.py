"""A full disk: the reserve is given up once, then the error says what happened, and nothing written before is lost."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.small_disk import fill_up, mounted

from dray.errors import NoSpace, StoreError
from dray.hub.store.space import LOOK_S, SpaceWatch
from dray.hub.store.sqlite.reserve import Reserve
from dray.hub.store.sqlite.store import SqliteStore


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB."""
    with mounted(tmp_path / "disk", "4m") as folder:
        yield folder


def commit_until_full(store: SqliteStore, make: Any) -> int:
    """Commit large turns until the disk is full; gives the last that was accepted."""
    for seq in range(1, 200):
        try:
            store.commit(make.turn(seq, facts=bytes(100_000)))
        except NoSpace:
            return seq - 1
    pytest.fail("a disk of 4 MiB took 20 MB")


def test_a_full_disk_gives_up_the_reserve_and_then_says_so(
    small_disk: Path, open_sqlite: Callable[..., SqliteStore], make: Any
) -> None:
    store = open_sqlite(small_disk / "hub.db", reserve_bytes=1 << 20)
    store.begin_epoch()
    assert not store.low_space(100_000)
    (small_disk / "stranger").write_bytes(bytes(300_000))
    last = commit_until_full(store, make)
    assert last > 10
    assert not (small_disk / "hub.db.reserve").exists(), "the reserve went first"
    assert store.low_space(0)
    with pytest.raises(
        NoSpace, match=r"cannot commit a turn: the disk under .* is full: free space"
    ) as caught:
        store.commit(make.turn(last + 1, facts=bytes(2_000_000)))
    assert caught.value.code == "no_space"
    assert [entry.seq for entry in store.tail(0)] == list(range(1, last + 1))
    (small_disk / "stranger").unlink()
    store.commit(make.turn(last + 1, facts=b"result"))
    store.close(clean=False)
    again = open_sqlite(small_disk / "hub.db", reserve_bytes=0, check="always")
    assert [entry.seq for entry in again.tail(0)] == list(range(1, last + 2))
    again.close(clean=False)


def test_the_reserve_lets_commits_go_on_when_others_filled_the_disk(
    small_disk: Path, open_sqlite: Callable[..., SqliteStore], make: Any
) -> None:
    store = open_sqlite(small_disk / "hub.db", reserve_bytes=1 << 20)
    store.begin_epoch()
    fill_up(small_disk / "stranger")
    assert store.free_bytes() == 0
    assert store.low_space(1)
    # In the log, and perhaps copied into the database as well: both have to fit into the reserve.
    for seq in range(1, 6):
        store.commit(make.turn(seq, facts=bytes(60_000)))
    assert store.low_space(0), "without its reserve the store asks for room"
    (small_disk / "stranger").unlink()
    assert not store.low_space(100_000)
    assert (small_disk / "hub.db.reserve").stat().st_size == 1 << 20, "taken again"
    store.close(clean=True)


def test_a_reserve_that_does_not_fit_leaves_nothing_behind(small_disk: Path) -> None:
    reserve = Reserve(small_disk / "reserve", 64 << 20)
    assert not reserve.take()
    assert not reserve.path.exists()
    assert not reserve.held
    assert not reserve.release()


def test_a_reserve_holds_real_blocks(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve", 1 << 20)
    assert reserve.take()
    assert reserve.held
    assert reserve.path.stat().st_blocks * 512 >= 1 << 20
    assert reserve.release()
    assert not reserve.path.exists()


def test_a_failed_write_is_told_and_leaves_the_store_usable(
    tmp_path: Path, open_sqlite: Callable[..., SqliteStore], make: Any
) -> None:
    store = open_sqlite(reserve_bytes=0)
    store.begin_epoch()
    store.commit(make.turn(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel refuses to let the log grow: to SQLite that is a failed write, not a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "hub.db-wal").stat().st_size, hard))
    try:
        with pytest.raises(StoreError, match=r"SQLITE_IOERR_WRITE.*check the disk") as caught:
            store.commit(make.turn(2, facts=bytes(1 << 20)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not isinstance(caught.value, NoSpace)
    assert [entry.seq for entry in store.tail(0)] == [1]
    store.commit(make.turn(2, facts=b"again"))
    store.project(make.projection(2, jobs=[make.row(1)]))
    store.close(clean=False)
    again = open_sqlite(reserve_bytes=0, check="always")
    assert [entry.facts for entry in again.tail(1)] == [b"again"]


def test_plenty_of_room_is_believed_for_a_moment_and_the_lack_of_it_never() -> None:
    low, at, looks = [False], [10.0], []

    def look() -> bool:
        looks.append(at[0])
        return low[0]

    watch = SpaceWatch(look, lambda: at[0])
    assert not watch()
    low[0] = True
    assert not watch()
    assert looks == [10.0]
    at[0] += LOOK_S
    assert watch()
    low[0] = False
    assert not watch()
    assert len(looks) == 3
