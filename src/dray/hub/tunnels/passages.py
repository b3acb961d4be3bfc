"""The ways through the hub to what runs on workers, put together: one of each kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dray.hub.access.caller import Caller
from dray.hub.access.entrance import Receive, Scope, Send
from dray.hub.access.passes import Passes
from dray.hub.access.request_budgets import Budgets
from dray.hub.access.token_leases import Hold
from dray.hub.engine.engine import Engine
from dray.hub.tunnels.execs import Execs
from dray.hub.tunnels.forwards import FORWARD_SCOPES, Forwards, Ways
from dray.hub.tunnels.lines import Tunnels
from dray.hub.tunnels.reaching import Reacher
from dray.hub.workers.sessions import Sessions
from dray.wire.streams.frames import FORWARD_PATH, TUNNEL_PATH, ServiceTarget, TaskTarget

Handler = Callable[[Scope, Receive, Send, Caller], Awaitable[None]]


class Passages:
    """One hub's. `sockets` says which WebSockets they are, for which scopes."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        sessions: Sessions,
        hold: Hold,
        budgets: Budgets,
        passes: Passes,
    ) -> None:
        self.hold, self.passes = hold, passes
        self.tunnels = Tunnels(engine, sessions, hold)
        self.reacher = Reacher(engine, self.tunnels)
        ways: Ways = {ServiceTarget: self.reacher.forward, TaskTarget: Execs(engine, self.reacher).begin}
        self._forwards = Forwards(self.reacher, ways, hold, budgets)
        self.sockets: list[tuple[str, tuple[str, ...], Handler]] = [
            (TUNNEL_PATH, ("worker",), self.tunnels.handle),
            (FORWARD_PATH, FORWARD_SCOPES, self._forwards.handle),
        ]

    def close(self, code: int, reason: str) -> None:
        """End every one of them."""
        self._forwards.close(code, reason)
        self.tunnels.close(code, reason)
