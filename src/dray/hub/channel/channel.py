"""The client channel: `GET /ws/client`, many requests in flight on one socket, msgpack in both directions.

Owns sockets, framing, limits and the way from a message to a call of the hub's services; what is allowed is decided
behind them, exactly as for HTTP. Answers leave as soon as the socket takes them, and what is ready by then shares a
frame: the peer's pace makes the batches, no timer does. Only what is told unasked about a job that goes on is held to
`ROWS_S`: people do not see more, and a row for each of a thousand tasks a second costs both ends as much as the tasks.
A peer that asks faster than it reads is simply read no
further; one that does not read what it asked to be told of is closed (1013).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from dray.core.model.records.records import JobState
from dray.errors import DrayError, Forbidden, InvalidInput, Problem, TooLarge
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.access.request_budgets import UNIT_BYTES, Budgets
from dray.hub.access.token_leases import Hold
from dray.hub.answers.calls import CallAnswers
from dray.hub.answers.refusals import error_document, internal_error
from dray.hub.answers.service import Document, HubService
from dray.hub.channel.batches import ChannelAnswers
from dray.hub.channel.results_flow import ChannelCalls
from dray.hub.documents.receipts import ReceiptFilter
from dray.hub.engine.told_turns import HEADER, TurnWords
from dray.hub.store.base import JobFilter
from dray.hub.workers.frames import EXTENSION
from dray.wire.messages import client as wire
from dray.wire.messages.packed import Packed

BAD_INPUT, OVERLOADED, TOKEN_GONE, GOING_AWAY = 4400, 1013, 4401, 1001
BAD_IN_A_ROW = 10
FRAME_MESSAGES = 512
GOODBYE_S = 2.0
ROWS_S = 0.02
_STATES = frozenset(state.value for state in JobState)
logger = logging.getLogger("dray.hub.channel")


class ChannelLimits(NamedTuple):
    """What one socket may hold. Reading pauses at `queue_bytes`, and while `asked_bytes` of requests are unanswered;
    pushes end the session at sixteen times as much. Results of calls stop at `results_bytes`, and go on later.
    """

    frame_bytes: int = 8 << 20
    queue_bytes: int = 1 << 20
    in_flight: int = 256
    watched: int = 100_000
    asked_bytes: int = 16 << 20
    results_bytes: int = 4 << 20


class Desk(NamedTuple):
    """What a channel asks, and whom it leaves word with to be ended with its token."""

    service: HubService
    channel: ChannelAnswers
    calls: CallAnswers
    hold: Hold
    budgets: Budgets
    words: TurnWords
    report: Callable[[str, BaseException], str] = lambda kind, error: ""


class ClientChannels:
    """All client sockets of this hub."""

    def __init__(self, desk: Desk, limits: ChannelLimits) -> None:
        self._desk, self._limits = desk, limits
        self.open: set[Channel] = set()

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one socket from upgrade to close."""
        offered: list[str] = list(scope.get("subprotocols") or ())
        known = wire.SUBPROTOCOL_CLIENT in offered
        await receive()
        await send({"type": "websocket.accept", "subprotocol": wire.SUBPROTOCOL_CLIENT if known else None})
        # A unix socket has no address at its other end.
        caller = caller._replace(local=scope.get("client") is None)
        channel = Channel(self._desk, self._limits, caller, send)
        channel.hears_turns = any(name == HEADER for name, _ in scope["headers"])
        self.open.add(channel)
        if offered and not known:
            channel.close(BAD_INPUT, f"this channel speaks {wire.SUBPROTOCOL_CLIENT}, not {offered[0][:40]}")
        try:
            with self._desk.hold(caller.token_id, lambda why: self._end(channel, why, scope)):
                await channel.run(receive)
        finally:
            self.open.discard(channel)

    def _end(self, channel: Channel, why: str, scope: Scope) -> None:
        channel.end(why)
        frames = (scope.get("extensions") or {}).get(EXTENSION)
        if frames is not None:
            frames.abort_in(GOODBYE_S)

    async def stop(self, code: int, reason: str) -> None:
        """Say goodbye to everybody, and wait until the last answers have left; not for ever."""
        channels = list(self.open)
        for channel in channels:
            channel.close(code, reason)
        leaving = [channel.pump for channel in channels if channel.pump is not None]
        if leaving:
            await asyncio.wait(leaving, timeout=GOODBYE_S)


class Channel:
    """One socket."""

    def __init__(self, desk: Desk, limits: ChannelLimits, caller: Caller, send: Send) -> None:
        self.caller, self._desk, self._limits, self._send = caller, desk, limits, send
        self._outbox: list[bytes] = []
        self._queued_bytes = 0
        self._rows: dict[str, Any] = {}
        self._rows_bytes = 0
        self._rows_at = 0.0
        self._rows_timer: asyncio.TimerHandle | None = None
        self._watched: dict[str, None] = {}
        self._asking: dict[asyncio.Task[None], int] = {}
        self._asked_bytes = 0
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._sent, self._order = asyncio.Event(), asyncio.Lock()
        self._closing: tuple[int, str] | None = None
        self._sending = False
        self.pump: asyncio.Task[None] | None = None
        self._bad_in_a_row = 0
        # Whether the peer gives back what it is told of turns, and what it was told last.
        self.hears_turns, self._word = False, b""
        self.calls = ChannelCalls(
            desk.calls, caller, self._push, lambda: self._queued_bytes, limits.results_bytes
        )

    async def run(self, receive: Receive) -> None:
        """Read until the peer has gone. What it asked for still happens; nobody hears the answer."""
        self.pump = asyncio.create_task(self._pump())
        try:
            while True:
                got = await receive()
                if got["type"] == "websocket.disconnect":
                    return
                if self._closing is None:
                    frame: bytes | None = got.get("bytes")
                    await self._take_frame(frame)
        finally:
            self._closing = self._closing or (1006, "")
            self._sent.set()
            if self._rows_timer is not None:
                self._rows_timer.cancel()
            self._desk.channel.drop(list(self._watched), self)
            self.calls.close()
            self.pump.cancel()

    def close(self, code: int, reason: str) -> None:
        """End the session after what is queued; later messages are dropped."""
        if self._closing is None:
            self._closing = (code, reason)
            self._wake.set()
            self._room.set()
            self._sent.set()

    def end(self, why: str) -> None:
        """End the session because its token has ended: nothing that is queued leaves any more."""
        self._outbox, self._rows, self._rows_bytes = [], {}, 0
        self.close(TOKEN_GONE, why)

    def tell(self, job_id: str, row: Document, last: bool) -> None:
        """Queue a row for this watcher; a newer one replaces an older one that has not left yet."""
        if self._closing is not None:
            return
        if last:
            self._watched.pop(job_id, None)
            packed = wire.pack_row(row)
            self._rows_bytes += len(packed)
            self._rows[job_id] = packed
        else:
            self._rows[job_id] = row
            if self._rest_rows():
                return
        if self._rows_bytes + self._queued_bytes > 16 * self._limits.queue_bytes and self._sending:
            self._rows, self._outbox, self._rows_bytes = {}, [], 0
            self.close(OVERLOADED, "this peer does not read what it asked to be told of")
        self._wake.set()

    def _rest_rows(self) -> bool:
        """Whether rows left so lately that the next ones are to wait; then a timer sees to them."""
        if self._rows_timer is not None:
            return True
        loop = asyncio.get_running_loop()
        due_at = self._rows_at + ROWS_S
        if loop.time() >= due_at:
            return False
        self._rows_timer = loop.call_at(due_at, self._wake.set)
        return True

    # --- in -----------------------------------------------------------------------------------------------------------

    async def _take_frame(self, frame: bytes | None) -> None:
        if frame is None:
            self._refuse(wire.Fault("this channel speaks msgpack in binary frames: the text was not read"))
        elif len(frame) > self._limits.frame_bytes:
            self.close(
                BAD_INPUT, f"a frame of {len(frame)} bytes is over the limit of {self._limits.frame_bytes}"
            )
        else:
            try:
                requests = wire.read_requests(frame)
            except wire.Fault as fault:
                self._refuse(fault)
                return
            for request in requests:
                self._take(request)
                await self._has_room()
                if self._closing is not None:
                    return

    def _take(self, request: wire.Request) -> None:
        try:
            body = wire.open_request(request)
        except wire.Fault as fault:
            self._refuse(fault)
            return
        self._bad_in_a_row = 0
        task = asyncio.create_task(self._answer(request.id, body))
        self._asking[task] = len(request.payload)
        self._asked_bytes += len(request.payload)
        task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asked_bytes -= self._asking.pop(task)
        self._free()
        if self._closing is not None:
            self._wake.set()

    def _refuse(self, fault: wire.Fault) -> None:
        self._bad_in_a_row += 1
        self._push(wire.write_message(wire.ERROR, fault.request_id, error=error_document(fault)["error"]))
        if self._bad_in_a_row >= BAD_IN_A_ROW:
            self.close(BAD_INPUT, f"{BAD_IN_A_ROW} bad messages in a row; the last: {fault.message}")

    async def _answer(self, request_id: wire.RequestId, body: Any) -> None:
        try:
            weight = _WEIGHTS.get(type(body))
            if weight is None:
                reply = wire.write_message(wire.ANSWER, request_id, await _CALLS[type(body)](self, body))
            else:
                reply = await self._answer_heavy(request_id, body, weight)
        except DrayError as refusal:
            reply = wire.write_message(wire.ERROR, request_id, error=error_document(refusal)["error"])
        except Exception as fault:
            kind = type(body).__name__.lower()
            logger.exception("a %s failed", kind)
            error = error_document(internal_error(self._desk.report(kind, fault)))["error"]
            reply = wire.write_message(wire.ERROR, request_id, error=error)
        self._push(reply)

    async def _answer_heavy(self, request_id: wire.RequestId, body: Any, weight: float) -> bytes:
        """Answer within the caller's budget, and not before most of what was answered has been read."""
        budgets, token_id, reply = self._desk.budgets, self.caller.token_id, b""
        await budgets.enter(token_id, patient=True)
        try:
            while self._queued_bytes > self._limits.queue_bytes and self._closing is None:
                self._sent.clear()
                await self._sent.wait()
            reply = wire.write_message(wire.ANSWER, request_id, await _CALLS[type(body)](self, body))
        finally:
            budgets.leave(token_id, weight + len(reply) / UNIT_BYTES)
        return reply

    # --- out ----------------------------------------------------------------------------------------------------------

    def _push(self, message: bytes) -> None:
        if self._closing is not None and self._closing[0] == TOKEN_GONE:
            return
        self._outbox.append(message)
        self._queued_bytes += len(message)
        self._wake.set()

    async def _pump(self) -> None:
        """Send whatever is ready whenever the socket takes it; a socket that broke is the reader's to notice."""
        try:
            await self._send_all()
        except (OSError, RuntimeError):
            # A runtime error is the server's word for a socket that it has closed itself, over text that is not UTF-8.
            self.close(1006, "")

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._batch():
                self._sending = True
                await self._send({"type": "websocket.send", "bytes": wire.join_messages(batch)})
                self._sending = False
                self._queued_bytes -= sum(map(len, batch))
                self.calls.drained()
                self._sent.set()
                self._free()
            if self._closing is not None:
                code, reason = self._closing
                if code == GOING_AWAY and self._asking:
                    # What the hub has begun it still answers: nobody has to guess whether it happened.
                    continue
                words = reason.encode()[:120].decode(errors="ignore")
                await self._send({"type": "websocket.close", "code": code, "reason": words})
                return

    def _batch(self) -> list[bytes]:
        if self._rows:
            rows, self._rows, self._rows_bytes = self._rows, {}, 0
            self._rows_at = asyncio.get_running_loop().time()
            if self._rows_timer is not None:
                self._rows_timer.cancel()
                self._rows_timer = None
            self._push(wire.write_message(wire.CHANGED, None, {"jobs": list(rows.values())}))
        count, size = 0, 0
        for message in self._outbox[:FRAME_MESSAGES]:
            size += len(message)
            if count and size > self._limits.queue_bytes:
                break
            count += 1
        batch, self._outbox = self._outbox[:count], self._outbox[count:]
        if batch and self.hears_turns and (word := self._desk.words.write()) != self._word:
            self._word = word
            batch.append(wire.write_message(wire.TURN, None, word.decode()))
            self._queued_bytes += len(batch[-1])
        return batch

    def _is_free(self) -> bool:
        limits = self._limits
        return (
            len(self._asking) < limits.in_flight
            and self._queued_bytes <= limits.queue_bytes
            and self._asked_bytes <= limits.asked_bytes
        )

    def _free(self) -> None:
        if self._is_free():
            self._room.set()

    async def _has_room(self) -> None:
        """Wait while too much is asked or unsent: the peer's own socket holds back the rest."""
        if self._is_free():
            return
        self._room.clear()
        await self._room.wait()

    # --- calls --------------------------------------------------------------------------------------------------------

    def need(self, scope: str) -> None:
        """Refuse what this token may not do."""
        if not self.caller.may(scope):
            has = ", ".join(self.caller.scopes)
            raise Forbidden(
                f"this call needs the scope {scope} and token {self.caller.token_id} has {has}: "
                "ask an admin for a token with it"
            )

    async def submit(self, body: wire.Submit) -> Document:
        self.need("submit")
        specs = Packed(body.specs, wire.open_document)
        async with self._order:
            # Many are read in slices: a submit behind this one, which may refer to it, waits until it is in line.
            checked = await self._desk.channel.read_specs(self.caller, specs)
        return await self._desk.channel.submit(self.caller, checked, body.key)

    async def watch(self, body: wire.Watch) -> Document:
        if len(self._watched) + len(body.ids) > self._limits.watched:
            raise TooLarge(
                f"a channel watches at most {self._limits.watched} jobs, and {len(self._watched)} are watched: "
                "unwatch some, or open another channel"
            )
        self._watched |= dict.fromkeys(body.ids)
        going: set[str] = set()
        try:
            answer = await self._desk.channel.watch(self.caller, body.ids, self)
            going = {row["id"] for row in answer["jobs"] if "document" not in row}
        finally:
            for job_id in body.ids:
                if job_id not in going:
                    self._watched.pop(job_id, None)
        if self._closing is not None:
            # The socket went away meanwhile, and its watches were dropped before these began.
            self._desk.channel.drop(body.ids, self)
        return answer

    async def unwatch(self, body: wire.Unwatch) -> Document:
        self._desk.channel.drop(body.ids, self)
        for job_id in body.ids:
            self._watched.pop(job_id, None)
        return {}

    async def get(self, body: wire.Get) -> Document:
        return await self._desk.channel.documents(self.caller, body.ids)

    async def result(self, body: wire.Result) -> Document:
        return await self._desk.channel.results(self.caller, body.ids)

    async def values(self, body: wire.Values) -> Document:
        return await self._desk.channel.values(self.caller, body.id, body.first, body.limit)

    async def add_calls(self, body: wire.Calls) -> Document:
        self.need("submit")
        return await self.calls.add(body)

    async def collect(self, body: wire.Collect) -> Document:
        return await self.calls.collect(body)

    async def cancel(self, body: wire.Cancel) -> Document:
        self.need("submit")
        return await self._desk.service.cancel(self.caller, body.id, body.task, body.grace_s)

    async def hold(self, body: wire.Hold) -> Document:
        self.need("submit")
        return await self._desk.service.hold(self.caller, body.id, True)

    async def release(self, body: wire.Release) -> Document:
        self.need("submit")
        return await self._desk.service.hold(self.caller, body.id, False)

    async def requeue(self, body: wire.Requeue) -> Document:
        self.need("submit")
        return await self._desk.service.requeue(self.caller, body.id, body.task)

    async def edit(self, body: wire.Edit) -> Document:
        self.need("submit")
        return await self._desk.service.edit(self.caller, body.id, body.changes)

    async def why(self, body: wire.Why) -> Document:
        return await self._desk.service.why(self.caller, body.id)

    async def plan(self, body: wire.Plan) -> Document:
        if not isinstance(body.spec, dict):
            raise InvalidInput("spec must be one job, an object")
        return await self._desk.service.plan(self.caller, body.spec)

    async def jobs(self, body: wire.Jobs) -> Document:
        _check_states(body.states)
        _check_cursor(body.cursor)
        wanted = JobFilter(
            states=tuple(dict.fromkeys(body.states)),
            user=body.user,
            queue=body.queue,
            name=body.name,
            labels=tuple(body.labels.items()),
            before_seq=int(body.cursor or 0),
            limit=body.limit,
        )
        return await self._desk.service.jobs(self.caller, wanted)

    async def tasks(self, body: wire.Tasks) -> Document:
        _check_states(body.states)
        _check_cursor(body.cursor)
        states = tuple(dict.fromkeys(body.states))
        return await self._desk.service.tasks(self.caller, body.id, states, body.cursor, body.limit)

    async def preemptions(self, body: wire.Preemptions) -> Document:
        _check_cursor(body.cursor)
        wanted = ReceiptFilter(body.job, body.user, body.limit, int(body.cursor or 0), body.window_s)
        return await self._desk.service.site.preemptions(self.caller, wanted)

    async def preemption(self, body: wire.Preemption) -> Document:
        return await self._desk.service.site.preemption(self.caller, body.id)

    async def ping(self, body: wire.Ping) -> Document:
        return {**await self._desk.service.hub(self.caller), "user": self.caller.user}


def _check_states(states: list[str]) -> None:
    problems = [
        Problem("states", f"{name[:64]!r} is no state of a job") for name in states if name not in _STATES
    ]
    if problems:
        raise InvalidInput(f"{problems[0].what}: there are {', '.join(sorted(_STATES))}", problems)


def _check_cursor(cursor: str) -> None:
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        what = f"{cursor[:40]!r} is not one that this list gave"
        raise InvalidInput(f"cursor {what}", [Problem("cursor", what)])


# What these take of their caller's budget, beside the size of their answers.
_WEIGHTS: dict[type[msgspec.Struct], float] = {
    wire.Get: 0.2,
    wire.Result: 0.2,
    wire.Values: 0.2,
    wire.Jobs: 2,
    wire.Tasks: 0.5,
    wire.Why: 5,
    wire.Plan: 5,
    wire.Preemptions: 2,
}
_CALLS: dict[type[msgspec.Struct], Callable[[Channel, Any], Any]] = {
    wire.Submit: Channel.submit,
    wire.Watch: Channel.watch,
    wire.Unwatch: Channel.unwatch,
    wire.Get: Channel.get,
    wire.Result: Channel.result,
    wire.Values: Channel.values,
    wire.Calls: Channel.add_calls,
    wire.Collect: Channel.collect,
    wire.Cancel: Channel.cancel,
    wire.Hold: Channel.hold,
    wire.Release: Channel.release,
    wire.Requeue: Channel.requeue,
    wire.Edit: Channel.edit,
    wire.Why: Channel.why,
    wire.Plan: Channel.plan,
    wire.Jobs: Channel.jobs,
    wire.Tasks: Channel.tasks,
    wire.Ping: Channel.ping,
    wire.Preemptions: Channel.preemptions,
    wire.Preemption: Channel.preemption,
}
