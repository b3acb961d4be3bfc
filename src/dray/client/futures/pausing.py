"""Waiting inside a task: the slot is given up while a task waits for what it submitted, and taken back afterwards.

Without that, tasks that wait for their children would fill all slots and the children would never start. Outside of a
task it is a plain wait. The first moment is waited through without giving anything up, since most children of short
calls have ended by then. Surprising rule: the waits of the standard library are met where they leave their mark on a
future, in the list of its waiters, since nothing else of theirs passes by here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

PATIENCE_S = 0.01


def is_in_task() -> bool:
    """Whether this process runs inside a task, which has a slot to give up."""
    return bool(os.environ.get("DRAY_SESSION"))


@contextlib.contextmanager
def pausing(timeout: float | None) -> Iterator[Iterator[float | None]]:
    """Give the spells to wait for, one after the other, until `timeout` is used up; leave early when it came true."""
    if not is_in_task():
        yield iter((timeout,))
        return
    from dray.client.futures.task_session import session

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


async def pause_until(end: asyncio.Future[Any]) -> None:
    """Wait in an event loop, which goes on meanwhile; how it ended is not looked at."""
    if not is_in_task():
        await asyncio.wait((end,))
    elif not (await asyncio.wait((end,), timeout=PATIENCE_S))[0]:
        await _wait_without_slot(end)


async def _wait_without_slot(end: asyncio.Future[Any]) -> None:
    from dray.client.futures.task_session import session

    slot = session()
    slot.yield_slot()
    try:
        await asyncio.wait((end,))
    except GeneratorExit:
        slot.resume_slot()  # here and now: nothing can be awaited any more
        raise
    except BaseException:
        await asyncio.to_thread(slot.resume_slot)
        raise
    await asyncio.to_thread(slot.resume_slot)


class PausingEvent(threading.Event):
    """An event that is waited for without the slot."""

    def wait(self, timeout: float | None = None) -> bool:
        with pausing(timeout) as spells:
            return any(super(PausingEvent, self).wait(spell_s) for spell_s in spells)


class Waiters(list[Any]):
    """Those who wait for a future: `concurrent.futures.wait` and `as_completed` put the event here that they wait for.

    They do so before they begin to wait, under the locks of all their futures: until then it may be replaced.
    """

    __slots__ = ()

    def append(self, waiter: Any) -> None:
        if type(getattr(waiter, "event", None)) is threading.Event and is_in_task():
            waiter.event = PausingEvent()
        super().append(waiter)
