"""The agent's side of the runners' sockets: who they are, frames in, frames out. Carries and bounds; decides nothing.

A runner runs the user's code, so what it sends is taken for a stranger's: a bad frame, or a key that is not its own,
ends the connection.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Any, Protocol, cast

from dray.agent.runners.home import RunnerHome
from dray.agent.tasks.session_home import listen_for
from dray.wire.local.runner_frames import (
    ASK,
    GROWN,
    HELLO,
    NUDGE,
    RECALL,
    RESULTS,
    RETURNED,
    BadFrame,
    Reader,
    Results,
    frame,
    read_grown,
    read_json,
    read_results,
    read_returned,
)

HELLO_S = 10.0
UNREAD_BYTES = 64 << 20
# Of one frame that a runner sends: eight results that are small enough not to be files.
MOST_BYTES = 4 << 20
ROLES = ("calls", "control")
_NUDGE, _RECALL = frame(NUDGE), frame(RECALL)
logger = logging.getLogger("dray.agent.runners.runners")


class Listener(Protocol):
    """Whoever makes sense of what runners say."""

    def line_ready(self, uid: str, pid: int) -> None: ...
    def line_closed(self, uid: str) -> None: ...
    def line_broken(self, uid: str) -> None: ...
    def knows(self, uid: str) -> bool: ...
    def line_results(self, uid: str, results: Results) -> None: ...
    def line_returned(self, uid: str, indices: tuple[int, ...]) -> None: ...
    def line_asked(self, uid: str, question: dict[str, Any]) -> None: ...
    def line_grown(self, uid: str, growth_bytes: int, littered: bool) -> None: ...


class RunnerLines:
    """All connections of one agent's runners."""

    def __init__(self, home: RunnerHome, listener: Listener) -> None:
        self.home, self.listener = home, listener
        self.calls: dict[str, Line] = {}
        self.control: dict[str, Line] = {}
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen; raises OSError where a socket cannot be made."""
        loop = asyncio.get_running_loop()
        for account in self.home.accounts.all:
            listening = listen_for(account, self.home.socket_path(account))
            self._servers.append(await loop.create_unix_server(lambda: Line(self), sock=listening))

    async def restart(self) -> None:
        """Listen at the same place again; what is connected stays so."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        await self.start()

    def close(self) -> None:
        """Stop listening, and let every runner go: it ends itself."""
        for server in self._servers:
            server.close()
        for line in [*self.calls.values(), *self.control.values()]:
            line.drop()

    def write(self, uid: str, data: bytes) -> None:
        """Send a frame to a runner; one that is gone will be reported so."""
        if (line := self.calls.get(uid)) is not None:
            line.write(data)

    def nudge(self, uid: str) -> None:
        if (line := self.control.get(uid)) is not None:
            line.write(_NUDGE)

    def recall(self, uid: str) -> None:
        if (line := self.control.get(uid)) is not None:
            line.write(_RECALL)

    def drop(self, uid: str) -> None:
        """End a runner's connections from this side."""
        for lines in (self.calls, self.control):
            if (line := lines.get(uid)) is not None:
                line.drop()

    # --- what connections ask -----------------------------------------------------------------------------------------

    def admit(self, line: Line, body: bytes) -> str:
        """Check who it is; raises BadFrame where it is nobody."""
        hello, _ = read_json(body)
        uid, key, role = hello.get("runner"), hello.get("key"), hello.get("role")
        if not isinstance(uid, str) or not isinstance(key, str) or role not in ROLES:
            raise BadFrame("a runner says who it is first")
        if not hmac.compare_digest(self.home.key(uid).encode(), key.encode(errors="replace")):
            raise BadFrame("this key is not that runner's")
        if not self.listener.knows(uid):
            raise BadFrame("this agent has started no such runner")
        lines = self.calls if role == "calls" else self.control
        if uid in lines:
            raise BadFrame("this runner is connected already")
        lines[uid] = line
        if uid in self.calls and uid in self.control:
            pid = hello.get("pid")
            self.listener.line_ready(uid, pid if isinstance(pid, int) and 0 < pid < 1 << 31 else 0)
        return uid

    def part(self, line: Line, uid: str) -> None:
        """Forget a connection."""
        if self.control.get(uid) is line:
            del self.control[uid]
        if self.calls.get(uid) is line:
            del self.calls[uid]
            self.listener.line_closed(uid)


class Line(asyncio.Protocol):
    """One connection of a runner."""

    def __init__(self, lines: RunnerLines) -> None:
        self._lines, self._uid = lines, ""
        self._frames = Reader(MOST_BYTES)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass of it
        asyncio.get_running_loop().call_later(HELLO_S, self._expire)

    def _expire(self) -> None:
        if not self._uid:
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lines.part(self, self._uid)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        """Send a frame; a runner that reads nothing for long is dropped."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNREAD_BYTES:
            logger.warning("%s reads nothing of what it is sent: dropped", self._uid)
            self.drop()

    def data_received(self, data: bytes) -> None:
        try:
            for kind, body in self._frames.feed(data):
                self._take(kind, body)
        except BadFrame as fault:
            logger.warning("%s is dropped: %s", self._uid or "a stranger on the runners' socket", fault)
            self.drop()
            if self._uid:
                self._lines.listener.line_broken(self._uid)

    def _take(self, kind: int, body: bytes) -> None:
        listener, uid = self._lines.listener, self._uid
        if not uid:
            if kind != HELLO:
                raise BadFrame("a runner says who it is first")
            self._uid = self._lines.admit(self, body)
        elif kind == RESULTS:
            listener.line_results(uid, read_results(body))
        elif kind == RETURNED:
            listener.line_returned(uid, read_returned(body))
        elif kind == ASK:
            listener.line_asked(uid, read_json(body)[0])
        elif kind == GROWN:
            listener.line_grown(uid, *read_grown(body))
        else:
            raise BadFrame(f"unknown kind of frame {kind}")
