"""An event loop in a thread of its own: how the blocking face works the same inside and outside a running loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import queue
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
LEAVE_S = 2.0


def make_loop() -> asyncio.AbstractEventLoop:
    """The faster loop where it is installed: a third of what a blocking call costs is spent in the loop itself."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop of another thread and wait here; an interrupt here cancels it there.

    Not by `run_coroutine_threadsafe`: an interrupt can keep the lock of its future, and the loop stands still.
    """
    ended: queue.SimpleQueue[asyncio.Task[T]] = queue.SimpleQueue()
    begun: list[asyncio.Task[T]] = []

    def begin() -> None:
        begun.append(loop.create_task(work))
        begun[0].add_done_callback(ended.put)

    def cancel() -> None:
        begun[0].cancel()

    loop.call_soon_threadsafe(begin)
    try:
        return ended.get().result()
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(cancel)
        raise


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = make_loop()
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="dray-client", daemon=True)
        self._thread.start()
        _all.add(self)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait here; an interrupt here cancels it there."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside dray's own loop would wait for itself: use AsyncHub")
        return run_in(self.loop, work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine there and do not wait."""
        asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def leave(self) -> None:
        """Stop at the end of the program, where what is under way is simply left: a loop that went on, in a thread that
        nobody waits for, would call into an interpreter that is no more.
        """
        self._leaving = True
        with contextlib.suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self._abandon)
            self._thread.join(LEAVE_S)

    def _abandon(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            # It is left on purpose: nobody is to read of that at the end of each program.
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # what asyncio itself uses for it
        self.loop.stop()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            if not self._leaving:
                self.loop.close()


_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Registered before whoever has something to say at the end, and so called after them."""
    for thread in list(_all):
        thread.leave()
