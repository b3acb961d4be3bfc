"""One request of one caller, carried to a service and its answer back, both as they come.

Where a replica has certainly got nothing of it, another gets it from its beginning; that is kept for as long. From then
on no other does, since nobody knows what the first has done with it. Whatever breaks after the answer has begun is cut,
so that it does not look whole.
"""

from __future__ import annotations

import asyncio
import contextlib

from dray.errors import DrayError, Unreachable
from dray.hub.access.connections import GONE
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.http.replies import send_error
from dray.hub.http.streams import cut, wait_gone
from dray.hub.proxy.addresses import Asked
from dray.hub.proxy.answers import BODILESS, AnswerReader, Head
from dray.hub.proxy.headers import Headers, give_back, pass_on
from dray.hub.tunnels.approach import Approach
from dray.hub.tunnels.flow import Flow, Refused

# How long a service may take to close a connection whose answer is whole.
CLOSING_S = 5.0
# How much of a request is on its way before a replica stands.
EARLY_BYTES = 64 << 10


class Exchange:
    """A request on its way."""

    _flow: Flow

    def __init__(self, scope: Scope, receive: Receive, send: Send, asked: Asked, approach: Approach) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._asked, self._approach = asked, approach
        names = dict(scope["headers"])
        self._length: bytes | None = names.get(b"content-length")
        self._chunked = b"transfer-encoding" in names
        # What has been sent before a replica stood, for the next one.
        self._early: list[bytes] = []
        self._early_bytes = 0
        self._moved: asyncio.Future[None] | None = None
        self._reader: AnswerReader | None = None
        self.status = 0

    async def run(self) -> None:
        """Carry it to its end."""
        await self._begin()
        tell_gone = self._scope.get("extensions", {}).get(GONE)
        try:
            if tell_gone is not None and not self._chunked and self._length in (None, b"0"):
                tell_gone(lambda: self._approach.break_off("the caller has gone"))
                await self._answer()
            else:
                tell_gone = None
                await self._answer_sending()
        except Unreachable as fault:
            if self.status:
                await cut(self._scope, wait_gone(self._receive))
            else:
                self.status = 502
                headers = dict(self._scope["headers"])
                body_read = not (self._chunked or self._length)
                await send_error(self._send, self._receive, headers, fault, body_read)
        finally:
            if tell_gone is not None:
                tell_gone(None)
            self._leave()

    async def _answer_sending(self) -> None:
        """Answer while the body is sent on."""
        sending = asyncio.ensure_future(self._send_body())
        try:
            await self._answer()
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, DrayError):
                await sending

    def _write_head(self) -> bytes:
        scope, asked = self._scope, self._asked
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        client = (scope.get("client") or ("",))[0]
        headers = pass_on(scope["headers"], asked, scope["scheme"], client)
        if self._chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        elif self._length is not None:
            headers.append((b"content-length", self._length))
        if not self._approach.keeps:
            headers.append((b"connection", b"close"))
        return write_head(b"%b %b%b HTTP/1.1" % (scope["method"].encode(), asked.path, query), headers)

    async def _begin(self) -> None:
        """Go to the next place, with all that the one before did not get."""
        self._flow = await self._approach.next()
        self._flow.stream.write(self._write_head())
        for data in self._early:
            self._flow.stream.write(data)
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)

    async def _send_body(self) -> None:
        """Send the body on; and then wait for the caller to go away, who may do so at any time."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._approach.break_off("the caller has gone")
                return
            data = message.get("body", b"")
            if data:
                await self._pass_on(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            if self._chunked and not message.get("more_body"):
                await self._pass_on(b"0\r\n\r\n")

    async def _pass_on(self, data: bytes) -> None:
        while self._early_bytes >= EARLY_BYTES:
            flow = self._flow
            if await flow.stand():
                self._early, self._early_bytes = [], 0
            elif flow is self._flow:
                # It goes on elsewhere, or it ends and this with it.
                self._moved = asyncio.get_running_loop().create_future()
                await self._moved
        if not self._flow.stream.opened:
            self._early.append(data)
            self._early_bytes += len(data)
        await self._flow.write(data)

    async def _stand(self) -> tuple[AnswerReader, Head]:
        """The first answer that comes, of whichever place."""
        while True:
            reader = self._reader = AnswerReader(self._flow, self._scope["method"] == "HEAD")
            try:
                return reader, await reader.head()
            except Refused as fault:
                self._approach.refused(fault)
                await self._begin()

    async def _answer(self) -> None:
        reader, head = await self._stand()
        self.status = head.status
        # A length without a body is the server's word for an answer that is cut.
        headers = give_back(head.headers, self._asked, head.chunked or head.status in BODILESS)
        await self._send({"type": "http.response.start", "status": head.status, "headers": headers})
        more = True
        while more:
            piece = await reader.piece()
            more = not reader.ended
            await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    def _leave(self) -> None:
        """Leave the connection to the caller's next request, or let the service close first: what is reset looks like a
        fault to it.
        """
        stream = self._flow.stream
        if self._approach.keeps and self._reader is not None and self._reader.reusable and stream.keep():
            return
        if not stream.ended:
            stream.finish(hurries=False)
            if not stream.ended:
                asyncio.get_running_loop().call_later(CLOSING_S, stream.reset, "its answer was whole")


def write_head(first: bytes, headers: Headers) -> bytes:
    """Spell the beginning of a message."""
    return b"\r\n".join((first, *(b"%b: %b" % pair for pair in headers), b"", b""))
