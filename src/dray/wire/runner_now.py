"""The call that a runner is in, in a small mapped file: it can be read after the process has died, however it did.

Written before every call and after it. Surprising rule: for a job whose calls must not run twice it is not cleared
after a call, since nobody knows yet whether the result will arrive.
"""

from __future__ import annotations

import json
import mmap
import os
import struct

TYPE_CHECKING = False  # as in `dray/__init__.py`: `typing` is loaded by whoever needs it
if TYPE_CHECKING:
    from typing import Any

SIZE = 4096
_CALL, _BEGUN = struct.Struct("<qI"), struct.Struct("<qIB")
_FLAG, _RELEASED, _TEXT = 12, 13, 16
_LENGTH = struct.Struct("<I")


class Now:
    """The writing side."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, SIZE)
        self._map = mmap.mmap(descriptor, SIZE)
        os.close(descriptor)
        self.keeps = False

    def bind(self, lane: str, job: str, keeps: bool) -> None:
        """The calls that follow are of this lane."""
        self._map[_FLAG] = self._map[_RELEASED] = 0
        text = json.dumps([lane, job]).encode()
        _LENGTH.pack_into(self._map, _TEXT, len(text))
        self._map[_TEXT + 4 : _TEXT + 4 + len(text)] = text
        self.keeps = keeps

    def begin(self, index: int, no: int) -> None:
        if self.keeps:
            self._map[_FLAG] = 0
        _BEGUN.pack_into(self._map, 0, index, no, 1)

    def end(self) -> None:
        if not self.keeps:
            self._map[_FLAG] = 0


def release_now(descriptor: int | None) -> None:
    """Note from outside that the lane is through with this runner: it is no longer in the hands of anybody here."""
    if descriptor is not None:
        os.pwrite(descriptor, b"\1", _RELEASED)


def read_now(path: str) -> dict[str, Any] | None:
    """What a runner was doing: its lane and job, and the call it was in (index -1: none). None where it had no lane."""
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE)
        length = _LENGTH.unpack_from(data, _TEXT)[0]
        lane, job = json.loads(data[_TEXT + 4 : _TEXT + 4 + length])
        index, no = _CALL.unpack_from(data)
    except (OSError, ValueError, struct.error):
        return None
    running = data[_FLAG] == 1
    if data[_RELEASED] and not running:
        return None
    return {"lane": lane, "job": job, "index": index if running else -1, "no": no if running else 0}
