"""Keeping the write-ahead log at one size, so that commits overwrite blocks instead of extending the file.

The log is grown once at the start. When half of it is used, a thread of its own copies it into the database while
commits go on; the writer then copies the short rest between two commits, and the next commit starts at the log's
beginning again. How full the log is, is read from the file itself: each frame repeats the salt of the header while
it is current. Opening that file is safe, since SQLite's locks sit on the other two.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

from dray.hub.store.base import Position
from dray.hub.store.sqlite.opening import connect

_log = logging.getLogger(__name__)
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_PAGE_BYTES = 4096
FRAME_BYTES = _FRAME_HEADER_BYTES + _PAGE_BYTES
_ZEROS = bytes(1 << 20)


def wal_path(path: Path) -> Path:
    """Name the write-ahead log of a store file."""
    return path.with_name(path.name + "-wal")


def grow_wal(connection: sqlite3.Connection, path: Path, wal_bytes: int) -> bool:
    """Extend the log with zeros, which SQLite takes for "no frame"; False where the disk has no room for it.

    Done under the write lock: another process could otherwise append a frame where the zeros go.
    """
    connection.execute("BEGIN IMMEDIATE")
    handle = os.open(wal_path(path), os.O_WRONLY | os.O_CLOEXEC)
    size = os.fstat(handle).st_size
    try:
        for start in range(size, wal_bytes, len(_ZEROS)):
            os.pwrite(handle, _ZEROS[: wal_bytes - start], start)
        os.fsync(handle)
    except OSError as error:
        os.ftruncate(handle, size)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    finally:
        os.close(handle)
        connection.execute("ROLLBACK")
    return True


class WalGauge:
    """Tells how far the log is used, by two short reads."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(wal_path(path), os.O_RDONLY | os.O_CLOEXEC)

    def salt(self) -> bytes:
        """Give the mark of the log's present round; it changes when the log starts over."""
        return os.pread(self._handle, 8, 16)

    def reached(self, frames: int, salt: bytes) -> bool:
        """Tell whether the log holds at least that many frames."""
        return os.pread(self._handle, 8, _HEADER_BYTES + (frames - 1) * FRAME_BYTES + 8) == salt

    def close(self) -> None:
        """Let the file go."""
        os.close(self._handle)


class _Stage(Enum):
    IDLE = auto()
    COPYING = auto()
    COPIED = auto()


class Checkpointer:
    """Copies the log into the database before it would grow. `after_commit` is called by the writer thread.

    `copies` counts beginnings and ends of copies: while it is odd, or where it has grown, the database was written to
    by this process. `copied` is called after each.
    """

    def __init__(self, path: Path, wal_bytes: int, copied: Callable[[], None] = lambda: None) -> None:
        self._copied = copied
        self._connection = connect(path)
        self._gauge = WalGauge(path)
        self._half = max(8, wal_bytes // FRAME_BYTES // 2)
        self._due = self._half
        self._salt = b""
        self._stage = _Stage.IDLE
        self._wake = threading.Event()
        self._stopping = False
        self.rounds = 0
        self.copies = 0
        self.fault = ""
        self._thread = threading.Thread(target=self._serve, name="dray-checkpoint", daemon=True)
        self._thread.start()

    def after_commit(self, writer: sqlite3.Connection) -> None:
        """Start or finish a round where one is due; costs two reads of eight bytes otherwise."""
        if self._stage is _Stage.COPYING:
            return
        if self._stage is _Stage.COPIED:
            self._stage = _Stage.IDLE
            frames = self._copy(writer)
            # Where a reader keeps the log from starting over, the next try waits until it has grown by a quarter.
            self._due = max(self._due, frames) + self._half // 2
            self.rounds += 1
            return
        salt = self._gauge.salt()
        if salt != self._salt:
            self._salt = salt
            self._due = self._half
        if self._gauge.reached(self._due, salt):
            self._stage = _Stage.COPYING
            self._wake.set()

    def close(self) -> None:
        """Wait for the copy under way and let the files go."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._connection.close()
        self._gauge.close()

    def _serve(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                return
            self._copy(self._connection)
            self._stage = _Stage.COPIED

    def _copy(self, connection: sqlite3.Connection) -> int:
        """Copy what can be copied without waiting for anybody; gives the frames in the log, 0 where it failed.

        A failure harms nothing yet: the log stays whole and grows until a later round succeeds.
        """
        self.copies += 1
        try:
            row = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            if self.fault != str(error):
                _log.warning("the store's write-ahead log cannot be copied into its database: %s", error)
            self.fault = str(error)
            return 0
        finally:
            self.copies += 1
        self.fault = ""
        self._copied()
        return max(0, int(row[1]))


def keep_aside(path: Path, known: Position) -> Path | None:
    """Copy the log of a store that has lost turns before anything is written over it: what SQLite cannot read any more
    may still be in there.
    """
    log = wal_path(path)
    kept = log.with_name(f"{log.name}.lost-{known.seq}")
    try:
        if not kept.exists() and log.exists():
            shutil.copyfile(log, kept)
            kept.chmod(0o600)
    except OSError as error:
        with contextlib.suppress(OSError):
            kept.unlink()
        _log.warning("%s cannot be kept aside: %s", log, error.strerror)
        return None
    return kept
