"""The hub's HTTP face: one ASGI application in front of the table of operations.

Owns the walk of a request (gate, route, parameters, body, operation, answer) and nothing of what the calls do. The
router is our own: every call is one line of one table that also guards and documents it, and a request costs a
dictionary walk instead of a chain of middleware and regular expressions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from uvicorn.protocols.utils import ClientDisconnected

from dray.errors import DrayError, InvalidInput, NotFound, NotReady
from dray.hub.access.bad_tokens import Knocks
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import (
    Gate,
    Headers,
    Receive,
    Scope,
    Send,
    decode_json,
    decode_list,
    has_body,
    read_body,
    read_headers,
    unite_halves,
)
from dray.hub.access.request_budgets import Budgets, Toll
from dray.hub.access.tokens import SCOPES
from dray.hub.answers.refusals import internal_error
from dray.hub.engine.told_turns import HEADER, SEQ, TurnWords
from dray.hub.files.base import Reading
from dray.hub.http.calls import PIECE_BYTES, ROUTES
from dray.hub.http.pages import send_page
from dray.hub.http.replies import (
    Answer,
    FileBody,
    Text,
    deny_upgrade,
    encode,
    send_error,
    send_head,
    send_whole,
    status_of,
)
from dray.hub.http.routes import Request, Route, Router, read_query
from dray.hub.http.streams import CallerGone, Stream, Streams, cut, wait_gone
from dray.hub.operations.operation import Desk
from dray.hub.pages.files import is_page
from dray.hub.workers.frames import ADMIT
from dray.wire.messages.codec import MAX_DEPTH

log = logging.getLogger("dray.hub.http")
# How metrics count a caller that hung up; nobody ever receives it.
CLIENT_CLOSED = 499
SocketHandler = Callable[[Scope, Receive, Send, Caller], Awaitable[None]]
CountRequest = Callable[[str, int], None]
# Keeps what went wrong with a kind of request, and gives the id of the report.
FileReport = Callable[[str, BaseException], str]


class SocketRoute(NamedTuple):
    """A WebSocket that others serve; the gate has let its caller in before `handler` is called."""

    path: str
    scopes: tuple[str, ...]
    handler: SocketHandler


class HttpLimits(NamedTuple):
    """What a request may cost."""

    body_bytes: int = 8 << 20
    json_depth: int = MAX_DEPTH


class HttpApi:
    """The application. `close()` ends streams and waits, after which every call is answered 503."""

    def __init__(
        self,
        desk: Desk,
        hosts: Iterable[str] = (),
        limits: HttpLimits | None = None,
        sockets: Iterable[SocketRoute] = (),
        count_request: CountRequest | None = None,
        report: FileReport | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self.budgets = budgets or Budgets()
        self.report = report or (lambda name, error: "")
        self.streams = Streams(desk.tokens.hold)
        self._desk = desk
        self._limits = limits or HttpLimits()
        self.knocks = Knocks()
        # What callers are told of turns, and give back; None where nobody keeps a store.
        self.words: TurnWords | None = None
        self._tokens, self.gate = desk.tokens, Gate(desk.tokens, hosts, self.knocks)
        self._router = Router(ROUTES)
        self._sockets = {route.path.encode(): route for route in sockets}
        self.count = count_request or (lambda name, status: None)

    def add_socket(self, route: SocketRoute) -> None:
        """Serve one more WebSocket."""
        self._sockets[route.path.encode()] = route

    def close(self) -> None:
        """Let nobody wait any longer: the hub is about to stop."""
        self.streams.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_page(scope["raw_path"]):
            await self.show_page(scope, receive, send)
        elif scope["type"] == "http":
            await _Exchange(self, scope, receive, send).run()
        elif scope["type"] == "websocket":
            await self._open_socket(scope, receive, send)

    async def show_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give anybody a page of the dashboard: nothing of the cluster is in it."""
        await send_page(self.gate, scope, receive, send)

    async def _open_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = read_headers(scope["headers"])
            self.gate.check_source(scope, headers)
            route = self._sockets.get(scope["raw_path"])
            caller = self.gate.check_caller(scope, headers, route.scopes if route else SCOPES)
            vouch(scope, caller)
            if route is None:
                raise NotFound("this version of dray has no WebSocket at this path")
            self.check_ready()
            self.hear_turn(headers, caller)
        except DrayError as error:
            self.count("websocket", status_of(error))
            await deny_upgrade(send, error)
            return
        self.count("websocket", 101)
        try:
            await route.handler(scope, receive, send, caller)
        except ClientDisconnected:
            # Sending to a peer that has just left: the handler's next receive would have said so.
            return
        except Exception:
            log.exception("the WebSocket %s failed", route.path)
            with contextlib.suppress(Exception):
                await send({"type": "websocket.close", "code": 1011, "reason": "the hub failed"})

    def hear_turn(self, headers: Headers, caller: Caller) -> None:
        """Take note of the last turn that a caller was told."""
        if self.words is not None and (word := headers.get(HEADER)):
            self.words.hear(word, f"a client of {caller.user}")

    def check_ready(self) -> None:
        """Refuse work while the hub starts, stops or reloads."""
        if not self._desk.service.ready or self.streams.closing.is_set():
            raise NotReady("the hub is starting or stopping: ask again in a second")


def vouch(scope: Scope, caller: Caller) -> None:
    """Tell the connection who is behind it: that of a stranger is the first to go."""
    admit = (scope.get("extensions") or {}).get(ADMIT)
    if admit is not None:
        admit(caller.token_id)


class _Exchange:
    """One request and its answer."""

    __slots__ = (
        "_answered",
        "_api",
        "_body_read",
        "_headers",
        "_name",
        "_receive",
        "_scope",
        "_send",
        "_sent_bytes",
        "_token_id",
    )

    def __init__(self, api: HttpApi, scope: Scope, receive: Receive, send: Send) -> None:
        self._api = api
        self._scope = scope
        self._receive = receive
        self._send = send
        self._headers: Headers = {}
        self._name = "none"
        self._body_read = False
        self._answered = 0
        self._token_id = ""
        self._sent_bytes = 0

    async def run(self) -> None:
        """Answer the request, whatever happens."""
        try:
            request, route = self._admit()
            await self._serve(request, route)
        except DrayError as error:
            await self._refuse(error)
        except CallerGone:
            self._answered = CLIENT_CLOSED
        except Exception as error:
            # The route and nothing of the request: a query or a header may hold what belongs in no log.
            log.exception("%s %s failed", self._scope["method"], self._name)
            await self._refuse(internal_error(self._api.report(self._name, error)))
        finally:
            if self._answered:
                self._api.count(self._name, self._answered)

    async def _serve(self, request: Request, route: Route) -> None:
        """Answer a request within its caller's budget; what nobody vouches for is small by nature."""
        caller, query = request.caller, request.query
        if caller is None:
            await self._work(request, route)
            return
        rests, waits = bool(query.get("wait_s")), bool(query.get("eta_s"))
        operation = route.operation
        toll = Toll(self._api.budgets, caller, operation.weight, bool(operation.streams), rests, waits)
        await toll.enter()
        try:
            await self._work(request, route)
        finally:
            toll.leave(self._sent_bytes)

    async def _work(self, request: Request, route: Route) -> None:
        if route.raw_body:
            request.receive = self._receive_piece
        else:
            request.body = await self._read_body(route) if has_body(self._headers) else None
            self._body_read = True
        found = await self._perform(request, route)
        await self._answer(Answer(found) if route.write is None else route.write(found), request)

    async def _perform(self, request: Request, route: Route) -> Any:
        """Ask what the route is for; a hub that stops while an answer may still take its time answers what it knows."""
        ask, desk, streams = route.ask(request), self._api._desk, self._api.streams
        if route.waits and getattr(ask, route.waits):
            waiting = route.operation.handler(desk, request.caller, ask)
            if (found := await streams.wait_for(request.receive, waiting, self._token_id)) is not None:
                return found
            ask = msgspec.structs.replace(ask, **{route.waits: 0})
        return await route.operation.handler(desk, request.caller, ask)

    def _admit(self) -> tuple[Request, Route]:
        """Take the request through the gate; nothing is read of a body before the caller is known and has room."""
        api = self._api
        headers: Headers = read_headers(self._scope["headers"])
        api.gate.check_source(self._scope, headers)
        self._scope, self._headers = scope, headers = unite_halves(self._scope, headers)
        try:
            route, path = api._router.find(scope["method"], scope["raw_path"])
        except DrayError:
            # Strangers do not learn which paths are there.
            api.gate.check_caller(scope, headers, SCOPES)
            raise
        self._name = route.name
        caller = api.gate.check_caller(scope, headers, route.scopes) if route.scopes else None
        if caller is not None:
            vouch(scope, caller)
        if route.operation.needs_ready:
            api.check_ready()
        if caller is not None:
            api.hear_turn(headers, caller)
        query = read_query(scope["query_string"], route.params)
        self._token_id = caller.token_id if caller is not None else ""
        return Request(scope, self._receive, headers, caller, path, query), route

    async def _receive_piece(self) -> Mapping[str, Any]:
        """Hand a piece of the body to a handler that reads it itself."""
        message = await self._receive()
        self._api._tokens.check_live(self._token_id)
        self._body_read = not message.get("more_body", False)
        return message

    async def _read_body(self, route: Route) -> Any:
        if route.method == "GET":
            raise InvalidInput("this call takes no body: give parameters in the query")
        limits = self._api._limits
        raw = await read_body(self._receive, self._headers, route.most_bytes or limits.body_bytes)
        self._body_read = True
        if route.list_body:
            return decode_list(raw, self._headers, limits.json_depth)
        document = decode_json(raw, self._headers, limits.json_depth)
        if route.body is None and document not in (None, {}):
            raise InvalidInput("this call takes no body")
        return document

    async def _answer(self, answer: Answer | Text | FileBody | Stream, request: Request) -> None:
        if isinstance(answer, Answer):
            self._answered = answer.status
            body = encode(answer.document)
            self._sent_bytes = len(body)
            words = self._api.words if request.caller is not None else None
            told = [] if words is None else [(HEADER, words.write()), (SEQ, b"%d" % words.seq)]
            await send_whole(self._send, answer.status, body, more=told)
        elif isinstance(answer, Text):
            self._answered = answer.status
            media, more = answer.media.encode(), list(answer.headers)
            await send_whole(self._send, answer.status, answer.body, media, more)
        elif isinstance(answer, FileBody):
            await self._send_file(answer, request.caller.token_id)
        else:
            await self._api.streams.run(
                self._scope, self._receive, self._note_start, answer, request.caller.token_id
            )

    async def _send_file(self, answer: FileBody, token_id: str) -> None:
        """Send a file; a reader that takes nothing for a while, or whose token has ended, is cut off and sees that it
        does not have all.
        """
        wanted = 0 if self._scope["method"] == "HEAD" else answer.size
        file, piece = await asyncio.to_thread(_begin_file, answer.open, min(PIECE_BYTES, wanted))
        with contextlib.closing(file):
            self._answered = 200
            await send_head(self._send, answer.size, answer.headers)
            left = wanted
            try:
                while left > 0:
                    if left < wanted:
                        piece = await asyncio.to_thread(file.read, min(PIECE_BYTES, left))
                    left -= len(piece)
                    async with asyncio.timeout(self._api.streams.slow_reader_s):
                        await self._send({"type": "http.response.body", "body": piece, "more_body": left > 0})
                    if not piece or (left and self._api._tokens.fault_of(token_id)):
                        await cut(self._scope, wait_gone(self._receive))
                        return
                if not wanted:
                    await self._send({"type": "http.response.body", "body": b""})
            except TimeoutError:
                await cut(self._scope, wait_gone(self._receive))

    async def _note_start(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._answered = message["status"]
        await self._send(message)

    async def _refuse(self, error: DrayError) -> None:
        if self._answered:
            # Too late for an answer: what was sent so far must not look whole.
            await cut(self._scope, wait_gone(self._receive))
            return
        self._answered = status_of(error)
        await send_error(self._send, self._receive, self._headers, error, self._body_read)


def _begin_file(open_file: Callable[[], Reading], size: int) -> tuple[Reading, bytes]:
    """Open a file and read its first piece, in one go: most files have no other."""
    file = open_file()
    try:
        return file, file.read(size)
    except BaseException:
        file.close()
        raise
