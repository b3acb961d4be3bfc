"""A thread for work on a disk: the event loop hands it over in order and hears of each item when it is done.

One thread and one queue keep the order without a lock, and keep a slow disk from stopping the loop. Every item costs
one wake-up in each direction; nothing here waits to gather more.

What is small is the exception: while the thread has nothing to do and the disk is quick, the loop does it itself. The
two wake-ups and the fight over the interpreter lock take several times as long as such an item.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from dray.errors import NotReady

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")
QUICK_S = 0.005
# After a small item that was not quick the thread takes the next ones.
SLOW_ITEMS = 20


class _Item:
    """One piece of work and the future that waits for it."""

    __slots__ = ("argument", "future", "work")

    def __init__(self, work: Callable[[Any], Any], argument: object, future: asyncio.Future[Any]) -> None:
        self.work = work
        self.argument = argument
        self.future = future


class DiskThread:
    """Does what it is handed, first in first out."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._unfinished = 0
        self._slow_left = 0

    @property
    def running(self) -> bool:
        """Whether it takes work: it was started, and nobody has closed it."""
        return self._loop is not None and not self._closing

    @property
    def idle(self) -> bool:
        """Whether all is done that was handed over: the loop alone does that, so it knows."""
        return not self._unfinished

    def start(self) -> None:
        """Start the thread for the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def put(self, work: Callable[[Argument], Answer], argument: Argument) -> asyncio.Future[Answer]:
        """Queue an item; the future is done when it is."""
        future: asyncio.Future[Answer] = self._ready_loop().create_future()
        self._unfinished += 1
        self._queue.put(_Item(work, argument, future))
        return future

    def do(
        self, work: Callable[[Argument], Answer], argument: Argument, small: bool
    ) -> asyncio.Future[Answer]:
        """Do a small item here if nothing stands before it and the disk is quick, else queue it."""
        if self._unfinished or self._slow_left or not small:
            self._slow_left = max(0, self._slow_left - 1)
            return self.put(work, argument)
        return self._do_here(work, argument)

    async def close(self) -> None:
        """Finish what is queued, then end the thread; what comes later is refused."""
        if not self.running:
            return
        self._closing = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _do_here(self, work: Callable[[Argument], Answer], argument: Argument) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._ready_loop().create_future()
        began = time.perf_counter()
        try:
            answer = work(argument)
        except BaseException as error:  # noqa: BLE001 - whatever went wrong is the waiting caller's to judge
            future.set_exception(error)
        else:
            future.set_result(answer)
        if time.perf_counter() - began > QUICK_S:
            self._slow_left = SLOW_ITEMS
        return future

    def _ready_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._closing:
            raise NotReady(
                "the thread that writes is not running: the hub is starting or stopping, try again"
            )
        return self._loop

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
