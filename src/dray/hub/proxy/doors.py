"""What stands before the hub's application: requests for services go to them, all others to the hub.

A host of the services' domain never leads to the hub's own API, whatever the path.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from uvicorn.protocols.utils import ClientDisconnected

from dray.errors import DrayError, InvalidInput, Unauthenticated
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Headers, Receive, Scope, Send, has_body, read_headers
from dray.hub.access.passes import LINK_FIELD, PASS_S
from dray.hub.access.request_budgets import Budgets
from dray.hub.access.token_leases import Hold
from dray.hub.answers.refusals import internal_error
from dray.hub.http.api import HttpApi, vouch
from dray.hub.http.replies import deny_upgrade, send_error, status_of
from dray.hub.proxy.addresses import ROOT, Asked, read_asked
from dray.hub.proxy.admission import Admission, Admitted
from dray.hub.proxy.exchange import Exchange
from dray.hub.proxy.headers import check_framing, write_pass
from dray.hub.proxy.sockets import SocketExchange
from dray.hub.tunnels.approach import Approach, Openings
from dray.hub.tunnels.passages import Passages
from dray.hub.tunnels.places import Places
from dray.hub.tunnels.reaching import Reacher

log = logging.getLogger("dray.hub.proxy")


class Way(NamedTuple):
    """What the proxy works with. `tally` counts an answer by its status, `report` files what went wrong."""

    reacher: Reacher
    admission: Admission
    hold: Hold
    budgets: Budgets
    tally: Callable[[str, int], None]
    report: Callable[[str, BaseException], str]


class Doors:
    """One hub's. `domain`: where hosts of services end in it, those lead to them; empty where there is none."""

    def __init__(self, api: HttpApi, way: Way, domain: str) -> None:
        self._api, self._way, self._domain = api, way, domain
        self._mark = domain.encode()
        self._openings = Openings()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        if not scope["raw_path"].startswith(ROOT) and not (self._mark and self._mark in host.lower()):
            await self._api(scope, receive, send)
            return
        headers: Headers = {}
        try:
            headers = read_headers(scope["headers"])
            asked = read_asked(host, scope["raw_path"], self._domain)
            if asked is not None:
                await self._serve(asked, scope, receive, send, headers)
                return
        except ClientDisconnected:
            return
        except DrayError as error:
            await self._refuse(scope, receive, send, headers, error)
            return
        except Exception as error:
            log.exception("a request for a service failed")
            with contextlib.suppress(Exception):
                await self._refuse(
                    scope, receive, send, headers, internal_error(self._way.report("proxy", error))
                )
            return
        await self._api(scope, receive, send)

    async def _serve(
        self, asked: Asked, scope: Scope, receive: Receive, send: Send, headers: Headers
    ) -> None:
        way = self._way
        self._api.check_ready()
        way.admission.check_source(asked, scope, headers)
        if scope["type"] == "http":
            if not asked.path:
                await _redirect(send, 308, asked.prefix + b"/", _query(scope))
                return
            check_framing(scope["headers"])
            if (word := _read_link(scope)) is not None:
                await self._let_in(asked, scope, send, word)
                return
        admitted = way.admission.admit(scope, headers)
        vouch(scope, admitted.caller)
        token_id = admitted.caller.token_id
        way.budgets.open_stream(token_id)
        try:
            found = await way.reacher.find(admitted.caller, asked.name, "", "proxy")
            _check_pass(admitted, found)
            await self._carry(asked, scope, receive, send, headers, found, admitted.caller)
        finally:
            way.budgets.close_stream(token_id)

    async def _carry(
        self,
        asked: Asked,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Headers,
        found: Places,
        caller: Caller,
    ) -> None:
        way = self._way
        # A service that does not read a body would take it for the next request.
        may_keep = scope["type"] == "http" and not has_body(headers)
        approach = Approach(way.reacher, self._openings, caller, found, may_keep)
        with way.hold(caller.token_id, approach.break_off):
            try:
                if scope["type"] == "websocket":
                    way.tally("proxy", await SocketExchange(scope, receive, send, asked, approach).run())
                else:
                    exchange = Exchange(scope, receive, send, asked, approach)
                    await exchange.run()
                    way.tally("proxy", exchange.status)
            except BaseException:
                approach.break_off("the hub gave it up")
                raise
            finally:
                approach.leave()

    async def _let_in(self, asked: Asked, scope: Scope, send: Send, word: str) -> None:
        """Exchange a link for a pass, and show the page without it."""
        shown = self._way.admission.passes.redeem(word)
        found = await self._way.reacher.find(shown.caller, asked.name, "", "proxy")
        _check_pass(Admitted(shown.caller, shown.job_id), found)
        cookie = write_pass(shown.text, asked, scope["scheme"] == "https", PASS_S)
        more = [(b"set-cookie", cookie), (b"referrer-policy", b"no-referrer")]
        await _redirect(send, 303, asked.prefix + asked.path, _query(scope, without=LINK_FIELD), more)

    async def _refuse(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, error: DrayError
    ) -> None:
        self._way.tally("proxy", status_of(error))
        if scope["type"] == "websocket":
            await deny_upgrade(send, error)
        else:
            await send_error(send, receive, headers, error, body_read=False)


def open_doors(api: HttpApi, passages: Passages, domain: str) -> Doors:
    """Before a hub's application, letting in, bounding and counting as that does."""
    admission = Admission(api.gate, passages.passes)
    way = Way(passages.reacher, admission, passages.hold, api.budgets, api.count, api.report)
    return Doors(api, way, domain)


def _check_pass(admitted: Admitted, found: Places) -> None:
    if admitted.job_id and admitted.job_id != found.meant.job.id:
        raise Unauthenticated(
            "this pass is for another service: `dray service open` prints a link to this one"
        )


def _read_link(scope: Scope) -> str | None:
    """The one-time word in a query, where a page is asked for by one."""
    if scope["method"] != "GET" or LINK_FIELD.encode() not in scope["query_string"]:
        return None
    return next((value for name, value in _pairs(scope) if name == LINK_FIELD), None)


def _pairs(scope: Scope) -> list[tuple[str, str]]:
    try:
        return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=256)
    except ValueError:
        raise InvalidInput("this query has more than 256 fields") from None


def _query(scope: Scope, without: str = "") -> bytes:
    if not without:
        return bytes(scope["query_string"])
    return urlencode([pair for pair in _pairs(scope) if pair[0] != without]).encode()


async def _redirect(
    send: Send, status: int, path: bytes, query: bytes, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    where = path + (b"?" + query if query else b"")
    headers: list[tuple[bytes, bytes]] = [
        (b"location", where),
        (b"content-length", b"0"),
        (b"cache-control", b"no-store"),
        *(more or ()),
    ]
    start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": b""})
