"""SQLite's errors in the words of dray's own.

Knows only codes, never what was being written. A full disk is told apart from every other fault, because the engine
answers it by refusing new work instead of stopping.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dray.errors import NoSpace, StoreError

_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def code_of(error: sqlite3.Error) -> int:
    """Give SQLite's extended result code; 0 where the fault is the module's own."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0)


def is_full(error: sqlite3.Error) -> bool:
    """Tell whether the disk ran out of space."""
    return code_of(error) in _FULL


def is_damage(error: sqlite3.Error) -> bool:
    """Tell whether the file contradicts itself."""
    return code_of(error) & 0xFF in _DAMAGED


def damage(path: Path, found: str) -> StoreError:
    """Say that a store file is damaged, what was seen and what to do."""
    return StoreError(
        f"the store {path} is damaged: {found}. It was left as it is: restore a backup of it (with no hub running put "
        f"the file back, and remove {path.name}-wal, {path.name}-shm and {path.name}.witness). `dray doctor` tells, "
        f"without a hub, what can still be read"
    )


def tell_unusable(home: Path, fault: OSError) -> str:
    """Say that a file of the home could not be made, read or written, and what to do."""
    place = fault.filename or home
    reason = fault.strerror or type(fault).__name__
    if fault.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = f"free space on the disk under {home}"
    elif fault.errno == errno.EROFS:
        advice = f"mount the disk under {home} for writing, or name another home with --home"
    elif fault.errno in (errno.EACCES, errno.EPERM):
        advice = (
            "give it to this user (chown -R), or run the hub as its owner, or name another home with --home"
        )
    else:
        advice = f"check the disk under {home}, or name another home with --home"
    advice = advice[0].upper() + advice[1:]
    return f"the home {home} cannot be used: {place}: {reason}. {advice}; `dray doctor` looks at it"


def translate(error: sqlite3.Error, path: Path, asked: str) -> StoreError | NoSpace:
    """Turn a SQLite error into the one that callers know."""
    if is_full(error):
        return NoSpace(f"cannot {asked}: the disk under {path} is full: free space there, then try again")
    if is_damage(error):
        return damage(path, str(error))
    if code_of(error) & 0xFF == sqlite3.SQLITE_BUSY:
        return StoreError(
            f"cannot {asked}: another process keeps {path} locked: stop it, or look for a second hub on this store"
        )
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    return StoreError(f"cannot {asked} in {path}: {error} ({name}): check the disk and its permissions")


@contextmanager
def translated(path: Path, asked: str) -> Iterator[None]:
    """Let no SQLite error out of the block."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path, asked) from error
