"""Whether the files that a store writes to are still those that a restart would open.

An open file can be removed or replaced by name without anybody who has it open being told, and everything committed to
it from then on is gone with the process. So name and file are compared, by one `stat` each for the database and its
write-ahead log. The database itself is written to by checkpoints alone: a change outside one is somebody copying
another file over it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dray.errors import StoreGone
from dray.hub.store.sqlite.checkpoint import wal_path

_ADVICE = (
    "The hub stops here: nothing it was asked since can be kept. Stop a hub (dray down) before its files are moved or "
    "restored, put them back, then start it (dray up); without a hub `dray doctor` tells what is there"
)


class FileGuard:
    """Remembers both files as they were when the store was opened. `copies` counts this process's own writes."""

    def __init__(self, path: Path, copies: Callable[[], int]) -> None:
        self._path, self._wal = str(path), str(wal_path(path))
        self._copies = copies
        self._seen_copies = -1
        self._content = (0, 0)
        found, log = os.stat(self._path), os.stat(self._wal)
        self._file, self._log = (found.st_dev, found.st_ino), (log.st_dev, log.st_ino)

    def check(self) -> None:
        """Raise `StoreGone` where a restart would see other files."""
        copies = self._copies()
        try:
            found = os.stat(self._path)
            log = os.stat(self._wal)
        except OSError as error:
            raise StoreGone(
                f"the store's file {error.filename} is gone ({error.strerror}). {_ADVICE}"
            ) from None
        if (found.st_dev, found.st_ino) != self._file:
            raise StoreGone(f"the store {self._path} was replaced by another file. {_ADVICE}")
        if (log.st_dev, log.st_ino) != self._log:
            raise StoreGone(f"the store's log {self._wal} was replaced by another file. {_ADVICE}")
        content = (found.st_mtime_ns, found.st_size)
        if copies & 1 or copies != self._copies():
            return
        if copies != self._seen_copies:
            self._seen_copies, self._content = copies, content
        elif content != self._content:
            raise StoreGone(f"the store {self._path} was written to by another program. {_ADVICE}")
