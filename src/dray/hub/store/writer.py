"""The thread that writes: the event loop hands it work in order and hears of each item when it is done.

One thread and one queue keep turns in order without a lock, and keep a slow disk from stopping the loop. Knows the
store only as something with methods. Every item costs one wake-up in each direction; nothing here waits to gather
more.

A small turn is the exception: while the thread has nothing to do and the disk is quick, the loop commits it itself. The
two wake-ups and the fight over the interpreter lock take several times as long as such a commit, and until it is
durable nothing of the hub's work could go on anyway.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from dray.errors import NotReady
from dray.hub.store.base import Projection, Store, Turn

Answer = TypeVar("Answer")
SWITCH_INTERVAL_S = 0.0005
SMALL_BYTES = 16 << 10
QUICK_S = 0.005
# After a commit that was not quick the thread takes the next ones.
SLOW_COMMITS = 20


class _Item:
    """One piece of work and the future that waits for it."""

    __slots__ = ("argument", "future", "work")

    def __init__(self, work: Callable[[Any], Any], argument: object, future: asyncio.Future[Any]) -> None:
        self.work = work
        self.argument = argument
        self.future = future


class StoreWriter:
    """Runs a store's writes, first in first out, on a thread of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="dray-store", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._old_interval_s = 0.0
        self._unfinished = 0
        self._slow_left = 0

    def start(self) -> None:
        """Start the thread for the running loop.

        Sets the interpreter's switch interval for the whole process: at the default of 5 ms a busy loop lets the writer
        have the interpreter lock so rarely that a commit takes tens of milliseconds. `close` puts it back.
        """
        self._loop = asyncio.get_running_loop()
        self._old_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread.start()

    def commit(self, turn: Turn) -> asyncio.Future[None]:
        """Queue a turn, or commit it here; the future is done when it is durable."""
        if self._unfinished or self._slow_left or len(turn.facts) > SMALL_BYTES:
            self._slow_left = max(0, self._slow_left - 1)
            return self._put(self._store.commit, turn)
        return self._commit_here(turn)

    def project(self, projection: Projection) -> asyncio.Future[None]:
        """Queue a projection; the future is done when its rows can be read."""
        return self._put(self._store.project, projection)

    def run(self, work: Callable[[Store], Answer]) -> asyncio.Future[Answer]:
        """Queue anything else that writes, such as a sweep or a token."""
        return self._put(work, self._store)

    def verify(self) -> None:
        """Raise where what was written would not be found by a restart."""
        self._store.verify()

    async def close(self) -> None:
        """Finish what is queued, then end the thread; what comes later is refused."""
        if self._loop is None or self._closing:
            return
        self._closing = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        sys.setswitchinterval(self._old_interval_s)

    def _commit_here(self, turn: Turn) -> asyncio.Future[None]:
        """The thread sleeps and the store is idle: both are the loop's to know, since it alone hands out work."""
        future: asyncio.Future[None] = self._ready_loop().create_future()
        began = time.perf_counter()
        try:
            self._store.commit(turn)
        except BaseException as error:  # noqa: BLE001 - whatever went wrong is the waiting caller's to judge
            future.set_exception(error)
        else:
            future.set_result(None)
        if time.perf_counter() - began > QUICK_S:
            self._slow_left = SLOW_COMMITS
        return future

    def _ready_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._closing:
            raise NotReady("the store's writer is not running: the hub is starting or stopping, try again")
        return self._loop

    def _put(self, work: Callable[[Any], Answer], argument: object) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._ready_loop().create_future()
        self._unfinished += 1
        self._queue.put(_Item(work, argument, future))
        return future

    def _serve(self) -> None:
        loop = cast("asyncio.AbstractEventLoop", self._loop)
        take = self._queue.get
        tell = loop.call_soon_threadsafe
        while (item := take()) is not None:
            try:
                answer = item.work(item.argument)
            except BaseException as error:  # noqa: BLE001 - whatever went wrong is the waiting caller's to judge
                tell(self._fail, item.future, error)
            else:
                tell(self._succeed, item.future, answer)

    def _succeed(self, future: asyncio.Future[Any], answer: object) -> None:
        self._unfinished -= 1
        if not future.done():
            future.set_result(answer)

    def _fail(self, future: asyncio.Future[Any], error: BaseException) -> None:
        self._unfinished -= 1
        if not future.done():
            future.set_exception(error)
