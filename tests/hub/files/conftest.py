"""Places for files, opened again and again as by one hub after another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.hub.access.tokens import write_private
from dray.hub.files.base import Files
from dray.hub.files.local import LocalFiles
from dray.hub.files.postgres import PgFiles
from dray.hub.files.shared import SharedFiles
from dray.hub.files.side import Side
from dray.hub.store.postgres.address import Address
from dray.hub.store.postgres.store import PgStore


@pytest.fixture
def open_local(tmp_path: Path) -> Callable[[], Files]:
    return lambda: LocalFiles(tmp_path, write_private)


@pytest.fixture
def open_shared(tmp_path: Path) -> Callable[[], Files]:
    """Each opening is by a hub of a later epoch."""
    epochs = itertools.count(1)

    def open_() -> Files:
        epoch = next(epochs)
        return SharedFiles(tmp_path / "shared", "site", lambda: epoch)

    return open_


@pytest.fixture
def lead(database: str, tmp_path: Path) -> Iterator[Callable[[], PgStore]]:
    """Stores in one database, each taking the lead from the one before."""
    opened: list[PgStore] = []

    def open_(url: str = database) -> PgStore:
        home = tmp_path / f"home{len(opened)}"
        home.mkdir()
        store = PgStore.open(Address(url), home, lease_s=60.0)
        opened.append(store)
        store.begin_epoch()
        return store

    yield open_
    for store in opened:
        store.close(clean=False)


@pytest.fixture
def open_postgres(lead: Callable[[], PgStore]) -> Callable[[], Files]:
    return lambda: PgFiles(lead().attach(Side))


@pytest.fixture(params=["local", "shared", "postgres"])
def open_files(request: pytest.FixtureRequest) -> Callable[[], Files]:
    """Opens the same place again at each call, as the next hub that leads there does."""
    opener: Callable[[], Files] = request.getfixturevalue(f"open_{request.param}")
    return opener
