"""The call that a runner is in, in a small mapped file: it can be read after the process has died, however it did.

Written by the runner before every call and after it; so it may hold anything at all, and says no more than which call
of its lane, by two numbers. Which lane that is the agent notes in a file of its own (agent/runners/notes.py).
Surprising rule: for a job whose calls must not run twice it is not cleared after a call, since nobody knows yet
whether the result will arrive.
"""

from __future__ import annotations

import mmap
import os
import struct

from dray.wire.local.runner_frames import MAX_INDEX, MAX_NO

SIZE = 32
_BEGUN, _BOUND = struct.Struct("<qIB"), struct.Struct("<I")
_ALL = struct.Struct("<qIB3xI")
_FLAG, _BIND = 12, 16


class Now:
    """The writing side: the file is there already."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(descriptor, SIZE)
        os.close(descriptor)
        self.keeps = False

    def bind(self, number: int, keeps: bool) -> None:
        """The calls that follow are of the lane that was bound under this number."""
        self._map[_FLAG] = 0
        _BOUND.pack_into(self._map, _BIND, number)
        self.keeps = keeps

    def begin(self, index: int, no: int) -> None:
        if self.keeps:
            self._map[_FLAG] = 0
        _BEGUN.pack_into(self._map, 0, index, no, 1)

    def end(self) -> None:
        if not self.keeps:
            self._map[_FLAG] = 0


def read_call(descriptor: int, number: int) -> tuple[int, int] | None:
    """Index and number of the try of the call that a runner was in, of the lane bound under `number`; None: in none."""
    data = os.pread(descriptor, SIZE, 0)
    if len(data) < SIZE:
        return None
    index, no, flag, bound = _ALL.unpack_from(data)
    sound = 0 <= index <= MAX_INDEX and 1 <= no <= MAX_NO
    return (index, no) if flag == 1 and bound == number and sound else None
