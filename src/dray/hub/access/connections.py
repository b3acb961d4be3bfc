"""Who is connected, held against the descriptors that there are: sockets stop where output and store still have theirs.

A connection is a stranger's until a request of it has passed the gate. Strangers are few, per address and in all, and
the oldest goes first: whoever has a token says so in the first milliseconds. Surprising rule: nobody is refused before
the limit on all connections; until then a newcomer costs another stranger the place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Protocol

from dray.errors import Overloaded

# Descriptors that are never a socket's: the store, output, blobs, the forecaster, what libraries open for a moment.
KEPT_LEAST, KEPT_SHARE = 128, 4
STRANGERS, STRANGERS_OF_PEER = 4096, 1024
# What a reader has to take in this time of an answer that waits for it.
SLOW_READER_S, SLOW_READER_BYTES = 30.0, 64 << 10
SAY_EVERY_S = 60.0
# By which a request that has no body hears that its caller has gone, without a task that waits for it: what is called
# then, or None.
GONE = "dray.gone"
logger = logging.getLogger("dray.hub.access.connections")


def streams_most(files: int) -> int:
    """How many answers may stay open: each may hold a file, and half of those that are no sockets' are theirs."""
    return _kept(files) // 2


def _kept(files: int) -> int:
    return max(KEPT_LEAST, files // KEPT_SHARE)


class Transport(Protocol):
    """What is asked of a connection."""

    def abort(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class Connections:
    """All sockets of one hub. `files`: how many descriptors this process may have."""

    def __init__(self, files: int) -> None:
        self.most = max(16, files - _kept(files))
        self.strangers_most = max(8, min(STRANGERS, self.most // 2))
        self.of_peer_most = max(4, min(STRANGERS_OF_PEER, self.most // 4))
        # A worker token may speak for a whole cluster; half of all leaves the other half to everybody else.
        self.of_token_most = max(8, self.most // 2)
        self._strangers: dict[Transport, str] = {}
        self._of_peer: dict[str, dict[Transport, None]] = {}
        self._known: dict[Transport, str] = {}
        self._of_token: Counter[str] = Counter()
        self._said_at = -SAY_EVERY_S
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    @property
    def strangers(self) -> int:
        """How many connections nobody has vouched for yet."""
        return len(self._strangers)

    def enter(self, transport: Transport, peer: str) -> None:
        """Count a new connection, at the cost of the oldest stranger where there is no room."""
        self._strangers[transport] = peer
        own = self._of_peer.setdefault(peer, {})
        own[transport] = None
        if len(own) > self.of_peer_most:
            self._drop(next(iter(own)), f"{peer or 'a socket'} holds {len(own)} connections without a token")
        elif len(self._strangers) > self.strangers_most or len(self) > self.most:
            what = f"{len(self)} connections, {len(self._strangers)} of them without a token"
            self._drop(next(iter(self._strangers)), what)

    def admit(self, transport: Transport, token_id: str) -> None:
        """A request of this connection came with a token that holds; raises where the token has too many."""
        before = self._known.get(transport)
        if before == token_id:
            return
        if before is None and transport not in self._strangers:
            return  # it was dropped, and nobody has told its last request yet
        if self._of_token[token_id] >= self.of_token_most:
            raise Overloaded(
                f"token {token_id} holds {self.of_token_most} connections, which is all that one token may: "
                "close some, or use fewer at once",
                5.0,
            )
        self.leave(transport)
        self._known[transport] = token_id
        self._of_token[token_id] += 1

    def leave(self, transport: Transport) -> None:
        """Forget a connection that has ended."""
        peer = self._strangers.pop(transport, None)
        if peer is not None:
            own = self._of_peer[peer]
            own.pop(transport, None)
            if not own:
                del self._of_peer[peer]
        token_id = self._known.pop(transport, None)
        if token_id is not None:
            self._of_token[token_id] -= 1
            if not self._of_token[token_id]:
                del self._of_token[token_id]

    def _drop(self, transport: Transport, why: str) -> None:
        self.leave(transport)
        self.dropped += 1
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            logger.warning("connections are dropped, %d so far: %s", self.dropped, why)
        transport.abort()


class ReaderWatch:
    """Cuts off a reader that takes next to nothing of what waits for it: the memory belongs to the others."""

    __slots__ = ("_left", "_loop", "_timer", "_transport")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: Transport) -> None:
        self._loop, self._transport = loop, transport
        self._timer: asyncio.TimerHandle | None = None
        self._left = 0

    def paused(self) -> None:
        """More waits for the reader than should."""
        if self._timer is None:
            self._left = self._transport.get_write_buffer_size()
            self._timer = self._loop.call_later(SLOW_READER_S, self._look)

    def resumed(self) -> None:
        """The reader has taken most of it, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        left, before, self._timer = self._transport.get_write_buffer_size(), self._left, None
        if left > before - SLOW_READER_BYTES:
            logger.info("a reader took %d bytes in %g s: cut off", max(0, before - left), SLOW_READER_S)
            self._transport.abort()
        else:
            self.paused()
