"""Calls at a hub that stands by, passed on to the one that leads: one socket per call, over the line that hubs have.

The leader takes the same walk as for a call of its own, with the caller's token; the gateway adds no right. What breaks
before any of a call has left is sent again, whatever it is; what breaks later where the table of operations says that
this does no harm. A frame begins with what it is: one message, the end of the messages, or the status.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import msgspec

from dray.errors import DrayError, NotReady, OutcomeUnknown
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Receive, Scope, Send, read_headers
from dray.hub.gateways.links import Leader, Links
from dray.hub.grpc.serving import KNOWN, Call, GrpcApi, Refused
from dray.hub.grpc.statuses import DETAILS, Refusal, refusal_of
from dray.hub.grpc.streams import StreamMethod
from dray.hub.relays.lines import Unsent
from dray.hub.relays.passing import HOLD_S, MOST_PAUSE_S
from dray.hub.relays.relay import HANDS_OVER, Relay
from dray.hub.relays.sockets import dial_leader
from dray.wire.reach.refusals import read_refusal
from dray.wire.reach.websocket import HandshakeRefused, WebSocket

PATH, SUBPROTOCOL = "/ws/grpc", "dray.grpc"
STATUS, MESSAGE, NO_MORE = b"\x00", b"\x01", b"\x02"
MOST_AHEAD = 64
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_pack, _unpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


class Broken(Exception):
    """The leader went away in the middle of a call."""


# --- at the leader ----------------------------------------------------------------------------------------------------


class _Passed:
    """A call as its gateway tells it."""

    def __init__(self, scope: Scope, left_s: float | None) -> None:
        self.authorization = read_headers(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        self.address = str((scope.get("client") or ("",))[0])
        loop = asyncio.get_running_loop()
        self._until_s = None if left_s is None else loop.time() + left_s

    def left_s(self) -> float | None:
        return None if self._until_s is None else max(0.0, self._until_s - asyncio.get_running_loop().time())


class Tunnel:
    """The leader's end."""

    def __init__(self, api: GrpcApi) -> None:
        self._api = api

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one call; whoever goes away has it cancelled."""
        await receive()
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        frames: asyncio.Queue[bytes] = asyncio.Queue(MOST_AHEAD)
        gone = asyncio.ensure_future(_read_on(receive, frames))
        serving = asyncio.ensure_future(self._serve(scope, frames, send))
        await asyncio.wait({gone, serving}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, serving):
            task.cancel()
        await asyncio.wait([gone, serving])

    async def _serve(self, scope: Scope, frames: asyncio.Queue[bytes], send: Send) -> None:
        async def tell(frame: bytes) -> None:
            await send({"type": "websocket.send", "bytes": frame})

        end: tuple[int, str, bytes] = (0, "", b"")
        try:
            name, left_s = _unpack(await frames.get())
            call = _Passed(scope, left_s)
            known = KNOWN.get(str(name))
            if known is not None and isinstance(known.row, StreamMethod):
                async for raw in self._api.stream(known.row.name, _requests(frames), call):
                    await tell(MESSAGE + raw)
            else:
                request = await anext(_requests(frames), b"")
                await tell(MESSAGE + await self._api.answer(str(name), request, call))
        except Refused as refused:
            details = dict(refused.refusal.metadata).get(DETAILS, b"")
            end = (refused.refusal.code.value[0], refused.refusal.message, details)
        await tell(STATUS + _pack(end))
        await send({"type": "websocket.close", "code": 1000, "reason": ""})


async def _read_on(receive: Receive, frames: asyncio.Queue[bytes]) -> None:
    while (got := await receive())["type"] != "websocket.disconnect":
        await frames.put(got.get("bytes") or b"")


async def _requests(frames: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while (frame := await frames.get())[:1] == MESSAGE:
        yield frame[1:]


# --- at the gateway ---------------------------------------------------------------------------------------------------


class Passing:
    """A gateway's end: answers as the leader does."""

    def __init__(self, relay: Relay, links: Links) -> None:
        self._relay, self._links = relay, links

    async def answer(self, name: str, raw: bytes, call: Call) -> bytes:
        """Ask the leader; where that changes meanwhile, and it does no harm, the next one."""
        until_s = asyncio.get_running_loop().time() + HOLD_S
        known = KNOWN[name]
        if known.row.operation.repeat == "key":
            request = known.kinds.request.FromString(raw)
            request.request_id = request.request_id or self._relay.make_key()
            raw = request.SerializeToString()
        while True:
            try:
                async for answer in self._ask(name, _only(raw), call, until_s):
                    return answer
                raise Broken
            except Broken:
                if known.row.operation.repeat == "anew":
                    what = f"the hub that leads went away during {name}: that may have been done or not. Look first"
                    raise OutcomeUnknown(what) from None
                if asyncio.get_running_loop().time() + MOST_PAUSE_S > until_s:
                    raise NotReady("the hub that leads went away: ask again in a second") from None
                await asyncio.sleep(MOST_PAUSE_S / 4)

    async def stream(self, name: str, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        """Carry a stream; it ends where its leader does, and is begun anew by whoever reads it."""
        until_s = asyncio.get_running_loop().time() + HOLD_S
        try:
            async for answer in self._ask(name, requests, call, until_s):
                yield answer
        except Broken:
            raise NotReady("the hub that leads went away: begin again where this ended") from None

    async def _ask(
        self, name: str, requests: AsyncIterator[bytes], call: Call, until_s: float
    ) -> AsyncIterator[bytes]:
        far = await self._open(call, until_s)
        came: asyncio.Queue[bytes | None] = asyncio.Queue()
        far.on_message = came.put_nowait
        far.closed.add_done_callback(lambda end: came.put_nowait(None))
        far.send(_pack((name, call.left_s())))
        sending = asyncio.ensure_future(_send_all(far, requests))
        try:
            while (frame := await came.get()) is not None:
                if frame[:1] == MESSAGE:
                    yield frame[1:]
                    continue
                code, message, details = _unpack(frame[1:])
                if code:
                    raise Refused(Refusal(_CODES[code], message, ((DETAILS, details),)))
                return
            raise Broken
        finally:
            sending.cancel()
            far.abort()

    async def _open(self, call: Call, until_s: float) -> WebSocket:
        """A socket to whoever leads by then; its refusal of the caller is given on."""
        scope: Mapping[str, Any] = {"path": PATH, "subprotocols": [SUBPROTOCOL]}
        given = call.authorization
        headers = {} if given is None else {b"authorization": given.encode("latin-1", "replace")}
        while True:
            leader = await self._relay.reach(until_s)
            is_late = asyncio.get_running_loop().time() + MOST_PAUSE_S > until_s
            try:
                if isinstance(leader, Leader):
                    return await dial_leader(self._links, leader, dict(scope), headers)
            except HandshakeRefused as refused:
                if refused.status != HANDS_OVER or is_late:
                    error: DrayError = read_refusal(refused.body) or NotReady(
                        f"the hub that leads does not take gRPC on ({refused})"
                    )
                    raise Refused(refusal_of(error)) from None
            except Unsent as fault:
                if is_late:
                    raise NotReady(f"{fault}: ask again in a second") from None
            if is_late:
                raise NotReady("this hub is about to lead: ask again in a second")
            await asyncio.sleep(MOST_PAUSE_S / 4)


async def _send_all(far: WebSocket, requests: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(ConnectionError):
        async for raw in requests:
            far.send(MESSAGE + raw)
        far.send(NO_MORE)


async def _only(raw: bytes) -> AsyncIterator[bytes]:
    yield raw
