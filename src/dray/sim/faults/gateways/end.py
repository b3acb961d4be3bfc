"""The leader's end of all links, in the simulation: the product's `Gateways`, on one life of a simulated hub.

What that needs of an engine, of sessions and tokens is here; what messages mean the life knows, as it does for sockets
of its own. Everybody has a token of his own for each socket, so that sockets are told apart by it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dray.core.lifecycle.state.events import Clock, Heard, SessionsResumed
from dray.core.lifecycle.state.state import State
from dray.errors import NotReady, StoreAway
from dray.hub.access.caller import Caller
from dray.hub.engine.turns import Decide, Decision
from dray.hub.gateways.far_sessions import FarSession
from dray.hub.gateways.frames import Beat, read_up
from dray.hub.gateways.hub_tokens import GATEWAY
from dray.hub.gateways.leading import Gateways, Link
from dray.hub.store.base import Followed, Position, Turn
from dray.hub.workers import inbound
from dray.hub.workers.session import Session
from dray.sim.faults.gateways.node import Event, GatewayNode
from dray.sim.faults.gateways.wire import Wire, WireEnd
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.sockets import SimSession
from dray.sim.faults.world.network import Connection, Message
from dray.wire.messages.worker import Register, worker_codec

# Of what has not changed a gateway speaks in digests for so long.
DIGESTS_MS = 60_000


class FarView:
    """A worker's socket at a gateway, as whoever judges the hub sees it: with all that lies between."""

    def __init__(self, connection: Connection, wire: Wire | None) -> None:
        self._connection, self._wire, self.number = connection, wire, connection.number
        self._since_ms = connection.world.now_ms

    @property
    def owner(self) -> str:
        return self._connection.owner

    @property
    def began_ms(self) -> int:
        """Since when this hub has it."""
        return max(self._since_ms, self._connection.began_ms)

    def undisturbed(self, for_ms: int) -> bool:
        """Whether everything got through for so long, and a heartbeat that says all was among it."""
        least_ms = for_ms + DIGESTS_MS
        wire = self._wire
        calm = wire is None or (
            not wire.is_cut()
            and self._connection.world.now_ms - max(wire.rough_ms, self._since_ms) > least_ms
        )
        return calm and self._connection.undisturbed(least_ms)


class FarPeer(SimSession):
    """A session at a gateway as the effect runner knows it."""

    def __init__(self, life: HubLife, far: FarSession, connection: Connection, wire: Wire | None) -> None:
        self.far = far
        view: Any = FarView(connection, wire)
        super().__init__(life, view)
        self.number, self.socket = far.number, connection
        self.leader = far.leader

    @property
    def worker(self) -> str:  # whose the far one is, also where that was taken up from another hub
        return self.far.worker

    @worker.setter
    def worker(self, worker: str) -> None:
        """It is the far one's."""

    def name(self, body: Register) -> None:
        self.far.name(body.id, tuple(body.features or ()))

    def push(self, envelope: Message) -> None:
        self._life.site.witness.sent(self._life, self, envelope)
        self.far.push(envelope)

    def registered(self, incarnation: str, at_ms: int) -> None:
        super().registered(incarnation, at_ms)
        self.far.registered(incarnation, at_ms)

    def close(self, code: int, reason: str) -> None:
        self.far.close(code, reason)

    def break_off(self, code: int) -> None:
        """The socket is the gateway's: it outlives this hub."""


class LeaderEnd:
    """Engine, sessions, tokens and door to `Gateways`: one hub from when it leads to its end."""

    def __init__(self, life: HubLife, node: GatewayNode, place: int, holder: str) -> None:
        self.life, self.holder, self.number = life, holder, life.number
        self._node, self._site = node, node.site
        self.codecs = {True: worker_codec(True), False: worker_codec(False)}
        self.departures = life.sessions.departures
        self.gate: Any = self
        self.outputs = self
        self._asked: dict[asyncio.Future[Any], None] = {}
        self._wires: dict[str, Wire] = {}
        self._sockets: dict[int, Connection] = {}
        self._hearing: tuple[str, ...] = ()
        # What was said on which socket and is taken in with the next turns.
        self._taken: list[tuple[int, bytes | str]] = []
        parts: Any = self
        self.links = Gateways(lambda: parts, parts, parts, parts, str(place), lambda: life.store.epoch, parts)

    def inside(self, work: Callable[[], None]) -> None:
        """Do something on the loop of the process."""
        self._node.loop.inside(work)

    def tell_turn(self, turn: Turn) -> None:
        """Tell those who follow."""
        self.inside(lambda: self.links.tell_turn(turn))

    def close(self, why: str) -> None:
        """This hub leads no more."""
        self.inside(lambda: self.links.close(why))
        asked, self._asked = self._asked, {}
        for future in asked:
            if not future.done():
                future.set_exception(NotReady("the hub stopped before it could answer this: try again"))

    # --- links --------------------------------------------------------------------------------------------------------

    def serve(self, gateway_id: str, wire: Wire) -> None:
        """Another hub has dialled."""
        self._wires[gateway_id] = wire
        loop, near = self._node.loop, wire.leader
        waiting: asyncio.Queue[Event] = asyncio.Queue()
        waiting.put_nowait({"type": "websocket.connect"})
        near.take = lambda frame: waiting.put_nowait({"type": "websocket.receive", "bytes": frame})
        near.hears_end = lambda code: waiting.put_nowait({"type": "websocket.disconnect", "code": code})

        async def receive() -> Event:
            got = await waiting.get()
            if got["type"] == "websocket.receive":
                self._listen(gateway_id, got["bytes"])
            return got

        async def send(event: dict[str, Any]) -> None:
            if not loop.over:
                _send_by(near, event)

        caller = Caller(f"hub:{gateway_id}", "", GATEWAY)
        loop.begin(lambda: self.links.handle({}, receive, send, caller))

    def _listen(self, gateway_id: str, frame: bytes) -> None:
        """Note whose heartbeats a digest brings: it is taken in this very step."""
        beat = read_up(frame)
        if isinstance(beat, Beat) and (link := self._link_of(gateway_id)) is not None:
            sessions = [link.sessions[no] for no in beat.sessions if no in link.sessions]
            self._hearing = tuple(session.worker for session in sessions)

    def _link_of(self, gateway_id: str) -> Link | None:
        found = [link for link in self.links.links.values() if link.gateway == gateway_id]
        return found[-1] if found else None

    # --- an engine ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.life.state

    @property
    def told(self) -> int:
        return self.life.told

    def raise_epoch(self, at_least: int) -> None:
        """A gateway has heard of a later epoch."""
        self.life.want_epoch(at_least)

    def change(
        self,
        decide: Decide,
        weight: int = 1,
        who: str = "",
        body: Any = None,
        kind: str = "",
        presses: bool = False,
        wants: Any = (),
        **more: Any,
    ) -> asyncio.Future[Any]:
        """Queue a request, and note whom it shows to be there."""
        life, at_ms = self.life, self.life.world.now_ms
        if not life.up:
            raise NotReady("the hub is stopping: try again in a moment")
        hearing, self._hearing = self._hearing if kind == "beat" else (), ()
        future = self._node.loop.create_future()
        self._asked[future] = None
        taken, self._taken = self._taken, []
        future.add_done_callback(lambda done: self._answered(done, taken))

        def watched(state: State, clock: Clock) -> Decision:
            decision = decide(state, clock)
            return decision._replace(events=self._note(state, decision.events, at_ms))

        life.post(watched, future, presses, wants, who, weight, hearing, **more)
        return future

    def _answered(self, future: asyncio.Future[Any], taken: list[tuple[int, bytes | str]]) -> None:
        self._asked.pop(future, None)
        if not future.cancelled() and future.exception() is None:
            for number, frame in taken:
                self._site.watch.heard(number, frame)

    def _note(self, state: State, events: Any, at_ms: int) -> Iterator[Any]:
        life = self.life
        for event in events:
            yield event
            if isinstance(event, Heard):
                life.note_far(event.worker, at_ms)
            elif isinstance(event, SessionsResumed):
                for one in event.sessions:
                    if inbound.is_let_in(state, one.worker, one.session):
                        life.note_far(one.worker, at_ms)
                        self._resumed(one.worker, one.session)

    def _resumed(self, worker: str, number: int) -> None:
        life = self.life
        life.world.counts["session resumed"] += 1
        # What was asked on this socket may be on record still, also where its link has broken since.
        life.asked[number] = self._sockets[number].asked
        self._site.watch.taken_up(life, worker, self._sockets[number])
        life.resumed.append((worker, number))

    def follow(self, after_seq: int, limit: int) -> Followed:
        """Look at the log."""
        if self.life.lead is None or not self.life.lead.link.sound:
            raise StoreAway("the database does not answer")
        return self.life.store.follow(after_seq, limit)

    def tell_behind(self, who: str, known: Position) -> None:
        """A gateway was told more than the store has."""
        self.life.world.counts["gateway told of lost turns"] += 1

    # --- sessions -----------------------------------------------------------------------------------------------------

    def enter(self, session: FarSession) -> None:
        """Somebody is there whose socket is another's to read."""
        life, connection = self.life, self._site.connections[session.caller.token_id]
        gateway = self.links.links[session.number >> 32].gateway
        self._sockets[session.number] = connection
        life.sessions.open[session.number] = FarPeer(life, session, connection, self._wires.get(gateway))

    def leave(self, ended: Sequence[tuple[Session, int]]) -> None:
        """They are gone."""
        for session, code in ended:
            peer = self.life.sessions.open.get(session.number)
            if peer is not None:
                self.life.closed(peer, BROKEN if session.closing is not None else code)

    def readmit(self, session: Session, boot_id: str, accounts: object) -> str:
        """Everybody may go on."""
        return ""

    def take(self, session: FarSession, frame: bytes | str) -> bool:
        """Take a frame."""
        self._taken.append((int(session.caller.token_id), frame))
        peer = self.life.sessions.open.get(session.number)
        if peer is None or not self.life.up:
            return True
        for envelope in session.codec.split(frame):
            if session.closing is None:
                self.life.take_in(peer, session.codec.open(envelope))
        return True

    async def take_slowly(self, session: FarSession, frame: bytes | str) -> None:
        """As above; nobody waits for anything here."""
        self.take(session, frame)

    def look_again(self, names: object = ()) -> None:
        """Nothing is printed here."""

    # --- tokens and the door ------------------------------------------------------------------------------------------

    def know_caller(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Caller:
        """Each socket comes with a token of its own."""
        return self.recall(headers[b"authorization"].decode())

    def recall(self, token_id: str) -> Caller:
        """None of them ends."""
        return Caller(token_id, "sim", ("worker", "read"))

    def hold(self, token_id: str, end: object) -> contextlib.AbstractContextManager[None]:
        """As above."""
        return contextlib.nullcontext()

    def fault(self, state: State, caller: Caller, worker: str) -> str:
        """Everybody may speak for everybody."""
        return ""


def _send_by(near: WireEnd, event: Event) -> None:
    if event["type"] == "websocket.send":
        near.send(event["bytes"])
    elif event["type"] == "websocket.close":
        near.close(event["code"])
    elif event["type"] != "websocket.accept":
        near.break_off()


BROKEN = 1006
