"""A hub's process as a gateway: the product's `Gateway` and `Links`, with sockets of the simulated world.

Lives from the start of the process to its end, whoever leads meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from dray.hub.engine.follower import Follower
from dray.hub.gateways.gateway import Gateway
from dray.hub.gateways.leading import Gateways
from dray.hub.gateways.links import OPEN_S, Leader, Links, Socket
from dray.hub.leadership import Following
from dray.hub.store.base import Position
from dray.hub.workers.session import Limits
from dray.sim.faults.gateways.loop import ProcessLoop
from dray.sim.faults.gateways.wire import Wire
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.world.network import Connection, Message
from dray.sim.faults.world.process import Process
from dray.wire.messages.worker import SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK

LIMITS = Limits(1 << 20, 8 << 20, 10_000, 64 << 20)
Event = Mapping[str, Any]


class FarHub(Protocol):
    """Another hub of the site, as one that dials it finds it."""

    process: Process

    @property
    def end(self) -> LinkTaker | None:
        """Where links are taken, while it leads."""

    @property
    def answers(self) -> bool:
        """Whether its port does."""

    @property
    def cut_from_hubs(self) -> bool: ...


class LinkTaker(Protocol):
    """The leader's end of all links."""

    holder: str
    number: int

    @property
    def links(self) -> Gateways: ...
    def serve(self, gateway_id: str, wire: Wire) -> None: ...


class Site(Protocol):
    """All hubs, and who watches them."""

    gateway_rng: random.Random
    wires: list[Wire]
    connections: dict[str, Connection]

    @property
    def watch(self) -> GatewayWitness: ...
    def at_place(self, place: int) -> FarHub: ...


class GatewayWitness(Protocol):
    """Whoever judges what gateways do."""

    def said(
        self, node: GatewayNode, connection: Connection, message: Message, frame: bytes | str
    ) -> None: ...
    def told(self, node: GatewayNode, connection: Connection, message: Message) -> None: ...
    def heard(self, number: int, frame: bytes | str) -> None: ...
    def taken_up(self, life: HubLife, worker: str, socket: Connection) -> None: ...


class GatewayNode:
    """One process. `hub`: the number of the life of a hub that it is linked to."""

    def __init__(self, site: Site, hub_id: str, own: FarHub) -> None:
        self.site, self.id, self.own = site, hub_id, own
        self.process = own.process
        self.loop = ProcessLoop(self.process)
        self.gateway = Gateway(hub_id, (), LIMITS)
        self.links = SimLinks(self)
        self.sockets: dict[str, WorkerSocket] = {}
        self.hub = 0
        self._following: Following | None = None
        # Since when its link is as it is.
        self.linked_ms = self.process.world.now_ms
        self.gateway.tell_link = self._relinked

    def _relinked(self) -> None:
        self.linked_ms = self.process.world.now_ms

    @property
    def is_linked(self) -> bool:
        """Whether somebody would be let in here."""
        return self.gateway.is_linked

    def follow(self, url: str, holder: str) -> None:
        """Another hub leads: as one that stands by says each time it looks."""
        if self._following is not None:
            self.loop.call_soon(self._following.begin)
        if not self.links.is_linked_to(holder):
            self.loop.call_soon(self.links.follow, Leader(url, holder, "", b""))

    def lead(self, end: LinkTaker) -> None:
        """This very process leads."""
        self.hub = end.number
        self.loop.call_soon(self.links.lead, end.links)

    def drop(self) -> None:
        """This process is about to lead."""
        self.loop.call_soon(self.links.drop)
        following, self._following, self.gateway.follows = self._following, None, None
        if following is not None:
            self.loop.begin(following.end)

    def keep_warm(self, follower: Follower, seen: Callable[[Position], None]) -> None:
        """Have the product keep a follower at it, and told of turns."""
        store: Any = FollowedStore(seen)
        self._following = self.gateway.follows = Following(store, follower)

    def connect(self, connection: Connection) -> None:
        """Take a worker's socket."""
        self.site.connections[str(connection.number)] = connection
        self.sockets[str(connection.number)] = WorkerSocket(self, connection)

    def kill(self) -> None:
        """kill -9."""
        self.loop.kill()
        for wire in self.site.wires:
            wire.break_off(self.process)
        for socket in list(self.sockets.values()):
            socket.connection.break_off()
        self.sockets.clear()


class FollowedStore:
    """Hears how far one who follows has come."""

    def __init__(self, seen: Callable[[Position], None]) -> None:
        self.note_seen = seen

    def set_warm(self, warm: bool) -> None:
        """Whoever takes over looks for itself."""


class SimLinks(Links):
    """Dials hubs of the simulated site."""

    def __init__(self, node: GatewayNode) -> None:
        super().__init__(node.gateway, node.id)
        self._node = node

    async def dial(self, leader: Leader) -> Socket:
        node = self._node
        site, rng = node.site, node.site.gateway_rng
        await asyncio.sleep(rng.randint(0, 5) / 1000)
        far = site.at_place(int(leader.url))

        def is_cut() -> bool:
            return node.own.cut_from_hubs or far.cut_from_hubs

        if is_cut() or far.process.stopped:
            await asyncio.sleep(OPEN_S)
            raise TimeoutError("the hub that leads does not answer")
        end = far.end
        if not far.answers or end is None or end.holder != leader.holder:
            raise ConnectionRefusedError("that hub does not lead")
        wire = Wire(rng, node.process, far.process, is_cut)
        site.wires[:] = [other for other in site.wires if not other.over]
        site.wires.append(wire)
        node.hub = end.number
        end.serve(node.id, wire)
        return HubSocket(node.loop, wire)


class HubSocket:
    """The gateway's end, as a link knows it."""

    def __init__(self, loop: ProcessLoop, wire: Wire) -> None:
        self._loop, self._wire, self._near = loop, wire, wire.gateway
        self.closed: asyncio.Future[Any] = loop.create_future()
        self.on_message: Callable[[bytes], None] = lambda frame: None
        self.on_writable: Callable[[], None] = lambda: None
        self._near.take = lambda frame: self._call(self.on_message, frame)
        self._near.flows = lambda: self._call(self.on_writable)
        self._near.hears_end = self._end

    def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.over:
            self._loop.call_soon(call, *arguments)

    @property
    def writable(self) -> bool:
        return self._near.writable

    def send(self, message: bytes) -> None:
        if not self._loop.over:
            self._near.send(message)

    def abort(self) -> None:
        self._near.break_off()
        self._end(1006)

    def _end(self, code: int) -> None:
        if not self.closed.done():
            self.closed.set_result((code, ""))


class WorkerSocket:
    """A worker's socket at a gateway, as its server has it: frames as bytes for dray's agents, as text for others."""

    def __init__(self, node: GatewayNode, connection: Connection) -> None:
        self._node, self.connection = node, connection
        self._binary = not connection.plain
        self._waiting: asyncio.Queue[Event] = asyncio.Queue()
        self._waiting.put_nowait({"type": "websocket.connect"})
        connection.to_hub = lambda _, message: node.process.run(self._hear, message)
        connection.hub_hears_end = lambda _, code: node.process.run(self._end, code)
        headers = [(b"host", b"localhost"), (b"authorization", str(connection.number).encode())]
        offered = [SUBPROTOCOL_MSGPACK] if self._binary else [SUBPROTOCOL_JSON]
        scope = {"headers": headers, "subprotocols": offered, "client": (connection.owner, 0)}
        node.loop.begin(lambda: node.gateway.handle(scope, self._receive, self._send))

    def _hear(self, message: Message) -> None:
        if self._node.loop.over:
            return
        encoder: Any = msgspec.msgpack if self._binary else msgspec.json
        frame = encoder.encode(message)
        frame = frame if self._binary else frame.decode()
        self._node.site.watch.said(self._node, self.connection, message, frame)
        self._waiting.put_nowait({"type": "websocket.receive", "bytes" if self._binary else "text": frame})

    def _end(self, code: int) -> None:
        self._node.sockets.pop(str(self.connection.number), None)
        self._waiting.put_nowait({"type": "websocket.disconnect", "code": code})

    async def _receive(self) -> Event:
        return await self._waiting.get()

    async def _send(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if self._node.loop.over:
            return
        if kind == "websocket.send":
            decoder: Any = msgspec.msgpack if self._binary else msgspec.json
            told = decoder.decode(event["bytes"] if self._binary else event["text"])
            for message in told if isinstance(told, list) else [told]:
                self._node.site.watch.told(self._node, self.connection, message)
                self.connection.send_down({**message, "hub": self._node.hub})
        elif kind == "websocket.close":
            self.connection.break_off(event["code"])
        elif kind != "websocket.accept":
            self.connection.break_off()
