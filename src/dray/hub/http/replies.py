"""Answers of the HTTP API as bytes: documents, errors, and what every answer carries.

Owns the table from error class to status. An error that dray did not raise on purpose leaves as `internal` without
any detail: its text may hold a path, a query or a secret, and belongs in the hub's log alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from dray import errors
from dray.hub.access.bad_tokens import TooManyKnocks
from dray.hub.access.entrance import Headers, Receive, Send, UnsupportedMedia, WrongHost, has_body
from dray.hub.answers.refusals import error_document
from dray.hub.files.base import Reading
from dray.hub.http.routes import MethodNotAllowed

JSON = b"application/json"
LINGER_S = 2.0
PIECE_BYTES = 256 << 10
LINGER_BYTES = 64 << 20
STATUS: dict[type[errors.DrayError], int] = {
    errors.InvalidSpec: 400,
    errors.InvalidInput: 400,
    errors.InvalidConfig: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    MethodNotAllowed: 405,
    errors.Conflict: 409,
    errors.TooLarge: 413,
    UnsupportedMedia: 415,
    WrongHost: 421,
    errors.TooManyRequests: 429,
    errors.Unreachable: 502,
    errors.NotReady: 503,
    errors.StoreError: 503,
    errors.HubUnavailable: 503,
    errors.OutcomeUnknown: 504,
    errors.NoSpace: 507,
}
# Whatever an answer holds is for this caller alone and is what its type says.
_ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_encoder = msgspec.json.Encoder()


class Answer(NamedTuple):
    """One whole document."""

    document: Any
    status: int = 200


class Text(NamedTuple):
    """One whole text of another type than JSON."""

    body: bytes
    media: str
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()


class FileBody(NamedTuple):
    """The bytes of a file, sent piece by piece."""

    open: Callable[[], Reading]
    size: int
    headers: tuple[tuple[bytes, bytes], ...] = ()


def status_of(error: errors.DrayError) -> int:
    """Find the status of an error by its class or the nearest one above it."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def encode(document: Any) -> bytes:
    """Write a document as JSON."""
    return _encoder.encode(document)


def error_headers(error: errors.DrayError) -> list[tuple[bytes, bytes]]:
    """Give the headers that belong to an error's status."""
    if isinstance(error, errors.Unauthenticated):
        return [(b"www-authenticate", b'Bearer realm="dray"')]
    if isinstance(error, MethodNotAllowed):
        return [(b"allow", ", ".join(error.allow).encode())]
    if isinstance(error, errors.TooManyRequests):
        later = (b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s)))
        # Who guesses begins anew each time.
        return [later, (b"connection", b"close")] if isinstance(error, TooManyKnocks) else [later]
    if isinstance(error, errors.NotReady | errors.StoreError):
        return [(b"retry-after", b"1")]
    return []


async def send_whole(
    send: Send, status: int, body: bytes, media: bytes = JSON, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Send an answer whose length is known."""
    headers = [(b"content-type", media), (b"content-length", b"%d" % len(body)), *_ALWAYS, *(more or ())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    # In pieces: each waits until the reader has taken most of those before, so that a slow one holds one piece.
    for at in range(0, max(0, len(body) - PIECE_BYTES), PIECE_BYTES):
        await send({"type": "http.response.body", "body": body[at : at + PIECE_BYTES], "more_body": True})
    await send({"type": "http.response.body", "body": body[-(len(body) % PIECE_BYTES or PIECE_BYTES) :]})


async def send_head(send: Send, size: int, more: Sequence[tuple[bytes, bytes]]) -> None:
    """Begin an answer of so many bytes of any kind."""
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % size),
        *_ALWAYS,
        *more,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_start(send: Send, media: str) -> None:
    """Begin a stream."""
    headers = [(b"content-type", media.encode()), *_ALWAYS, (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_error(
    send: Send, receive: Receive, headers: Headers, error: errors.DrayError, body_read: bool
) -> None:
    """Refuse a request. A body that nobody will read is not worth the connection."""
    body = encode(error_document(error))
    more = error_headers(error)
    if body_read or not has_body(headers):
        await send_whole(send, status_of(error), body, more=more)
        return
    more = [(b"content-type", JSON), (b"content-length", b"%d" % len(body)), *_ALWAYS, *more]
    more.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status_of(error), "headers": more})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if b"expect" not in headers:
        await _linger(receive)
    await send({"type": "http.response.body", "body": b""})


async def deny_upgrade(send: Send, error: errors.DrayError) -> None:
    """Refuse a WebSocket before it is one, with a real HTTP answer."""
    body = encode(error_document(error))
    headers = [
        (b"content-type", JSON),
        (b"content-length", b"%d" % len(body)),
        *_ALWAYS,
        *error_headers(error),
    ]
    await send({"type": "websocket.http.response.start", "status": status_of(error), "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


async def _linger(receive: Receive) -> None:
    """Throw away what still arrives for a moment: closing at once would reset the connection under the answer."""
    left = LINGER_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
