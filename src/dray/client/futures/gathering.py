"""Waiting for several futures at once: `as_completed` and `gather`, which give the slot up inside a task."""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from dray.client.futures.pausing import pausing

T = TypeVar("T")
AnyFuture = concurrent.futures.Future[T]


def as_completed(futures: Iterable[AnyFuture[T]], timeout: float | None = None) -> Iterator[AnyFuture[T]]:
    """Yield futures as they end. Raises `TimeoutError`; the calls go on."""
    waiting = dict.fromkeys(futures)
    ended: queue.SimpleQueue[AnyFuture[T]] = queue.SimpleQueue()
    for future in waiting:
        future.add_done_callback(ended.put)
    ends_at = None if timeout is None else time.monotonic() + timeout
    for left in range(len(waiting), 0, -1):
        first = _take(ended, ends_at)
        if first is None:
            raise TimeoutError(
                f"{left} of {len(waiting)} calls have not ended within {timeout or 0:g} s; they go on"
            )
        yield first


def _take(ended: queue.SimpleQueue[AnyFuture[T]], ends_at: float | None) -> AnyFuture[T] | None:
    with contextlib.suppress(queue.Empty):
        return ended.get_nowait()
    with pausing(None if ends_at is None else max(0.0, ends_at - time.monotonic())) as spells:
        for spell_s in spells:
            with contextlib.suppress(queue.Empty):
                return ended.get(timeout=spell_s)
    return None


def gather(
    *futures: AnyFuture[T], timeout: float | None = None, return_exceptions: bool = False
) -> list[Any]:
    """The results of several futures in the order given; the first exception is raised, unless asked for."""
    for given in futures:
        if not isinstance(given, concurrent.futures.Future):
            hint = ": write gather(*futures)" if isinstance(given, Iterable) else ""
            raise TypeError(f"gather takes futures one by one, got a {type(given).__name__}{hint}")
    ends_at = None if timeout is None else time.monotonic() + timeout
    results: list[Any] = []
    for future in futures:
        left = None if ends_at is None else max(0.0, ends_at - time.monotonic())
        try:
            results.append(future.result(left))
        except (Exception, concurrent.futures.CancelledError) as fault:
            if not return_exceptions or (isinstance(fault, TimeoutError) and not future.done()):
                raise
            results.append(fault)
    return results
