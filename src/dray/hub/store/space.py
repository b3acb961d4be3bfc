"""How often the disk is asked for its room: a look at every submit costs more than what it is there to keep safe."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.2


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
