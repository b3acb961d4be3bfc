"""The public feed: every committed note, numbered `SEQ.N`, kept for a while in memory and for longer in the log.

A reader resumes from any number it has seen. One that falls too far behind reads on from the log instead of
growing a queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from dray.core.lifecycle.state.effects import Note
from dray.errors import InvalidInput
from dray.hub.documents.records import moment
from dray.hub.store.base import LogEntry, Store

KEEP = 1024
# Said once, first, to a reader whose place is lost; what it hears then comes from now on.
RESET = "reset"
WHY_RESET = (
    "the events after this one are no longer kept, or it is not one of this hub's: look again, then go on"
)
KEEP_ALIVE_S = 15.0
_decode = msgspec.msgpack.Decoder(list[tuple[str, str, str, str, dict[str, Any]]]).decode
Position = tuple[int, int]


class FeedEvent(NamedTuple):
    """One line of the public feed. `id` is `SEQ.N`, by which a reader resumes."""

    id: str
    type: str
    data: dict[str, Any]


class Feed:
    """Notes of the last turns, and a bell for those who wait for the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: deque[tuple[int, int, Sequence[Note]]] = deque(maxlen=KEEP)
        self._bell = asyncio.Event()
        self._last: Position = (0, 0)
        self.closed = False
        # Hears of each turn's notes as soon as they are committed.
        self.listener: Callable[[int, int, Sequence[Note]], None] | None = None

    def start(self, seq: int) -> None:
        """Go on after the last turn of an earlier hub."""
        self._last = (seq, 1 << 30)

    def publish(self, seq: int, at_ms: int, notes: Sequence[Note]) -> None:
        """Show one turn's notes to everybody."""
        if not notes:
            return
        # Spelled out only when somebody reads them.
        self._recent.append((seq, at_ms, notes))
        if self.listener is not None:
            self.listener(seq, at_ms, notes)
        self._last = (seq, len(notes) - 1)
        self._bell.set()
        self._bell = asyncio.Event()

    def close(self) -> None:
        """End every reader."""
        self.closed = True
        self._bell.set()

    async def follow(
        self, after: str, sees: Callable[[FeedEvent], Awaitable[bool]]
    ) -> AsyncIterator[FeedEvent | None]:
        """Yield what comes after a number (empty: from now on); None from time to time while nothing happens."""
        position = parse_position(after) if after else self._last
        if after and not await self._reaches(position):
            position = self._last
            yield FeedEvent(f"{position[0]}.0", RESET, {"type": RESET, "why": WHY_RESET})
        while not self.closed:
            bell = self._bell
            found = await self._since(position)
            for place, event in found:
                position = place
                if await sees(event):
                    yield event
            if found:
                continue
            try:
                await asyncio.wait_for(bell.wait(), KEEP_ALIVE_S)
            except TimeoutError:
                yield None

    async def _reaches(self, position: Position) -> bool:
        """Whether everything after a number can still be told, and the number was ever given out."""
        if position[0] > self._last[0]:
            return False
        if position >= self._last or (self._recent and self._recent[0][0] <= position[0]):
            return True
        # A turn that is there says that all later ones are; before the first one there was none.
        found = await asyncio.to_thread(self._store.tail, position[0] - 1, 1)
        return bool(found) and found[0].seq <= max(position[0], 1)

    @property
    def bell(self) -> asyncio.Event:
        """Rings when there is more than now."""
        return self._bell

    async def wait(self, bell: asyncio.Event, most_s: float) -> bool:
        """Wait for a bell; False where the time is over, or nothing more comes."""
        try:
            await asyncio.wait_for(bell.wait(), most_s)
        except TimeoutError:
            return False
        return not self.closed

    async def since(self, after: str) -> list[FeedEvent]:
        """Some of what comes after a number; nothing where that was the last."""
        return [event for _, event in await self._since(parse_position(after))]

    async def find(self, now_ms: int) -> str:
        """The number before which nothing happened since a moment of hub time, which never goes back, as far as the log
        goes.
        """
        low, high = 0, self._last[0]
        while low < high:
            middle = (low + high) // 2
            entries = await asyncio.to_thread(self._store.tail, middle, 1)
            if not entries or entries[0].now_ms >= now_ms:
                high = middle
            else:
                low = max(entries[0].seq, middle + 1)
        return f"{max(0, low - 1)}.{(1 << 29) - 1}"

    async def _since(self, position: Position) -> list[tuple[Position, FeedEvent]]:
        if position >= self._last:
            return []
        if self._recent and self._recent[0][0] <= position[0]:
            return self._since_recent(position)
        found: list[tuple[Position, FeedEvent]] = []
        # What is no longer in memory is read on a thread: it may be a lot.
        for entry in await asyncio.to_thread(self._store.tail, position[0] - 1, 200):
            events = spell_events(entry.seq, entry.at_ms, read_notes(entry))
            found += [((entry.seq, place), event) for place, event in enumerate(events)]
        later = [item for item in found if item[0] > position]
        return later or self._since_recent(position)

    def _since_recent(self, position: Position) -> list[tuple[Position, FeedEvent]]:
        found: list[tuple[Position, FeedEvent]] = []
        for seq, at_ms, notes in self._recent:
            if seq >= position[0]:
                events = spell_events(seq, at_ms, notes)
                found += [
                    ((seq, place), event) for place, event in enumerate(events) if (seq, place) > position
                ]
        return found


def read_notes(entry: LogEntry) -> list[Note]:
    """The notes of a turn as the log has them."""
    return [Note(*fields) for fields in _decode(entry.notes)] if entry.notes else []


def spell_events(seq: int, at_ms: int, notes: Sequence[Note]) -> list[FeedEvent]:
    """Lines of the feed of one turn."""
    at = moment(at_ms)
    events = []
    for place, note in enumerate(notes):
        data: dict[str, Any] = {"at": at, "type": note.type}
        named = (("job_id", note.job_id), ("task_id", note.task_id), ("worker", note.worker))
        data |= {name: value for name, value in named if value}
        events.append(FeedEvent(f"{seq}.{place}", note.type, data | dict(note.data)))
    return events


def parse_position(text: str) -> Position:
    """Read `SEQ.N` back."""
    seq, _, place = text.partition(".")
    if not (seq.isdigit() and (place.isdigit() or not place)):
        raise InvalidInput(f"{text[:64]!r} is not an event id: write SEQ.N as the feed gave it")
    return int(seq), int(place or 0)
