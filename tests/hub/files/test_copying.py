"""Files go with a store that is carried to a database and back, and are the same there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hub.files.test_contract import ERR, OUT, Hub
from tests.postgres import Server

from dray.errors import StoreError
from dray.hub.access.tokens import write_private
from dray.hub.files.copying import copy_all
from dray.hub.files.local import LocalFiles
from dray.hub.files.postgres import PgFiles
from dray.hub.files.side import Side
from dray.hub.store.copying import Copied
from dray.hub.store.postgres.store import PgStore
from dray.hub.store.sqlite.store import SqliteStore

BODIES = (b"", b"x", b"\0" * 700_000, os.urandom(3_000_000))


def fill(home: Path) -> tuple[Hub, list[str]]:
    home.mkdir()
    store = SqliteStore.open(home / "hub.sqlite", reserve_bytes=0)
    store.begin_epoch()
    store.close(clean=True)
    hub = Hub(LocalFiles(home, write_private), cap=1 << 30)
    for job in ("j1", "j2"):
        hub.say((OUT, 0, b"one\0\n"), (ERR, 5, b"gap"), job=job)
        hub.say((OUT, 5, os.urandom(2_000_000)), name="1.1.1-2", job=job)
    with (home / "output" / "j1" / "0.1.1-1").open("ab") as file:
        file.write(b"\0torn")
    hub.files.keep_secret("task_secret", b"s" * 32)
    return hub, [hub.put(body) for body in BODIES]


def shown(hub: Hub) -> list[Any]:
    return [hub.frames(name, job) for job in ("j1", "j2") for name in ("0.1.1-1", "1.1.1-2")]


def test_there_and_back_files_are_the_same(
    database: str, lead: Callable[[], PgStore], tmp_path: Path
) -> None:
    first, digests = fill(tmp_path / "first")
    there: list[Copied] = []
    back: list[Copied] = []
    copy_all(str(tmp_path / "first" / "hub.sqlite"), database, there.append)
    assert {one.table: one.rows for one in there if one.table in ("output", "values")} == {
        "output": 4,
        "values": 4,
    }
    store = lead()
    moved = Hub(PgFiles(store.attach(Side)), cap=1 << 30)
    wanted = shown(Hub(first.files))
    assert shown(moved) == wanted
    assert [moved.get(digest) for digest in digests] == list(BODIES)
    assert moved.files.keep_secret("task_secret", b"x" * 32) == b"s" * 32
    assert moved.say((OUT, 0, b"one\0\nmore"), job="j1") == (9, 8)
    store.close(clean=True)
    home = tmp_path / "second"
    home.mkdir()
    copy_all(database, str(home / "hub.sqlite"), back.append)
    assert [one for one in back if one.table == "values"] == [one for one in there if one.table == "values"]
    last = Hub(LocalFiles(home, write_private))
    assert last.text(job="j1") == b"one\0\nmore"
    assert [last.get(digest) for digest in digests] == list(BODIES)
    assert last.files.keep_secret("task_secret", b"x" * 32) == b"s" * 32
    assert (home / "task_secret").stat().st_mode & 0o777 == 0o600
    assert not list(home.glob(".copy*"))
    # Over what was there before, too.
    copy_all(database, str(tmp_path / "first" / "back.sqlite"), lambda one: None)
    assert Hub(first.files).text(job="j1") == b"one\0\nmore"


def test_files_may_stay_and_what_is_not_what_it_says_stops_the_copy(
    database: str, shared_postgres: Server, tmp_path: Path
) -> None:
    _, digests = fill(tmp_path / "first")
    path = tmp_path / "first" / "blobs" / digests[3][:2] / digests[3]
    path.write_bytes(b"another")
    with pytest.raises(StoreError, match="is not what its name says"):
        copy_all(str(tmp_path / "first" / "hub.sqlite"), database, print)
    assert shared_postgres.run("SELECT count(*) FROM dray.output") == "0"
    told: list[Copied] = []
    copy_all(str(tmp_path / "first" / "hub.sqlite"), database, told.append, with_files=False)
    assert "output" not in {one.table for one in told}


def test_a_copy_back_that_fails_leaves_no_files(database: str, tmp_path: Path) -> None:
    fill(tmp_path / "first")
    copy_all(str(tmp_path / "first" / "hub.sqlite"), database, lambda one: None)
    home = tmp_path / "second"
    home.mkdir()

    def stop(one: Copied) -> None:
        if one.table == "values":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_all(database, str(home / "hub.sqlite"), stop)
    assert list(home.iterdir()) == []
