"""Answers of services as they come over a stream: status and headers, then the body piece by piece.

Owns how an answer ends: by its length, by its last chunk, or where it has neither, by the end of the stream. Whatever
ends otherwise is not whole, and is not to look so. And whether another may follow on the same connection: only where
nobody could place the end of this one elsewhere.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

import httptools

from dray.errors import Unreachable

HEAD_BYTES = 64 << 10
RESET_CONTENT = 205
# A service that closes what idles for less is not relied on.
KEPT_LEAST_S = 2
_TIMEOUT = re.compile(rb"timeout\s*=\s*\"?([0-9]{1,9})")
# Without a body by rule. Some services send one all the same.
BODILESS = (204, 304)


class BadAnswer(Unreachable):
    """What a service says is no HTTP."""


class Head(NamedTuple):
    """The beginning of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    chunked: bool


class Source(Protocol):
    """Where an answer comes from."""

    @property
    def is_read(self) -> bool: ...
    async def read(self) -> bytes: ...


class AnswerReader:
    """One answer. `bodiless`: the request was such that none has a body (HEAD)."""

    def __init__(self, flow: Source, bodiless: bool) -> None:
        self._flow, self._bodiless = flow, bodiless
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._complete = False
        self._has_end = False
        # One message that ended by its own length, and nothing beside it.
        self._in_order = True
        self._begun = self._ended = False

    @property
    def reusable(self) -> bool:
        """Whether the answer has ended so that another request may follow it."""
        return self._ended and self._in_order and self._flow.is_read

    @property
    def ended(self) -> bool:
        """Whether there is no further piece."""
        return self._complete and not self._pieces

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
            self._in_order = False
            if not self._complete:
                raise BadAnswer(f"what the service says is no HTTP: {fault}") from None

    # --- the parser's calls -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._begun:
            # Interim answers, and whatever follows the end.
            self._in_order = False
        self._begun = True

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
        bodiless = self._bodiless or status in BODILESS
        self._complete = self._complete or bodiless
        one_end = not bodiless and status != RESET_CONTENT and chunked != (b"content-length" in names)
        self._in_order = self._in_order and one_end and self._stays(names.get(b"keep-alive", b""))

    def _stays(self, told: bytes) -> bool:
        """Whether the service goes on with the connection, by its own word."""
        timeout = _TIMEOUT.search(told)
        if timeout is not None and int(timeout[1]) < KEPT_LEAST_S:
            return False
        return self._parser.get_http_version() == "1.1" and bool(self._parser.should_keep_alive())

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._head is not None:
            self._complete = self._ended = True
