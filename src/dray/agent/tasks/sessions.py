"""The agent's ear for its tasks: a unix socket, JSON lines both ways. Carries and bounds; decides nothing.

A connection says hello with its attempt and that attempt's key before anything else. A task that floods is read slowly,
one that does not read what it is sent is dropped: neither costs the agent, or another task, anything. Surprising rule:
the allowance of lines is an attempt's, not a connection's.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from typing import Any, Protocol, cast

from dray.agent.decide.words import Words, read_object, read_words
from dray.agent.tasks.accounts import Account
from dray.agent.tasks.session_home import SessionHome

BUFFER_BYTES = 8192
UNREAD_BYTES = 16 << 10
LINES, WINDOW_S = 20, 0.1
HELLO_S = 5.0
PER_ATTEMPT, IN_ALL = 16, 1024
BAD_LINES = 10
logger = logging.getLogger("dray.agent.sessions")


class Listener(Protocol):
    """Whoever makes sense of what tasks say."""

    def task_greeted(self, uid: str) -> dict[str, Any]: ...
    def task_said(self, uid: str, words: Words) -> None: ...


class TaskSessions:
    """All sessions of one agent's tasks."""

    def __init__(self, home: SessionHome, listener: Listener) -> None:
        self.home, self.listener = home, listener
        self.open: dict[str, dict[Talk, None]] = {}
        self._strangers: dict[Talk, None] = {}
        self._spent: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen; raises OSError where a socket cannot be made."""
        loop = asyncio.get_running_loop()
        for account in self.home.accounts.all:
            listening = self.home.listen(account)
            self._servers.append(await loop.create_unix_server(lambda: Talk(self), sock=listening))

    def close(self) -> None:
        """Stop listening. Tasks notice and look for the next agent at the same place."""
        for server in self._servers:
            server.close()
        for talk in [*self._strangers, *(talk for talks in self.open.values() for talk in talks)]:
            talk.drop()

    def variables(self, uid: str, account: Account) -> dict[str, str]:
        """How a task finds its session; empty where there is none to be had."""
        if not self._servers:
            return {}
        return {"DRAY_SESSION": self.home.path(account), "DRAY_SESSION_KEY": self.home.key(uid)}

    def warn(self, uid: str, stop: dict[str, Any]) -> None:
        """Tell a task, on all of its connections, to come to an end."""
        for talk in list(self.open.get(uid, ())):
            talk.send({"stop": stop})

    def grant(self, uid: str) -> None:
        """Tell a task, on all of its connections, that it has its slot back."""
        for talk in list(self.open.get(uid, ())):
            talk.send({"resumed": {}})

    # --- what connections ask ---------------------------------------------------------------------------------------

    def meet(self, talk: Talk) -> bool:
        """Take a new connection; False where there are too many."""
        if len(self._strangers) + sum(map(len, self.open.values())) >= IN_ALL:
            return False
        self._strangers[talk] = None
        return True

    def admit(self, talk: Talk, hello: object) -> str:
        """Check who it is and give its uid; raises PermissionError with the reason."""
        body = hello if isinstance(hello, dict) else {}
        uid, key = body.get("attempt"), body.get("key")
        if not isinstance(uid, str) or not isinstance(key, str):
            raise PermissionError('say {"hello": {"attempt": ..., "key": ...}} first')
        if not hmac.compare_digest(self.home.key(uid).encode(), key.encode(errors="replace")):
            raise PermissionError("this key is not that attempt's")
        if len(self.open.get(uid, ())) >= PER_ATTEMPT:
            raise PermissionError(f"this attempt has {PER_ATTEMPT} connections already")
        self._strangers.pop(talk, None)
        self.open.setdefault(uid, {})[talk] = None
        return uid

    def part(self, talk: Talk, uid: str) -> None:
        """Forget a connection."""
        self._strangers.pop(talk, None)
        talks = self.open.get(uid, {})
        talks.pop(talk, None)
        if not talks:
            self.open.pop(uid, None)

    def may_speak(self, uid: str) -> bool:
        """Count one line against an attempt's allowance of this moment."""
        if uid not in self._spent:
            self._spent[uid] = 0
            asyncio.get_running_loop().call_later(WINDOW_S, self._spent.pop, uid, None)
        self._spent[uid] += 1
        return self._spent[uid] <= LINES


class Talk(asyncio.BufferedProtocol):
    """One connection. Its buffer is all that is ever held of what it sends."""

    def __init__(self, sessions: TaskSessions) -> None:
        self._sessions, self._uid = sessions, ""
        self._buffer, self._filled = bytearray(BUFFER_BYTES), 0
        self._transport: asyncio.Transport | None = None
        self._bad, self._ended, self._waiting = 0, False, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass of it
        if not self._sessions.meet(self):
            self.drop()
            return
        asyncio.get_running_loop().call_later(HELLO_S, self._expire)

    def _expire(self) -> None:
        if not self._uid:
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._sessions.part(self, self._uid)

    def drop(self) -> None:
        """End it now, whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, message: dict[str, Any]) -> None:
        """Write one line; a peer that leaves too much unread is dropped."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        if transport.get_write_buffer_size() > UNREAD_BYTES:
            logger.warning("a task does not read its session: dropped (attempt %s)", self._uid)
            self.drop()

    # --- lines --------------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._work()

    def eof_received(self) -> bool:
        self._ended = True
        self._work()
        return True

    def _work(self) -> None:
        """Take the lines that are here, as far as the allowance goes; read on once all of them are taken."""
        start = 0
        while self._transport is not None and not self._transport.is_closing():
            end = self._buffer.find(b"\n", start, self._filled)
            if end < 0:
                break
            if self._uid and not self._sessions.may_speak(self._uid):
                self._wait()
                break
            self._line(bytes(self._buffer[start:end]))
            start = end + 1
        self._buffer[: self._filled - start] = self._buffer[start : self._filled]
        self._filled -= start
        transport = self._transport
        if transport is None or transport.is_closing() or self._waiting:
            return
        if self._filled == BUFFER_BYTES:
            self._refuse(f"a line is longer than {BUFFER_BYTES - 1} bytes", last=True)
        elif self._ended:
            transport.close()

    def _wait(self) -> None:
        if not self._waiting and self._transport is not None:
            self._waiting = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(WINDOW_S, self._go_on)

    def _go_on(self) -> None:
        self._waiting = False
        self._work()
        if not self._waiting and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _line(self, line: bytes) -> None:
        try:
            message = read_object(line)
            if self._uid:
                self._sessions.listener.task_said(self._uid, read_words(message))
            else:
                self._uid = self._sessions.admit(self, message.get("hello"))
                greeting = self._sessions.listener.task_greeted(self._uid)
                stop = greeting.pop("stop", None)
                self.send({"hello": greeting})
                if stop is not None:
                    self.send({"stop": stop})
        except PermissionError as fault:
            self._refuse(str(fault), last=True)
        except ValueError as fault:
            self._bad += 1
            self._refuse(str(fault), last=not self._uid or self._bad >= BAD_LINES)

    def _refuse(self, fault: str, last: bool) -> None:
        self.send({"error": fault})
        if last and self._transport is not None:
            self._transport.close()
