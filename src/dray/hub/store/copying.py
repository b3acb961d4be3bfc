"""A whole store carried to another kind: from a file to a database, or back. No hub may run on either.

Rows travel as they are, table by table, inside one transaction at the other end; then every table is read back there
and held against what was read here, by a digest over all of its rows. The other end begins an epoch later: whatever the
old place still sends is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import asyncpg
import msgspec

from dray.errors import StoreError
from dray.hub.store.base import Position
from dray.hub.store.columns import clean, clean_values
from dray.hub.store.leading import Timings
from dray.hub.store.postgres.address import Address, is_address
from dray.hub.store.postgres.connection import Target, check_server, open_connection
from dray.hub.store.postgres.errors import translate
from dray.hub.store.postgres.projections import NAMES
from dray.hub.store.postgres.schema import SCHEMA_VERSION, migrate, read_version
from dray.hub.store.sqlite.opening import connect, read_position
from dray.hub.store.sqlite.store import SqliteStore

BATCH = 5_000
WATCH_S = 4.0
_encode = msgspec.msgpack.Encoder().encode
# Each with its columns in one order, by its key; numbers of arrival are kept.
TABLES: dict[str, tuple[tuple[str, ...], str]] = {
    "log": (("seq", "now_ms", "at_ms", "facts", "notes"), "seq"),
    "keys": (("id", "user", "key", "at_ms", "job_ids"), "id"),
    "jobs": (
        (
            *("seq", "id", "user", "name", "queue", "state", "labels"),
            *("submitted_at_ms", "ended_at_ms", "record", "workload"),
        ),
        "seq",
    ),
    "tasks": (("job_id", "idx", "state", "record"), "job_id, idx"),
    "attempts": (
        (
            *("number", "job_id", "idx", "no", "worker", "name", "user", "shape", "gpu_type", "phase"),
            *(
                "exit_class",
                "exit_code",
                "assigned_at_ms",
                "started_at_ms",
                "ended_at_ms",
                "wall_s",
                "record",
            ),
            *("queue", "plugin", "template", "limit_ms", "cpu_s", "gpu_s", "gpu_seen_s"),
        ),
        "number",
    ),
    "workers": (("id", "record"), "id"),
    "ledger": (("kind", "key", "record"), "kind, key"),
    "tokens": (("id", "record"), "id"),
    "audit": (("id", "at_ms", "user", "token_id", "action", "target", "detail"), "id"),
    "samples": (("id", "at_ms", "record"), "id"),
    "call_args": (("job_id", "first", "calls", "blob"), "job_id, first"),
    "call_results": (("id", "job_id", "lo", "hi", "seq", "worker", "lane", "at_ms", "blob"), "id"),
    "blobs": (("digest", "size", "at_ms"), "digest"),
    "blob_refs": (("digest", "job_id"), "digest, job_id"),
}
_META = ("applied_seq", "now_ms", "at_ms", "clock_base", "counters")
_ARRIVALS = ("keys", "audit", "call_results")
Row = tuple[Any, ...]


class Copied(NamedTuple):
    """One table at the other end."""

    table: str
    rows: int
    digest: str


class Beside(Protocol):
    """What is carried along in the same transaction; `finish` or `undo` ends it where it goes into a home."""

    async def to_database(self, connection: Any, tell: Callable[[Copied], None]) -> None: ...
    async def to_home(self, connection: Any, tell: Callable[[Copied], None]) -> None: ...
    def finish(self) -> None: ...
    def undo(self) -> None: ...


class _Tally:
    """A digest over rows in their order, whichever kind of store they come from."""

    def __init__(self, table: str) -> None:
        columns = TABLES[table][0]
        self._labels = columns.index("labels") if "labels" in columns else -1
        self._sum, self.rows = hashlib.sha256(), 0

    def pass_on(self, row: Row) -> list[Any]:
        """Count a row; gives it as it is to be written."""
        values = clean_values(tuple(row))
        told = list(values)
        if self._labels >= 0:
            # A database has its own way to write a document down.
            labels = msgspec.json.decode(values[self._labels])
            told[self._labels] = kept = sorted((clean(name), clean(value)) for name, value in labels.items())
            values[self._labels] = msgspec.json.encode(dict(kept)).decode()
        self._sum.update(_encode(told))
        self.rows += 1
        return values

    def result(self, table: str) -> Copied:
        return Copied(table, self.rows, self._sum.hexdigest())


def copy_store(
    source: str, target: str, tell: Callable[[Copied], None], beside: Beside | None = None
) -> Position:
    """Copy all of a store; gives where the copy stands. `tell` hears of each table that is there and the same."""
    if is_address(source) == is_address(target):
        raise StoreError(
            "one of the two is a file (HOME/hub.sqlite), the other a database (postgres://…): to copy a file use "
            "SQLite's backup, to copy a database pg_dump (see docs/howto/upgrade-and-backup.md)"
        )
    if is_address(source):
        if (path := Path(target)).exists():
            raise StoreError(f"{path} is there already: name a file that is not, or move that one away")
        return asyncio.run(_to_file(Address(source), path, tell, beside))
    if not (path := Path(source)).is_file():
        raise StoreError(f"there is no store at {path}: name the file hub.sqlite of a hub's home")
    return asyncio.run(_to_database(path, Address(target), tell, beside))


# --- from a file to a database ------------------------------------------------------------------------------


async def _to_database(
    path: Path, address: Address, tell: Callable[[Copied], None], beside: Beside | None
) -> Position:
    found = SqliteStore.open(path, reserve_bytes=0)
    lost = found.lost
    found.close(clean=True)
    if lost is not None:
        raise StoreError(f"{path} has lost turns: start its hub once, and deal with the report that it files")
    async with _connected(address, "copy the store") as connection:
        await migrate(connection, address, if_empty=False)
        with closing(connect(path, read_only=True)) as file:
            position = read_position(file)
            async with connection.transaction():
                await _claim(connection, address)
                tallies = [await _fill_table(connection, file, table, position.epoch) for table in TABLES]
                meta = file.execute(f"SELECT {', '.join(_META)} FROM meta").fetchone()  # noqa: S608 - constants
                marks = ", ".join(f"{name} = ${at}" for at, name in enumerate(_META, 1))
                await connection.execute(f"UPDATE dray.meta SET {marks}", *meta)  # noqa: S608 - as above
                await connection.execute(
                    "UPDATE dray.leader SET epoch = $1, now_ms = $2", position.epoch + 1, meta[1]
                )
                for table in _ARRIVALS:
                    await connection.execute(
                        f"SELECT setval(pg_get_serial_sequence('dray.{table}', 'id'), "  # noqa: S608 - as above
                        f"greatest((SELECT max(id) FROM dray.{table}), 1))"
                    )
                for copied in tallies:
                    rows = _rows_of_database(connection, copied.table)
                    await _hold_against(copied, rows, tell)
                if beside is not None:
                    await beside.to_database(connection, tell)
    return Position(position.epoch + 1, position.seq)


async def _claim(connection: Any, address: Address) -> None:
    """Nobody may begin there meanwhile; and nobody may have."""
    row = await connection.fetchrow("SELECT epoch FROM dray.leader WHERE id = 1 FOR UPDATE")
    if row["epoch"]:
        raise StoreError(
            f"{address} holds a store already (epoch {row['epoch']}): name an empty database, or remove that one with "
            "DROP SCHEMA dray CASCADE"
        )


async def _fill_table(connection: Any, file: sqlite3.Connection, table: str, epoch: int) -> Copied:
    columns, key = TABLES[table]
    query = f"SELECT {', '.join(columns)} FROM {table} ORDER BY {key}"  # noqa: S608 - constants of this module
    tally, names = _Tally(table), [NAMES.get(column, column) for column in columns]
    extra = [epoch] if table == "log" else []
    for batch in _batches(tally.pass_on(row) + extra for row in file.execute(query)):
        await connection.copy_records_to_table(
            table, records=batch, columns=[*names, *(["epoch"] if extra else [])], schema_name="dray"
        )
    return tally.result(table)


def _batches(rows: Iterable[list[Any]]) -> Iterator[list[list[Any]]]:
    batch: list[list[Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


# --- from a database to a file ------------------------------------------------------------------------------


async def _to_file(
    address: Address, path: Path, tell: Callable[[Copied], None], beside: Beside | None
) -> Position:
    async with _connected(address, "copy the store") as connection:
        if await read_version(connection, address) != SCHEMA_VERSION:
            raise StoreError(f"{address} holds no store of this version: start a hub on it once")
        await _check_silent(connection, address)
        SqliteStore.open(path, reserve_bytes=0).close(clean=True)
        try:
            with closing(connect(path)) as file:
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    position = await _fill_file(connection, file, tell, beside)
            if beside is not None:
                beside.finish()
        except BaseException:
            if beside is not None:
                beside.undo()
            for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}.witness"):
                path.with_name(name).unlink(missing_ok=True)
            raise
    return position


async def _check_silent(connection: Any, address: Address) -> None:
    """Refuse while a hub leads there: its beat goes on."""
    beat = "SELECT epoch, beat, holder FROM dray.leader WHERE id = 1"
    first = await connection.fetchrow(beat)
    if first["holder"]:
        await asyncio.sleep(WATCH_S)
        if await connection.fetchrow(beat) != first:
            raise StoreError(f"{first['holder']} leads in {address}: stop that hub first")


async def _fill_file(
    connection: Any, file: sqlite3.Connection, tell: Callable[[Copied], None], beside: Beside | None
) -> Position:
    file.execute("BEGIN IMMEDIATE")
    tallies = []
    for table, (columns, _) in TABLES.items():
        tally, marks = _Tally(table), ", ".join("?" * len(columns))
        insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - constants
        async for row in _rows_of_database(connection, table):
            file.execute(insert, tally.pass_on(row))
        tallies.append(tally.result(table))
    names = ", ".join(f"meta.{name}" for name in _META)
    epoch, *meta = await connection.fetchrow(f"SELECT leader.epoch, {names} FROM dray.meta, dray.leader")  # noqa: S608 - as above
    marks = ", ".join(f"{name} = ?" for name in _META)
    file.execute(f"UPDATE meta SET epoch = ?, {marks}", (epoch + 1, *meta))  # noqa: S608 - as above
    for copied in tallies:
        columns, key = TABLES[copied.table]
        query = f"SELECT {', '.join(columns)} FROM {copied.table} ORDER BY {key}"  # noqa: S608 - as above
        await _hold_against(copied, _in_turn(file.execute(query)), tell)
    if beside is not None:
        await beside.to_home(connection, tell)
    file.execute("COMMIT")
    return read_position(file)


async def _in_turn(rows: Iterable[Row]) -> AsyncIterator[Row]:
    for row in rows:
        yield row


# --- both ---------------------------------------------------------------------------------------------------


async def _rows_of_database(connection: Any, table: str) -> AsyncIterator[Row]:
    columns, key = TABLES[table]
    names = [NAMES.get(column, column) for column in columns]
    # Text in the order of its bytes, as a file has it, and documents as text.
    picked = ", ".join(f"{name}::text" if name == "labels" else name for name in names)
    query = f"SELECT {picked} FROM dray.{table} ORDER BY {key}"  # noqa: S608 - constants of this module
    cursor = await connection.cursor(query)
    while rows := await cursor.fetch(BATCH):
        for row in rows:
            yield tuple(row)


async def _hold_against(copied: Copied, rows: AsyncIterator[Row], tell: Callable[[Copied], None]) -> None:
    tally = _Tally(copied.table)
    async for row in rows:
        tally.pass_on(row)
    found = tally.result(copied.table)
    if found != copied:
        raise StoreError(
            f"the copy of {copied.table} is not what was read ({found.rows} of {copied.rows} rows): nothing is kept"
        )
    tell(copied)


@asynccontextmanager
async def _connected(address: Address, asked: str) -> AsyncIterator[Any]:
    target = Target(address, "dray store copy", Timings(30.0))
    await check_server(target)
    connection = await open_connection(target)
    try:
        # It reads a file between two statements, and that may take its time.
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        yield connection
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translate(error, address, asked) from error
    finally:
        await connection.close(timeout=1)
