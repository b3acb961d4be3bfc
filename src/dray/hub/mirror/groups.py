"""What is to be written of one queue, or of the site: changes by member, newest last, and how far Redis is known to be.

Values in, values out: nothing here sends. Changes say how a member is to be, not what happened to it, so they may be
merged, sent twice, or laid over what another writer of the same history has written: the last state wins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from dray.hub.mirror.keys import Names

# As many as the stream keeps: older ones would be cut off at once.
EVENTS = 10_000
# How much goes into one call of a script: it holds the server up for as long as it runs.
MOST_MEMBERS, MOST_EVENTS = 2_000, 500
Value = str | bytes | int
Changes = dict[str, Value | None]
Event = tuple[str, str, bytes]


class Kind(NamedTuple):
    """By which commands a collection is changed and counted."""

    add: str
    remove: str
    size: str


ZSET = Kind("ZADD", "ZREM", "ZCARD")
HASH = Kind("HSET", "HDEL", "HLEN")
SET = Kind("SADD", "SREM", "SCARD")


class Known(NamedTuple):
    """What a group in Redis says of itself: whose it is, as of which turn, and how much both collections hold."""

    epoch: int
    seq: int
    counts: tuple[int, int]


class Part(NamedTuple):
    """Changes that go out in one call; the `last` part of a write brings the numbers with it."""

    changes: tuple[Changes, Changes]
    events: list[Event]
    last: bool


class Group:
    """The keys of a queue or of the site, and what has not been written of them yet.

    `whole`: nothing that Redis holds of it can be relied on, so it is made anew; then changes need not be kept.
    """

    def __init__(self, names: Names, kinds: tuple[Kind, Kind], queue: str | None = None) -> None:
        self.queue = queue
        self.names, self.kinds, self.slot = names, kinds, names.slot
        self.changes: tuple[Changes, Changes] = ({}, {})
        self.events: deque[Event] = deque(maxlen=EVENTS)
        self.stale = False
        self.whole, self.drafting = True, False
        # Since when something waits to be written, and since when what is under way has.
        self.since_s: float | None = None
        self.taken_s: float | None = None
        # What was written last, and what was sent without an answer: either may be what Redis holds.
        self.written: Known | None = None
        self.sent: Known | None = None
        # The numbers as they were last told; None: it is not known what Redis holds there.
        self.told: dict[str, int | str | None] = {}

    @property
    def is_due(self) -> bool:
        """Whether there is anything to write."""
        return self.whole or self.stale or bool(self.changes[0] or self.changes[1] or self.events)

    def note(self, place: int, member: str, value: Value | None, now_s: float) -> None:
        """One member is to be so from now on; None: gone."""
        if not self.whole or self.drafting:
            self.changes[place][member] = value
        self.touch(now_s)

    def tell(self, event: Event, now_s: float) -> None:
        """Something happened."""
        self.events.append(event)
        self.touch(now_s)

    def touch(self, now_s: float) -> None:
        """Something about it is not written yet."""
        self.stale = True
        if self.since_s is None:
            self.since_s = now_s

    def begin_draft(self) -> None:
        """It is being made anew: from here on changes are kept, to be laid over what is made."""
        self.drafting, self.changes, self.told = True, ({}, {}), {}

    def take_changes(self) -> tuple[Changes, Changes]:
        """Take what changed since a draft was begun."""
        changes, self.changes = self.changes, ({}, {})
        return changes

    def take_finish(self) -> Part:
        """Take the last of it, with as many events as go into one call."""
        self.stale, self.taken_s, self.since_s = False, self.since_s, None
        events = [self.events.popleft() for _ in range(min(len(self.events), MOST_EVENTS))]
        return Part(self.take_changes(), events, True)

    def doubt(self, now_s: float) -> None:
        """Make it anew: what Redis holds is not what was written."""
        self.whole, self.drafting = True, False
        self.changes = ({}, {})
        self.told = {}
        self.written = self.sent = None
        self.touch(now_s)

    def take_parts(self) -> Iterator[Part]:
        """Take what is to be written, in calls of bounded size; what is taken and not written is to be put back."""
        first, second = self.changes
        self.changes, self.stale = ({}, {}), False
        self.taken_s, self.since_s = self.since_s, None
        events, self.events = list(self.events), deque(maxlen=EVENTS)
        members = [(0, item) for item in first.items()] + [(1, item) for item in second.items()]
        calls = max(1, -(-len(members) // MOST_MEMBERS), -(-len(events) // MOST_EVENTS))
        for number in range(calls):
            part: tuple[Changes, Changes] = ({}, {})
            for place, (member, value) in members[number * MOST_MEMBERS : (number + 1) * MOST_MEMBERS]:
                part[place][member] = value
            told = events[number * MOST_EVENTS : (number + 1) * MOST_EVENTS]
            yield Part(part, told, number == calls - 1)

    def put_back(self, parts: list[Part], now_s: float) -> None:
        """What was taken did not arrive, or nobody knows: it is to be sent again, under what came since."""
        events: list[Event] = []
        for part in parts:
            events += part.events
            if not self.whole:
                for place in (0, 1):
                    for member, value in part.changes[place].items():
                        self.changes[place].setdefault(member, value)
        self.events = deque((*events, *self.events), maxlen=EVENTS)
        self.told = dict.fromkeys(self.told)
        self.since_s, self.taken_s = self.taken_s if self.taken_s is not None else self.since_s, None
        self.touch(now_s)

    def settle(self, known: Known, told: dict[str, int | str]) -> None:
        """It was written: this is what Redis holds."""
        self.written, self.sent, self.told = known, None, {**told}
        self.whole = self.drafting = False
        self.taken_s = None

    def lag_s(self, now_s: float) -> float:
        """For how long something has waited to be written."""
        waits = [since for since in (self.since_s, self.taken_s) if since is not None]
        return now_s - min(waits) if waits else 0.0

    def list_stats(self, stats: dict[str, int | str]) -> tuple[list[int | str], list[str]]:
        """Which fields to set, as field and value, and which to let go."""
        told = self.told
        fresh: list[int | str] = []
        for field, value in stats.items():
            if told.get(field) != value:
                fresh += (field, value)
        return fresh, [field for field in told if field not in stats]
