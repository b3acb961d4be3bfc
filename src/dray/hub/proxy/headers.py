"""What is passed on of a request and of its answer. Pure: headers in, headers out.

Framing is made anew on each side, so nothing of it is passed on; nor is anything that was for the hub: its token, its
pass. A service under the hub's own origin may set cookies for its own path alone, and its pages are sandboxed there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dray.errors import InvalidInput
from dray.hub.access.entrance import SECURE_COOKIE, SESSION_COOKIE, SESSION_HEADER
from dray.hub.proxy.addresses import Asked

Headers = list[tuple[bytes, bytes]]
PASS_COOKIE = b"dray_pass"
# What is the hub's own: no service is shown it, and none may set it.
_OWN_COOKIES = frozenset((PASS_COOKIE, SESSION_COOKIE, SECURE_COOKIE))
# Between two neighbours only (RFC 9110, 7.6.1), or written anew.
HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"),
    )
)
FORWARDED = frozenset(
    (
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-forwarded-prefix",
        b"x-real-ip",
    )
)
# The hub's server says when it answers; two dates would be one too many.
_OF_THE_SERVER = frozenset((b"date",))
# What would speak for the whole host, which is the hub's or that of other services.
_OF_THE_HOST = frozenset((b"strict-transport-security", b"public-key-pins", b"alt-svc"))
_NOT_GIVEN_BACK = HOP | _OF_THE_HOST | _OF_THE_SERVER
_OF_THE_ORIGIN = frozenset(
    (b"clear-site-data", b"service-worker-allowed", b"origin-agent-cluster", b"nel", b"report-to")
)
SANDBOX = b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"
TOKEN_START = b"bearer dray_"
_BREAKS = re.compile(rb"[\r\n\0]").search


def check_framing(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuse a request whose body ends in two ways, or in one that nobody agrees on."""
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if lengths and codings:
        raise InvalidInput("a request has Content-Length or Transfer-Encoding, not both: it is not passed on")
    if len(lengths) > 1 or (lengths and not lengths[0].isdigit()):
        raise InvalidInput("a request has one Content-Length, a number: it is not passed on")
    if codings not in ([], [b"chunked"]):
        raise InvalidInput("a body is chunked or has its length: no other Transfer-Encoding is passed on")


def pass_on(headers: Sequence[tuple[bytes, bytes]], asked: Asked, scheme: str, client: str) -> Headers:
    """What the service gets of a request's headers; framing is added by whoever sends it."""
    named = _named(headers)
    host = next((value for name, value in headers if name == b"host"), b"")
    passed: Headers = []
    for name, value in headers:
        if name in HOP or name in FORWARDED or name in named or name in (b"content-length", b"expect"):
            continue
        if name == SESSION_HEADER or (
            name == b"authorization" and value.strip().lower().startswith(TOKEN_START)
        ):
            continue
        if name == b"cookie":
            value = _without_own(value)
            if not value:
                continue
        _check_line(name, value)
        passed.append((name, value))
    passed += [(b"x-forwarded-host", host), (b"x-forwarded-proto", scheme.encode())]
    if client:
        passed.append((b"x-forwarded-for", client.encode()))
    if asked.prefix:
        passed.append((b"x-forwarded-prefix", asked.prefix))
    return passed


def give_back(headers: Sequence[tuple[bytes, bytes]], asked: Asked, lengthless: bool) -> Headers:
    """What the caller gets of an answer's headers; of one that is `lengthless` no length."""
    named, given = _named(headers), Headers()
    for name, value in headers:
        if name in _NOT_GIVEN_BACK or name in named or (lengthless and name == b"content-length"):
            continue
        if name == b"set-cookie":
            value = _fence_cookie(value, asked)
            if not value:
                continue
        elif not asked.own_origin:
            if name in _OF_THE_ORIGIN:
                continue
            if name == b"location" and value.startswith(b"/") and not value.startswith(b"//"):
                value = asked.prefix + value
        given.append((name, value))
    if not asked.own_origin:
        given.append((b"content-security-policy", SANDBOX))
    return given


def write_pass(text: str, asked: Asked, secure: bool, seconds: float) -> bytes:
    """The cookie by which a browser is let through to this service, and to no other path."""
    path = asked.prefix + b"/" if asked.prefix else b"/"
    # A sandboxed page is no site of its own: what it asks for counts as another site's.
    site = b"; SameSite=Lax" if asked.own_origin else b"; SameSite=None" if secure else b""
    ends = b"; Secure" if secure else b""
    age = b"; Max-Age=%d" % seconds
    return PASS_COOKIE + b"=" + text.encode() + b"; Path=" + path + b"; HttpOnly" + age + site + ends


def _named(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """Headers that `Connection` names: they are for the neighbour."""
    words = (value for name, value in headers if name == b"connection")
    return {word.strip().lower() for value in words for word in value.split(b",")}


def _without_own(value: bytes) -> bytes:
    kept = [pair.strip() for pair in value.split(b";") if pair.strip().partition(b"=")[0] not in _OWN_COOKIES]
    return b"; ".join(pair for pair in kept if pair)


def _fence_cookie(value: bytes, asked: Asked) -> bytes:
    """A service's cookie for itself alone: never for a domain, nor under a name that is the hub's."""
    first, *more = [part.strip() for part in value.split(b";")]
    if first.partition(b"=")[0].strip() in _OWN_COOKIES:
        return b""
    kept = [part for part in more if part.partition(b"=")[0].strip().lower() not in (b"domain", b"path")]
    path = next((part for part in more if part.partition(b"=")[0].strip().lower() == b"path"), b"")
    inside = path.partition(b"=")[2].strip()
    inside = inside if inside.startswith(b"/") else b"/"
    return b"; ".join((first, *kept, b"Path=" + asked.prefix + inside))


def _check_line(name: bytes, value: bytes) -> None:
    if _BREAKS(name) or _BREAKS(value):
        raise InvalidInput(
            f"the header {name[:64].decode('latin-1')} has a line break in it: it is not passed on"
        )
