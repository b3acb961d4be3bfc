"""Opening a store file: looking at it first, then connecting with the settings that durability rests on.

The look is taken through a read-only connection, so a damaged, foreign or newer file is left exactly as it was
found. The file is never opened outside SQLite: closing such a handle would drop the locks that SQLite holds for
this process.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from dray.errors import StoreError
from dray.hub.store.base import Position
from dray.hub.store.sqlite.errors import damage, translated
from dray.hub.store.sqlite.schema import check_version

Check = Literal["unclean", "always", "never"]
"""When to read the whole file for damage: after an unclean stop only, at each opening, or not at all."""

BUSY_S = 5.0
_STATEMENTS = 256
_FINDINGS = 3
_POSITION = "SELECT epoch, max(applied_seq, ifnull((SELECT max(seq) FROM log), 0)) FROM meta"


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Connect in autocommit mode, usable from any one thread at a time."""
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def connect_writer(path: Path) -> sqlite3.Connection:
    """Connect for durable writes: each commit is on the disk when it returns."""
    connection = connect(path)
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(
                f"{path} cannot use a write-ahead log (mode {mode}): put the hub's home on a local disk"
            )
        connection.execute("PRAGMA synchronous = FULL")
        # Without it macOS keeps a synced write in the drive's cache; elsewhere it changes nothing.
        connection.execute("PRAGMA fullfsync = 1")
        # Checkpoints are run beside the writer, never inside the commit that somebody waits for.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA cache_size = -65536")
    except BaseException:
        connection.close()
        raise
    return connection


def create_file(path: Path, known: Position | None = None) -> None:
    """Make an empty file that only its owner may read; SQLite gives its companions the same mode.

    Where a witness knows a store to have been here, an empty one in its place would be silence about all it held.
    """
    if known is not None and known.seq and not path.exists():
        raise StoreError(
            f"the store {path} is not there, and its witness knows of {known.seq} turns in it: put the file back, or "
            f"restore a backup of it; to start with nothing, remove {path.name}.witness, {path.name}-wal and "
            f"{path.name}-shm beside it too"
        )
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise StoreError(f"{path} is not a file: move it away, or give the hub another home") from None
    except OSError as error:
        raise StoreError(
            f"cannot create the store {path}: {error.strerror}: make its folder writable"
        ) from error


def inspect(path: Path, check: Check) -> Position:
    """Refuse a file that is no store, comes from a newer dray or is damaged; gives how far it is. Writes nothing."""
    with translated(path, "open the store"):
        connection = connect(path, read_only=True)
        try:
            version = check_version(connection, path)
            if version and (check == "always" or (check == "unclean" and not _was_clean(connection))):
                _check_pages(connection, path)
            return read_position(connection) if version else Position(0, 0)
        finally:
            connection.close()


def read_position(connection: sqlite3.Connection) -> Position:
    """Give epoch and newest turn; the rows know the turn where the log was swept."""
    row = connection.execute(_POSITION).fetchone()
    return Position(int(row[0]), int(row[1])) if row else Position(0, 0)


def _was_clean(connection: sqlite3.Connection) -> bool:
    row = connection.execute("SELECT clean FROM meta").fetchone()
    return row is not None and bool(row[0])


def _check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Read every page once. The slower full check would also compare indexes with rows; this one finds torn files."""
    found = [str(row[0]) for row in connection.execute(f"PRAGMA quick_check({_FINDINGS})")]
    if found != ["ok"]:
        raise damage(path, "; ".join(line.strip().replace("\n", ", ") for line in found))
