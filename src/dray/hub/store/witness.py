"""What a store was last known to hold, written down outside it: a store that has lost its newest turns cannot say so.

Owns one small checksummed file beside the store. It is overwritten after each commit, in one write and without waiting
for the disk: that outlives the process (kill -9), and a power failure can only leave an older word, which proves less
and accuses nobody. At checkpoints and at a clean stop it is brought to the disk. A write that fails costs the proof,
never the commit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from dray.hub.store.base import Position

_log = logging.getLogger(__name__)
_WORD = struct.Struct("<8sQQ")
_SUM = struct.Struct("<I")
_MARK = b"draywit1"


def witness_path(path: Path) -> Path:
    """Name the witness of a store file."""
    return path.with_name(path.name + ".witness")


def witness_place(home: Path, store_id: str) -> Path:
    """Name what a home keeps a witness of, where the store is a database."""
    return home / f"postgres-{store_id[:12]}"


def read_witness(path: Path) -> Position | None:
    """Give what the store at `path` was last known to hold; None where nobody knows."""
    try:
        raw = witness_path(path).read_bytes()
    except OSError:
        return None
    word, check = raw[: _WORD.size], raw[_WORD.size : _WORD.size + _SUM.size]
    if len(check) < _SUM.size or _SUM.unpack(check)[0] != zlib.crc32(word):
        return None
    mark, epoch, seq = _WORD.unpack(word)
    return Position(epoch, seq) if mark == _MARK else None


class Witness:
    """The file, open for as long as the store is."""

    def __init__(self, path: Path) -> None:
        self._path = witness_path(path)
        self._handle = -1
        self._failed = False
        with self._forgiven():
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def note(self, epoch: int, seq: int) -> None:
        """Write down what has just been committed; about a microsecond."""
        if self._handle >= 0:
            word = _WORD.pack(_MARK, epoch, seq)
            try:
                os.pwrite(self._handle, word + _SUM.pack(zlib.crc32(word)), 0)
            except OSError as error:
                self._tell(error)

    def sync(self) -> None:
        """Bring the last word to the disk."""
        if self._handle >= 0:
            with self._forgiven():
                os.fsync(self._handle)

    def close(self) -> None:
        """Let the file go."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            os.close(handle)

    @contextlib.contextmanager
    def _forgiven(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if not self._failed:
            _log.warning(
                "%s cannot be written (%s): lost turns would go unnoticed", self._path, error.strerror
            )
        self._failed = True
