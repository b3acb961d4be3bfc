"""A stream as a coroutine reads and writes it: what has not been read stays with whoever sent it, a window at most."""

from __future__ import annotations

import asyncio
from collections import deque

from dray.errors import Unreachable
from dray.wire.streams.mux import Stream, Taker


class Broken(Unreachable):
    """A stream has broken off."""


class Refused(Broken):
    """A stream that never stood: nothing of what was sent into it has gone anywhere."""


class Flow(Taker):
    """Both directions of one stream, which is put in once it is opened."""

    stream: Stream

    def __init__(self) -> None:
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
                raise Refused(self._fault) if self.stream.refused else Broken(self._fault)
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

    async def stand(self) -> bool:
        """Wait until the other end has said whether it stands; whether it does."""
        while not self.stream.opened and not self.stream.ended:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        return self.stream.opened

    @property
    def is_read(self) -> bool:
        """Whether all that has come was read, and the other end may go on."""
        return not self._came and not self._eof and not self._fault

    def break_off(self, reason: str) -> None:
        """End it from this side: whoever reads is told."""
        self.stream.reset(reason)
        self.ended(reason)

    def opened(self, told: bytes) -> None:
        _wake(self._room)

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
