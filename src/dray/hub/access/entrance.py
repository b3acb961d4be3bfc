"""The one gate in front of HTTP, WebSocket upgrades and event streams: no work for what it has not let in.

Owns the checks of Host, Origin, token and scope and the reading of bodies under a limit; knows nothing about
routes or what a call does. The order is the rule: where the request comes from is settled before its token is
looked at, so that a page in somebody's browser learns nothing, not even whether a token would have been good.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dray.errors import DrayError, Forbidden, InvalidInput, TooLarge, Unauthenticated
from dray.hub.access.bad_tokens import Knocks
from dray.hub.access.caller import Caller
from dray.hub.access.tokens import Tokens
from dray.wire.messages.codec import MAX_DEPTH, depth_of
from dray.wire.messages.packed import LIST_VALUES, Packed, check_bytes, check_values

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Mapping[bytes, bytes]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_WEB_SCHEMES = {"ws": "http", "wss": "https"}
# Each of these decides something; two of one name would let two readers decide differently.
_SINGLE = (
    b"host",
    b"origin",
    b"authorization",
    b"content-type",
    b"content-length",
    b"idempotency-key",
    b"last-event-id",
    b"x-dray-session",
    b"sec-fetch-site",
)
# The halves of a browser's token: one that no script can read, one that no other site or port can send.
SESSION_HEADER = b"x-dray-session"
SESSION_COOKIE = b"dray_web"
# A browser takes a cookie of this name only over TLS, from this very host and for all of it.
SECURE_COOKIE = b"__Host-dray_web"
_HALF = re.compile(rb"[A-Za-z0-9_-]{8,64}")
_COOKIE_HALF = re.compile(rb"([0-9a-f]{8})\.([A-Za-z0-9_-]{8,64})")
_document: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_list = msgspec.json.Decoder(list[msgspec.Raw])
# Without any progress for so long nobody is sending.
BODY_S = 30.0
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


class WrongHost(DrayError):
    """The Host header names another machine: a rebound DNS name, or a name that the hub was not told of."""

    code = "wrong_host"


class UnsupportedMedia(DrayError):
    """A body that does not say it is JSON."""

    code = "unsupported_media_type"


class Hosts:
    """`hosts` are the names this hub may be called by, besides loopback and the address that was connected to."""

    def __init__(self, hosts: Iterable[str]) -> None:
        # "Every address" is where a hub may listen, never what it is called.
        self._hosts = frozenset(map(_name_of, (*LOOPBACK_NAMES, *hosts))) - {"", "0.0.0.0", "::"}

    def check_source(self, scope: Scope, headers: Headers) -> None:
        """Refuse a foreign Host (421) and a foreign Origin (403), on every method."""
        name = self._check_host(scope, headers)
        origin = headers.get(b"origin")
        if origin is not None and not _same_origin(origin.decode("latin-1"), scope["scheme"], name):
            raise Forbidden(
                "the Origin of this request is another site: the hub answers its own pages and programs that send none"
            )

    def _check_host(self, scope: Scope, headers: Headers) -> tuple[str, int | None]:
        match = _HOST.fullmatch(headers.get(b"host", b"").decode("latin-1"))
        if match is None:
            raise WrongHost("the request has no usable Host header: name the hub's host and port in it")
        name = bare_host(match[1] or match[2])
        # The address that was connected to cannot be a rebound name: it is how a hub bound to every address is called.
        if name not in self._hosts and name != bare_host((scope.get("server") or ("",))[0]):
            raise WrongHost(
                f"this hub is not called {name!r}: use its address, or add the name to `hosts` of [hub]"
            )
        return name, int(match[3]) if match[3] else None


class Gate(Hosts):
    """Knows tokens as well."""

    def __init__(self, tokens: Tokens, hosts: Iterable[str], knocks: Knocks) -> None:
        super().__init__(hosts)
        self._tokens, self._knocks = tokens, knocks

    def check_caller(self, scope: Scope, headers: Headers, scopes: Iterable[str]) -> Caller:
        """Refuse a missing or dead token (401; 429 where there were too many) and one without any of `scopes` (403)."""
        caller = self.know_caller(scope, headers)
        caller.check(scopes)
        return caller

    def know_caller(self, scope: Scope, headers: Headers) -> Caller:
        """Tell who asks, whatever he may do."""
        given = headers.get(b"authorization")
        try:
            return self._tokens.authenticate(None if given is None else given.decode("latin-1"))
        except Unauthenticated as fault:
            if given is not None:
                self._knocks.miss((scope.get("client") or ("",))[0], fault.message)
            raise


@lru_cache(maxsize=256)
def bare_host(text: str) -> str:
    """Spell a host name or address in one way, without a port."""
    text = text.strip().strip("[]").rstrip(".").lower()
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return text


def _name_of(host: str) -> str:
    match = _HOST.fullmatch(host)
    return bare_host(match[1] or match[2]) if match is not None else bare_host(host)


def _same_origin(origin: str, scheme: str, host: tuple[str, int | None]) -> bool:
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        return False
    ours = _WEB_SCHEMES.get(scheme, scheme)
    theirs = (parts.scheme, bare_host(parts.hostname), port or _DEFAULT_PORTS[parts.scheme])
    return theirs == (ours, host[0], host[1] or _DEFAULT_PORTS[ours])


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Index headers by name; one that decides something may come only once."""
    headers: dict[bytes, bytes] = {}
    for name, value in raw:
        if name in headers and name in _SINGLE:
            raise InvalidInput(f"the header {name.decode('latin-1')} came twice: send it once")
        headers[name] = value
    return headers


def unite_halves(scope: Scope, headers: Headers) -> tuple[Scope, Headers]:
    """Where both halves of a browser's token are there, put them together; they go the way of any token from here.

    A browser says which page asks: no other site, nor another port of this host, may speak with this one's cookie.
    """
    half = headers.get(SESSION_HEADER)
    if half is None or b"authorization" in headers or scope["type"] != "http":
        return scope, headers
    if headers.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
        return scope, headers
    if sum(name == b"cookie" for name, _ in scope["headers"]) > 1:
        raise InvalidInput("the header cookie came twice: send it once")
    cookie = SECURE_COOKIE if scope["scheme"] == "https" else SESSION_COOKIE
    found = _COOKIE_HALF.fullmatch(read_cookie(scope["headers"], cookie))
    if found is None or _HALF.fullmatch(half) is None:
        return scope, headers
    token = (b"authorization", b"Bearer dray_%b_%b%b" % (found[1], found[2], half))
    kept = [pair for pair in scope["headers"] if pair[0] not in (b"cookie", SESSION_HEADER)]
    return {**scope, "headers": [*kept, token]}, {**headers, token[0]: token[1]}


def read_cookie(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The value of a cookie; where several have that name, the first, which is that of the longest path."""
    for header, value in headers:
        if header == b"cookie":
            for pair in value.split(b";"):
                key, _, text = pair.strip().partition(b"=")
                if key == name:
                    return text
    return b""


def has_body(headers: Headers) -> bool:
    """Whether the request announces a body."""
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


async def read_body(receive: Receive, headers: Headers, limit_bytes: int) -> bytes:
    """Read a body, and stop reading as soon as it is over the limit."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks = []
    total = 0
    more = True
    while more:
        try:
            async with asyncio.timeout(BODY_S):
                message = await receive()
        except TimeoutError:
            raise InvalidInput(f"nothing of the body came for {BODY_S:g} s: send it in one go") from None
        if message["type"] == "http.disconnect":
            raise InvalidInput("the connection ended inside the body")
        chunk = message.get("body", b"")
        total += len(chunk)
        if total > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def decode_json(body: bytes, headers: Headers, depth: int = MAX_DEPTH) -> Any:
    """Read a body as one JSON document of bounded depth; an empty body is None."""
    if not body:
        return None
    _check_media(headers)
    check_values(body)
    return _decode(_document, body, depth)


def decode_list(body: bytes, headers: Headers, depth: int = MAX_DEPTH) -> Any:
    """Read a body as a list whose members are opened one by one; what is no list is read as any other document."""
    if not body.lstrip().startswith(b"["):
        return decode_json(body, headers, depth)
    _check_media(headers)
    check_values(body, LIST_VALUES)

    def read(member: msgspec.Raw) -> Any:
        check_bytes(member)
        check_values(bytes(member))
        return _decode(_document, member, depth)

    return Packed(_decode(_list, body, depth), read)


def _check_media(headers: Headers) -> None:
    media = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if media != b"application/json":
        raise UnsupportedMedia("the body must be JSON: send it with `Content-Type: application/json`")


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw, depth: int) -> Any:
    try:
        document = decoder.decode(body)
    except RecursionError:
        raise _too_deep(depth) from None
    except (msgspec.MsgspecError, UnicodeError) as fault:
        place = "" if "byte" in str(fault) or "`$" in str(fault) else f" (after byte {len(body)})"
        raise InvalidInput(f"the body is not JSON: {fault}{place}") from None
    if decoder is _document and depth_of(document, depth) > depth:
        raise _too_deep(depth)
    return document


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(
        f"the body is over the limit of {limit_bytes} bytes: send fewer jobs at once, or less in each"
    )


def _too_deep(depth: int) -> InvalidInput:
    return InvalidInput(f"the body is nested deeper than {depth} levels: the hub reads no deeper")
