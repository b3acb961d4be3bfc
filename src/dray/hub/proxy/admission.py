"""Who may pass to a service: by the token of a program, or by the pass of a browser; and from which pages.

A pass is taken only where the request can come from the service's own page or from nobody's: other pages in the same
browser would act in the visitor's name. Tokens are sent by programs alone, whatever page they say they come from.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.errors import Forbidden, Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Gate, Headers, Scope, read_cookie
from dray.hub.access.passes import Passes
from dray.hub.proxy.addresses import Asked
from dray.hub.proxy.headers import PASS_COOKIE, TOKEN_START

SCOPES = ("submit", "use")
SAFE = ("GET", "HEAD", "OPTIONS")
_WEB = {"ws": b"http", "wss": b"https", "http": b"http", "https": b"https"}


class Admitted(NamedTuple):
    """Who asks. `job_id`: the one service that he may reach, empty where he may reach all of his."""

    caller: Caller
    job_id: str = ""


class Admission:
    """One hub's."""

    def __init__(self, gate: Gate, passes: Passes) -> None:
        self._gate, self.passes = gate, passes

    def check_source(self, asked: Asked, scope: Scope, headers: Headers) -> None:
        """Refuse what other pages ask for in the visitor's name, and hosts that are none of the hub's."""
        origin, method = headers.get(b"origin"), scope.get("method", "GET")
        if asked.own_origin:
            own = _WEB[scope["scheme"]] + b"://" + headers.get(b"host", b"")
            if origin is not None and origin.lower() != own.lower():
                raise Forbidden(
                    "the Origin of this request is another site: a service answers its own pages and programs"
                )
        else:
            sandboxed = origin == b"null" and scope["type"] == "http" and method in SAFE
            shown = (
                {name: value for name, value in headers.items() if name != b"origin"}
                if sandboxed
                else headers
            )
            self._gate.check_source(scope, shown)
        if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not _is_visit(method, headers):
            raise Forbidden("another site's page asks for this: open it by itself")

    def admit(self, scope: Scope, headers: Headers) -> Admitted:
        """Who asks; raises `Unauthenticated` for nobody known."""
        if headers.get(b"authorization", b"").strip().lower().startswith(TOKEN_START):
            return Admitted(self._gate.check_caller(scope, headers, SCOPES))
        if text := read_cookie(scope["headers"], PASS_COOKIE):
            shown = self.passes.read(text.decode("latin-1"))
            shown.caller.check(SCOPES)
            return Admitted(shown.caller, shown.job_id)
        raise Unauthenticated(
            "this service wants to know who asks: a browser gets in by the link that `dray service open NAME` prints, "
            "a program by `Authorization: Bearer TOKEN`"
        )


def _is_visit(method: str, headers: Headers) -> bool:
    """Whether somebody follows a link from elsewhere: that shows the page, and changes nothing."""
    return method == "GET" and headers.get(b"sec-fetch-mode") == b"navigate"
