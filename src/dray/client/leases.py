"""How long a connection is kept that nobody closes: for as long as its hub, or a future of it, is in somebody's hands.

Surprising rule: the lease is held by the handles and never by what runs in the client's own thread, which lives on its
own and would keep it for ever.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref

from dray.client.async_client import AsyncHub
from dray.client.futures import run_later
from dray.client.loops import LoopThread
from dray.errors import DrayError


class Lease:
    """Ends the connection and its thread once it is collected."""

    def __init__(self, thread: LoopThread, hub: AsyncHub) -> None:
        end = functools.partial(_end, thread, hub, os.getpid())
        self._finalizer = weakref.finalize(self, run_later, end)
        self._finalizer.atexit = False

    def cancel(self) -> None:
        """The connection is ended by hand."""
        self._finalizer.detach()


def _end(thread: LoopThread, hub: AsyncHub, pid: int) -> None:
    if pid == os.getpid():
        with contextlib.suppress(DrayError, RuntimeError):
            thread.call(hub.close())
            thread.stop()
