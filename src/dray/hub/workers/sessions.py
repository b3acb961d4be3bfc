"""Sessions of workers: frames in, nothing decided. What a message means is settled in `inbound`, inside a turn.

Sockets of this hub are read here; frames of those that a gateway holds are handed in by `hub.gateways`. Either way a
small frame is taken in one step, and one that has to wait step by step, in the same order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from dray.core.lifecycle.state.events import Clock, SessionClosed, WorkerLeft
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.results import find
from dray.core.model.ids import split_task_id
from dray.errors import InternalFault, InvalidInput
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Gate, Receive, Scope, Send
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
from dray.hub.workers.session import (
    BAD_INPUT,
    OVERLOADED,
    Frames,
    Limits,
    Session,
    SocketSession,
)
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
    TaskAccount,
    check_message,
    check_offer,
    worker_codec,
)

BAD_IN_A_ROW = 10
GOODBYE_S = 2.0
# A frame may hold a million messages: others get their turn, and the outbox its bound, after so many of them.
FRAME_SLICE = 64
AnySession = TypeVar("AnySession", bound=Session)
logger = logging.getLogger("dray.hub.workers.sessions")


class Sessions:
    """All that are open, here and at gateways."""

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
        self.outputs, self._questions = outputs, questions
        self.limits, self._hold, self._owners = limits, tokens.hold, owners
        self._accounts, self._users = tokens.accounts, tokens.users
        self.codecs = {True: worker_codec(True), False: worker_codec(False)}
        self._numbers = self._first_epoch = 0
        self.departures = Departures()
        # The door of this hub, which gateways ask at; set where that is made.
        self.gate: Gate | None = None
        self.open: dict[int, Session] = {}

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one socket from upgrade to close."""
        offered: list[str] = list(scope.get("subprotocols") or ())
        await receive()
        chosen = next((name for name in offered if name in (SUBPROTOCOL_MSGPACK, SUBPROTOCOL_JSON)), None)
        await send({"type": "websocket.accept", "subprotocol": chosen})
        frames: Frames | None = (scope.get("extensions") or {}).get(EXTENSION)
        session = self.begin_sent(caller, send, chosen == SUBPROTOCOL_MSGPACK, frames)
        pump = asyncio.create_task(session.pump())
        if offered and chosen is None:
            session.close(
                BAD_INPUT, f"this hub speaks {SUBPROTOCOL_MSGPACK} and plain JSON, not {offered[0][:40]}"
            )
        if frames is not None:
            frames.take_frames(lambda frame: self.take(session, frame))
        try:
            with self._hold(caller.token_id, lambda why: self._end(session, why, frames)):
                code = await self._read(session, receive)
        finally:
            self._forget(session)
            if not pump.done():
                pump.cancel()
        self._report_end([(session, code)])

    def begin(self, make: Callable[[int, Codec], AnySession]) -> AnySession:
        """Open a session of somebody whose words come in msgpack, by whichever way; `leave` ends it."""
        self._numbers += 1
        session = make(self._numbers, self.codecs[True])
        self.open[session.number] = session
        return session

    def begin_sent(
        self, caller: Caller, send: Send, binary: bool = True, frames: Frames | None = None
    ) -> SocketSession:
        """Open a session of somebody to whom frames are sent; its pump is to be run beside it."""
        codec = self.codecs[binary]
        return self.begin(
            lambda number, _: SocketSession(number, caller, codec, send, self.limits, self.departures, frames)
        )

    def count_near(self) -> int:
        """How many are connected to this very hub."""
        return sum(session.near for session in list(self.open.values()))

    def enter(self, session: Session) -> None:
        """Somebody is there whose socket is another's to read."""
        self.open[session.number] = session

    def leave(self, ended: Sequence[tuple[Session, int]]) -> None:
        """They are gone, with the codes that their sockets were closed by."""
        for session, _ in ended:
            self._forget(session)
        self._report_end(ended)

    def tell_behind(self, who: str, known: Position) -> None:
        """Somebody was told more than this hub's store has."""
        self._behind(who, known, self._began)

    def readmit(self, session: Session, boot_id: str, accounts: Sequence[TaskAccount]) -> str:
        """Why a worker that another hub let in is not to go on here, by the accounts that it runs tasks in."""
        said = self._accounts.read(session.worker, boot_id, accounts)
        if not (refused := self._accounts.refusal(said, self._users())):
            self._accounts.note(session.number, said)
        return refused

    def _end(self, session: SocketSession, why: str, frames: Frames | None) -> None:
        logger.warning("closing a session", extra={"worker": session.worker, "reason": why})
        session.end(why)
        if frames is not None:
            frames.abort_in(GOODBYE_S)

    def closed_all(self, code: int, reason: str) -> None:
        """Say goodbye to everybody who is connected to this hub."""
        for session in list(self.open.values()):
            if session.near:
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
            await self.take_slowly(session, frame)

    async def take_slowly(self, session: Session, frame: bytes | str) -> None:
        """Take a frame step by step, and wait until there is room for another."""
        session.reading = True
        await self._frame(session, frame)
        await self._has_room(session)
        session.reading = False

    def take(self, session: Session, frame: bytes) -> bool:
        """Take a frame in one step where nothing stands in its way; what is odd about one the long way says."""
        if session.reading or session.closing is not None or not session.codec.binary:
            return False
        if len(frame) > self.limits.binary_bytes or self._engine().is_full:
            return False
        if session.prints and self.outputs.is_full:
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
        most = self.limits.binary_bytes if binary else self.limits.text_bytes
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
            session.prints = session.near
            self.outputs.take(session.worker, body, session.awaits_filing(partial(self._filed, session)))
            session.filing()
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
            await self.outputs.has_room()

    def _expect(self, worker: str, result: JobResult) -> None:
        """Let followers of an attempt's output know how much there is, if it is this worker's to say."""
        job_id, index = split_task_id(result.task_id) or (result.task_id, -1)
        if find(self._engine().state, worker, job_id, index, result.attempt or "") is not None:
            self.outputs.expect(result)

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
        said = self._accounts.read(body.id, body.boot_id or "", body.accounts or ())
        users = self._users()
        if refused := self._accounts.refusal(said, users):
            raise InvalidInput(f"register: {refused}")
        self._accounts.note(session.number, said)
        session.notes = self._accounts.tell_worker(said, users)
        session.name(body.id, tuple(body.features or ()))
        engine, number, caller, owners = self._engine(), session.number, session.caller, self._owners
        most = self.limits.workers

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
        most = max(self._first_epoch + self.limits.epoch_jump, self._store.epoch)
        if body.max_epoch_seen <= most:
            return
        logger.error(
            "alarm: worker %s says it has seen epoch %d and this hub began with %d: refused, since a restored backup "
            "does not explain more than %d starts (setting max_epoch_jump)",
            *(body.id, body.max_epoch_seen, self._first_epoch, self.limits.epoch_jump),
        )
        raise InvalidInput(
            f"register: max_epoch_seen {body.max_epoch_seen} is further than this hub may be raised, {most}: restore a "
            "newer backup, or raise the hub's max_epoch_jump - at `$.max_epoch_seen`"
        )

    def _check_room(self, worker_id: str) -> None:
        """Refuse a new id where the hub knows as many workers as it may and none of them can be forgotten."""
        state = self._engine().state
        if worker_id in state.workers or len(state.workers) < self.limits.workers:
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

    def _forget(self, session: Session) -> None:
        self.open.pop(session.number, None)
        self._accounts.forget(session.number)

    def _report_end(self, ended: Sequence[tuple[Session, int]]) -> None:
        known = [
            (session.worker, session.number, code in (1000, 1001) and session.closing is None)
            for session, code in ended
            if session.worker
        ]
        if not known:
            return

        def decide(state: State, clock: Clock) -> Decision:
            events: list[Any] = []
            for worker, number, said_goodbye in known:
                if inbound.is_let_in(state, worker, number):
                    events.append(SessionClosed(worker, number))
                    events += [WorkerLeft(worker)] if said_goodbye else []
            return Decision(events)

        self._engine().post(decide)
