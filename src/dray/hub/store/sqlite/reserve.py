"""A file that holds disk space back, so that results can still be recorded on a full disk.

Given up once, at the first write that finds no room, and taken again when there is plenty. Knows nothing of SQLite.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_CHUNK = bytes(1 << 20)


class Reserve:
    """`size_bytes` of disk beside the store, held from the start."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes

    @property
    def held(self) -> bool:
        """Whether the space is held back; true as well where none was asked for."""
        if not self.size_bytes:
            return True
        try:
            return self.path.stat().st_size >= self.size_bytes
        except FileNotFoundError:
            return False

    def take(self) -> bool:
        """Hold the space back; False where the disk has not enough, which leaves nothing behind."""
        if self.held:
            return True
        handle = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            _allocate(handle, self.size_bytes)
        except OSError as error:
            self.release()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return False
            raise
        finally:
            os.close(handle)
        return True

    def release(self) -> bool:
        """Give the space back to the disk; tells whether there was any."""
        try:
            size_bytes = self.path.stat().st_size
            self.path.unlink()
        except FileNotFoundError:
            return False
        return size_bytes > 0


def _allocate(handle: int, size_bytes: int) -> None:
    """Give the file real blocks: a hole in a file holds nothing back."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size_bytes)
        return
    for start in range(0, size_bytes, len(_CHUNK)):
        os.pwrite(handle, _CHUNK[: size_bytes - start], start)
