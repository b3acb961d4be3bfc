"""The second socket to the hub, opened when the hub asks for it: streams to what runs here.

Bulk goes here, so that it never stands before a heartbeat. The hub opens streams and closes the tunnel when it has had
none for a while; this end only answers. Surprising rule: a tunnel is for one ticket of the hub and is not dialled again
when it breaks, since whoever used it has seen that and asks anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from dray.agent.runners.blobs import HubAccess
from dray.agent.tasks.aside import do_aside
from dray.errors import DrayError, InvalidInput
from dray.wire.reach.dialling import Opening
from dray.wire.reach.websocket import HandshakeRefused, WebSocket, dial, make_address
from dray.wire.streams.frames import (
    HEAD,
    PIECE_BYTES,
    SUBPROTOCOL_STREAMS,
    TICKET_HEADER,
    TUNNEL_PATH,
    WINDOW_BYTES,
    read_target,
)
from dray.wire.streams.gathering import Gatherer
from dray.wire.streams.mux import Mux, Stream

FEATURES = ("tunnel", "keep")
OPEN_S = 10.0
# One, and those whose streams outlast a break of the session.
MOST = 8
# What opens a stream, by the kind of its target.
Openers = Mapping[type[Any], Callable[[Stream, Any], None]]
logger = logging.getLogger("dray.agent.tunnel")


class Tunnels:
    """One agent's. `hub` says how the hub is reached now."""

    def __init__(self, hub: Callable[[], HubAccess | None], openers: Openers) -> None:
        self._hub, self._openers = hub, openers
        self._tasks: set[asyncio.Task[None]] = set()

    def dial(self, ticket: str) -> None:
        """Open a tunnel; the hub waits for it only so long."""
        access = self._hub()
        if access is None or len(self._tasks) >= MOST:
            logger.warning("no tunnel is opened: %d are", len(self._tasks))
            return
        task = asyncio.get_running_loop().create_task(self._run(access, ticket))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End all of them, and every stream with them."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, access: HubAccess, ticket: str) -> None:
        try:
            line = await Opening(access.way, OPEN_S, access.trust).wait(do_aside)
            more = (f"{TICKET_HEADER}: {ticket}",)
            address = make_address(access.way.url, TUNNEL_PATH, SUBPROTOCOL_STREAMS, access.token, more)
            socket = await dial(address, line, OPEN_S, most_bytes=HEAD.size + PIECE_BYTES)
        except (HandshakeRefused, OSError, TimeoutError, DrayError) as fault:
            logger.warning("no tunnel to the hub could be opened: %s", fault)
            return
        await self._serve(socket)

    async def _serve(self, socket: WebSocket) -> None:
        def cut(reason: str) -> None:
            logger.error("the hub is cut off: %s", reason)
            socket.abort()

        socket.widen(WINDOW_BYTES)
        gatherer = Gatherer(socket.send_several)
        mux = Mux(gatherer.write, lambda: socket.writable, cut, self._accept, gatherer.lay_by)
        socket.on_message, socket.on_writable = mux.take, mux.flush
        try:
            code, reason = await asyncio.shield(socket.closed)
            logger.info("a tunnel ended: %s %s", code, reason)
        finally:
            mux.close("the tunnel to the hub has ended")
            await socket.close()

    def _accept(self, stream: Stream, payload: bytes) -> None:
        try:
            target = read_target(payload)
        except InvalidInput as fault:
            stream.refuse(fault.message)
            return
        opener = self._openers.get(type(target))
        if opener is None:
            stream.refuse("this worker opens nothing of that kind")
        else:
            opener(stream, target)
