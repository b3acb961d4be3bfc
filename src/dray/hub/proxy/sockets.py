"""A WebSocket of a caller, carried to a service: the hub is the server of one and the client of the other.

Messages are passed on whole, with their kind; pings each side answers for itself, and a close goes through with its
code.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from dray.errors import DrayError
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.proxy.addresses import Asked
from dray.hub.proxy.answers import BadAnswer
from dray.hub.proxy.headers import give_back, pass_on
from dray.hub.tunnels.approach import Approach
from dray.hub.tunnels.flow import Broken, Flow, Refused

MESSAGE_BYTES = 16 << 20
ABNORMAL, GOING_AWAY, NO_CODE = 1006, 1001, 1005
_OWN = (
    b"sec-websocket-key",
    b"sec-websocket-version",
    b"sec-websocket-extensions",
    b"sec-websocket-protocol",
    b"host",
)


class SocketExchange:
    """One WebSocket and the service behind it."""

    _flow: Flow

    def __init__(self, scope: Scope, receive: Receive, send: Send, asked: Asked, approach: Approach) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._asked, self._approach = asked, approach
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        uri = parse_uri(f"ws://service{(asked.path + query).decode('latin-1')}")
        offered = [Subprotocol(name) for name in scope.get("subprotocols") or ()]
        self._service = ClientProtocol(uri, subprotocols=offered or None, max_size=MESSAGE_BYTES)
        self._parts: list[bytes] = []
        self._text = False
        self._events: list[Any] = []

    async def run(self) -> int:
        """Carry it to its end; gives the status of the handshake."""
        response = await self._greet()
        if response.status_code != 101 or self._service.handshake_exc is not None:
            headers = give_back(_lower(response), self._asked, lengthless=True)
            await self._send(
                {"type": "websocket.http.response.start", "status": response.status_code, "headers": headers}
            )
            await self._send({"type": "websocket.http.response.body", "body": b""})
            return response.status_code
        await self._receive()
        await self._send({"type": "websocket.accept", "subprotocol": self._service.subprotocol})
        forth = asyncio.ensure_future(self._forth())
        try:
            code, reason = await self._back()
            with contextlib.suppress(OSError, RuntimeError):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
        finally:
            forth.cancel()
            with contextlib.suppress(asyncio.CancelledError, DrayError):
                await forth
            self._flow.stream.reset("the socket has ended")
        return 101

    async def _greet(self) -> Response:
        request = self._service.connect()
        scope = self._scope
        client = (scope.get("client") or ("",))[0]
        scheme = "https" if scope["scheme"] == "wss" else "http"
        headers = pass_on(scope["headers"], self._asked, scheme, client)
        del request.headers["Host"]
        host = dict(scope["headers"]).get(b"host", b"")
        for name, value in ((b"host", host), *(pair for pair in headers if pair[0] not in _OWN)):
            request.headers[name.decode("latin-1")] = value.decode("latin-1")
        self._service.send_request(request)
        first = b"".join(self._service.data_to_send())
        self._flow = await self._approach.next()
        await self._flow.write(first)
        while True:
            try:
                data = await self._flow.read()
            except Refused as fault:
                self._approach.refused(fault)
                self._flow = await self._approach.next()
                await self._flow.write(first)
                continue
            if not data:
                raise BadAnswer("the service closed the connection without an answer")
            self._service.receive_data(data)
            # What the service says together with its answer comes after it.
            self._events = self._service.events_received()
            if self._events and isinstance(answer := self._events.pop(0), Response):
                return answer
            if self._service.handshake_exc is not None:
                raise BadAnswer(
                    f"the service's answer to the handshake is none: {self._service.handshake_exc}"
                )

    async def _forth(self) -> None:
        """Pass on what the caller says, until it goes."""
        while True:
            got: Any = await self._receive()
            if got["type"] == "websocket.disconnect":
                code = int(got.get("code") or NO_CODE)
                if self._service.state is State.OPEN:
                    self._service.send_close(GOING_AWAY if code in (ABNORMAL, NO_CODE) else code)
                    await self._flush()
                self._flow.break_off("the caller has gone")
                return
            if self._service.state is not State.OPEN:
                continue
            if got.get("bytes") is not None:
                self._service.send_binary(got["bytes"])
            else:
                self._service.send_text((got.get("text") or "").encode())
            await self._flush()

    async def _back(self) -> tuple[int, str]:
        """Pass on what the service says, until it ends; gives how."""
        while True:
            events, self._events = self._events + self._service.events_received(), []
            for event in events:
                if isinstance(event, Frame):
                    await self._pass_back(event)
            await self._flush()
            if (closing := self._service.close_rcvd) is not None:
                return (closing.code if closing.code != NO_CODE else 1000), closing.reason
            try:
                data = await self._flow.read()
            except Broken:
                return GOING_AWAY, "the connection to the service broke"
            if not data:
                return GOING_AWAY, "the service has closed the connection"
            self._service.receive_data(data)

    async def _pass_back(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._text, self._parts = frame.opcode is Opcode.TEXT, []
        elif frame.opcode is not Opcode.CONT:
            return
        self._parts.append(bytes(frame.data))
        if frame.fin:
            whole, self._parts = b"".join(self._parts), []
            body = {"text": whole.decode("utf-8", "replace")} if self._text else {"bytes": whole}
            await self._send({"type": "websocket.send", **body})

    async def _flush(self) -> None:
        for data in self._service.data_to_send():
            if data:
                await self._flow.write(data)


def _lower(response: Response) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers.raw_items()
    ]
