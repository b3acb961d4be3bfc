"""One request of a client, passed on to the hub that leads as its own: his token, his key, his answer.

The leader checks and decides as if he had asked it himself; the gateway adds no right of its own. What breaks before
any of it has left is sent again, whatever it is. What breaks later is sent again where the table of operations says
that this does no harm: a submit without a key is given one first. All else is answered with `outcome_unknown`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Any, Protocol

from dray.errors import InvalidInput, NotReady, OutcomeUnknown
from dray.hub.access.connections import GONE
from dray.hub.access.entrance import Headers, Receive, Scope, Send, has_body, read_body
from dray.hub.gateways.links import Leader
from dray.hub.http.front import App
from dray.hub.http.routes import Route
from dray.hub.http.streams import cut, wait_gone
from dray.hub.proxy.answers import BODILESS, AnswerReader, BadAnswer, Head
from dray.hub.proxy.exchange import write_head
from dray.hub.proxy.headers import FORWARDED, HOP, check_framing
from dray.hub.relays.lines import HttpLine, HttpLines, LineBroken, Unsent
from dray.wire.reach.refusals import read_refusal

# Says that a hub has passed a request on: no other does so again.
RELAYED = b"dray-relayed"
KEY = b"idempotency-key"
HOLD_S = 10.0
FIRST_PAUSE_S, MOST_PAUSE_S = 0.02, 0.3
REFUSAL_BYTES = 64 << 10
_NOT_PASSED = HOP | FORWARDED | {b"host", b"content-length", b"expect", b"cookie", b"origin", RELAYED}
_NOT_GIVEN_BACK = HOP | {b"date"}
_PLAIN = re.compile(rb"[\x21-\x7e]+").fullmatch


class Ways(Protocol):
    """What knows who leads."""

    lines: HttpLines

    async def reach(self, until_s: float) -> App | Leader:
        """The hub in this process where it leads, else who leads elsewhere; waits for one, not for ever."""

    def under_way(self, line: HttpLine, leader: Leader) -> contextlib.AbstractContextManager[None]:
        """Have a connection broken off once another hub leads."""

    def make_key(self) -> str: ...


class Passing:
    """A request on its way. `until_s`: how long it may be held, by the loop's clock."""

    def __init__(
        self, ways: Ways, scope: Scope, receive: Receive, send: Send, headers: Headers, route: Route
    ) -> None:
        self._ways, self._scope, self._receive, self._send = ways, scope, receive, send
        self._headers, self._route = headers, route
        self._body: bytes | None = b""
        self._unread = self.body_read = False
        self._begun = self._gone = self._answered = False
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + HOLD_S

    @property
    def answered(self) -> bool:
        """Whether an answer has begun."""
        return self._answered

    async def run(self, body_bytes: int) -> None:
        """Pass it on, to whoever leads by then."""
        check_framing(self._scope["headers"])
        if self._route.raw_body:
            self._body = None
        elif has_body(self._headers):
            self._body = await read_body(self._receive, self._headers, body_bytes)
            self._unread = self.body_read = True
        if "Idempotency-Key" in self._route.headers and KEY not in self._headers:
            key = (KEY, self._ways.make_key().encode())
            self._scope = {**self._scope, "headers": [*self._scope["headers"], key]}
        pause_s = FIRST_PAUSE_S
        while True:
            way = await self._ways.reach(self._until_s)
            if not isinstance(way, Leader):
                await way(self._scope, self._receive_again, self._send)
                return
            try:
                if await self._attempt(way):
                    return
                why = "the hub that leads is about to hand over"
            except Unsent as fault:
                why = str(fault)
            except (LineBroken, BadAnswer):
                if self._gone:
                    return
                if self._answered:
                    await cut(self._scope, wait_gone(self._receive))
                    return
                self._check_again()
                why = "the hub that leads went away"
            if self._loop.time() + pause_s > self._until_s:
                raise NotReady(f"{why}: nobody has answered within {HOLD_S:g} s, ask again in a second")
            await asyncio.sleep(pause_s)
            pause_s = min(MOST_PAUSE_S, 2 * pause_s)

    def _check_again(self) -> None:
        """Raise unless this may be sent a second time."""
        if self._route.operation.repeat == "anew":
            raise OutcomeUnknown(
                f"the hub that leads went away while it was asked to {self._route.about[:1].lower()}"
                f"{self._route.about[1:]}: that may have been done or not. Look before you ask again"
            )
        if self._body is None and self._begun:
            raise NotReady("the hub that leads went away in the middle of a body: send it again")

    # --- one attempt --------------------------------------------------------------------------------------------------

    async def _attempt(self, leader: Leader) -> bool:
        """Ask one leader; False where it has refused because it is about to lead no more."""
        is_new = self._body is None or self._route.operation.repeat == "anew"
        line = await self._ways.lines.take(leader, is_new)
        tell_gone = self._scope.get("extensions", {}).get(GONE) if self._body is not None else None
        sending: asyncio.Future[None] | None = None
        reusable = False
        try:
            with self._ways.under_way(line, leader):
                if tell_gone is not None:
                    tell_gone(lambda: self._leave(line))
                await line.write(self._write_head(leader) + (self._body or b""))
                if self._body is None:
                    sending = asyncio.ensure_future(self._send_body(line))
                reader = AnswerReader(line, self._scope["method"] == "HEAD")
                done = await self._answer(reader, await reader.head())
                reusable = reader.reusable
                return done
        finally:
            if tell_gone is not None:
                tell_gone(None)
            if sending is not None:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, LineBroken):
                    await sending
            if reusable and self._body is not None:
                self._ways.lines.give_back(leader, line)
            else:
                line.abort()

    def _leave(self, line: HttpLine) -> None:
        self._gone = True
        line.abort()

    def _write_head(self, leader: Leader) -> bytes:
        scope = self._scope
        path, query = scope["raw_path"], scope["query_string"]
        target = path + b"?" + query if query else path
        if _PLAIN(target) is None:
            raise InvalidInput("the path or the query of this request holds what an address may not")
        headers = [pair for pair in scope["headers"] if pair[0] not in _NOT_PASSED]
        headers += [(b"host", leader.netloc.encode()), (RELAYED, b"1")]
        if self._body is None:
            length = self._headers.get(b"content-length")
            headers.append(
                (b"content-length", length) if length is not None else (b"transfer-encoding", b"chunked")
            )
        elif self._body or scope["method"] not in ("GET", "HEAD"):
            headers.append((b"content-length", b"%d" % len(self._body)))
        return write_head(b"%b %b HTTP/1.1" % (scope["method"].encode(), target), headers)

    async def _send_body(self, line: HttpLine) -> None:
        """Send a body on as it comes; the caller may go away at any time."""
        chunked, more = b"content-length" not in self._headers, True
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._leave(line)
                return
            self._begun = True
            if data := message.get("body", b""):
                await line.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            if more and not message.get("more_body"):
                more = False
                if chunked:
                    await line.write(b"0\r\n\r\n")

    async def _answer(self, reader: AnswerReader, head: Head) -> bool:
        first = b""
        if head.status == 503 and self._body is not None and self._route.operation.repeat != "anew":
            first = await _read_all(reader)
            refusal = read_refusal(first)
            if isinstance(refusal, NotReady) and self._loop.time() + MOST_PAUSE_S < self._until_s:
                return False
        headers = [
            (name, value)
            for name, value in head.headers
            if name not in _NOT_GIVEN_BACK
            and not (name == b"content-length" and (head.chunked or head.status in BODILESS))
        ]
        self._answered = True
        await self._send({"type": "http.response.start", "status": head.status, "headers": headers})
        more = True
        while more:
            piece = first or await reader.piece()
            first, more = b"", not reader.ended
            await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        return True

    async def _receive_again(self) -> Mapping[str, Any]:
        """What was read of the body for others comes first, where this very hub leads by now."""
        if self._unread:
            self._unread = False
            return {"type": "http.request", "body": self._body, "more_body": False}
        return await self._receive()


async def _read_all(reader: AnswerReader) -> bytes:
    body = b""
    while not reader.ended and len(body) < REFUSAL_BYTES:
        body += await reader.piece()
    return body
