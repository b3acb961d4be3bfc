"""Tunnels of workers: asked for over the control session when first needed, kept while streams live and a while
longer.

The hub alone opens streams; a worker that tries is cut off. Which worker a tunnel is of says its ticket, which went
to that worker's session and is good once, together with the token of that session. Surprising rule: after a new
session of a worker new streams take a new tunnel, while those of before go on in theirs for as long as it holds.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import NamedTuple

from dray.errors import Unreachable
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Receive, Scope, Send, read_headers
from dray.hub.access.token_leases import Hold
from dray.hub.engine.engine import Engine
from dray.hub.tunnels.sockets import BAD_INPUT, DONE, StreamSocket
from dray.hub.workers.sessions import Sessions
from dray.wire.messages.codec import message
from dray.wire.streams.frames import TICKET_HEADER, Target, write_target
from dray.wire.streams.mux import Stream, Taker

FEATURE = "tunnel"
# Of a worker that uses connections to services again.
KEEPS = "keep"
DIAL_S = 10.0
IDLE_S = 60.0
_TICKET = TICKET_HEADER.lower().encode()
logger = logging.getLogger("dray.hub.tunnels")


class _Asked(NamedTuple):
    """A tunnel that a worker was asked for."""

    worker: str
    session: int
    token_id: str
    answer: asyncio.Future[StreamSocket]


class Tunnels:
    """All tunnels of one hub."""

    def __init__(self, engine: Callable[[], Engine], sessions: Sessions, hold: Hold) -> None:
        self._engine, self._sessions, self._hold = engine, sessions, hold
        self._asked: dict[str, _Asked] = {}
        self._lines: dict[str, tuple[int, StreamSocket]] = {}
        self._dialling: dict[tuple[str, int], asyncio.Future[StreamSocket]] = {}
        self._open: set[StreamSocket] = set()
        self.idle_s = IDLE_S

    async def connect(self, worker: str, target: Target, taker: Taker) -> Stream:
        """Ask a worker for a stream; its taker hears whether it stands. Raises `Unreachable` where it cannot be
        asked.
        """
        line = await self.line(worker)
        return line.mux.open(write_target(target), taker)

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve the tunnel of one worker, from upgrade to close."""
        ticket = read_headers(scope["headers"]).get(_TICKET, b"").decode("latin-1")
        asked = self._asked.get(ticket)
        if asked is None or asked.token_id != caller.token_id or asked.answer.done():
            # A refusal of the upgrade: whoever dials by itself has nothing to be told.
            await send({"type": "websocket.close", "code": BAD_INPUT})
            return
        line = StreamSocket(scope, receive, send)
        self._open.add(line)
        watching = asyncio.ensure_future(self._watch(asked.worker, line))
        try:
            await line.run(caller, self._hold, lambda: asked.answer.set_result(line))
        finally:
            watching.cancel()
            self._open.discard(line)
            self._forget(asked.worker, line)

    async def _watch(self, worker: str, line: StreamSocket) -> None:
        """Close a tunnel that nobody uses."""
        seen = -1
        while len(line.mux) or line.mux.opened != seen:
            seen = line.mux.opened
            await asyncio.sleep(self.idle_s)
        # First, so that nobody opens a stream in it meanwhile.
        self._forget(worker, line)
        line.end(DONE, "nobody uses this tunnel")

    def _forget(self, worker: str, line: StreamSocket) -> None:
        if self._lines.get(worker, (0, None))[1] is line:
            del self._lines[worker]

    def close(self, code: int, reason: str) -> None:
        """Say goodbye to everybody."""
        for line in self._open:
            line.end(code, reason)

    async def line(self, worker: str) -> StreamSocket:
        """The tunnel to a worker, asked for where there is none; raises `Unreachable`."""
        session = self._find_session(worker)
        known = self._lines.get(worker)
        if known is not None and known[0] == session and not known[1].mux.closed:
            return known[1]
        key = worker, session
        waiting = self._dialling.get(key)
        if waiting is None:
            waiting = self._dialling[key] = asyncio.ensure_future(self._dial(worker, session))
            waiting.add_done_callback(lambda _: self._dialling.pop(key, None))
        # Shielded: others may wait for the same one.
        return await asyncio.shield(waiting)

    def _find_session(self, worker: str) -> int:
        state = self._engine().state
        record, presence = state.workers.get(worker), state.presence.get(worker)
        if record is None or presence is None or presence.session not in self._sessions.open:
            raise Unreachable(
                f"worker {worker} is not connected: what runs there can be reached when it is back"
            )
        if FEATURE not in record.features:
            raise Unreachable(
                f"worker {worker} speaks the protocol without tunnels: what runs there is reached at its address alone"
            )
        return presence.session

    async def _dial(self, worker: str, session: int) -> StreamSocket:
        peer, ticket = self._sessions.open[session], secrets.token_urlsafe(18)
        asked = _Asked(worker, session, peer.caller.token_id, asyncio.get_running_loop().create_future())
        self._asked[ticket] = asked
        told = {"leader": peer.leader} if peer.leader else {}
        peer.push(message("tunnel_dial", {"ticket": ticket, **told}))
        try:
            async with asyncio.timeout(DIAL_S):
                line = await asked.answer
        except TimeoutError:
            raise Unreachable(
                f"worker {worker} opened no tunnel within {DIAL_S:g} s: its log says why (dray.agent.tunnel)"
            ) from None
        finally:
            del self._asked[ticket]
        record = self._engine().state.workers.get(worker)
        line.keeps = record is not None and KEEPS in record.features
        self._lines[worker] = session, line
        return line
