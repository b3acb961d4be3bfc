"""What a solver answers, for the hub that asks and for the process that is asked: neither loads the other for it."""

from __future__ import annotations

import msgspec

# (job, index, worker) of each task.
Hints = tuple[tuple[str, int, str], ...]


class Solved(msgspec.Struct, array_like=True):
    """Where tasks are best placed; those that are not named have no better place than any."""

    hints: Hints
