"""HTTP connections to the hub that leads, kept open between requests of whomever.

A kept one may be closed by the other end at any moment: what must not be sent twice gets a new one. Where nobody
answers any more the system breaks it off (keepalive); where another hub leads, `hub.relays.relay` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque

from dray.errors import DrayError
from dray.hub.gateways.links import Leader, Links

HIGH_BYTES = 256 << 10
MOST_KEPT = 64
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}


class Unsent(Exception):
    """Nothing of a request has left: it may be sent elsewhere, whatever it is."""


class LineBroken(Exception):
    """A connection broke: what was sent may have arrived or not."""


class HttpLine(asyncio.Protocol):
    """One connection; what has not been read stays with whoever sent it, beyond a little."""

    def __init__(self) -> None:
        self._came: deque[bytes] = deque()
        self._held = 0
        self._ended = self._full = False
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    async def read(self) -> bytes:
        """What has come, at least a byte; empty at the end."""
        while not self._came:
            if self._ended:
                return b""
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        data = b"".join(self._came)
        self._came.clear()
        self._held = 0
        if self._transport is not None and not self._ended:
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send, and wait while much waits; raises where nobody takes it any more."""
        if self._transport is None or self._ended or self._transport.is_closing():
            raise LineBroken("the connection to the hub that leads broke")
        self._transport.write(data)
        while self._full and not self._ended:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    @property
    def is_read(self) -> bool:
        """Whether all that has come was read, and the other end may go on."""
        return not self._came and not self._ended

    def abort(self) -> None:
        """Break it off: whoever reads sees its end."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        self._ended = True
        for waiting in (self._news, self._room):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    # --- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        self._came.append(data)
        self._held += len(data)
        if self._held > HIGH_BYTES and self._transport is not None:
            self._transport.pause_reading()
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


class HttpLines:
    """The connections of one gateway to whoever leads."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._holder = ""
        self._kept: list[HttpLine] = []

    async def take(self, leader: Leader, new: bool) -> HttpLine:
        """A connection to a leader; raises `Unsent` where there is none to be had."""
        self._look(leader.holder)
        while self._kept and not new:
            line = self._kept.pop()
            if line.is_read:
                return line
        try:
            return await self._dial(leader)
        except (OSError, TimeoutError, DrayError) as fault:
            raise Unsent(str(fault)) from None

    def give_back(self, leader: Leader, line: HttpLine) -> None:
        """Keep a connection whose answer was whole for the next request."""
        if leader.holder == self._holder and len(self._kept) < MOST_KEPT and line.is_read:
            self._kept.append(line)
        else:
            line.abort()

    def _look(self, holder: str) -> None:
        if holder != self._holder:
            kept, self._kept, self._holder = self._kept, [], holder
            for line in kept:
                line.abort()

    async def _dial(self, leader: Leader) -> HttpLine:
        line = await self._links.open_line(leader)
        sock, loop = line.sock, asyncio.get_running_loop()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                with contextlib.suppress(AttributeError, OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            name = leader.host if line.context is not None else None
            _, made = await loop.create_connection(
                HttpLine, sock=sock, ssl=line.context, server_hostname=name
            )
        except BaseException:
            sock.close()
            raise
        if type(loop).__module__.startswith("uvloop"):
            # As `wire.reach.websocket.dial` does: the number is that loop's from here on.
            sock.detach()
        return made
