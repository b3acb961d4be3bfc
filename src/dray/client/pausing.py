"""Waiting inside a task: the slot is given up while a task waits for what it submitted, and taken back afterwards.

Without that, tasks that wait for their children would fill all slots and the children would never start. Outside of a
task it is a plain wait. The first moment is waited through without giving anything up, since most children of short
calls have ended by then.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

PATIENCE_S = 0.01


@contextlib.contextmanager
def pausing(timeout: float | None) -> Iterator[Iterator[float | None]]:
    """Give the spells to wait for, one after the other, until `timeout` is used up; leave early when it came true."""
    if not os.environ.get("DRAY_SESSION"):
        yield iter((timeout,))
        return
    from dray.client.session import session

    slot = session()
    yielded = False

    def spells() -> Iterator[float | None]:
        nonlocal yielded
        ends_at = None if timeout is None else time.monotonic() + timeout
        yield PATIENCE_S if timeout is None else min(PATIENCE_S, timeout)
        yielded = True
        slot.yield_slot()
        yield None if ends_at is None else max(0.0, ends_at - time.monotonic())

    try:
        yield spells()
    finally:
        if yielded:
            slot.resume_slot()
