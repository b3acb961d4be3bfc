"""A WebSocket of a client, carried to the hub that leads: frames go through as they are, and so does the end.

Where the leader goes, the socket is closed as by a hub that reloads: whoever dials again finds the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from dray.errors import DrayError
from dray.hub.access.entrance import Headers, Receive, Scope, Send
from dray.hub.gateways.links import Leader, Links
from dray.hub.relays.lines import Unsent
from dray.hub.relays.passing import RELAYED
from dray.hub.workers.frames import EXTENSION
from dray.hub.workers.session import Frames
from dray.wire.reach.dialling import TURN_HEADER
from dray.wire.reach.websocket import HandshakeRefused, WebSocket, dial, make_address

OPEN_S, KEEPALIVE_S = 5.0, 5.0
GOODBYE_S = 2.0
MOST_WAITING_BYTES = 32 << 20
BAD_INPUT, OVERLOADED, RELOADING, GOING_AWAY, ABNORMAL, NO_CODE = 4400, 1013, 1012, 1001, 1006, 1005


async def dial_leader(links: Links, leader: Leader, scope: Scope, headers: Headers) -> WebSocket:
    """Open the same socket at the leader, with the caller's own token; raises `HandshakeRefused` or `Unsent`."""
    offered = list(scope.get("subprotocols") or ()) or [""]
    _, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    more = [f"{RELAYED.decode()}: 1"]
    if word := headers.get(TURN_HEADER.lower().encode()):
        more.append(f"{TURN_HEADER}: {word.decode('latin-1')}")
    address = make_address(leader.url, scope["path"], offered[0], token.strip(), tuple(more))
    try:
        line = await links.open_line(leader)
        return await dial(address, line, OPEN_S, keepalive_s=KEEPALIVE_S)
    except (OSError, TimeoutError, DrayError) as fault:
        raise Unsent(str(fault) or "no answer") from None


async def deny(send: Send, refused: HandshakeRefused) -> None:
    """Give the leader's refusal back."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(refused.body))]
    await send({"type": "websocket.http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": refused.body})


class Carried:
    """One socket and its like at the leader."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, far: WebSocket) -> None:
        self._scope, self._receive, self._send, self._far = scope, receive, send, far
        self._frames: Frames | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._busy = self._reading = False
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._end: tuple[int, str] | None = None

    async def run(self) -> None:
        """Carry it to its end."""
        offered = list(self._scope.get("subprotocols") or ())
        await self._receive()
        await self._send({"type": "websocket.accept", "subprotocol": offered[0] if offered else None})
        self._frames = (self._scope.get("extensions") or {}).get(EXTENSION)
        self._far.on_writable = self._room.set
        self._far.on_message = self._take
        self._far.closed.add_done_callback(lambda end: self.close(*end.result()))
        if self._frames is not None:
            self._frames.take_frames(self._forth_now)
        forth = asyncio.ensure_future(self._forth())
        back = asyncio.ensure_future(self._back())
        try:
            await asyncio.wait({forth, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (forth, back):
                task.cancel()
            with contextlib.suppress(Exception):
                await asyncio.gather(forth, back, return_exceptions=True)
            self._far.abort()

    def close(self, code: int, reason: str) -> None:
        """End it, after what waits; where it broke whoever is behind it dials again."""
        if self._end is None:
            if code in (ABNORMAL, NO_CODE):
                code, reason = RELOADING, "the hub that leads went away: dial again"
            self._end = code, reason
            self._wake.set()

    # --- to the leader ------------------------------------------------------------------------------------------------

    def _forth_now(self, frame: bytes) -> bool:
        if self._reading or not self._far.writable:
            return False
        self._far.send(frame)
        return True

    async def _forth(self) -> None:
        while True:
            got = await self._receive()
            if got["type"] == "websocket.disconnect":
                code = int(got.get("code") or NO_CODE)
                await self._far.close(GOING_AWAY if code in (ABNORMAL, NO_CODE) else code)
                return
            if (frame := got.get("bytes")) is None:
                self.close(
                    BAD_INPUT, "what is passed on to the hub that leads is binary: the text was not read"
                )
                continue
            self._reading = True
            while not self._far.writable and not self._far.closed.done():
                self._room.clear()
                await self._room.wait()
            self._far.send(frame)
            self._reading = False

    # --- to the caller ------------------------------------------------------------------------------------------------

    def _take(self, frame: bytes) -> None:
        if self._end is not None:
            return
        is_free = not self._busy and not self._waiting
        if is_free and self._frames is not None and self._frames.write_frame(frame):
            return
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._waiting.clear()
            self.close(OVERLOADED, "this peer does not read what it is sent")
        self._wake.set()

    async def _back(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._busy = True
            while self._waiting:
                frame = self._waiting.popleft()
                await self._send({"type": "websocket.send", "bytes": frame})
                self._waiting_bytes -= len(frame)
            self._busy = False
            if self._end is not None:
                code, reason = self._end
                if self._frames is not None:
                    self._frames.abort_in(GOODBYE_S)
                words = reason.encode()[:120].decode(errors="ignore")
                await self._send({"type": "websocket.close", "code": code, "reason": words})
                return
