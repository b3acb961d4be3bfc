"""A lock with a bell, for threads that Ctrl-C may reach.

`threading.Condition` is entered by a function of its own, and left and entered again while it waits: an interrupt that
comes in there keeps the lock for good, and whoever takes it next, here the loop that talks to the hub, stands still.
The lock below is taken and let go by `with` itself, where no interrupt comes in between, and nobody waits inside it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from _thread import RLock, allocate_lock
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Bell(RLock):  # type: ignore[misc]  # made to be derived from, whatever the stubs say
    """Held by `with`; rung by whoever has changed something, with the lock held."""

    def __init__(self) -> None:
        self._ears: list[threading.Lock] = []

    def notify_all(self) -> None:
        """Wake all who wait; named as futures of the standard library know it."""
        ears, self._ears = self._ears, []
        for ear in ears:
            ear.release()

    def wait_for(self, look: Callable[[], T | None], timeout: float | None = None) -> T | None:
        """What `look` gives, which is called with the lock held, as soon as it gives something; else None in time."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        while True:
            left = -1.0 if ends_at is None else min(ends_at - time.monotonic(), threading.TIMEOUT_MAX)
            with self:
                found = look()
                if found is not None or (ends_at is not None and left <= 0):
                    return found
                ear = allocate_lock()
                ear.acquire()
                self._ears.append(ear)
            if not ear.acquire(timeout=left):
                with self, contextlib.suppress(ValueError):  # it was rung meanwhile
                    self._ears.remove(ear)
