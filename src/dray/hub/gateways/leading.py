"""The leader's end of its links: sockets that gateways hold are sessions of this hub like any other.

Nothing is decided here. What workers said is taken in its order; once all of a frame is committed, and what was printed
is filed, the gateway hears that it may let it go. Acks leave with the turn that they belong to, so that they are always
ahead of that word. A link that breaks closes its sessions as a socket does; the gateway dials again, and resumes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import msgspec

from dray.core.lifecycle.state.effects import CloseSession
from dray.core.lifecycle.state.events import Clock, Heard, SessionsResumed, WorkerReturned
from dray.core.lifecycle.state.state import State
from dray.core.model.records.worker import ResumedSession
from dray.errors import DrayError, Forbidden
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.access.tokens import Tokens
from dray.hub.answers.refusals import error_document
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.gateways.far_sessions import FarSession
from dray.hub.gateways.frames import (
    SUBPROTOCOL,
    Answer,
    Ask,
    Beat,
    BeatAck,
    CallerEnded,
    Close,
    Closed,
    Done,
    Down,
    Frame,
    Held,
    Hello,
    Items,
    OutputFiled,
    Registered,
    Told,
    TurnTold,
    Up,
    Welcome,
    read_up,
    write_frame,
)
from dray.hub.gateways.hub_tokens import hub_of
from dray.hub.http.replies import deny_upgrade
from dray.hub.store.base import Position, Remote, Turn
from dray.hub.workers import inbound
from dray.hub.workers.owners import NOT_YOURS, Owners
from dray.hub.workers.session import OVERLOADED, TOKEN_GONE, Filed, cut_frames
from dray.hub.workers.sessions import Sessions

SCOPES = ("worker", "read")
RELOADING, BROKEN, TAKEN_OVER = 1012, 1006, 4409
# Beyond so many clients of one gateway their tokens are not watched for it.
MOST_CALLERS = 20_000
# So many of the sessions that a gateway names are taken up in one turn.
RESUMED_AT_ONCE = 500
FRAME_BYTES, MOST_WAITING_BYTES = 1 << 20, 256 << 20
# A gateway that has so much to read yet is told of no turns: it finds them in the store. So are larger ones.
MOST_TURNS_BYTES, TURN_BYTES = 4 << 20, 1 << 20
logger = logging.getLogger("dray.hub.gateways")


class Out(Protocol):
    """How bytes leave to a gateway."""

    @property
    def waiting_bytes(self) -> int:
        """How much it has not taken yet."""

    def send(self, frame: bytes) -> None: ...
    def close(self, code: int, reason: str) -> None: ...


class _Taken:
    """One frame of items: up to which number it goes, and what of it is not done."""

    __slots__ = ("filing", "is_committed", "upto")

    def __init__(self, upto: int) -> None:
        self.upto, self.filing, self.is_committed = upto, 0, False


class Link:
    """One gateway, for as long as its link stands."""

    def __init__(self, number: int, gateways: Gateways, out: Out) -> None:
        self.number, self._gateways, self._out = number, gateways, out
        self.url, self.gateway, self.over = gateways.url, "", False
        self.sessions: dict[int, FarSession] = {}
        self._speaking: dict[FarSession, None] = {}
        self._waiting: list[Callable[[int], Registered | Close]] = []
        self._taken: deque[_Taken] = deque()
        self._flushing = False
        self._follows = False
        # Clients at the gateway whose tokens are watched for it.
        self._callers: dict[str, contextlib.ExitStack] = {}

    # --- down ---------------------------------------------------------------------------------------------------------

    def speak(self, session: FarSession) -> None:
        """Something waits for a session."""
        self._speaking[session] = None
        self._schedule()

    def tell(self, make: Callable[[int], Registered | Close]) -> None:
        """Send a frame of this epoch: that of a registration before its ack, that of a close behind all that waits."""
        self._waiting.append(make)
        self._schedule()

    def _schedule(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._gateways.sessions.departures.add(self._flush)

    def _flush(self) -> None:
        """Write what the turn has for workers of this gateway; what is queued outside a turn leaves with this step."""
        self._flushing = False
        waiting, self._waiting = self._waiting, []
        frames = [make(self._gateways.epoch) for make in waiting]
        for frame in frames:
            if isinstance(frame, Registered):
                self.send(frame)
        speaking, self._speaking = self._speaking, {}
        for told in self._cut(speaking):
            self.send(told)
        for frame in frames:
            if isinstance(frame, Close):
                self.send(frame)

    def _cut(self, speaking: Iterable[FarSession]) -> Iterator[Told]:
        epoch, seq = self._gateways.epoch, self._gateways.engine().told
        items: list[tuple[int, Frame, int]] = []
        size = 0
        presence = self._gateways.engine().state.presence
        for session in speaking:
            known = presence.get(session.worker)
            credit = known.credit if known is not None else 0
            outbox, session.outbox = session.outbox, []
            for group in cut_frames(outbox, session.lists):
                frame = session.codec.encode(group)
                if items and size + len(frame) > FRAME_BYTES:
                    yield Told(epoch, seq, items)
                    items, size = [], 0
                items.append((session.no, frame if session.codec.binary else frame.decode(), credit))
                size += len(frame)
        if items:
            yield Told(epoch, seq, items)

    def send(self, frame: Down) -> None:
        """Write one frame; a gateway that does not read loses its link."""
        if self.over:
            return
        self._out.send(write_frame(frame))
        if self._out.waiting_bytes > MOST_WAITING_BYTES:
            self.close(OVERLOADED, "this gateway does not read what it is sent")

    @property
    def takes_turns(self) -> bool:
        """Whether a turn would be read soon, by one who follows; one that is left out shows as a gap."""
        return self._follows and not self.over and self._out.waiting_bytes <= MOST_TURNS_BYTES

    def send_turn(self, frame: bytes) -> None:
        """Tell of a turn that is committed."""
        self._out.send(frame)

    def close(self, code: int, reason: str) -> None:
        """End the link; the sockets behind it are the gateway's."""
        if not self.over:
            self._out.close(code, reason)
            self.end()

    def end(self) -> None:
        """The link is gone: its sessions are closed as broken sockets are."""
        if self.over:
            return
        self.over = True
        ended = [(session, BROKEN) for session in self.sessions.values()]
        for session, _ in ended:
            session.lease.close()
        self.sessions.clear()
        for lease in self._callers.values():
            lease.close()
        self._callers.clear()
        # What it has filed and could not tell any more.
        self._gateways.sessions.outputs.look_again()
        self._gateways.ended(self, ended)

    # --- what is done -------------------------------------------------------------------------------------------------

    def awaits_filing(self, tell: Filed) -> Filed:
        """Have the frame that is being taken wait for what a worker printed."""
        taken = self._taken[-1]

        def filed(ends: dict[str, dict[str, int]] | None) -> None:
            tell(ends)
            taken.filing -= 1
            self._settle()

        return filed

    def filing(self) -> None:
        """A piece of the frame that is being taken is on its way to the disk."""
        self._taken[-1].filing += 1

    def _committed(self, taken: _Taken, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        taken.is_committed = True
        self._settle()

    def _settle(self) -> None:
        upto = 0
        while self._taken and self._taken[0].is_committed and self._taken[0].filing <= 0:
            upto = self._taken.popleft().upto
        if upto:
            # Behind the acks: those of what was printed may wait for this step to end.
            self._flush()
            self.send(Done(self._gateways.epoch, self._gateways.engine().told, upto))

    # --- up -----------------------------------------------------------------------------------------------------------

    async def take(self, raw: bytes) -> None:
        """Take one frame of the gateway; waits while the hub has more than enough to do.

        Of a link that has ended meanwhile nothing is taken: whoever came in by it would never leave.
        """
        if self.over:
            return
        frame: Up = read_up(raw)
        if isinstance(frame, Hello):
            await self._greet(frame)
        elif not self.gateway:
            self.close(4400, "say hello first")
        elif isinstance(frame, Items):
            await self._take_items(frame)
        elif isinstance(frame, Beat):
            self._hear(frame)
        elif isinstance(frame, Ask):
            self._answer(frame)
        elif isinstance(frame, OutputFiled):
            self._gateways.sessions.outputs.look_again(frame.names)
        else:
            self._leave(frame)

    async def _take_items(self, frame: Items) -> None:
        sessions, engine = self._gateways.sessions, self._gateways.engine()
        taken = _Taken(frame.first + len(frame.items) - 1)
        self._taken.append(taken)
        for no, said in frame.items:
            session = self.sessions.get(no)
            # One that is gone registers anew, and says again whatever was not acked.
            if session is None or session.closing is not None:
                continue
            if not (isinstance(said, bytes) and sessions.take(session, said)):
                await sessions.take_slowly(session, said)
            if self.over:
                return
        done = engine.change(lambda state, clock: Decision(), kind="gateway")
        done.add_done_callback(partial(self._committed, taken))

    def _hear(self, frame: Beat) -> None:
        """Take a digest of heartbeats: a sign of life of each, acked after a turn in which nobody else led."""
        heard = [self.sessions[no] for no in frame.sessions if no in self.sessions]
        strange = [no for no in frame.sessions if no not in self.sessions]

        def steps(state: State) -> Iterator[Heard | WorkerReturned]:
            for session in heard:
                if not inbound.is_let_in(state, session.worker, session.number):
                    strange.append(session.no)
                    continue
                yield Heard(session.worker)
                if state.workers[session.worker].silent:
                    yield WorkerReturned(session.worker)

        done = self._gateways.engine().change(
            lambda state, clock: Decision(steps(state)),
            kind="beat",
            presses=True,
            brings=[session.worker for session in heard],
        )

        def ack(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                told = self._gateways.engine().told
                self.send(BeatAck(self._gateways.epoch, told, frame.d, strange))

        done.add_done_callback(ack)

    def _answer(self, frame: Ask) -> None:
        """Say whether somebody may come in, by the very rules of this hub's own door; if so he is there from now on."""
        if frame.request.get("caller"):
            self._tell_caller(frame)
            return
        try:
            no, binary = int(frame.request["session"]), bool(frame.request["binary"])
            caller = self._gateways.check(frame.caller, str(frame.request["peer"]))
            self._enter(no, caller, binary)
            payload: dict[str, Any] = {"token": caller.token_id}
        except DrayError as fault:
            payload = error_document(fault)
        self.send(Answer(frame.id, self._gateways.engine().told, payload))

    def _tell_caller(self, frame: Ask) -> None:
        """Say who a client at the gateway is, and from then on when its token has ended."""
        try:
            caller = self._gateways.know(frame.caller, str(frame.request["peer"]))
            if hub_of(caller):
                raise Forbidden("this token is one of hubs: clients have their own")
            told = (caller.token_id, caller.user, caller.scopes)
            payload: dict[str, Any] = {"caller": told, "held": self._watch(caller.token_id)}
        except DrayError as fault:
            payload = error_document(fault)
        self.send(Answer(frame.id, self._gateways.engine().told, payload))

    def _watch(self, token_id: str) -> bool:
        """Have the gateway told once a token has ended; False where that is not sure, and it has to ask each time."""
        if token_id in self._callers:
            return True
        if len(self._callers) >= MOST_CALLERS:
            return False
        lease = self._callers[token_id] = contextlib.ExitStack()
        lease.enter_context(self._gateways.tokens.hold(token_id, lambda why: self._end_caller(token_id)))
        return True

    def _end_caller(self, token_id: str) -> None:
        if (lease := self._callers.pop(token_id, None)) is not None:
            self.send(CallerEnded(self._gateways.epoch, token_id))
            # Not while whoever calls this goes through what is held.
            asyncio.get_running_loop().call_soon(lease.close)

    def _enter(self, no: int, caller: Caller, binary: bool) -> FarSession:
        gateways = self._gateways
        session = FarSession(self.number << 32 | no, no, caller, gateways.sessions.codecs[binary], self)
        self.sessions[no] = session
        gateways.sessions.enter(session)
        session.lease.enter_context(gateways.tokens.hold(caller.token_id, session.end))
        return session

    def _leave(self, frame: Closed) -> None:
        session = self.sessions.pop(frame.session, None)
        if session is not None:
            session.lease.close()
            self._gateways.sessions.leave([(session, frame.code)])

    # --- a gateway comes ----------------------------------------------------------------------------------------------

    async def _greet(self, hello: Hello) -> None:
        gateways, engine = self._gateways, self._gateways.engine()
        if self.gateway:
            self.close(4400, "hello is said once")
            return
        self.gateway = hello.gateway
        is_new = gateways.greeted(self, hello.boot)
        knows_more = hello.max_epoch > gateways.epoch or (is_new and hello.max_epoch == gateways.epoch)
        if knows_more:
            # A database that went back: as when a worker knows of more. Of an equal epoch it heard from another hub.
            engine.raise_epoch(hello.max_epoch + 1)
        # One that was linked here before has been linked to another hub since, for all that is known.
        if hello.done_seq and (knows_more or await self._gateways.has_lost(hello)):
            self._turn_away(hello)
            hello = msgspec.structs.replace(hello, sessions=())
        if self.over:
            return
        # Workers that had not registered yet say so again behind this, or dial anew.
        held = [(session, one) for one in hello.sessions if (session := self._take_up(one)) is not None]
        for at in range(0, len(held), RESUMED_AT_ONCE):
            if self.over:
                return
            await self._resume(held[at : at + RESUMED_AT_ONCE])
        await engine.change(lambda state, clock: Decision(), kind="gateway")
        now_ms = engine.state.now_ms
        self.send(Welcome(gateways.epoch, engine.told, now_ms, self.url, knows=True))
        self._follows = hello.follows
        logger.info("gateway %s brings %d workers", self.gateway, len(held))

    def _turn_away(self, hello: Hello) -> None:
        """What these workers were told is not in the store: they register, and say all that they have."""
        gateways = self._gateways
        known = Position(hello.max_epoch, hello.done_seq)
        gateways.sessions.tell_behind(f"gateway {hello.gateway}", known)
        for one in hello.sessions:
            self.send(Close(gateways.epoch, one.no, RELOADING, "the hub has lost turns: register"))

    def _take_up(self, one: Held) -> FarSession | None:
        try:
            session = self._enter(one.no, self._gateways.tokens.recall(one.token_id), one.binary)
        except DrayError as fault:
            self.send(Close(self._gateways.epoch, one.no, TOKEN_GONE, fault.message, at_once=True))
            return None
        if not one.worker or session.closing is not None:
            return None
        session.name(one.worker, one.features)
        if refused := self._gateways.sessions.readmit(session, one.boot_id, one.accounts):
            session.close(NOT_YOURS, refused)
            return None
        return session

    async def _resume(self, held: list[tuple[FarSession, Held]]) -> None:
        owners = self._gateways.owners

        def steps(state: State) -> Iterator[CloseSession | SessionsResumed | WorkerReturned]:
            going_on = []
            for session, one in held:
                if fault := owners.fault(state, session.caller, one.worker):
                    yield CloseSession(one.worker, session.number, NOT_YOURS, fault)
                    continue
                said = one.incarnation, one.registered_at_ms, one.credit, one.slots
                going_on.append(ResumedSession(one.worker, session.number, *said))
            yield SessionsResumed(tuple(going_on))
            for resumed in going_on:
                worker = resumed.worker
                if inbound.is_let_in(state, worker, resumed.session) and state.workers[worker].silent:
                    yield WorkerReturned(worker)

        def decide(state: State, clock: Clock) -> Decision:
            return Decision(steps(state))

        named = [one.worker for _, one in held]
        weight = max(1, len(held) // 10)
        await self._gateways.engine().change(decide, weight=weight, kind="gateway", brings=named)


class Gateways:
    """All links of a hub that leads."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        sessions: Sessions,
        tokens: Tokens,
        owners: Owners,
        url: str,
        epoch: Callable[[], int],
        store: Remote,
    ) -> None:
        self.engine, self.sessions, self.tokens, self.owners = engine, sessions, tokens, owners
        self.url, self._epoch, self._store = url, epoch, store
        self._numbers = 0
        # The processes of gateways that have been linked to this very hub since it leads.
        self._known: set[tuple[str, str]] = set()
        self.links: dict[int, Link] = {}

    @property
    def epoch(self) -> int:
        """What everything that leaves is of."""
        return self._epoch()

    @property
    def gauge(self) -> dict[str, int]:
        """How many workers each gateway has here."""
        return {link.gateway: len(link.sessions) for link in self.links.values() if link.gateway}

    def check(self, header: str, peer: str) -> Caller:
        """Who stands before a gateway's door; raises where this hub would not let him in."""
        caller = self.know(header, peer)
        caller.check(SCOPES)
        return caller

    def know(self, header: str, peer: str) -> Caller:
        """Who stands there, whatever he may do; raises where nobody knows him."""
        given = {b"authorization": header.encode("latin-1", "replace")} if header else {}
        assert self.sessions.gate is not None  # set before anybody can come
        return self.sessions.gate.know_caller({"client": (peer, 0)}, given)

    def open(self, out: Out) -> Link:
        """A gateway has dialled; it says hello first."""
        self._numbers += 1
        link = self.links[self._numbers] = Link(self._numbers, self, out)
        return link

    def greeted(self, link: Link, boot: str) -> bool:
        """Of two links of one gateway the older one is dead, whatever its socket says. Gives whether its process has
        been linked to this hub before, or only to others.
        """
        is_new = (link.gateway, boot) not in self._known
        self._known.add((link.gateway, boot))
        for other in list(self.links.values()):
            if other is not link and other.gateway == link.gateway:
                other.close(TAKEN_OVER, "this gateway has dialled again")
        return is_new

    async def has_lost(self, hello: Hello) -> bool:
        """Whether the last turn that a gateway was told of is not in this hub's log."""
        found = await asyncio.to_thread(self._store.follow, hello.done_seq, 0)
        return not 0 < found.epoch <= hello.max_epoch

    def ended(self, link: Link, sessions: list[tuple[FarSession, int]]) -> None:
        """A link is gone."""
        self.links.pop(link.number, None)
        self.sessions.leave(sessions)

    def tell_turn(self, turn: Turn) -> None:
        """Tell those who follow of a turn; only once it is committed."""
        links = [link for link in self.links.values() if link.takes_turns]
        if links:
            facts = turn.facts if len(turn.facts) <= TURN_BYTES else None
            frame = write_frame(TurnTold(self.epoch, turn.seq, turn.now_ms, turn.at_ms, facts))
            for link in links:
                link.send_turn(frame)

    def close(self, why: str) -> None:
        """This hub leads no more: gateways keep their sockets, and look for who does."""
        for link in list(self.links.values()):
            link.close(RELOADING, why)

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve the link of another hub, from upgrade to close."""
        if not hub_of(caller):
            await deny_upgrade(
                send, Forbidden("this is for hubs of the same database: tokens of people do not do")
            )
            return
        await receive()
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        out = _SocketOut(send)
        link, pump = self.open(out), asyncio.create_task(out.pump())
        try:
            while not link.over:
                got = await receive()
                if got["type"] == "websocket.disconnect":
                    break
                await link.take(got.get("bytes") or b"")
        except (msgspec.MsgspecError, DrayError) as fault:
            logger.warning("the link of gateway %s is closed: %s", link.gateway, fault)
            link.close(4400, str(fault)[:100])
        finally:
            link.end()
            out.finish()
            with contextlib.suppress(Exception):
                await pump


class _SocketOut:
    """Writes to the socket of a gateway, in order, as fast as it reads."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._frames: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._over = False
        self._closing: tuple[int, str] | None = None
        self.waiting_bytes = 0

    def send(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.waiting_bytes += len(frame)
        self._wake.set()

    def close(self, code: int, reason: str) -> None:
        self._closing = self._closing or (code, reason)
        self._wake.set()

    def finish(self) -> None:
        """Nobody is there any more."""
        self._over = True
        self._wake.set()

    async def pump(self) -> None:
        while not self._over:
            await self._wake.wait()
            self._wake.clear()
            while self._frames and not self._over:
                frame = self._frames.popleft()
                await self._send({"type": "websocket.send", "bytes": frame})
                self.waiting_bytes -= len(frame)
            if self._closing is not None and not self._over:
                code, reason = self._closing
                await self._send(
                    {"type": "websocket.close", "code": code, "reason": reason.encode()[:120].decode()}
                )
                return
