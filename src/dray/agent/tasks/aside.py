"""Blocking work beside the agent's loop, also on a machine that has no room for another thread just now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

RETRY_S = 0.5
THREADS = 8
logger = logging.getLogger("dray.agent")
P = ParamSpec("P")
T = TypeVar("T")


class Aside:
    """Some threads, started as they are needed."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it in a thread; where none can be started, wait until one can: that passes, what was given up does not
        come back.
        """
        told = False
        while True:
            future: Future[T] = Future()
            try:
                self._pool.submit(_run, future, lambda: work(*args, **kwargs))
            except RuntimeError as fault:
                # The interpreter has no other name for it.
                if "start new thread" not in str(fault):
                    raise
                # It stands in the queue all the same, where a thread of before may find it: it runs once.
                if future.cancel():
                    if not told:
                        logger.warning("no thread can be started on this machine now: waiting until one can")
                    told = True
                    await asyncio.sleep(RETRY_S)
                    continue
            return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _run(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as fault:  # noqa: BLE001  # it is raised where the work was asked for
        future.set_exception(fault)


_SHARED = Aside(THREADS, "dray-aside")


async def do_aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run small work in a thread of those that the whole agent shares."""
    return await _SHARED.do(work, *args, **kwargs)
