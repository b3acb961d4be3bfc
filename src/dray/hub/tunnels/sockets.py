"""A WebSocket of the hub that carries streams: frames go straight between it and its multiplexer.

Owns the socket from its upgrade to its end and nothing of what streams are for. Ends with the token behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.access.token_leases import Hold
from dray.hub.workers.frames import EXTENSION, FrameSocket
from dray.wire.streams.frames import SUBPROTOCOL_STREAMS, WINDOW_BYTES
from dray.wire.streams.gathering import Gatherer
from dray.wire.streams.mux import Mux, Stream

BAD_INPUT, TOKEN_GONE, GOING_AWAY, DONE = 4400, 4401, 1001, 1000
GOODBYE_S = 2.0
REASON_BYTES = 120


class StreamSocket:
    """One socket and its streams. `accept`: what is done about streams that the peer opens; None where it may not."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        accept: Callable[[Stream, bytes], None] | None = None,
    ) -> None:
        self._receive, self._send = receive, send
        self._frames: FrameSocket = scope["extensions"][EXTENSION]
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        self._end: tuple[int, str] = (DONE, "")
        gatherer = Gatherer(self._frames.write_frames)
        self.mux = Mux(
            gatherer.write,
            self._frames.has_room,
            lambda why: self.end(BAD_INPUT, why),
            accept,
            gatherer.lay_by,
        )
        # When the peer was last heard, by the loop's clock; and whether it uses connections again.
        self.heard_s = 0.0
        self.keeps = False

    def end(self, code: int, reason: str) -> None:
        """Close it with these words; the first ones count."""
        if not self._ending.is_set():
            self._end = code, reason
            self._ending.set()
            # A peer that does not read hears no goodbye.
            self._frames.abort_in(GOODBYE_S)

    async def run(self, caller: Caller, hold: Hold, begun: Callable[[], None] = lambda: None) -> None:
        """Serve it until either side ends it; `begun` is called once it stands."""
        await self._receive()
        await self._send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL_STREAMS})
        # Several frames may leave at once.
        self._frames.transport.set_write_buffer_limits(WINDOW_BYTES)
        self._frames.take_frames(self._take)
        self._frames.tell_room(self.mux.flush)
        self.heard_s = self._loop.time()
        reading = asyncio.ensure_future(self._read())
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            with hold(caller.token_id, lambda why: self.end(TOKEN_GONE, why)):
                begun()
                await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.mux.close(self._end[1] or "the connection was closed")
            reading.cancel()
            ending.cancel()
        if self._ending.is_set():
            code, reason = self._end
            words = reason.encode()[:REASON_BYTES].decode(errors="ignore")
            await self._send({"type": "websocket.close", "code": code, "reason": words})

    def _take(self, frame: bytes) -> bool:
        if not self._ending.is_set():
            self.heard_s = self._loop.time()
            self.mux.take(frame)
        return True

    async def _read(self) -> None:
        """Wait for the end; what took the general way comes by here."""
        while True:
            got: Any = await self._receive()
            if got["type"] == "websocket.disconnect":
                return
            if got.get("bytes") is not None:
                self._take(got["bytes"])
            else:
                self.end(BAD_INPUT, "streams are binary")
