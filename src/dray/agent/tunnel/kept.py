"""Connections to services that are used again: each by whom it was opened for, after an exchange that ended in order.

The hub knows where an exchange ends, this end whether the connection is as it was left: what the hub has read is all
that came, nothing came since, and nobody has closed it. On any doubt it is closed and a new one takes its place, before
anything is sent. Surprising rule: a service may serve one connection at a time, and would wait for a kept one while
others wait for it. So where a new connection waits long for its first answer, none to that port are kept for a while.
"""

from __future__ import annotations

import asyncio
import select
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from dray.wire.streams.mux import Stream
from dray.wire.streams.sockets import SocketEnd

# Services close what idles after two seconds and more: this end goes first.
IDLE_S = 1.0
MOST, MOST_OF_PORT = 256, 32
# So long may a first answer take before what is kept is in the way; and so long nothing is kept then.
WAIT_S, SHY_S = 0.05, 30.0
LOOK_S = 0.05
# What a connection tells that is not as it was left: bytes, an end, a fault (the last two are always told).
_NEWS = select.POLLIN | getattr(select, "POLLRDHUP", 0)
Place = tuple[str, int]


class Use(NamedTuple):
    """What a connection is for: nobody else gets it."""

    attempt: str
    port: int
    keep_for: str

    @property
    def place(self) -> Place:
        return self.attempt, self.port


class KeptEnd(SocketEnd):
    """A connection that may serve several streams, one after the other."""

    def __init__(self, stream: Stream, kept: Kept, use: Use) -> None:
        super().__init__(stream, accepts=True)
        self._kept, self.use = kept, use
        self.idle_since = 0.0
        self._idles = self._answered = False

    # --- for those who keep it ----------------------------------------------------------------------------------------

    def resume(self, stream: Stream) -> None:
        """Serve another stream."""
        self._idles, self._stream = False, stream
        stream.accept(hurries=False)

    def is_quiet(self) -> bool:
        """Whether the connection stands as it was left, by the word of the system at this moment."""
        if self._transport is None or self._transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), _NEWS)
        return not poll.poll(0)

    def drop(self) -> None:
        """Close it; what the service has not taken by now it never does."""
        if self._transport is not None:
            if self._transport.get_write_buffer_size():
                self._transport.abort()
            else:
                self._transport.close()

    # --- the stream's calls -------------------------------------------------------------------------------------------

    def kept(self, whole: bool) -> None:
        transport = self._transport
        in_order = whole and transport is not None and not transport.get_write_buffer_size()
        self._idles = in_order and not self._paused and self._kept.give(self)
        if not self._idles:
            self.drop()

    # --- the connection's calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._kept.begin(self)
        super().connection_made(transport)

    def buffer_updated(self, nbytes: int) -> None:
        if self._idles:
            # Nobody has asked for this.
            self.drop()
            return
        if not self._answered:
            self._answered = True
            self._kept.answered(self)
        super().buffer_updated(nbytes)

    def eof_received(self) -> bool:
        return False if self._idles else super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idles = False
        self._kept.leave(self)
        super().connection_lost(exc)


class Kept:
    """Those of one agent. `stands` says whether what a connection is for may still be reached."""

    def __init__(self, stands: Callable[[Use], bool]) -> None:
        self._stands = stands
        self._idle: dict[Use, dict[KeptEnd, None]] = {}
        self._of_port: Counter[Place] = Counter()
        # New connections that have not been answered yet, and since when; the oldest first.
        self._waiting: dict[Place, dict[KeptEnd, float]] = {}
        self._shy_until: dict[Place, float] = {}
        self._looking = False

    def __len__(self) -> int:
        return self._of_port.total()

    def begin(self, end: KeptEnd) -> None:
        """There is a new connection."""
        self._waiting.setdefault(end.use.place, {})[end] = asyncio.get_running_loop().time()

    def answered(self, end: KeptEnd) -> None:
        """The service has answered on it."""
        waiting = self._waiting.get(end.use.place, {})
        if end in waiting:
            del waiting[end]
            if not waiting:
                del self._waiting[end.use.place]

    def give(self, end: KeptEnd) -> bool:
        """Take a connection whose exchange has ended in order; False where it is not to be kept."""
        now, place = asyncio.get_running_loop().time(), end.use.place
        full = self._of_port[place] >= MOST_OF_PORT or len(self) >= MOST
        if full or self._is_shy(place, now) or not self._stands(end.use):
            return False
        end.idle_since = now
        self._idle.setdefault(end.use, {})[end] = None
        self._of_port[place] += 1
        self._watch()
        return True

    def find(self, use: Use) -> KeptEnd | None:
        """A connection for this use that stands as it was left; the one that idled for the shortest time."""
        while idle := self._idle.get(use):
            end = next(reversed(idle))
            self._forget(end)
            if end.is_quiet():
                return end
            end.drop()
        return None

    def leave(self, end: KeptEnd) -> None:
        """A connection has ended."""
        self.answered(end)
        self._forget(end)

    def _forget(self, end: KeptEnd) -> None:
        idle, place = self._idle.get(end.use, {}), end.use.place
        if end in idle:
            del idle[end]
            if not idle:
                del self._idle[end.use]
            self._of_port[place] -= 1
            if not self._of_port[place]:
                del self._of_port[place]

    def _is_shy(self, place: Place, now: float) -> bool:
        """Whether somebody waits there for too long, or did so of late."""
        waiting = self._waiting.get(place)
        if waiting and now - next(iter(waiting.values())) >= WAIT_S:
            self._shy_until = {each: until for each, until in self._shy_until.items() if until > now}
            self._shy_until[place] = now + SHY_S
        return self._shy_until.get(place, 0.0) > now

    def _watch(self) -> None:
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = False
        now = asyncio.get_running_loop().time()
        for use, idle in list(self._idle.items()):
            gone = self._is_shy(use.place, now) or not self._stands(use)
            for end in [end for end in idle if gone or now - end.idle_since >= IDLE_S]:
                self._forget(end)
                end.drop()
        if self._idle:
            self._watch()
