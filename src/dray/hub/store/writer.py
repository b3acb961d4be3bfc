"""How the hub writes to its store: turns, rows and the rest in one order, each durable or seen when its future is done.

Small turns the loop commits itself while nothing else is being written: until one is durable nothing of the hub's work
could go on anyway. Knows the store only as something with methods.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TypeVar

from dray.hub.disk_thread import DiskThread
from dray.hub.store.base import Projection, Remote, Store, Turn

Answer = TypeVar("Answer")
SWITCH_INTERVAL_S = 0.0005
SMALL_BYTES = 16 << 10


class StoreWriter:
    """Runs a store's writes, first in first out, on a thread of its own."""

    def __init__(self, store: Store) -> None:
        self._store, self._thread = store, DiskThread("dray-store")
        self._old_interval_s = 0.0

    @property
    def store(self) -> Store:
        """What it writes to, for those who read."""
        return self._store

    def start(self) -> None:
        """Start the thread for the running loop.

        Sets the interpreter's switch interval for the whole process: at the default of 5 ms a busy loop lets the writer
        have the interpreter lock so rarely that a commit takes tens of milliseconds. `close` puts it back.
        """
        self._old_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread.start()

    def commit(self, turn: Turn) -> asyncio.Future[None]:
        """Queue a turn, or commit it here; the future is done when it is durable."""
        return self._thread.do(self._store.commit, turn, small=len(turn.facts) <= SMALL_BYTES)

    def project(self, projection: Projection) -> asyncio.Future[None]:
        """Queue a projection; the future is done when its rows can be read."""
        return self._thread.put(self._store.project, projection)

    def run(self, work: Callable[[Store], Answer]) -> asyncio.Future[Answer]:
        """Queue anything else that writes, such as a sweep or a token."""
        return self._thread.put(work, self._store)

    async def verify(self) -> None:
        """Raise where what was written would not be found by a restart."""
        self._store.verify()

    async def close(self) -> None:
        """Finish what is queued, then end the thread; what comes later is refused."""
        if not self._thread.running:
            return
        await self._thread.close()
        sys.setswitchinterval(self._old_interval_s)


class RemoteWriter(StoreWriter):
    """The same for a store on a server: turns and rows travel beside each other, and the loop waits for nothing."""

    def __init__(self, store: Store, remote: Remote) -> None:
        super().__init__(store)
        self._remote = remote

    def commit(self, turn: Turn) -> asyncio.Future[None]:
        """Send a turn; the future is done when the server has it for good."""
        return asyncio.wrap_future(self._remote.commit_soon(turn))

    def project(self, projection: Projection) -> asyncio.Future[None]:
        """Send rows; the future is done when they can be read."""
        return asyncio.wrap_future(self._remote.project_soon(projection))

    async def verify(self) -> None:
        """Raise where another hub leads, and wait while one may: what leaves without a commit is true as well."""
        while not self._remote.is_trusted:
            await asyncio.wrap_future(self._remote.trust_soon())


def make_writer(store: Store) -> StoreWriter:
    """The writer that suits a store."""
    return StoreWriter(store) if store.remote is None else RemoteWriter(store, store.remote)
