"""Clients at a hub that stands by: let in by the leader's word, answered or passed on, held while the lead changes.

Whoever asks is known before anything of his request is read. A change of the lead is short: what comes meanwhile waits,
and what was under way at the hub that went is asked of the next one, which may be this very process. Where nobody has
led for longer, whoever asks is told so at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from uvicorn.protocols.utils import ClientDisconnected

from dray.errors import DrayError, NotFound, NotReady
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import (
    Headers,
    Hosts,
    Receive,
    Scope,
    Send,
    has_body,
    read_headers,
    unite_halves,
)
from dray.hub.access.request_budgets import Budgets
from dray.hub.gateways.frames import PATH
from dray.hub.gateways.links import Leader, Links
from dray.hub.http.api import vouch
from dray.hub.http.calls import ROUTES
from dray.hub.http.front import WORKERS_PATH, App, Front
from dray.hub.http.replies import deny_upgrade, send_error
from dray.hub.http.routes import Router
from dray.hub.proxy.addresses import ROOT
from dray.hub.relays.callers import KnownCallers
from dray.hub.relays.fold_answers import Asked, FoldAnswers
from dray.hub.relays.lines import HttpLine, HttpLines, Unsent
from dray.hub.relays.passing import HOLD_S, MOST_PAUSE_S, RELAYED, Passing
from dray.hub.relays.sockets import Carried, deny, dial_leader
from dray.wire.messages.client import CLIENT_PATH
from dray.wire.reach.websocket import HandshakeRefused
from dray.wire.streams.frames import FORWARD_PATH, TUNNEL_PATH

SOCKETS = (CLIENT_PATH, FORWARD_PATH, TUNNEL_PATH)
# What is about the hub that answers: that of another one would be taken for this one's.
OWN = ("/metrics",)
HANDS_OVER = 503


class Relay:
    """The door for clients of one process that shares its store, for as long as it lives."""

    def __init__(self, front: Front, links: Links, hosts: Iterable[str], body_bytes: int) -> None:
        self._front, self._links, self._hosts, self._body_bytes = front, links, Hosts(hosts), body_bytes
        self.lines = HttpLines(links)
        self._callers = links.gateway.callers = KnownCallers(links.gateway)
        links.gateway.tell_link = self.woken
        self._router, self._budgets = Router(ROUTES), Budgets()
        self._news: set[asyncio.Future[None]] = set()
        # Since when nobody leads, as far as is known here; and what goes on at whom.
        self._lost_s = float("-inf")
        self._was_there = False
        self._going_on: dict[object, tuple[str, Callable[[], None]]] = {}
        self.fold = FoldAnswers()
        self._answered = self._passed_on = 0
        self._keys, self._boot = itertools.count(1), secrets.token_hex(8)

    # --- who leads ----------------------------------------------------------------------------------------------------

    @property
    def _leader(self) -> Leader | None:
        return self._links.leader if self._links.gateway.knows_callers else None

    @property
    def is_open(self) -> bool:
        """Whether what clients ask is passed on."""
        return self._leader is not None

    def count(self) -> tuple[int, int]:
        """How many requests were answered here, and how many passed on."""
        return self._answered, self._passed_on

    def woken(self) -> None:
        """Look who leads now: whoever waits for that goes on, and whoever waits for another one no longer."""
        leads_here, leader = self._front.app is not None, self._leader
        is_there = leads_here or leader is not None
        if self._was_there and not is_there:
            self._lost_s = asyncio.get_running_loop().time()
        self._was_there = is_there
        news, self._news = self._news, set()
        for waiting in news:
            if not waiting.done():
                waiting.set_result(None)
        if is_there:
            now = "" if leads_here or leader is None else leader.holder
            for holder, end in list(self._going_on.values()):
                if holder != now:
                    end()

    async def reach(self, until_s: float) -> App | Leader:
        """The hub in this process where it leads, else who leads elsewhere; waits for one, not for ever."""
        while True:
            if (app := self._front.app) is not None:
                return app
            if (leader := self._leader) is not None:
                return leader
            loop = asyncio.get_running_loop()
            left_s = min(until_s, self._lost_s + HOLD_S) - loop.time()
            if left_s <= 0:
                raise self._front.refusal
            waiting = loop.create_future()
            self._news.add(waiting)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await waiting
            self._news.discard(waiting)

    @contextlib.contextmanager
    def under_way(self, line: HttpLine, leader: Leader) -> Iterator[None]:
        """Have a connection broken off once another hub leads."""
        with self._until_other(leader, line.abort):
            yield

    @contextlib.contextmanager
    def _until_other(self, leader: Leader, end: Callable[[], None]) -> Iterator[None]:
        key = object()
        self._going_on[key] = leader.holder, end
        try:
            yield
        finally:
            del self._going_on[key]

    def make_key(self) -> str:
        """A key for a submit that has none: sent again, it makes nothing twice."""
        return f"gw-{self._boot}-{next(self._keys)}"

    # --- requests -----------------------------------------------------------------------------------------------------

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a client, whoever leads."""
        headers: Headers = {}
        until_s = asyncio.get_running_loop().time() + HOLD_S
        passing: Passing | None = None
        try:
            # First of all: who stands by without anybody to pass things on to says just that.
            await self.reach(until_s)
            headers = read_headers(scope["headers"])
            self._hosts.check_source(scope, headers)
            scope, headers = unite_halves(scope, headers)
            self._check_own(scope, headers)
            if scope["type"] == "websocket":
                await self._carry(scope, receive, send, headers, until_s)
                return
            caller = await self._know(scope, headers, until_s)
            if caller is None:
                await self._serve_here(scope, receive, send)
                return
            vouch(scope, caller)
            route, path = self._router.find(scope["method"], scope["raw_path"])
            if route.scopes:
                caller.check(route.scopes)
            if await self.fold.answer(caller, Asked(scope, receive, headers, route, path), send):
                self._answered += 1
                return
            passing = Passing(self, scope, receive, send, headers, route)
            self._passed_on += 1
            async with self._budget(caller, headers):
                await passing.run(self._body_bytes)
        except ClientDisconnected:
            return
        except DrayError as error:
            if scope["type"] == "websocket":
                await deny_upgrade(send, error)
            elif passing is None or not passing.answered:
                body_read = passing is not None and passing.body_read
                await send_error(send, receive, headers, error, body_read)

    def _check_own(self, scope: Scope, headers: Headers) -> None:
        """Refuse what is not passed on: what another hub has passed on already, what is between hubs, and services."""
        path = scope["path"]
        if RELAYED in headers or path in (*OWN, PATH, WORKERS_PATH) or scope["raw_path"].startswith(ROOT):
            raise self._front.refusal

    async def _know(self, scope: Scope, headers: Headers, until_s: float) -> Caller | None:
        """Tell who asks; None where this very hub leads by now, and will tell itself."""
        while True:
            if not isinstance(await self.reach(until_s), Leader):
                return None
            try:
                return await self._callers.know(scope, headers)
            except NotReady:
                if asyncio.get_running_loop().time() + MOST_PAUSE_S > until_s:
                    raise
            await asyncio.sleep(MOST_PAUSE_S / 4)

    async def _serve_here(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._front.app
        if app is None:
            raise self._front.refusal
        await app(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _budget(self, caller: Caller, headers: Headers) -> AsyncIterator[None]:
        """Hold no more bodies of one caller than a hub that leads would read at once."""
        if not has_body(headers):
            yield
            return
        await self._budgets.enter_small(caller.token_id)
        try:
            yield
        finally:
            self._budgets.leave_small(caller.token_id)

    # --- sockets ------------------------------------------------------------------------------------------------------

    async def _carry(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, until_s: float
    ) -> None:
        caller = await self._know(scope, headers, until_s)
        if caller is not None:
            vouch(scope, caller)
            if scope["path"] not in SOCKETS:
                raise NotFound("this version of dray has no WebSocket at this path")
        while True:
            leader = await self.reach(until_s)
            if not isinstance(leader, Leader):
                await leader(scope, receive, send)
                return
            is_late = asyncio.get_running_loop().time() + MOST_PAUSE_S > until_s
            try:
                far = await dial_leader(self._links, leader, scope, headers)
            except HandshakeRefused as refused:
                if refused.status != HANDS_OVER or is_late:
                    await deny(send, refused)
                    return
            except Unsent as fault:
                if is_late:
                    raise NotReady(f"{fault}: ask again in a second") from None
            else:
                carried = Carried(scope, receive, send, far)
                with self._until_other(leader, far.abort):
                    await carried.run()
                return
            await asyncio.sleep(MOST_PAUSE_S / 2)
