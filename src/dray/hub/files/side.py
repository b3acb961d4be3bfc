"""Lines to the database beside those of the store, for what is large: its files. Under the same lead, on the same loop.

What counts is written under a share of the leader's row, as all is, and waits for a server that is away or full, for as
long as the hub does not end: whoever sent it keeps it until then. A renewal goes first: it needs a moment in which
nobody holds a share. What nobody can see yet (parts of a value on its way in) needs no share.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dray.errors import DrayError, NoSpace, StoreError
from dray.hub.loop_thread import LoopThread
from dray.hub.store.postgres.connection import Connection, Target
from dray.hub.store.postgres.election import RETRY_S, Candidate
from dray.hub.store.postgres.errors import Unanswered

Answer = TypeVar("Answer")
MOST_PAUSE_S = 1.0
LONG_S = 60.0
_log = logging.getLogger("dray.hub.files")


class Side:
    """Of one hub that leads; `shown` is the address, without its password."""

    def __init__(self, target: Target, loop: LoopThread, candidate: Candidate) -> None:
        self.shown = str(target.address)
        self.fault = ""
        self._loop, self._candidate, self._target = loop, candidate, target
        self._writes, self._bulk, self._reads = (Connection(target) for _ in range(3))
        self._stopping = False

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Do something on the loop of the connections, and wait for it."""
        return self._loop.call(work)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something there that nobody waits for, and whose failure is somebody else's to mend."""
        self._loop.submit(_forgive(work))

    def stop_waiting(self) -> None:
        """The hub ends."""
        self._stopping = True

    async def own(self, asked: str, query: str, *values: Any, timeout_s: float = 0.0) -> list[Any]:
        """Write what begins with a share of the leader's row, and says so by a row; asked twice, it is once."""
        while True:
            await self._candidate.settled()
            epoch = self._candidate.epoch
            if self._candidate.lost is not None:
                raise self._candidate.lost

            async def ask(epoch: int = epoch) -> list[Any]:
                return await self._writes.ask(asked, query, epoch, *values, timeout_s=timeout_s)

            rows = await self._insist(ask)
            if rows:
                return rows
            # An epoch that was raised meanwhile is this hub's own all the same.
            if epoch == self._candidate.epoch:
                raise self._candidate.lose()

    async def put(self, asked: str, query: str, *values: Any) -> list[Any]:
        """Write something that nobody sees yet."""
        return await self._insist(lambda: self._bulk.ask(asked, query, *values, timeout_s=LONG_S))

    async def find(self, asked: str, query: str, *values: Any) -> list[Any]:
        """Ask until there is an answer: what is to be written goes by it."""
        return await self._insist(lambda: self._reads.ask(asked, query, *values))

    async def read(self, asked: str, query: str, *values: Any) -> list[Any]:
        """Ask once more where a connection broke; a server that is away is not waited for."""
        try:
            return await self._reads.ask(asked, query, *values, timeout_s=LONG_S)
        except Unanswered:
            return await self._reads.ask(asked, query, *values, timeout_s=LONG_S)

    async def _insist(self, work: Callable[[], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
        pause_s, since = RETRY_S, time.monotonic()
        while True:
            try:
                rows = await work()
            except (Unanswered, NoSpace) as fault:
                self._tell(fault)
                if self._candidate.lost is not None:
                    raise self._candidate.lost from fault
                if self._stopping:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(MOST_PAUSE_S, 2 * pause_s)
            else:
                if self.fault:
                    _log.warning("files are written again, after %.1f s", time.monotonic() - since)
                    self.fault = ""
                return rows

    def _tell(self, fault: StoreError | NoSpace) -> None:
        if not self.fault:
            _log.warning("%s; output and values wait for it", fault.message)
        self.fault = fault.message

    async def close(self) -> None:
        """Let the connections go."""
        self._stopping = True
        for connection in (self._writes, self._bulk, self._reads):
            await connection.close()


class OpenSide(Side):
    """Of a hub that stands by: what it writes takes no share, and must do no harm however late it comes."""

    async def own(self, asked: str, query: str, *values: Any, timeout_s: float = 0.0) -> list[Any]:
        """Write; the query's first value is that of an epoch, which it has no use for."""
        return await self._insist(lambda: self._writes.ask(asked, query, 0, *values, timeout_s=timeout_s))


async def _forgive(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except DrayError as fault:
        _log.info("%s", fault.message)
