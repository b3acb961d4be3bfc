"""An event loop on a thread of its own: connections live there, whoever calls waits for their answers.

So a store can be asked from any thread, also while the hub's own loop is busy or does not run yet, and the beat of a
leader goes on while that loop loads a million rows.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class LoopThread:
    """Runs coroutines until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._lock, self._over = threading.Lock(), False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # Whoever came in while others were being ended would wait for ever; whoever comes later is told.
            with self._lock:
                self._over = True
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            with warnings.catch_warnings():
                # A connection whose opening was cancelled in the moment it was made is nobody's, and ends with the
                # loop. Where the loop's word about that is an error it would leave it open, and wait for it for ever.
                warnings.simplefilter("ignore", ResourceWarning)
                self._loop.close()

    def submit(self, work: Coroutine[Any, Any, Answer]) -> concurrent.futures.Future[Answer]:
        """Start something there; the future has its answer."""
        with self._lock:
            if self._over:
                work.close()
                raise RuntimeError("this was asked of connections that are closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Do something there and wait for it."""
        return self.submit(work).result()

    def close(self) -> None:
        """End what still runs there, and the thread."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(concurrent.futures.CancelledError):
            self.call(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
