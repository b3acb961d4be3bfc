"""The writer thread: order, answers, errors, draining."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dray.errors import BrokenInvariant, NotReady
from dray.hub.disk_thread import SLOW_ITEMS
from dray.hub.store.sqlite.store import SqliteStore
from dray.hub.store.writer import SMALL_BYTES, SWITCH_INTERVAL_S, StoreWriter

Open = Callable[..., SqliteStore]


@pytest.fixture
def store(open_sqlite: Open) -> SqliteStore:
    store = open_sqlite()
    store.begin_epoch()
    return store


async def test_writes_are_done_in_order_on_another_thread(store: SqliteStore, make: Any) -> None:
    writer = StoreWriter(store)
    writer.start()
    turns = [writer.commit(make.turn(seq)) for seq in range(1, 51)]
    rows = writer.project(make.projection(50, jobs=[make.row(1)]))
    name = writer.run(lambda _store: threading.current_thread().name)
    assert await name == "dray-store"
    assert all(future.done() for future in (*turns, rows))
    assert [entry.seq for entry in store.tail(0)] == list(range(1, 51))
    assert store.find_job("j1") is not None
    await writer.close()


async def test_an_error_reaches_the_caller_and_the_writer_goes_on(store: SqliteStore, make: Any) -> None:
    writer = StoreWriter(store)
    writer.start()
    bad = writer.project(make.projection(7))
    good = writer.commit(make.turn(1))
    with pytest.raises(BrokenInvariant, match="ahead of the log"):
        await bad
    await good
    with pytest.raises(ZeroDivisionError):
        await writer.run(lambda _store: 1 // 0)
    await writer.close()


async def test_close_finishes_what_is_queued_and_refuses_the_rest(store: SqliteStore, make: Any) -> None:
    before = sys.getswitchinterval()
    writer = StoreWriter(store)
    with pytest.raises(NotReady):
        await writer.commit(make.turn(1))
    writer.start()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    turns = [writer.commit(make.turn(seq)) for seq in range(1, 30)]
    await writer.close()
    await asyncio.gather(*turns)
    assert len(store.tail(0)) == 29
    assert sys.getswitchinterval() == pytest.approx(before)
    with pytest.raises(NotReady, match="not running"):
        await writer.commit(make.turn(30))
    await writer.close()


async def test_a_caller_that_gave_up_does_not_stop_the_write(store: SqliteStore, make: Any) -> None:
    writer = StoreWriter(store)
    writer.start()
    gate = threading.Event()
    held = writer.run(lambda _store: gate.wait(60))
    turn = writer.commit(make.turn(1))
    turn.cancel()
    gate.set()
    assert await held
    assert await writer.run(lambda opened: len(opened.tail(0))) == 1
    await writer.close()


async def test_a_small_turn_is_durable_at_once_while_the_thread_is_idle(
    store: SqliteStore, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    commit = store.commit

    def noted(turn: Any) -> None:
        threads.append(threading.current_thread().name)
        commit(turn)

    monkeypatch.setattr(store, "commit", noted)
    writer = StoreWriter(store)
    writer.start()
    assert writer.commit(make.turn(1)).done()
    rows = writer.project(make.projection(1))
    behind = writer.commit(make.turn(2))
    assert not behind.done(), "it waits for the rows before it"
    await behind
    assert rows.done()
    await writer.commit(make.turn(3, facts=bytes(SMALL_BYTES + 1)))
    assert threads == [threading.current_thread().name, "dray-store", "dray-store"]
    await writer.close()


async def test_a_slow_disk_is_left_to_the_thread(
    store: SqliteStore, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.hub.disk_thread.QUICK_S", 0.0)
    writer = StoreWriter(store)
    writer.start()
    assert writer.commit(make.turn(1)).done()
    for seq in range(2, SLOW_ITEMS + 2):
        later = writer.commit(make.turn(seq))
        assert not later.done()
        await later
    assert writer.commit(make.turn(SLOW_ITEMS + 2)).done(), "now and then it is tried again"
    await writer.close()


async def test_a_turn_that_fails_in_the_loop_tells_its_caller(store: SqliteStore, make: Any) -> None:
    writer = StoreWriter(store)
    writer.start()
    await writer.commit(make.turn(2))
    with pytest.raises(BrokenInvariant, match="in order"):
        await writer.commit(make.turn(1))
    await writer.commit(make.turn(3))
    await writer.close()
