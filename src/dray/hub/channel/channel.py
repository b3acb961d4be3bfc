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
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import msgspec

from dray.core.model.records.records import JobState
from dray.errors import DrayError, InvalidInput, Problem, TooLarge
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.access.request_budgets import UNIT_BYTES, Budgets
from dray.hub.access.token_leases import Hold
from dray.hub.answers.refusals import error_document, internal_error
from dray.hub.answers.service import Document
from dray.hub.channel.results_flow import ResultsFlow
from dray.hub.documents.receipts import ReceiptFilter
from dray.hub.engine.told_turns import HEADER, TurnWords
from dray.hub.notifications.outbox import STATES as TOLD_STATES
from dray.hub.notifications.outbox import Wanted
from dray.hub.operations import asks
from dray.hub.operations.operation import Desk, Operation
from dray.hub.operations.table import OPERATIONS
from dray.hub.operations.values import values_of
from dray.hub.store.base import JobFilter
from dray.hub.workers.frames import EXTENSION, Departures
from dray.hub.workers.session import Frames
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


class Surroundings(NamedTuple):
    """Where a channel asks, and whom it leaves word with to be ended with its token."""

    desk: Desk
    hold: Hold
    budgets: Budgets
    words: TurnWords
    departures: Departures
    report: Callable[[str, BaseException], str] = lambda kind, error: ""


class ClientChannels:
    """All client sockets of this hub."""

    def __init__(self, around: Surroundings, limits: ChannelLimits) -> None:
        self._around, self._limits = around, limits
        self.open: set[Channel] = set()

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one socket from upgrade to close."""
        offered: list[str] = list(scope.get("subprotocols") or ())
        known = wire.SUBPROTOCOL_CLIENT in offered
        await receive()
        await send({"type": "websocket.accept", "subprotocol": wire.SUBPROTOCOL_CLIENT if known else None})
        # A unix socket has no address at its other end.
        caller = caller._replace(local=scope.get("client") is None)
        frames: Frames | None = (scope.get("extensions") or {}).get(EXTENSION)
        channel = Channel(self._around, self._limits, caller, send, frames)
        if frames is not None:
            frames.take_frames(channel.take)
        channel.hears_turns = any(name == HEADER for name, _ in scope["headers"])
        self.open.add(channel)
        if offered and not known:
            channel.close(BAD_INPUT, f"this channel speaks {wire.SUBPROTOCOL_CLIENT}, not {offered[0][:40]}")
        try:
            with self._around.hold(caller.token_id, lambda why: self._end(channel, why, frames)):
                await channel.run(receive)
        finally:
            self.open.discard(channel)

    def _end(self, channel: Channel, why: str, frames: Frames | None) -> None:
        channel.end(why)
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

    def __init__(
        self,
        around: Surroundings,
        limits: ChannelLimits,
        caller: Caller,
        send: Send,
        frames: Frames | None = None,
    ) -> None:
        self.caller, self._around, self._limits, self._send = caller, around, limits, send
        self._direct, self._flushing, self._reading = frames, False, False
        self._outbox: list[bytes] = []
        self._queued_bytes = 0
        self._rows: dict[str, Any] = {}
        self._rows_bytes = 0
        self._rows_at = 0.0
        self._rows_timer: asyncio.TimerHandle | None = None
        self._watched: dict[str, None] = {}
        self._asking: dict[asyncio.Future[Any], int] = {}
        self._asked_bytes = 0
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._sent, self.order = asyncio.Event(), asyncio.Lock()
        self._closing: tuple[int, str] | None = None
        self._sending = False
        self.pump: asyncio.Task[None] | None = None
        self._bad_in_a_row = 0
        # Whether the peer gives back what it is told of turns, and what it was told last.
        self.hears_turns, self._word = False, b""
        feed = values_of(around.desk).calls.feed
        self.listener = ResultsFlow(feed, self._push, lambda: self._queued_bytes, limits.results_bytes)

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
                    self._reading = True
                    await self._take_frame(frame)
                    self._reading = False
        finally:
            self._closing = self._closing or (1006, "")
            self._sent.set()
            if self._rows_timer is not None:
                self._rows_timer.cancel()
            values_of(self._around.desk).batches.drop(list(self._watched), self)
            self.listener.close()
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
        self._rouse()

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

    def take(self, frame: bytes) -> bool:
        """Take a frame in one step where nothing stands in its way; what is odd about one the long way says."""
        limits = self._limits
        if (
            self._reading
            or self._closing is not None
            or len(frame) > limits.frame_bytes
            or not self._is_free()
        ):
            return False
        try:
            requests = wire.read_requests(frame)
        except wire.Fault:
            return False
        if (
            len(self._asking) + len(requests) > limits.in_flight
            or self._asked_bytes + len(frame) > limits.asked_bytes
        ):
            return False
        for request in requests:
            self._take(request)
            if self._closing is not None:
                break
        return True

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
        answer = self._post_calls(request.id, body) if type(body) is wire.Calls else None
        if answer is None:
            answer = asyncio.create_task(self._answer(request.id, body))
        self._asking[answer] = len(request.payload)
        self._asked_bytes += len(request.payload)
        answer.add_done_callback(self._asked)

    def _post_calls(self, request_id: wire.RequestId, body: wire.Calls) -> asyncio.Future[Any] | None:
        """Queue calls for the next turn in this very step: a task for each costs as much as the rest. None: the long
        way tells what is wrong with them.
        """
        operation = MESSAGES[wire.Calls].operation
        try:
            self.caller.check(operation.scopes)
            answer = asyncio.ensure_future(operation.handler(self._around.desk, self, body))
        except Exception:  # noqa: BLE001 - asked again, it fails alike
            return None
        answer.add_done_callback(partial(self._tell_calls, request_id))
        return answer

    def _tell_calls(self, request_id: wire.RequestId, answer: asyncio.Future[Any]) -> None:
        self.listener.settle()
        if answer.cancelled():
            return
        fault = answer.exception()
        if fault is None:
            self._push(wire.write_message(wire.ANSWER, request_id, answer.result()))
        else:
            self._push(self._spell(fault, request_id, "calls"))

    def _asked(self, answer: asyncio.Future[Any]) -> None:
        self._asked_bytes -= self._asking.pop(answer)
        self._free()
        if self._closing is not None:
            self._wake.set()

    def _refuse(self, fault: wire.Fault) -> None:
        self._bad_in_a_row += 1
        self._push(wire.write_message(wire.ERROR, fault.request_id, error=error_document(fault)["error"]))
        if self._bad_in_a_row >= BAD_IN_A_ROW:
            self.close(BAD_INPUT, f"{BAD_IN_A_ROW} bad messages in a row; the last: {fault.message}")

    async def _answer(self, request_id: wire.RequestId, body: Any) -> None:
        message = MESSAGES[type(body)]
        try:
            self.caller.check(message.operation.scopes)
            if message.operation.weight is None:
                reply = wire.write_message(wire.ANSWER, request_id, await self._perform(message, body))
            else:
                reply = await self._answer_heavy(request_id, message, body)
        except Exception as fault:  # noqa: BLE001 - whatever it is, the peer waits for an answer
            reply = self._spell(fault, request_id, type(body).__name__.lower())
        self._push(reply)

    def _spell(self, fault: BaseException, request_id: wire.RequestId, kind: str) -> bytes:
        if not isinstance(fault, DrayError):
            logger.error("a %s failed", kind, exc_info=fault)
            fault = internal_error(self._around.report(kind, fault))
        return wire.write_message(wire.ERROR, request_id, error=error_document(fault)["error"])

    async def _perform(self, message: Message, body: Any) -> Any:
        if message.own is not None:
            return await message.own(self, body)
        ask = body if message.read is None else message.read(body)
        if not message.operation.in_session:
            return await message.operation.handler(self._around.desk, self.caller, ask)
        answer = await message.operation.handler(self._around.desk, self, ask)
        self.listener.settle()
        return answer

    async def _answer_heavy(self, request_id: wire.RequestId, message: Message, body: Any) -> bytes:
        """Answer within the caller's budget, and not before most of what was answered has been read."""
        budgets, token_id, reply = self._around.budgets, self.caller.token_id, b""
        await budgets.enter(token_id, patient=True)
        try:
            while self._queued_bytes > self._limits.queue_bytes and self._closing is None:
                self._sent.clear()
                await self._sent.wait()
            reply = wire.write_message(wire.ANSWER, request_id, await self._perform(message, body))
        finally:
            budgets.leave(token_id, (message.operation.weight or 0) + len(reply) / UNIT_BYTES)
        return reply

    # --- out ----------------------------------------------------------------------------------------------------------

    def _push(self, message: bytes) -> None:
        if self._closing is not None and self._closing[0] == TOKEN_GONE:
            return
        self._queue(message)
        self._rouse()

    def _queue(self, message: bytes) -> None:
        self._outbox.append(message)
        self._queued_bytes += len(message)

    def _rouse(self) -> None:
        """See to it that what is queued leaves."""
        if self._direct is None or self._sending:
            self._wake.set()
        elif not self._flushing:
            self._flushing = True
            self._around.departures.add(self._flush, awaited=True)

    def _flush(self) -> None:
        """Write one frame at once if the socket takes it; the pump sees to all else."""
        self._flushing = False
        if self._direct is None or self._sending or self._closing is not None:
            self._wake.set()
            return
        batch = self._batch()
        if not batch:
            return
        if self._direct.write_frame(wire.join_messages(batch)):
            self._left(batch)
            if not self._outbox:
                return
        else:
            self._outbox = batch + self._outbox
        self._wake.set()

    def _left(self, batch: list[bytes]) -> None:
        self._queued_bytes -= sum(map(len, batch))
        self.listener.drained()
        self._sent.set()
        self._free()

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
                self._left(batch)
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
            self._queue(wire.write_message(wire.CHANGED, None, {"jobs": list(rows.values())}))
        count, size = 0, 0
        for message in self._outbox[:FRAME_MESSAGES]:
            size += len(message)
            if count and size > self._limits.queue_bytes:
                break
            count += 1
        batch, self._outbox = self._outbox[:count], self._outbox[count:]
        if batch and self.hears_turns and (word := self._around.words.write()) != self._word:
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

    # --- watches ------------------------------------------------------------------------------------------------------

    async def watch(self, body: wire.Watch) -> Document:
        if len(self._watched) + len(body.ids) > self._limits.watched:
            raise TooLarge(
                f"a channel watches at most {self._limits.watched} jobs, and {len(self._watched)} are watched: "
                "unwatch some, or open another channel"
            )
        self._watched |= dict.fromkeys(body.ids)
        going: set[str] = set()
        try:
            answer: Document = await OPERATIONS["watch_jobs"].handler(self._around.desk, self, body)
            going = {row["id"] for row in answer["jobs"] if "document" not in row}
        finally:
            for job_id in body.ids:
                if job_id not in going:
                    self._watched.pop(job_id, None)
        if self._closing is not None:
            # The socket went away meanwhile, and its watches were dropped before these began.
            values_of(self._around.desk).batches.drop(body.ids, self)
        return answer

    async def unwatch(self, body: wire.Unwatch) -> Any:
        for job_id in body.ids:
            self._watched.pop(job_id, None)
        return await OPERATIONS["unwatch_jobs"].handler(self._around.desk, self, body)


class Message(NamedTuple):
    """The operation that a message asks for. `read` makes what is asked where the message itself is not that.

    `own`: the channel keeps account of it, and asks itself.
    """

    operation: Operation
    read: Callable[[Any], Any] | None = None
    own: Callable[[Channel, Any], Awaitable[Any]] | None = None


def _read_submit(body: wire.Submit) -> asks.SubmitJobs:
    return asks.SubmitJobs(Packed(body.specs, wire.open_document), body.key)


def _read_plan(body: wire.Plan) -> asks.PlanJob:
    if not isinstance(body.spec, dict):
        raise InvalidInput("spec must be one job, an object")
    return asks.PlanJob(body.spec)


def _read_jobs(body: wire.Jobs) -> JobFilter:
    return JobFilter(
        states=_read_states(body.states),
        user=body.user,
        queue=body.queue,
        name=body.name,
        workload=body.workload,
        labels=tuple(body.labels.items()),
        before_seq=_read_cursor(body.cursor),
        limit=body.limit,
    )


def _read_tasks(body: wire.Tasks) -> asks.ListTasks:
    states = _read_states(body.states)
    _read_cursor(body.cursor)
    return asks.ListTasks(body.id, states, body.cursor, body.limit)


def _read_receipts(body: wire.Preemptions) -> ReceiptFilter:
    return ReceiptFilter(body.job, body.user, body.limit, _read_cursor(body.cursor), body.window_s)


def _read_wanted(body: wire.Notifications) -> Wanted:
    states = _read_states(body.states, TOLD_STATES, "a notification")
    return Wanted(None, body.job, states, _read_cursor(body.cursor), body.limit)


def _read_states(states: list[str], known: Collection[str] = _STATES, of: str = "a job") -> tuple[str, ...]:
    problems = [
        Problem("states", f"{name[:64]!r} is no state of {of}") for name in states if name not in known
    ]
    if problems:
        raise InvalidInput(f"{problems[0].what}: there are {', '.join(sorted(known))}", problems)
    return tuple(dict.fromkeys(states))


def _read_cursor(cursor: str) -> int:
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        what = f"{cursor[:40]!r} is not one that this list gave"
        raise InvalidInput(f"cursor {what}", [Problem("cursor", what)])
    return int(cursor or 0)


MESSAGES: dict[type[msgspec.Struct], Message] = {
    wire.Submit: Message(OPERATIONS["submit_columns"], _read_submit),
    wire.Watch: Message(OPERATIONS["watch_jobs"], own=Channel.watch),
    wire.Unwatch: Message(OPERATIONS["unwatch_jobs"], own=Channel.unwatch),
    wire.Get: Message(OPERATIONS["get_jobs"]),
    wire.Result: Message(OPERATIONS["get_results"]),
    wire.Values: Message(OPERATIONS["get_values"]),
    wire.Calls: Message(OPERATIONS["add_calls"]),
    wire.Collect: Message(OPERATIONS["collect_calls"]),
    wire.Cancel: Message(OPERATIONS["cancel_job"]),
    wire.Hold: Message(OPERATIONS["hold_job"]),
    wire.Release: Message(OPERATIONS["release_job"]),
    wire.Requeue: Message(OPERATIONS["requeue_job"]),
    wire.Scale: Message(OPERATIONS["scale_service"]),
    wire.Share: Message(OPERATIONS["share_service"]),
    wire.ShowService: Message(OPERATIONS["show_service"]),
    wire.UpdateService: Message(OPERATIONS["update_service"]),
    wire.RollbackService: Message(OPERATIONS["rollback_service"]),
    wire.Endpoints: Message(OPERATIONS["list_endpoints"]),
    wire.Act: Message(OPERATIONS["act_on_jobs"]),
    wire.Edit: Message(OPERATIONS["edit_job"]),
    wire.Why: Message(OPERATIONS["explain_job"], lambda body: asks.ExplainJob(body.id)),
    wire.Plan: Message(OPERATIONS["plan_job"], _read_plan),
    wire.Jobs: Message(OPERATIONS["list_jobs"], _read_jobs),
    wire.Tasks: Message(OPERATIONS["list_tasks"], _read_tasks),
    wire.Ping: Message(OPERATIONS["ping"]),
    wire.Preemptions: Message(OPERATIONS["list_preemptions"], _read_receipts),
    wire.Preemption: Message(OPERATIONS["show_preemption"]),
    wire.Alarms: Message(OPERATIONS["list_alarms"]),
    wire.Usage: Message(OPERATIONS["show_usage"]),
    wire.IdleGpus: Message(OPERATIONS["list_idle"]),
    wire.Notifications: Message(OPERATIONS["list_notifications"], _read_wanted),
}
# Who may open a channel: whoever may send any of these.
SCOPES = tuple(dict.fromkeys(scope for message in MESSAGES.values() for scope in message.operation.scopes))
