"""What the server calls: the hub that is there now, or word that there is none at the moment.

A hub that reloads keeps its sockets: whoever asks meanwhile is told to ask again, and nobody finds the door shut. One
that stands by tells everybody who leads and where, and strangers no more than that: it knows no tokens. Workers it
takes in where the leader lets them (`hub.gateways`); what clients ask it passes on (`hub.relays`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dray.errors import NotLeader, NotReady
from dray.hub.access.entrance import Hosts, Receive, Scope, Send, read_headers
from dray.hub.http.pages import send_page
from dray.hub.http.replies import deny_upgrade, encode, send_error, send_whole
from dray.hub.http.routes import API
from dray.hub.pages.files import is_page

ROLE_PATH, WORKERS_PATH = f"{API}/hub/status", "/ws"
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class WorkerDoor(Protocol):
    """Where workers come in while another hub leads."""

    @property
    def is_linked(self) -> bool: ...
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Relay(Protocol):
    """Who answers clients while another hub leads, or passes on what they ask."""

    def woken(self) -> None:
        """The hub of this process leads from now on, or no longer."""

    @property
    def is_open(self) -> bool: ...
    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Front:
    """The application of a server, for as long as the process lives."""

    def __init__(self) -> None:
        self.app: App | None = None
        self.relay: Relay | None = None
        self.why, self._leader = "the hub is starting: ask again in a second", ""
        self.role: Callable[[], dict[str, Any]] | None = None
        self.gateway: WorkerDoor | None = None
        # By which names pages of the dashboard are asked for here, also while nobody is there.
        self.hosts: Hosts | None = None

    def open(self, app: App) -> None:
        """Somebody is there from now on."""
        self.app = app
        if self.relay is not None:
            self.relay.woken()

    def withdraw(self, why: str, leader: str = "") -> None:
        """Nobody is there for a while; somebody is at `leader`, where another hub leads."""
        was_there, self.app, self.why, self._leader = self.app, None, why, leader
        if was_there is not None and self.relay is not None:
            self.relay.woken()

    @property
    def refusal(self) -> NotReady:
        """What whoever asks now is told, where nobody answers him."""
        return NotLeader(self.why, self._leader) if self._leader else NotReady(self.why)

    @property
    def _is_gateway(self) -> bool:
        return bool(self._leader) and self.gateway is not None and self.gateway.is_linked

    def _tell(self, scope: Scope) -> dict[str, Any] | None:
        """What is answered though nobody is there: that the process lives, and which part it plays."""
        if scope["method"] == "GET" and scope["path"] == "/healthz":
            return {"status": "ok"}
        if scope["method"] == "GET" and scope["path"] == ROLE_PATH and self.role is not None:
            return self.role()
        if (
            scope["method"] == "GET"
            and scope["path"] == "/readyz"
            and self.relay is not None
            and self.relay.is_open
        ):
            return {"status": "ready"}
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http" and self.hosts is not None and is_page(scope["raw_path"]):
            await send_page(self.hosts, scope, receive, send, self._leader)
        elif scope["type"] == "websocket" and scope["path"] == WORKERS_PATH and self._is_gateway:
            assert self.gateway is not None
            await self.gateway.handle(scope, receive, send)
        elif scope["type"] == "http" and (told := self._tell(scope)) is not None:
            await send_whole(send, 200, encode(told))
        elif self.relay is not None and scope["type"] in ("http", "websocket"):
            await self.relay.serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await deny_upgrade(send, self.refusal)
        elif scope["type"] == "http":
            headers = read_headers(scope["headers"])
            await send_error(send, receive, headers, self.refusal, body_read=False)
