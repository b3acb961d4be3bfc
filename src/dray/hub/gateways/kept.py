"""What workers said and the leader has not done with: numbered, in order, sent again to whoever leads next.

Letting it go when it is sent would lose what a leader took and died of; so it stays until the leader says that it is
committed, and filed where it was printed. Bounded: who reads the sockets waits while there is too much of it, and for
what was printed there is a smaller bound, since output must not hold up the rest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from dray.hub.gateways.frames import Closed, Frame, Items

FRAME_ITEMS, FRAME_BYTES = 1000, 512 << 10
MOST_ITEMS, MOST_BYTES, MOST_PRINTED_BYTES = 100_000, 64 << 20, 8 << 20


class _Item(NamedTuple):
    """What one session said; of one that has ended the code. `size` is what it counts for."""

    number: int
    session: int
    frame: Frame
    size: int
    prints: bool
    code: int = 0


class Kept:
    """The items of one gateway."""

    def __init__(self) -> None:
        self._unsent: deque[_Item] = deque()
        self._sent: deque[_Item] = deque()
        self._next = 1
        self._bytes = self._printed_bytes = 0
        self._printing: Counter[int] = Counter()
        self._room, self._printing_room = asyncio.Event(), asyncio.Event()
        self._look()

    def __len__(self) -> int:
        return len(self._unsent) + len(self._sent)

    def add(self, session: int, frame: Frame, prints: bool) -> None:
        """A session said something."""
        self._put(_Item(self._next, session, frame, len(frame), prints))

    def close(self, session: int, code: int) -> None:
        """A session ended, after all that it said."""
        self._put(_Item(self._next, session, b"", 0, prints=False, code=code))

    def _put(self, item: _Item) -> None:
        self._next += 1
        self._unsent.append(item)
        self._count(item, 1)

    def _count(self, item: _Item, sign: int) -> None:
        self._bytes += sign * item.size
        if item.prints:
            self._printed_bytes += sign * item.size
            self._printing[item.session] += sign
            if not self._printing[item.session]:
                del self._printing[item.session]
        self._look()

    def _look(self) -> None:
        full = len(self) > MOST_ITEMS or self._bytes > MOST_BYTES
        for event, is_full in (
            (self._room, full),
            (self._printing_room, self._printed_bytes > MOST_PRINTED_BYTES),
        ):
            event.clear() if is_full else event.set()

    def is_full(self, prints: bool) -> bool:
        """Whether whoever reads a socket is to wait; `prints`: it has sent output."""
        return not self._room.is_set() or (prints and not self._printing_room.is_set())

    async def has_room(self, prints: bool) -> None:
        """Wait while it is full."""
        while self.is_full(prints):
            await self._room.wait()
            if prints:
                await self._printing_room.wait()

    def has_printed(self, session: int) -> bool:
        """Whether output of a session is on its way to the leader."""
        return session in self._printing

    def take(self) -> Items | Closed | None:
        """The next frame to send; None where all is."""
        if not self._unsent:
            return None
        first = self._unsent[0]
        if first.code:
            self._sent.append(self._unsent.popleft())
            return Closed(first.session, first.code)
        items: list[tuple[int, Frame]] = []
        size = 0
        while self._unsent and not self._unsent[0].code and len(items) < FRAME_ITEMS and size < FRAME_BYTES:
            # Numbers of sockets that ended meanwhile are missing: what a frame does not name it must not stand for.
            if self._unsent[0].number != first.number + len(items):
                break
            item = self._unsent.popleft()
            self._sent.append(item)
            items.append((item.session, item.frame))
            size += item.size
        return Items(first.number, items)

    def done(self, upto: int) -> None:
        """The leader is done with all up to this number."""
        while self._sent and self._sent[0].number <= upto:
            self._count(self._sent.popleft(), -1)
        # Of sockets that have ended nobody says anything more.
        while self._sent and self._sent[0].code:
            self._count(self._sent.popleft(), -1)

    def rewind(self, sessions: Iterable[int]) -> None:
        """Somebody else leads: all that is not done is sent again, of sessions that are still open."""
        open_ones = set(sessions)
        waiting = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        for item in waiting:
            self._count(item, -1)
        for item in waiting:
            if item.session in open_ones:
                self._unsent.append(item)
                self._count(item, 1)
