"""A stream as a coroutine reads and writes it: what has not been read stays with whoever sent it, a window at most."""

from __future__ import annotations

import asyncio
from collections import deque

from dray.errors import Unreachable
from dray.wire.streams.mux import Stream, Taker


class Broken(Unreachable):
    """A stream that stood has broken off."""


class Flow(Taker):
    """Both directions of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._came: deque[bytes] = deque()
        self._eof, self._fault = False, ""
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """What has come, at least a byte; empty at the end. Raises `Broken`."""
        while not self._came:
            if self._eof:
                return b""
            if self._fault:
                raise Broken(self._fault)
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        data = self._came.popleft() if len(self._came) == 1 else b"".join(self._came)
        self._came.clear()
        self.stream.credit(len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Send, and wait while much waits. What is sent into one that broke goes nowhere: `read` tells."""
        self.stream.write(data)
        while self.stream.is_full and not self.stream.ended:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def break_off(self, reason: str) -> None:
        """End it from this side: whoever reads is told."""
        self.stream.reset(reason)
        self.ended(reason)

    def data(self, data: bytes) -> None:
        self._came.append(data)
        _wake(self._news)

    def eof(self) -> None:
        self._eof = True
        _wake(self._news)

    def room(self) -> None:
        _wake(self._room)

    def ended(self, reason: str) -> None:
        if not self._eof:
            self._fault = reason or "it ended"
        _wake(self._news)
        _wake(self._room)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
