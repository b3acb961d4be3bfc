"""What a runner tells of its own state: how much it has grown, and whether calls left processes behind.

Looked at rarely, since calls are short: a few times a second at most while calls run, and once when they stop.
"""

from __future__ import annotations

import os
import time

from dray.wire.local.runner_frames import grown_frame

EVERY_NS = 200_000_000
TOLD_BYTES = 64 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Upkeep:
    """Watches one process from within. `due`: calls have run since the last look."""

    def __init__(self) -> None:
        self._base = read_resident()
        self._told = 0
        self._looked_ns = time.monotonic_ns()
        self.due = False

    def look(self, idle: bool) -> bytes | None:
        """A frame for the agent, where there is news."""
        now_ns = time.monotonic_ns()
        if not idle and now_ns - self._looked_ns < EVERY_NS:
            return None
        self._looked_ns = now_ns
        self.due = not idle
        growth = max(0, read_resident() - self._base)
        littered = idle and has_children()
        if not littered and growth - self._told < TOLD_BYTES:
            return None
        self._told = growth
        return grown_frame(growth, littered)


def read_resident() -> int:
    """Memory of this process in bytes; 0 where that cannot be had."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def has_children() -> bool:
    """Whether processes that this one has started are alive."""
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return False
    pids: list[str] = []
    for task in tasks:
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                pids += file.read().split()
        except OSError:
            continue
    return any(map(_is_alive, pids))


def _is_alive(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False
