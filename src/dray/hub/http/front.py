"""What the server calls: the hub that is there now, or word that there is none at the moment.

A hub that reloads keeps its sockets: whoever asks meanwhile is told to ask again, and nobody finds the door shut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dray.errors import NotReady
from dray.hub.access.entrance import Receive, Scope, Send, read_headers
from dray.hub.http.replies import deny_upgrade, send_error

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Front:
    """The application of a server, for as long as the process lives."""

    def __init__(self) -> None:
        self.app: App | None = None
        self.why = "the hub is starting: ask again in a second"

    def withdraw(self, why: str) -> None:
        """Nobody is there for a while."""
        self.app, self.why = None, why

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await deny_upgrade(send, NotReady(self.why))
        elif scope["type"] == "http":
            await send_error(
                send, receive, read_headers(scope["headers"]), NotReady(self.why), body_read=False
            )
