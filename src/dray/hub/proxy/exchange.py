"""One request of one caller, carried to a service and its answer back, both as they come.

Nothing is sent before a replica stands: until then another may be tried. From then on it is not, since nobody knows
what the first has done with it. Whatever breaks after the answer has begun is cut, so that it does not look whole.
"""

from __future__ import annotations

import asyncio
import contextlib

from dray.errors import DrayError, Unreachable
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.http.replies import send_error
from dray.hub.http.streams import cut, wait_gone
from dray.hub.proxy.addresses import Asked
from dray.hub.proxy.answers import AnswerReader
from dray.hub.proxy.headers import Headers, give_back, pass_on
from dray.hub.tunnels.flow import Flow

# How long a service may take to close a connection whose answer is whole.
CLOSING_S = 5.0


class Exchange:
    """A request that stands before a replica."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, asked: Asked, flow: Flow) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._asked, self._flow = asked, flow
        names = dict(scope["headers"])
        self._length: bytes | None = names.get(b"content-length")
        self._chunked = b"transfer-encoding" in names
        self.status = 0

    async def run(self) -> None:
        """Carry it to its end."""
        self._flow.stream.write(self._head())
        sending = asyncio.ensure_future(self._send_body())
        try:
            await self._answer()
        except Unreachable as fault:
            if self.status:
                await cut(self._scope, wait_gone(self._receive))
            else:
                self.status = 502
                sending.cancel()
                headers = dict(self._scope["headers"])
                body_read = not (self._chunked or self._length)
                await send_error(self._send, self._receive, headers, fault, body_read)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, DrayError):
                await sending
            self._leave()

    def _head(self) -> bytes:
        scope, asked = self._scope, self._asked
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        client = (scope.get("client") or ("",))[0]
        headers = pass_on(scope["headers"], asked, scope["scheme"], client)
        if self._chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        elif self._length is not None:
            headers.append((b"content-length", self._length))
        headers.append((b"connection", b"close"))
        return write_head(b"%b %b%b HTTP/1.1" % (scope["method"].encode(), asked.path, query), headers)

    async def _send_body(self) -> None:
        """Send the body on; and then wait for the caller to go away, who may do so at any time."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._flow.break_off("the caller has gone")
                return
            data = message.get("body", b"")
            if data:
                await self._flow.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            if self._chunked and not message.get("more_body"):
                await self._flow.write(b"0\r\n\r\n")

    async def _answer(self) -> None:
        reader = AnswerReader(self._flow, self._scope["method"] == "HEAD")
        head = await reader.head()
        self.status = head.status
        headers = give_back(head.headers, self._asked, head.chunked)
        await self._send({"type": "http.response.start", "status": head.status, "headers": headers})
        while piece := await reader.piece():
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    def _leave(self) -> None:
        """Let the service close first: what is reset looks like a fault to it."""
        stream = self._flow.stream
        if not stream.ended:
            stream.finish()
            if not stream.ended:
                asyncio.get_running_loop().call_later(CLOSING_S, stream.reset, "its answer was whole")


def write_head(first: bytes, headers: Headers) -> bytes:
    """Spell the beginning of a message."""
    return b"\r\n".join((first, *(b"%b: %b" % pair for pair in headers), b"", b""))
