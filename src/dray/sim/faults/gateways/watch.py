"""What must hold at gateways: nothing is acked there that a leader has not heard, nothing is lost that was said there,
and nobody is told of earlier epochs after later ones.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dray.hub.store.base import Position
from dray.sim.faults.gateways.node import GatewayNode
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.world.network import Connection, Message
from dray.sim.faults.world.world import World
from dray.wire.messages.worker import ReadyForWork

# So long after it came nothing waits any more, where nothing was in the way.
HEARD_MS = 25_000


class GatewayWatch:
    """All gateways of a site. `heeded_ms` tells when a hub last took in that a worker is there."""

    def __init__(self, world: World, heeded_ms: Callable[[str], int]) -> None:
        self._world, self._heeded_ms = world, heeded_ms
        # Of each socket: when its heartbeats came, by number, and whose they are.
        self._beats: dict[int, dict[int, tuple[int, str]]] = {}
        self._epochs: dict[int, int] = {}
        # The last turn that was spoken of on each.
        self._turns: dict[int, Position] = {}
        # Of each socket: what was said on it, and when, and no hub has heard yet; heartbeats are told of in other ways.
        self._unheard: dict[int, list[tuple[bytes | str, int]]] = {}

    def said(self, node: GatewayNode, connection: Connection, message: Message, frame: bytes | str) -> None:
        """A worker has said something at a gateway."""
        kind, payload = message["type"], message.get("payload", {})
        if kind != "heartbeat":
            self._unheard.setdefault(connection.number, []).append((frame, self._world.now_ms))
        if kind == "ready_for_work":
            asked = msgspec.convert(payload, ReadyForWork)
            connection.asked = max(connection.asked, asked.credits)
        elif kind == "heartbeat" and payload.get("beat"):
            beats = self._beats.setdefault(connection.number, {})
            beats.setdefault(payload["beat"], (self._world.now_ms, payload["worker_id"]))

    def told(self, node: GatewayNode, connection: Connection, message: Message) -> None:
        """A worker is told something at a gateway."""
        payload = message.get("payload", {})
        if message["type"] != "ack":
            return
        if payload["re"] == "heartbeat":
            self._world.counts["heartbeat answered at a gateway"] += 1
        epoch = payload.get("epoch", 0)
        if epoch < self._epochs.get(connection.number, 0):
            self._fail(node, connection, f"was told of epoch {epoch} after {self._epochs[connection.number]}")
        self._epochs[connection.number] = epoch
        if epoch:
            self._turns[connection.number] = Position(epoch, payload.get("turn", 0))
        came_ms, worker = self._beats.get(connection.number, {}).get(payload.get("beat", 0), (-1, ""))
        if payload["re"] == "heartbeat" and self._heeded_ms(worker) < came_ms:
            self._fail(node, connection, f"was answered heartbeat {payload['beat']}, which no hub has heard")

    def taken_up(self, life: HubLife, worker: str, socket: Connection) -> None:
        """A hub goes on with a socket that another one has left: its worker has registered by none since, and what it
        was told of is in the store.
        """
        if life.astray:
            return
        by, problem = life.site.registered.get(worker, socket.number), ""
        if by != socket.number:
            problem = "has registered by another socket since"
        told = self._turns.get(socket.number)
        if told is not None and told.seq:
            entry = life.store.file.log.get(told.seq)
            if entry is None or entry.epoch > told.epoch:
                problem = f"was told of {told}, which is not in the store"
        if problem:
            self._world.fail(f"{worker} was taken up from a gateway, and {problem}")

    def heard(self, number: int, frame: bytes | str) -> None:
        """What was said on a socket is committed, as far as it is to be."""
        unheard = self._unheard.get(number, [])
        for place, (said, _) in enumerate(unheard):
            if said == frame:
                del unheard[place]
                return

    def rewind(self) -> None:
        """The store is an older one: what was heard is lost, and what was not is said to who knows less."""
        self._unheard.clear()

    def look(self, node: GatewayNode) -> None:
        """What was said while nothing was in the way has been heard; called now and then."""
        now_ms = self._world.now_ms
        for socket in node.sockets.values():
            connection = socket.connection
            if now_ms - node.linked_ms < HEARD_MS or not connection.undisturbed(HEARD_MS):
                continue
            for frame, came_ms in self._unheard.get(connection.number, ()):
                if now_ms - max(came_ms, node.linked_ms) > HEARD_MS:
                    self._fail(
                        node, connection, f"said {frame!r} {now_ms - came_ms} ms ago, and no hub has heard it"
                    )

    def _fail(self, node: GatewayNode, connection: Connection, problem: str) -> None:
        self._world.fail(f"{connection.owner} at gateway {node.id} {problem}")
