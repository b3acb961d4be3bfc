"""Worker sockets: frames in, frames out, nothing decided. What a message means is settled in `inbound`, inside a turn.

Each session has an outbox with a bound: a peer that does not read is closed (1013) instead of eating the hub's memory.
Small frames go straight in and out of the socket where it offers that; a task reads and another writes all that has to
wait, in the same order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from dray.core.lifecycle.state.events import Clock, SessionClosed, WorkerLeft
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.results import find
from dray.core.model.ids import split_task_id
from dray.errors import InternalFault, InvalidInput
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.access.tokens import Tokens
from dray.hub.engine.engine import Engine
from dray.hub.engine.told_turns import Behind
from dray.hub.engine.turns import Decision
from dray.hub.rows import Rows
from dray.hub.store.base import Position, Store
from dray.hub.workers import inbound
from dray.hub.workers.frames import EXTENSION, Departures
from dray.hub.workers.outputs import Outputs
from dray.hub.workers.owners import Owners
from dray.hub.workers.questions import Questions
from dray.wire.messages.codec import Codec, Envelope, message
from dray.wire.messages.worker import (
    MAX_OFFER_BYTES,
    QUESTIONS,
    SUBPROTOCOL_JSON,
    SUBPROTOCOL_MSGPACK,
    CallsResult,
    Heartbeat,
    JobLog,
    JobResult,
    Register,
    check_message,
    check_offer,
    worker_codec,
)

BAD_INPUT, TOKEN_GONE, OVERLOADED, GOING_AWAY = 4400, 4401, 1013, 1001
BAD_IN_A_ROW = 10
GOODBYE_S = 2.0
# A frame may hold a million messages: others get their turn, and the outbox its bound, after so many of them.
FRAME_SLICE = 64
FRAME_MESSAGES, FRAME_BYTES = 256, 1 << 20
CALLS = "calls_assign"
logger = logging.getLogger("dray.hub.workers.sessions")


class Limits:
    """Sizes a connection must keep to."""

    def __init__(
        self,
        text_bytes: int,
        binary_bytes: int,
        queue_messages: int,
        queue_bytes: int,
        workers: int = 20_000,
        epoch_jump: int = 4096,
    ) -> None:
        self.text_bytes, self.binary_bytes = text_bytes, binary_bytes
        self.queue_messages, self.queue_bytes = queue_messages, queue_bytes
        self.workers, self.epoch_jump = workers, epoch_jump


class Frames(Protocol):
    """The short way in and out of a socket."""

    def take_frames(self, take: Callable[[bytes], bool]) -> None: ...
    def write_frame(self, frame: bytes) -> bool: ...
    def abort_in(self, delay_s: float) -> None: ...


class Session:
    """One socket. `worker` is empty until it has registered; `reading`: a frame is being taken step by step.

    `prints`: it has sent output. `deaf`: nothing can be written to it any more; what it said before still counts.
    """

    def __init__(
        self,
        number: int,
        caller: Caller,
        codec: Codec,
        send: Send,
        limits: Limits,
        departures: Departures,
        frames: Frames | None = None,
    ) -> None:
        self.number, self.caller, self.codec = number, caller, codec
        self.worker = ""
        self.lists = self.calls = self.knows_answers = False
        # What the owner of its worker should know, told when it has registered.
        self.notes: list[str] = []
        # Whether frames of this peer may hold lists: in msgpack always, in JSON once it has named them.
        self.may_list = codec.binary
        self.bad_in_a_row = 0
        self.reading = self.prints = self.deaf = False
        self.closing: tuple[int, str] | None = None
        self._send, self._limits, self._departures = send, limits, departures
        # Text frames are rare enough for the long way.
        self._direct = frames if codec.binary else None
        self._flushing = False
        self._outbox: list[dict[str, Any]] = []
        self._plain = 0
        self._in_flight = 0
        self._flying_bytes = 0
        self._wake = asyncio.Event()

    def push(self, envelope: dict[str, Any]) -> None:
        """Queue one message; too many unread ones end the session."""
        if self.closing is not None or self.deaf:
            return
        # Calls are left out of the count: what a lane may have outstanding bounds them.
        calls = envelope["type"] == CALLS
        if (
            self._in_flight
            and not calls
            and (self._plain >= self._limits.queue_messages or self._flying_bytes > self._limits.queue_bytes)
        ):
            self.close(OVERLOADED, "this peer does not read what it is sent")
            return
        self._outbox.append(envelope)
        self._plain += not calls
        if self._direct is None or self._in_flight:
            self._wake.set()
        elif not self._flushing:
            self._flushing = True
            self._departures.add(self._flush)

    def _flush(self) -> None:
        """Write what is queued at once if it is one frame and the socket takes it; else the pump sends it."""
        self._flushing = False
        if not self._outbox or self.closing is not None or self._in_flight or self._direct is None:
            self._wake.set()
            return
        first, *more = self._groups(self._outbox)
        if not more and self._direct.write_frame(self.codec.encode(first)):
            self._outbox, self._plain = [], 0
        else:
            self._wake.set()

    def close(self, code: int, reason: str) -> None:
        """End the session after what is queued; later messages are dropped."""
        if self.closing is None:
            self.closing = (code, reason)
            self._wake.set()

    def end(self, why: str) -> None:
        """End the session because its token has ended: nothing that is queued leaves any more, and nothing is taken."""
        self._outbox, self._plain = [], 0
        self.close(TOKEN_GONE, why)

    async def pump(self) -> None:
        """Send what is queued until the session ends; a socket that broke is the reader's to notice.

        The reader comes to it when it has read what arrived before: a worker may say how a task ended and then goodbye,
        and be gone before an earlier message of its is answered.
        """
        try:
            await self._send_all()
        except (OSError, RuntimeError):
            # A runtime error is the server's word for a socket that it has closed itself, over text that is not UTF-8.
            self._outbox, self._plain, self.deaf = [], 0, True

    async def _send_all(self) -> None:
        """Send in lists where the peer takes them."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._outbox, self._plain = self._outbox, [], 0
            for group in self._groups(batch):
                frame = self.codec.encode(group)
                calls = any(envelope["type"] == CALLS for envelope in group)
                self._in_flight, self._flying_bytes = 1, 0 if calls else len(frame)
                body = {"bytes": frame} if self.codec.binary else {"text": frame.decode()}
                await self._send({"type": "websocket.send", **body})
            self._in_flight = self._flying_bytes = 0
            if self.closing is not None and not self._outbox:
                code, reason = self.closing
                await self._send(
                    {
                        "type": "websocket.close",
                        "code": code,
                        "reason": reason.encode()[:120].decode(errors="ignore"),
                    }
                )
                return

    def _groups(self, batch: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """Cut what is queued into frames: one message each unless the peer takes lists."""
        group: list[dict[str, Any]] = []
        size = 0
        most = FRAME_MESSAGES if self.lists else 1
        for envelope in batch:
            weight = sum(map(len, envelope["payload"]["args"])) if envelope["type"] == CALLS else 0
            if group and (len(group) >= most or size + weight > FRAME_BYTES):
                yield group
                group, size = [], 0
            group.append(envelope)
            size += weight
        if group:
            yield group


class Sessions:
    """All worker sockets of this hub."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        store: Store,
        rows: Rows,
        outputs: Outputs,
        questions: Questions,
        limits: Limits,
        tokens: Tokens,
        owners: Owners,
        behind: Behind = lambda worker, known, found: None,
    ) -> None:
        self._behind, self._began = behind, store.position()
        self._engine, self._store, self._rows = engine, store, rows
        self._outputs, self._questions = outputs, questions
        self._limits, self._hold, self._owners = limits, tokens.hold, owners
        self._accounts, self._users = tokens.accounts, tokens.users
        self._codecs = {True: worker_codec(True), False: worker_codec(False)}
        self._numbers = self._first_epoch = 0
        self.departures = Departures()
        self.open: dict[int, Session] = {}

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one socket from upgrade to close."""
        offered: list[str] = list(scope.get("subprotocols") or ())
        await receive()
        chosen = next((name for name in offered if name in (SUBPROTOCOL_MSGPACK, SUBPROTOCOL_JSON)), None)
        await send({"type": "websocket.accept", "subprotocol": chosen})
        self._numbers += 1
        frames: Frames | None = (scope.get("extensions") or {}).get(EXTENSION)
        codec = self._codecs[chosen == SUBPROTOCOL_MSGPACK]
        session = Session(self._numbers, caller, codec, send, self._limits, self.departures, frames)
        self.open[session.number] = session
        pump = asyncio.create_task(session.pump())
        if offered and chosen is None:
            session.close(
                BAD_INPUT, f"this hub speaks {SUBPROTOCOL_MSGPACK} and plain JSON, not {offered[0][:40]}"
            )
        if frames is not None:
            frames.take_frames(lambda frame: self._take(session, frame))
        try:
            with self._hold(caller.token_id, lambda why: self._end(session, why, frames)):
                code = await self._read(session, receive)
        finally:
            self._ended(session, pump)
        self._report_end(session, code)

    def _end(self, session: Session, why: str, frames: Frames | None) -> None:
        logger.warning("closing a session", extra={"worker": session.worker, "reason": why})
        session.end(why)
        if frames is not None:
            frames.abort_in(GOODBYE_S)

    def closed_all(self, code: int, reason: str) -> None:
        """Say goodbye to everybody."""
        for session in list(self.open.values()):
            session.close(code, reason)

    async def _read(self, session: Session, receive: Receive) -> int:
        """Read until the peer has gone; frames that arrive while the session is being closed are dropped."""
        while True:
            got = await receive()
            if got["type"] == "websocket.disconnect":
                return int(got.get("code") or 1006)
            if session.closing is not None:
                continue
            frame: bytes | str = got["bytes"] if got.get("bytes") is not None else got.get("text") or ""
            session.reading = True
            await self._frame(session, frame)
            await self._has_room(session)
            session.reading = False

    def _take(self, session: Session, frame: bytes) -> bool:
        """Take a frame in one step where nothing stands in its way; what is odd about one the long way says."""
        if session.reading or session.closing is not None or not session.codec.binary:
            return False
        if len(frame) > self._limits.binary_bytes or self._engine().is_full:
            return False
        if session.prints and self._outputs.is_full:
            return False
        try:
            envelopes = session.codec.split(frame, session.may_list)
        except InvalidInput:
            return False
        if len(envelopes) > FRAME_SLICE:
            return False
        for envelope in envelopes:
            self._one(session, envelope)
            if session.closing is not None:
                break
        return True

    def _one(self, session: Session, envelope: Envelope) -> None:
        try:
            self._message(session, envelope)
            session.bad_in_a_row = 0
        except InvalidInput as fault:
            self._refuse(session, fault.message)
        except InternalFault as fault:
            # The hub's own fault: it is told, and not counted against the peer. Without a register nothing goes on.
            session.push(message("error", error=fault.message))
            if envelope.type == "register":
                session.close(OVERLOADED, fault.message)

    async def _frame(self, session: Session, frame: bytes | str) -> None:
        """Take one frame, message by message, until it or the session ends."""
        binary = isinstance(frame, bytes)
        most = self._limits.binary_bytes if binary else self._limits.text_bytes
        if len(frame) > most or (not binary and len(frame.encode()) > most):  # type: ignore[union-attr]  # text here
            session.close(BAD_INPUT, f"a frame of {len(frame)} bytes is over the limit of {most}")
            return
        if binary != session.codec.binary:
            self._refuse(
                session,
                f"this session speaks {'msgpack' if session.codec.binary else 'JSON'}: the frame was not read",
            )
            return
        try:
            envelopes = session.codec.split(frame, session.may_list)
        except InvalidInput as fault:
            self._refuse(session, fault.message)
            return
        for count, envelope in enumerate(envelopes, 1):
            self._one(session, envelope)
            if count % FRAME_SLICE == 0:
                await asyncio.sleep(0)
                await self._has_room(session)
            if session.closing is not None:
                return

    def _message(self, session: Session, envelope: Envelope) -> None:
        body = session.codec.open(envelope)
        check_message(envelope.type, body)
        if len(envelope.payload) > MAX_OFFER_BYTES and isinstance(body, (Register, Heartbeat)):
            check_offer(envelope.type, body)
        if envelope.type in QUESTIONS:
            if not session.caller.may("read"):
                raise InvalidInput(f"{envelope.type}: this token lacks the scope 'read'")
            self._questions.answer(session, body, session.caller)
            if session.worker:
                self._post(session, body)  # any message is a sign of life
            return
        if not session.caller.may("worker"):
            raise InvalidInput(f"{envelope.type}: this token lacks the scope 'worker'")
        if isinstance(body, Register):
            self._register(session, body)
            return
        if not session.worker:
            raise InvalidInput(f"{envelope.type}: register first")
        claimed = getattr(body, "worker_id", session.worker)
        if claimed != session.worker:
            raise InvalidInput(
                f"{envelope.type}: worker_id {claimed!r} is not {session.worker!r}, as this session registered"
            )
        if isinstance(body, JobLog):
            session.prints = True
            self._outputs.take(session.worker, body, partial(self._filed, session))
        if isinstance(body, JobResult):
            self._expect(session.worker, body)
        if isinstance(body, CallsResult):
            self._check_calls(session)
            self._post(session, body, bytes(envelope.payload) if session.codec.binary else b"")
        elif isinstance(body, Heartbeat):
            self._beat(session, body)
        else:
            self._post(session, body)

    def _filed(self, session: Session, ends: dict[str, dict[str, int]] | None) -> None:
        """Ack output; what could not be kept at all is sent again in another session."""
        if ends is None:
            session.close(OVERLOADED, "the hub could not file output: its log says why")
        elif session.number in self.open:
            session.push(message("ack", {"re": "job_log", "log_offsets": ends}))

    async def _has_room(self, session: Session) -> None:
        """Wait while more than enough waits of what this peer sends."""
        await self._engine().has_room()
        if session.prints:
            await self._outputs.has_room()

    def _expect(self, worker: str, result: JobResult) -> None:
        """Let followers of an attempt's output know how much there is, if it is this worker's to say."""
        job_id, index = split_task_id(result.task_id) or (result.task_id, -1)
        if find(self._engine().state, worker, job_id, index, result.attempt or "") is not None:
            self._outputs.expect(result)

    def _check_calls(self, session: Session) -> None:
        if not session.calls:
            raise InvalidInput(
                "calls_result: this session did not name the feature 'calls' when it registered"
            )

    def _beat(self, session: Session, body: Heartbeat) -> None:
        """Answer a heartbeat before bulk work that waits.

        Not that of a base-only peer, which may tell answers apart by their order alone, nor one that came before its
        session was let in.
        """
        engine, worker, number = self._engine(), session.worker, session.number
        early = engine.is_behind and session.knows_answers and inbound.is_let_in(engine.state, worker, number)
        if early:
            engine.post(
                lambda state, clock: Decision(inbound.answer_beat(state, worker, number, body.beat)),
                worker,
                presses=True,
            )
        self._post(session, body, answered=early)

    def _post(self, session: Session, body: Any, raw: bytes = b"", answered: bool = False) -> None:
        worker, number = session.worker, session.number
        self._engine().post(
            lambda state, clock: Decision(inbound.interpret(state, worker, number, body, raw, answered)),
            worker,
            body,
            patient=type(body) is Heartbeat,
        )

    def _register(self, session: Session, body: Register) -> None:
        if session.worker and session.worker != body.id:
            raise InvalidInput(f"register: this session is {session.worker!r} already")
        self._check_epoch(body)
        self._check_room(body.id)
        said, users = self._accounts.read(body), self._users()
        if refused := self._accounts.refusal(said, users):
            raise InvalidInput(f"register: {refused}")
        self._accounts.note(session.number, said)
        session.notes = self._accounts.tell_worker(said, users)
        session.worker = body.id
        session.lists = session.codec.binary and "list" in (body.features or ())
        session.may_list = session.codec.binary or "list" in (body.features or ())
        session.calls = "calls" in (body.features or ())
        session.knows_answers = bool(body.features)
        engine, number, caller, owners = self._engine(), session.number, session.caller, self._owners
        most = self._limits.workers

        def decide(state: State, clock: Clock) -> Decision:
            if fault := owners.fault(state, caller, body.id):
                return owners.refuse(state, caller, body.id, fault, number, clock)
            record = owners.claim(state, caller, body.id, clock)
            steps = inbound.register(self._rows, number, body, caller.token_id, most)
            return Decision(steps, audit=record)

        if not owners.fault(engine.state, caller, body.id):
            for result in body.finished_unacked or ():
                self._expect(body.id, result)
            outdated = inbound.is_outdated(engine.state, self._store.epoch, body)
            if outdated:
                engine.raise_epoch(body.max_epoch_seen + 1)
            if outdated or inbound.is_forgotten(self._began, body):
                self._behind(
                    f"worker {body.id}", Position(body.max_epoch_seen, body.max_turn_seen), self._began
                )
        engine.post(decide, body.id, body, wants=inbound.register_rows(body))

    def _check_epoch(self, body: Register) -> None:
        """Refuse a worker that would raise this hub's epoch further than any backup is old.

        Counted from the epoch that this hub began with: many small steps lead no further than one.
        """
        if not self._first_epoch:
            self._first_epoch = self._store.epoch
        most = max(self._first_epoch + self._limits.epoch_jump, self._store.epoch)
        if body.max_epoch_seen <= most:
            return
        logger.error(
            "alarm: worker %s says it has seen epoch %d and this hub began with %d: refused, since a restored backup "
            "does not explain more than %d starts (setting max_epoch_jump)",
            *(body.id, body.max_epoch_seen, self._first_epoch, self._limits.epoch_jump),
        )
        raise InvalidInput(
            f"register: max_epoch_seen {body.max_epoch_seen} is further than this hub may be raised, {most}: restore a "
            "newer backup, or raise the hub's max_epoch_jump - at `$.max_epoch_seen`"
        )

    def _check_room(self, worker_id: str) -> None:
        """Refuse a new id where the hub knows as many workers as it may and none of them can be forgotten."""
        state = self._engine().state
        if worker_id in state.workers or len(state.workers) < self._limits.workers:
            return
        if not inbound.forgettable(state):
            logger.error(
                "alarm: worker %s is refused: %d workers are known, the limit", worker_id, len(state.workers)
            )
            raise InvalidInput(
                f"register: this hub knows {len(state.workers)} workers and none of them is gone for good: raise its "
                "max_workers, or stop some"
            )

    def _refuse(self, session: Session, fault: str) -> None:
        session.push(message("error", error=fault))
        session.bad_in_a_row += 1
        if session.bad_in_a_row >= BAD_IN_A_ROW:
            session.close(BAD_INPUT, f"{BAD_IN_A_ROW} bad messages in a row; the last: {fault}")

    def _ended(self, session: Session, pump: asyncio.Task[None]) -> None:
        self.open.pop(session.number, None)
        self._accounts.forget(session.number)
        if not pump.done():
            pump.cancel()

    def _report_end(self, session: Session, code: int) -> None:
        if not session.worker:
            return
        worker, number = session.worker, session.number
        said_goodbye = code in (1000, 1001) and session.closing is None

        def decide(state: Any, clock: Any) -> Decision:
            presence = state.presence.get(worker)
            if presence is None or presence.session != number:
                return Decision()
            events: list[Any] = [SessionClosed(worker, number)]
            return Decision([*events, WorkerLeft(worker)] if said_goodbye else events)

        self._engine().post(decide)
