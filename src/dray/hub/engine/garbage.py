"""The garbage collector of a hub: young objects as ever, all of them only when this module says so.

A full collection walks over everything alive: with 10,000 workers connected it stops the loop for most of a second, and
the interpreter makes one every few seconds, because what it counts are allocations. It finds next to nothing: records
hold no references to each other, connections take themselves apart, and most of what does refer to itself dies young.
What is left may wait for the round of housekeeping after enough of it has gathered.
"""

from __future__ import annotations

import gc
import time

# A collection of the middle generation walks over YOUNG x MIDDLE objects at most, in about ten milliseconds.
YOUNG, MIDDLE, NEVER = 5_000, 5, 1_000_000
# Each of these rounds comes after so many more objects than were let go: some ten million of them in all.
MOST_ROUNDS = 400
AT_LATEST_S = 3600.0


def take_over_collector() -> None:
    """Let full collections be made by `Collector` alone. For a process that is a hub and nothing else."""
    gc.set_threshold(YOUNG, MIDDLE, NEVER)


def leave_out_what_is_there(again: bool) -> None:
    """Once the state is loaded: it stays, so no collection need look at it. Again: an earlier state is let go first.

    The first time, what is left out already belongs to whoever made this process: one that was forked shares it, and
    would get a copy of all that it looks at.
    """
    if again:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


class Collector:
    """Knows when everything was last looked at."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()

    def tend(self) -> bool:
        """Collect everything if it is time; gives whether it was. To be called now and then."""
        now_s = time.monotonic()
        if gc.get_count()[2] < MOST_ROUNDS and now_s - self._since_s < AT_LATEST_S:
            return False
        gc.collect()
        self._since_s = now_s
        return True
