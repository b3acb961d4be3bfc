"""What only a store on a server can meet: statements nobody answers, values it cannot hold, old snapshots, backups."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.hub.asking import wait_until
from tests.postgres import Server

from dray.core.model.records.records import Phase
from dray.errors import EpochLost, StoreError
from dray.hub.store.base import AuditRecord, JobFilter, KeyRow, Position, ResultsChunk
from dray.hub.store.postgres.schema import SCHEMA_VERSION
from dray.hub.store.postgres.store import PgStore

Open = Callable[..., PgStore]
SLOW = """CREATE FUNCTION dray.doze() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN PERFORM pg_sleep({}); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER doze AFTER INSERT ON dray.log DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION dray.doze()"""


def test_text_that_a_column_cannot_hold_is_kept_in_the_record(open_postgres: Open, make: Any) -> None:
    """One worker's word must not stop a hub."""
    store = open_postgres()
    store.begin_epoch()
    odd = "a\0b\ud800"
    audit = AuditRecord(1, odd, "t", "submit", odd, "")
    chunk = ResultsChunk("j1", 0, 0, odd, odd, b"\0blob")
    store.commit(make.turn(1, keys=[KeyRow("ana", "k\0", 1, ("j1",))], audit=[audit], chunks=[chunk]))
    assert store.find_key("ana", "k\0") == KeyRow("ana", "k\0", 1, ("j1",))
    attempt = make.attempt(
        "1-1", "j1", phase=Phase.FAILED, exit_class="bad\0", exit_code=3, wall_s=float("nan")
    )
    rows = {
        "jobs": [make.row(1, {"la\0bel": "x\0"}, name="n\0")],
        "attempts": [attempt._replace(gpu_type="A\0")],
    }
    store.project(make.projection(1, **rows))
    found = store.find_attempt("1-1")
    assert found is not None
    assert found.exit_class == "bad\0"
    assert [job.name for job in store.list_jobs(JobFilter(name="n\0"))] == ["n\0"]
    assert [job.id for job in store.list_jobs(JobFilter(labels=(("la\0bel", "x\0"),)))] == ["j1"]


def test_a_number_that_no_column_holds_is_brought_within_bounds(open_postgres: Open, make: Any) -> None:
    store = open_postgres()
    store.begin_epoch()
    store.commit(make.turn(1))
    store.project(make.projection(1, jobs=[make.row(1, ended_at_ms=1 << 63), make.row(2)]))
    assert store.find_job("j2") is not None
    assert "brought within bounds" in store.set_aside[0]


def test_a_slow_commit_is_waited_for_and_counts_once(
    open_postgres: Open, shared_postgres: Server, make: Any
) -> None:
    store = open_postgres(lease_s=1.5)
    store.begin_epoch()
    shared_postgres.run(SLOW.format(1.6))
    store.commit(make.turn(1, audit=[AuditRecord(1, "ana", "t", "submit", "j1", "")]))
    shared_postgres.run("DROP TRIGGER doze ON dray.log")
    store.commit(make.turn(2))
    assert [entry.seq for entry in store.tail(0)] == [1, 2]
    assert len(store.audit(10)) == 1


def test_a_commit_whose_connection_is_cut_is_settled(
    open_postgres: Open, shared_postgres: Server, make: Any
) -> None:
    """By the server, again and again, at any moment: each turn is there once, in order."""
    store = open_postgres(lease_s=3.0)
    store.begin_epoch()
    over = threading.Event()

    def cut() -> None:
        while not over.wait(0.05):
            shared_postgres.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dray:%'"
            )

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        for seq in range(1, 200):
            store.commit(make.turn(seq, keys=[KeyRow("ana", f"k{seq}", seq, ())]))
    finally:
        over.set()
        cutting.join()
    assert [(entry.seq, entry.facts) for entry in store.tail(0)] == [
        (n, b"facts %d" % n) for n in range(1, 200)
    ]
    assert all(store.find_key("ana", f"k{seq}") for seq in range(1, 200))


def test_an_old_snapshot_costs_no_commit_anything(
    open_postgres: Open, shared_postgres: Server, database: str, make: Any
) -> None:
    """A backup may take hours: the row that every commit looks at must not grow a tail of dead ones meanwhile."""
    store = open_postgres()
    store.begin_epoch()

    async def old_snapshot() -> asyncpg.Connection[Any]:
        connection = await asyncpg.connect(database)
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetch("SELECT * FROM dray.leader")
        return connection

    held = store._loop.call(old_snapshot())
    for seq in range(1, 301):
        store.commit(make.turn(seq))
    assert shared_postgres.run("SELECT pg_relation_size('dray.leader')") == "8192"
    dead = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE schemaname = 'dray' AND relname = 'leader'"
    assert int(shared_postgres.run(dead)) <= 2
    store._loop.call(held.close())


def test_a_leader_that_was_taken_over_knows_it_by_its_beat(open_postgres: Open) -> None:
    store = open_postgres(lease_s=0.6)
    store.begin_epoch()
    assert store.is_trusted
    other = open_postgres(lease_s=0.6)
    other.begin_epoch()

    def is_lost() -> bool:
        try:
            store.verify()
        except EpochLost:
            return True
        return False

    wait_until(is_lost)
    other.verify()


def test_one_that_stands_by_takes_over_when_the_leader_resigns_or_goes_silent(open_postgres: Open) -> None:
    first, second, third = (open_postgres(lease_s=1.0) for _ in range(3))
    first.begin_epoch()
    waiting = second.lead_soon("http://second")
    wait_until(lambda: "leads" in second.watched.words)
    assert not waiting.done()
    first.close(clean=True)
    waiting.result(60)
    assert (second.epoch, third.lead_soon("").done()) == (2, False)

    async def fall_silent() -> None:
        for task in second._tasks:
            task.cancel()

    second._loop.call(fall_silent())
    wait_until(lambda: third.epoch == 3)
    assert "second" in third.watched.words


def test_a_store_with_less_than_a_home_knows_goes_on_after_that(
    open_postgres: Open, shared_postgres: Server, make: Any, tmp_path: Path
) -> None:
    """A backup that was put back, or a server that was promoted without the last commits."""
    home = tmp_path / "home"
    home.mkdir()
    store = open_postgres(home=home)
    store.begin_epoch()
    for seq in (1, 2, 3):
        store.commit(make.turn(seq))
    store.raise_epoch(7)
    store.close(clean=True)
    shared_postgres.run("DELETE FROM dray.log WHERE seq > 1; UPDATE dray.leader SET epoch = 1")
    again = open_postgres(home=home)
    assert again.begin_epoch() == 8
    assert again.lost is not None
    assert (again.lost.found, again.lost.known) == (Position(1, 1), Position(7, 3))
    again.commit(make.turn(4))
    assert [entry.seq for entry in again.tail(0)] == [1, 4]


def test_a_database_that_goes_back_under_a_leader_is_not_written_to(
    open_postgres: Open, servers: Callable[..., Server], make: Any
) -> None:
    """As where a standby is promoted that lacked the last commits."""
    server = servers()
    store = open_postgres(server.url("postgres"), lease_s=1.5)
    store.begin_epoch()
    store.commit(make.turn(1))
    server.kill()
    older = server.data.with_name(server.data.name + "-older")
    subprocess.run(["cp", "-a", server.data, older], check=True)
    server.start()
    store.commit(make.turn(2))
    store.commit(make.turn(3))
    server.kill()
    shutil.rmtree(server.data)
    older.rename(server.data)
    waiting = store.commit_soon(make.turn(4))
    server.start()
    with pytest.raises(EpochLost):
        waiting.result(60)
    assert server.run("SELECT array_agg(seq) FROM dray.log") == "{1}"


def test_an_epoch_that_another_hub_has_taken_after_a_failover_is_not_ones_own(
    open_postgres: Open, shared_postgres: Server, make: Any
) -> None:
    """The take was among what was lost: the next hub counts to the same number."""
    first = open_postgres(name="first")
    first.begin_epoch()
    first.commit(make.turn(1))
    first.project(make.projection(1))
    shared_postgres.run("UPDATE dray.leader SET epoch = 0, beat = 0, holder = ''")
    second = open_postgres(name="second")
    assert (second.begin_epoch(), first.epoch) == (1, 1)
    shared_postgres.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dray:first.%'"
    )
    wait_until(lambda: not (first._turns.is_open or first._rows.is_open))
    with pytest.raises(EpochLost):
        first.project(make.projection(1, jobs=[make.row(1)]))
    with pytest.raises(EpochLost):
        first.commit(make.turn(2))
    first.close(clean=True)
    second.commit(make.turn(2))
    assert "second." in shared_postgres.run("SELECT holder FROM dray.leader")


def test_rows_never_hide_turns_that_a_database_has_lost(
    open_postgres: Open, shared_postgres: Server, make: Any, tmp_path: Path
) -> None:
    """Rows come by a connection of their own: written to a server that lacks their turn, they would claim that it was
    there, and the next commit would find nothing wrong.
    """
    home = tmp_path / "home"
    home.mkdir()
    store = open_postgres(home=home)
    store.begin_epoch()
    for seq in (1, 2, 3):
        store.commit(make.turn(seq))
    store.project(make.projection(1))
    shared_postgres.run("DELETE FROM dray.log WHERE seq > 1")
    with pytest.raises(EpochLost):
        store.project(make.projection(3, jobs=[make.row(1)]))
    store.close(clean=False)
    # Rows alone may be what was lost.
    third = open_postgres()
    third.begin_epoch()
    third.commit(make.turn(2))
    third.project(make.projection(2))
    shared_postgres.run("UPDATE dray.meta SET applied_seq = 1")
    with pytest.raises(EpochLost):
        third.project(make.projection(2, jobs=[make.row(1)]))
    third.close(clean=False)
    shared_postgres.run("DELETE FROM dray.log WHERE seq > 1")
    again = open_postgres(home=home)
    again.begin_epoch()
    assert (again.lost, again.find_job("j1")) == ((Position(2, 1), Position(1, 3)), None)


def test_a_newer_schema_is_refused_and_an_older_one_waits_for_its_leader(
    open_postgres: Open, shared_postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_postgres()
    first.begin_epoch()
    steps = ("ALTER TABLE dray.meta ADD COLUMN more integer",)
    from dray.hub.store.postgres import schema

    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, steps))
    monkeypatch.setattr(schema, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    newer = open_postgres()
    version = "SELECT version FROM dray.meta"
    assert shared_postgres.run(version) == str(SCHEMA_VERSION), "another one leads, and may be older"
    newer.begin_epoch()
    assert shared_postgres.run(version) == str(SCHEMA_VERSION + 1)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="upgrade dray"):
        open_postgres()


def test_a_server_that_is_stopped_holds_the_store_up_and_loses_nothing(
    open_postgres: Open, servers: Callable[..., Server], make: Any
) -> None:
    server = servers()
    store = open_postgres(server.url("postgres"), lease_s=1.0)
    store.begin_epoch()
    store.commit(make.turn(1))
    server.pause(signal.SIGSTOP)
    waiting = store.commit_soon(make.turn(2))
    wait_until(lambda: not store.is_trusted)
    assert not waiting.done()
    server.pause(signal.SIGCONT)
    waiting.result(60)
    server.kill()
    waiting = store.commit_soon(make.turn(3))
    server.start()
    waiting.result(60)
    wait_until(lambda: store.is_trusted)
    assert [entry.seq for entry in store.tail(0)] == [1, 2, 3]
    server.kill()
    waiting = store.commit_soon(make.turn(4))
    with contextlib.suppress(StoreError):
        store.hurry()
        waiting.result(60)
    assert isinstance(waiting.exception(), StoreError)


def test_rows_outlive_a_server_that_is_killed_right_after_them(
    open_postgres: Open, servers: Callable[..., Server], make: Any
) -> None:
    """The hub goes on and believes them written: nobody would write them again."""
    server = servers("wal_writer_delay=10s")
    store = open_postgres(server.url("postgres"), lease_s=30.0)
    store.begin_epoch()
    store.commit(make.turn(1))
    store.project(make.projection(1, jobs=[make.row(1)]))
    server.kill()
    server.start()
    store.commit(make.turn(2))
    store.project(make.projection(2, jobs=[make.row(2)]))
    assert [job.id for job in store.load().jobs] == ["j1", "j2"]
