"""Answers of services as they come over a stream: status and headers, then the body piece by piece.

Owns how an answer ends: by its length, by its last chunk, or where it has neither, by the end of the stream. Whatever
ends otherwise is not whole, and is not to look so.
"""

from __future__ import annotations

from typing import NamedTuple

import httptools

from dray.errors import Unreachable
from dray.hub.tunnels.flow import Flow

HEAD_BYTES = 64 << 10


class BadAnswer(Unreachable):
    """What a service says is no HTTP."""


class Head(NamedTuple):
    """The beginning of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    chunked: bool


class AnswerReader:
    """One answer. `bodiless`: the request was such that none has a body (HEAD)."""

    def __init__(self, flow: Flow, bodiless: bool) -> None:
        self._flow, self._bodiless = flow, bodiless
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._complete = False
        self._has_end = False

    async def head(self) -> Head:
        """Status and headers; interim answers are passed over."""
        size = 0
        while self._head is None:
            data = await self._flow.read()
            if not data:
                raise BadAnswer("the service closed the connection without an answer")
            if size > HEAD_BYTES:
                raise BadAnswer(f"the headers of the service's answer are over {HEAD_BYTES} bytes")
            size += len(data)
            self._feed(data)
        return self._head

    async def piece(self) -> bytes:
        """The next piece of the body; empty at its end. Raises where it is not whole."""
        while not self._pieces and not self._complete:
            data = await self._flow.read()
            if data:
                self._feed(data)
            elif self._has_end:
                raise BadAnswer("the service closed the connection before its answer was whole")
            else:
                self._complete = True
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise BadAnswer("the service changes to another protocol than was asked for") from None
        except httptools.HttpParserError as fault:
            if not self._complete:
                raise BadAnswer(f"what the service says is no HTTP: {fault}") from None

    # --- the parser's calls -------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if status < 200 or self._head is not None:
            return
        names = dict(headers)
        chunked = names.get(b"transfer-encoding", b"").strip().lower() == b"chunked"
        if b"transfer-encoding" in names and not chunked:
            raise BadAnswer("the service's answer has a Transfer-Encoding that is not passed on")
        self._has_end = chunked or b"content-length" in names
        self._head = Head(status, headers, chunked)
        if self._bodiless or status in (204, 304):
            self._complete = True

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._head is not None:
            self._complete = True
