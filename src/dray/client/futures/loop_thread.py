"""An event loop in a thread of its own: how the blocking face works the same inside and outside a running loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def make_loop() -> asyncio.AbstractEventLoop:
    """The faster loop where it is installed: a third of what a blocking call costs is spent in the loop itself."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = make_loop()
        self._thread = threading.Thread(target=self._run, name="dray-client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait here; an interrupt here cancels it there."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside dray's own loop would wait for itself: use AsyncHub")
        running = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine there and do not wait."""
        asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()
