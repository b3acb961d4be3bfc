"""The gateway's way to whoever leads: dialled, given up when another one leads, dialled again.

A leader elsewhere is reached by a socket, the one in this very process by a queue: the same frames either way. The
certificate of another machine's hub is known by the fingerprint that it announces in the database; on this machine the
account that listens must be one's own, or root.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from dray.errors import DrayError
from dray.hub.gateways.frames import PATH, SUBPROTOCOL
from dray.hub.gateways.gateway import Gateway
from dray.hub.gateways.hub_tokens import make_hub_token
from dray.hub.gateways.leading import Gateways
from dray.wire.reach.dialling import Line, Opening, Way, check_url
from dray.wire.reach.websocket import HandshakeRefused, dial, make_address

if TYPE_CHECKING:
    import ssl

OPEN_S = 5.0
KEEPALIVE_S = 5.0
FIRST_PAUSE_S, MOST_PAUSE_S = 0.05, 1.0
logger = logging.getLogger("dray.hub.gateways")


class Leader(NamedTuple):
    """Who leads elsewhere: where it is, what it signs with in the database, how its certificate is known."""

    url: str
    holder: str
    fingerprint: str
    secret: bytes

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def netloc(self) -> str:
        return urlsplit(self.url).netloc


class Socket(Protocol):
    """What a link needs of the socket that it goes by. `closed` is done when that has ended; `on_writable` is called
    when it takes more after it did not.
    """

    on_message: Callable[[bytes], None]
    on_writable: Callable[[], None]
    closed: asyncio.Future[Any]

    @property
    def writable(self) -> bool: ...
    def send(self, message: bytes) -> None: ...
    def abort(self) -> None: ...


class Links:
    """Keeps one gateway linked. At most one link stands at a time."""

    def __init__(self, gateway: Gateway, hub_id: str, hub_user: str = "") -> None:
        self.gateway, self._id, self._user = gateway, hub_id, hub_user
        self._leader: Leader | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def leader(self) -> Leader | None:
        """Who leads elsewhere, as far as is known; None while nobody does, or this very process."""
        return self._leader

    def is_linked_to(self, holder: str) -> bool:
        """Whether the link to who signs so stands."""
        return self._leader is not None and self._leader.holder == holder and self.gateway.is_linked

    def follow(self, leader: Leader) -> None:
        """Another hub leads: link to it. Said again and again, it changes nothing."""
        if leader != self._leader:
            self.drop()
            self._leader = leader
            self._task = asyncio.create_task(self._keep(leader))

    def lead(self, gateways: Gateways) -> None:
        """This very process leads."""
        self.drop()
        self._task = asyncio.create_task(self._serve_here(gateways))

    def drop(self) -> None:
        """Nobody leads, as far as is known; sockets stay."""
        self._leader = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _keep(self, leader: Leader) -> None:
        pause_s, said = FIRST_PAUSE_S, ""
        while True:
            try:
                await self._serve(leader)
                pause_s, said = FIRST_PAUSE_S, ""
            except (OSError, TimeoutError, HandshakeRefused, DrayError, msgspec.MsgspecError) as fault:
                if str(fault) != said:
                    said = str(fault)
                    logger.warning("no link to the leader at %s: %s", leader.url, said)
            await asyncio.sleep(pause_s)
            pause_s = min(MOST_PAUSE_S, 2 * pause_s)

    async def _serve(self, leader: Leader) -> None:
        socket = await self.dial(leader)
        gateway, fault = self.gateway, list[BaseException]()

        def take(frame: bytes) -> None:
            try:
                gateway.take(frame)
            except Exception as error:  # noqa: BLE001 - raised again where the link is served
                fault.append(error)
                socket.abort()

        link = _SocketLine(socket)
        try:
            gateway.linked(link)
            socket.on_message, socket.on_writable = take, gateway.flush
            await asyncio.shield(socket.closed)
        finally:
            gateway.unlinked(link)
            socket.abort()
        if fault:
            raise fault[0]

    async def dial(self, leader: Leader) -> Socket:
        """Open a socket for a link."""
        token = make_hub_token(leader.secret, self._id, leader.holder)
        line = await self.open_line(leader)
        address = make_address(leader.url, PATH, SUBPROTOCOL, token)
        return await dial(address, line, OPEN_S, keepalive_s=KEEPALIVE_S)

    async def open_line(self, leader: Leader) -> Line:
        """Connect to a leader, and know that it is the one; raises `OSError` or `DrayError`."""
        check_url(leader.url)
        way = Way(leader.url, "", self._user)
        return await Opening(way, OPEN_S, lambda: _trust(leader)).wait(asyncio.to_thread)

    async def _serve_here(self, gateways: Gateways) -> None:
        up = _Up()
        down = _Down(self.gateway, up)
        link = gateways.open(down)
        try:
            self.gateway.linked(up)
            while not link.over:
                await link.take(await up.frames.get())
        except DrayError as fault:
            logger.info("this hub no longer leads its own workers: %s", fault.message)
        finally:
            up.is_open = False
            link.end()
            self.gateway.unlinked(up)


def _trust(leader: Leader) -> ssl.SSLContext:
    from dray.wire.reach.pinned_tls import make_context

    if not leader.fingerprint:
        raise DrayError(f"the hub at {leader.url} has not announced its certificate yet")
    return make_context(leader.url, leader.fingerprint)


class _SocketLine:
    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    @property
    def writable(self) -> bool:
        return self._socket.writable

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def abort(self) -> None:
        self._socket.abort()


class _Up:
    """The way to the leader in this very process."""

    writable = True

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_open = True
        self._task = asyncio.current_task()

    def send(self, frame: bytes) -> None:
        self.frames.put_nowait(frame)

    def abort(self) -> None:
        if self.is_open and self._task is not None:
            self._task.cancel()


class _Down:
    """The way back; what is sent comes at the next step of the loop, as from a socket."""

    waiting_bytes = 0

    def __init__(self, gateway: Gateway, up: _Up) -> None:
        self._gateway, self._up = gateway, up

    def send(self, frame: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._deliver, frame)

    def _deliver(self, frame: bytes) -> None:
        if self._up.is_open:
            self._gateway.take(frame)

    def close(self, code: int, reason: str) -> None:
        self._up.abort()
