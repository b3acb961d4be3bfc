"""What an agent has to know of a runner once both are dead: which lane it served, and which call of it it was in.

Two small files in the runner's folder, which is the agent's: `lane`, written here with each binding, and `now`, which
the runner maps and writes (wire.local.runner_now). Surprising rule: a runner may write what it likes into its own, and
cannot by that speak of a lane that it was never bound to.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

from dray.wire.local.runner_now import SIZE, read_call

_HEAD = struct.Struct("<II?3x")
_RELEASED = 8
_LANE_BYTES = 4096


class RunnerNotes:
    """The notes about one runner, open for as long as it lives."""

    def __init__(self, folder: str, owner: int, fresh: bool) -> None:
        """Open them, made anew where `fresh`; `owner` is whose the runner's own is to be, -1 for ours."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if fresh else 0)
        self._lane = os.open(f"{folder}/lane", flags, 0o600)
        try:
            self._now = os.open(f"{folder}/now", flags, 0o600)
        except OSError:
            os.close(self._lane)
            raise
        self._number = 0
        if fresh:
            os.ftruncate(self._now, SIZE)
            if owner >= 0:
                os.fchown(self._now, owner, -1)

    def bind(self, lane: str, job: str) -> int:
        """Note which lane it serves from now on; gives the number under which the runner is told so."""
        self._number = (self._number + 1) % (1 << 32)
        text = json.dumps([lane, job]).encode()
        os.pwrite(self._lane, _HEAD.pack(self._number, len(text), False) + text, 0)
        return self._number

    def release(self) -> None:
        """The lane is through with this runner: it is no longer in the hands of anybody here."""
        os.pwrite(self._lane, b"\1", _RELEASED)

    def resume(self) -> None:
        """The lane that it served last has it again."""
        os.pwrite(self._lane, b"\0", _RELEASED)

    def read(self) -> dict[str, Any] | None:
        """What it was doing: its lane and job, and the call it was in (index -1: none). None where it had no lane."""
        data = os.pread(self._lane, _LANE_BYTES, 0)
        if len(data) < _HEAD.size:
            return None
        number, length, released = _HEAD.unpack_from(data)
        lane, job = json.loads(data[_HEAD.size : _HEAD.size + length])
        call = read_call(self._now, number)
        if released and call is None:
            return None
        index, no = call or (-1, 0)
        return {"lane": lane, "job": job, "index": index, "no": no}

    def close(self) -> None:
        os.close(self._lane)
        os.close(self._now)


def read_notes(folder: str) -> dict[str, Any] | None:
    """What the notes in a folder say, of a runner that another agent started; None where there are none."""
    try:
        notes = RunnerNotes(folder, -1, fresh=False)
    except OSError:
        return None
    try:
        return notes.read()
    except (OSError, ValueError):
        return None
    finally:
        notes.close()
