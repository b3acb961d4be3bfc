"""`dray.Executor`: a full `concurrent.futures.Executor`, so that whatever takes one can run on a cluster.

Surprising rule: with a cap on what runs, all functions of an executor go into one array, since the cap is the array's;
each function then travels inside its calls and is opened once per runner.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from typing import Any, TypeVar

from dray.client.faces.hub import Hub, connect
from dray.client.futures.futures import CallFuture, run_later
from dray.core.model.records.records import JobState
from dray.errors import DrayError
from dray.functions.applying import Initialiser, InitializerFailed, apply, prepare

T = TypeVar("T")


class Executor(concurrent.futures.Executor):
    """Calls through one hub. `max_workers` caps how many run at once; keywords are those of `submit`."""

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        hub: Hub | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        **terms: Any,
    ) -> None:
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"max_workers must be 1 or more, got {max_workers}")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._own_hub = hub is None
        self._hub = hub if hub is not None else connect()
        self._limit = max_workers or 0
        self._max_workers = max_workers  # looked at by joblib, tqdm and others
        self._terms = terms
        self._owner = secrets.token_hex(8)
        self._initializer = (
            Initialiser(self._owner, initializer, initargs) if initializer is not None else None
        )
        self._lock = threading.Lock()
        self._live: set[CallFuture[Any]] = set()
        self._shut = False
        self._broken = ""
        self._end = functools.partial(_end_owner, self._hub, self._owner, self._own_hub)
        self._finalizer = weakref.finalize(self, run_later, self._end)
        self._finalizer.atexit = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> CallFuture[T]:
        """Schedule a call. All keywords go to the function; what calls need was said when the executor was made."""
        with self._lock:
            if self._broken:
                raise BrokenExecutor(self._broken)
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
        if not self._limit and self._initializer is None:
            future = self._hub.submit_plain(fn, args, kwargs, self._terms, self._owner)
        else:
            packed, name = prepare(fn, self._initializer)
            future = self._hub.submit_plain(
                apply, (packed, name, args, kwargs), {}, self._terms, self._owner, self._limit
            )
        with self._lock:
            self._live.add(future)
        note = _Note(self)
        with future._condition:
            future._waiters.append(note)
            if future.done():
                note.add_result(future)
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """As of every executor; `chunksize` is taken and not needed, since calls are grouped on their way anyway."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if self._limit or self._initializer is not None:
            return super().map(fn, *iterables, timeout=timeout)
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
        return self._hub.map(fn, *iterables, timeout=timeout, progress=False, **self._terms)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further calls. `cancel_futures` stops those that have not begun."""
        with self._lock:
            self._shut = True
            live = list(self._live)
        if cancel_futures:
            self._cancel_waiting(live)
        if wait:
            concurrent.futures.wait(live)
            if self._finalizer.detach() is not None:
                self._end()

    def _cancel_waiting(self, live: list[CallFuture[Any]]) -> None:
        for future in live:
            with contextlib.suppress(DrayError):
                if not future.done() and future.state is JobState.PENDING:
                    future.cancel()


class _Note:
    """Hears of a future's end before those who wait for it: they must find a broken executor broken.

    It must not keep the executor alive.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = weakref.ref(executor)

    def add_result(self, future: CallFuture[Any]) -> None:
        executor = self._executor()
        if executor is not None:
            with executor._lock:
                executor._live.discard(future)
                if isinstance(future._exception, InitializerFailed):
                    executor._broken = str(future._exception)

    add_exception = add_cancelled = add_result


def _end_owner(hub: Hub, owner: str, own_hub: bool) -> None:
    """Let the arrays of an executor end; a hub that was opened for it goes with it."""
    with contextlib.suppress(DrayError, RuntimeError):
        hub.end_owner(owner)
        if own_hub:
            hub.close()
