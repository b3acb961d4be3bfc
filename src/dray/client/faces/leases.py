"""How long a connection is kept that nobody closes: for as long as its hub, or a future of it, is in somebody's hands.

Surprising rule: the lease is held by the handles and never by what runs in the client's own thread, which lives on its
own and would keep it for ever. At the end of the program what was submitted is recorded and its arrays are ended, but
the connection stays: others may have something to say at the end as well.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import weakref
from collections.abc import Callable

from dray.client.faces.async_hub import AsyncHub
from dray.client.futures.futures import run_later
from dray.client.futures.loop_thread import LoopThread
from dray.errors import DrayError


class Lease:
    """Ends the connection and its thread once it is collected."""

    def __init__(self, thread: LoopThread, hub: AsyncHub) -> None:
        self._settle = functools.partial(_settle, thread, hub, os.getpid())
        end = functools.partial(_end, thread, hub, os.getpid())
        self._finalizer = weakref.finalize(self, _let_go, self._settle, end)
        self._finalizer.atexit = False
        atexit.register(self._settle)

    def cancel(self) -> None:
        """The connection is ended by hand."""
        self._finalizer.detach()
        atexit.unregister(self._settle)


def _let_go(settle: Callable[[], None], end: Callable[[], None]) -> None:
    atexit.unregister(settle)
    run_later(end)


def _settle(thread: LoopThread, hub: AsyncHub, pid: int) -> None:
    if pid == os.getpid():
        with contextlib.suppress(DrayError, RuntimeError):
            thread.call(hub.settle())


def _end(thread: LoopThread, hub: AsyncHub, pid: int) -> None:
    if pid == os.getpid():
        with contextlib.suppress(DrayError, RuntimeError):
            thread.call(hub.close())
            thread.stop()
