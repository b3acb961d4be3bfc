"""One agent's connection: lines of JSON in, lines of JSON out, never blocking the loop.

Knows framing and nothing of what the messages mean. Both directions are bounded: a peer that sends an endless line or
stops reading is dropped, and finds the whole state again when it comes back. One that has closed is read to its end all
the same, though nothing can be told it any more: its last word may be its goodbye.
"""

from __future__ import annotations

import json
import selectors
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dray.agent.supervisor.records.journal import Record

LINE_MAX_BYTES = 64 << 20
BACKLOG_MAX_BYTES = 64 << 20
RECEIVE_BYTES = 1 << 18

_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Connection:
    def __init__(
        self,
        sock: socket.socket,
        selector: selectors.BaseSelector,
        receive: Callable[[Connection, bytes], None],
    ) -> None:
        self._sock = sock
        self._selector = selector
        self._receive = receive
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._backlog = bytearray()
        self._hung_up = False
        # For a line that is about one thing: who reads it, and who hears of its end.
        self.on_line: Callable[[Record], None] | None = None
        self.on_close: Callable[[], None] | None = None
        self.greeted = False
        self.state: Record | None = None
        self.closed = False
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, self.handle)

    def handle(self) -> None:
        if self.closed:
            return  # replaced earlier in this very turn
        if self._backlog:
            self._flush()
        if self.closed:
            return
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join([*self._parts, line])
            self._parts.clear()
            self._parts_bytes = 0
            if whole.strip() and not self.closed:
                self._receive(self, whole)
        if rest:
            self._parts.append(rest)
            self._parts_bytes += len(rest)
        if self._parts_bytes > LINE_MAX_BYTES:
            self.send(
                {"ev": "error", "error": f"a message may hold {LINE_MAX_BYTES} bytes, this one holds more"}
            )
            self.close()

    @property
    def is_behind(self) -> bool:
        """Whether the peer has not yet read all that was sent."""
        return bool(self._backlog)

    def send(self, *events: Record) -> None:
        """All in one piece: each write wakes the agent."""
        if self.closed or self._hung_up or not events:
            return
        for event in events:
            self._backlog += _dump(event).encode() + b"\n"
        self._flush()

    def hand_over(self, event: Record, fds: list[int]) -> None:
        """An event that carries descriptors, on a line where nothing waits to be sent."""
        try:
            socket.send_fds(self._sock, [_dump(event).encode() + b"\n"], fds)
        except OSError:
            self.close()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._backlog)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._hung_up = True
            sent = len(self._backlog)
        del self._backlog[:sent]
        if len(self._backlog) > BACKLOG_MAX_BYTES:
            self.close()
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._backlog else 0)
        if self._selector.get_key(self._sock).events != wanted:
            self._selector.modify(self._sock, wanted, self.handle)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._selector.unregister(self._sock)
            self._sock.close()
            if self.on_close is not None:
                self.on_close()
