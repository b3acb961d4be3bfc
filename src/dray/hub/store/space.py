"""The room on a disk, and how often it is asked for: a look at every submit costs more than it keeps safe."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

LOOK_S = 0.2


def free_bytes(folder: Path) -> int:
    """Give the space that this user may still write to the disk under `folder`."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


class SpaceWatch:
    """Whether the disk is nearly full. Plenty of room is believed for a moment, since what is written within it fits
    into the room that is kept free; the lack of it is looked at anew each time.
    """

    def __init__(self, is_low: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_low, self._clock = is_low, clock
        self._believed_until = 0.0

    def __call__(self) -> bool:
        now = self._clock()
        if now < self._believed_until:
            return False
        low = self._is_low()
        self._believed_until = 0.0 if low else now + LOOK_S
        return low
