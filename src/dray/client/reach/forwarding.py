"""A port of this machine that leads to a service: each connection to it is one WebSocket to the hub, and a stream
there.

The hub chooses who answers, anew for each connection. Surprising rule: while the hub is away the port stays open and
connections are reset, as by a service that is down, so that whoever tries again finds it when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from dray.client.reach.discovery import Target
from dray.client.reach.sockets import dial_hub
from dray.errors import DrayError
from dray.wire.reach.refusals import read_error
from dray.wire.reach.websocket import WebSocket
from dray.wire.streams.frames import (
    FORWARD_PATH,
    SUBPROTOCOL_STREAMS,
    WINDOW_BYTES,
    ServiceTarget,
    read_reached,
    split_refusal,
    write_target,
)
from dray.wire.streams.joints import Opening
from dray.wire.streams.mux import Mux
from dray.wire.streams.sockets import RESETS, SocketEnd

HERE = "127.0.0.1"
BACKLOG = 128


def open_streams(hub: WebSocket) -> Mux:
    """The multiplexer of a socket on which this end opens; every stream ends with the socket."""
    hub.widen(WINDOW_BYTES)
    mux = Mux(hub.send_parts, lambda: hub.writable, lambda why: hub.abort())
    hub.on_message, hub.on_writable = mux.take, mux.flush
    hub.closed.add_done_callback(lambda end: mux.close(_tell_end(*end.result())))
    return mux


def read_refused(reason: str) -> DrayError:
    """What the hub has against a stream, as it would answer a request."""
    code, words = split_refusal(reason)
    return read_error({"code": code, "message": words})


def _tell_end(code: int, reason: str) -> str:
    return reason or f"the hub has ended the connection ({code})"


class Forward:
    """One listening port. `find` says where the hub is, anew each time; `say` tells people what went wrong."""

    def __init__(
        self,
        find: Callable[[], Target],
        service: str,
        port: str,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._find, self._target, self._say = find, ServiceTarget(service, port), say
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def bind(self, port: int = 0) -> None:
        """Take a port of this machine, 0 for any; raises OSError where it is taken."""
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((HERE, port))
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]

    async def knock(self) -> None:
        """Ask the hub to be let in, and leave it at that; raises where connections would be refused, whatever they are
        for.
        """
        hub = await dial_hub(self._find(), FORWARD_PATH, SUBPROTOCOL_STREAMS)
        await hub.close()

    async def serve(self) -> None:
        """Carry connections until this is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                sock, _ = await loop.sock_accept(self._listener)
                task = loop.create_task(self._carry(sock))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            self._listener.close()
            for task in self._tasks:
                task.cancel()

    async def _carry(self, sock: socket.socket) -> None:
        try:
            await self._join(sock)
        except (DrayError, OSError) as fault:
            self._say(str(fault))
            # As by a service that is down, and not as by one that has said all.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        finally:
            with contextlib.suppress(OSError):
                sock.close()

    async def _join(self, sock: socket.socket) -> None:
        hub = await dial_hub(self._find(), FORWARD_PATH, SUBPROTOCOL_STREAMS)
        try:
            opening = Opening()
            stream = open_streams(hub).open(write_target(self._target), opening)
            if fault := await opening.answer:
                raise read_refused(fault)
            for note in read_reached(opening.words).notes:
                self._say(note)
            end = SocketEnd(stream, told=self._tell_broken)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: end, sock)
            opening.hand_over(stream, end)
            await end.over
        finally:
            await hub.close()

    def _tell_broken(self, reason: str) -> None:
        self._say(f"a connection to {self._target.name} broke: {reason}")
