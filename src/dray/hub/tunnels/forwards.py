"""Forwards: one WebSocket of a client is one connection to a service, carried on through the tunnel of its worker.

The client opens the one stream of its socket by naming a service and a port; this end finds who answers and joins the
two streams. What either side has not read stays with whoever sent it: the hub holds at most a window of each
direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dray.errors import DrayError, InvalidInput
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.access.request_budgets import Budgets
from dray.hub.access.token_leases import Hold
from dray.hub.tunnels.reaching import Reacher, Standing
from dray.hub.tunnels.sockets import DONE, StreamSocket
from dray.wire.streams.frames import Reached, read_target, write_reached, write_refusal
from dray.wire.streams.joints import Early, join
from dray.wire.streams.mux import Stream

# What leads to each kind of thing that a client may name.
Ways = Mapping[type[Any], Callable[[Caller, Any], Awaitable[Standing]]]
FORWARD_SCOPES = ("submit", "use")
LINGER_S = 60.0


class Forwards:
    """All forwards of one hub."""

    def __init__(self, reacher: Reacher, ways: Ways, hold: Hold, budgets: Budgets) -> None:
        self._reacher, self._ways, self._hold, self._budgets = reacher, ways, hold, budgets
        self._open: set[StreamSocket] = set()

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one socket from upgrade to close."""
        carrying: set[asyncio.Task[None]] = set()

        def accept(stream: Stream, payload: bytes) -> None:
            if carrying:
                stream.refuse("a socket carries one connection: open another for the next")
                return
            early = stream.taker = Early()
            carrying.add(asyncio.ensure_future(self._carry(socket, stream, early, payload, caller)))

        socket = StreamSocket(scope, receive, send, accept)
        self._open.add(socket)
        try:
            await socket.run(caller, self._hold)
        finally:
            self._open.discard(socket)
            for task in carrying:
                task.cancel()

    def close(self, code: int, reason: str) -> None:
        """Say goodbye to everybody."""
        for socket in self._open:
            socket.end(code, reason)

    async def _carry(
        self, socket: StreamSocket, stream: Stream, early: Early, payload: bytes, caller: Caller
    ) -> None:
        try:
            self._budgets.open_stream(caller.token_id)
            try:
                await self._join(stream, early, payload, caller)
            finally:
                self._budgets.close_stream(caller.token_id)
        except DrayError as fault:
            stream.refuse(write_refusal(fault))
        # The client closes its socket when it has read all; it may be slow.
        await asyncio.sleep(LINGER_S)
        socket.end(DONE, "")

    async def _join(self, stream: Stream, early: Early, payload: bytes, caller: Caller) -> None:
        """Find who answers, and carry bytes between the two until both are done."""
        target = read_target(payload)
        way = self._ways.get(type(target))
        if way is None:
            raise InvalidInput("a client names a service and a port, or a task and a command")
        standing = await way(caller, target)
        place = standing.place
        with self._reacher.visit(caller, place, stream.reset):
            forth, back = join(stream, standing.stream)
            try:
                stream.accept(write_reached(Reached(place.task, place.worker, place.port, standing.notes)))
                early.hand_over(stream, forth)
                standing.take(back)
                await asyncio.wait([forth.over, back.over])
            finally:
                standing.stream.reset("the other end is gone")
