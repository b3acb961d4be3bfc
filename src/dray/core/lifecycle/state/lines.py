"""Waiting work by class: shapes, and for each the jobs that wait, in order.

One entry per job, whatever its size: an array is a range. Entries go stale in place (cancelled, placed) and are
skipped, never searched for. A shape that fits nowhere is parked until a worker it could use gains room, so a pass
costs what changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from dray.core.model.specs.resources import Asks

RANGE = 1 << 40


class BucketKey(NamedTuple):
    """Tasks that only differ in their place in the line. The party is their queue, user and what rules tell apart."""

    party: int
    priority: int
    shape: int


class Entry(NamedTuple):
    """A job's range of tasks never placed (position RANGE), or one task queued again, which goes before it.

    `ahead` is -1 for a task that was preempted, else 0; `order` is what the queue's policy sorts by before the
    number.
    """

    ahead: int
    order: int
    seq: int
    position: int
    job_id: str


class Bucket:
    """Entries in order with a moving head: appending is the common case, inserting the rare one."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.head = 0

    @property
    def waiting(self) -> int:
        """How many entries there are, stale ones included."""
        return len(self.entries) - self.head

    def add(self, entry: Entry) -> bool:
        """Put an entry in its place; gives whether that is the first."""
        if not self.entries or self.entries[-1] < entry:
            self.entries.append(entry)
            return len(self.entries) - self.head == 1
        place = bisect_left(self.entries, entry, lo=self.head)
        # An entry that went stale in place stands again by itself; a second one would place its tasks twice.
        if place == len(self.entries) or self.entries[place] != entry:
            self.entries.insert(place, entry)
        return place == self.head

    def drop_head(self) -> None:
        """Forget the first entry, which must be stale."""
        self.head += 1
        if self.head > 64 and self.head * 2 > len(self.entries):
            del self.entries[: self.head]
            self.head = 0


class Shapes:
    """Numbers for distinct asks (one per alternative of a job), reused when the last job of a shape has gone."""

    def __init__(self) -> None:
        self.asks: list[Asks] = []
        self.refs: list[int] = []
        self._index: dict[Asks, int] = {}
        self._free: list[int] = []

    def take(self, asks: Asks) -> int:
        shape = self._index.get(asks)
        if shape is None:
            if self._free:
                shape = self._free.pop()
                self.asks[shape], self.refs[shape] = asks, 0
            else:
                shape = len(self.asks)
                self.asks.append(asks)
                self.refs.append(0)
            self._index[asks] = shape
        self.refs[shape] += 1
        return shape

    def release(self, shape: int) -> bool:
        """Give one reference back; True when the number is free again."""
        self.refs[shape] -= 1
        if self.refs[shape] > 0:
            return False
        del self._index[self.asks[shape]]
        self._free.append(shape)
        return True


class Backlog:
    """Who waits, by shape."""

    def __init__(self) -> None:
        self.buckets: dict[BucketKey, Bucket] = {}
        self.of_shape: dict[int, dict[BucketKey, None]] = {}
        self.awake: dict[int, None] = {}
        self.parked: dict[int, bool] = {}
        self.depth: dict[str, int] = {}
        self.eager = False
        self.gated: dict[BucketKey, str] = {}
        self.behind: dict[str, dict[BucketKey, None]] = {}
        self.opens: dict[str, int] = {}

    def count(self, queue: str, change: int) -> None:
        """Keep the number of waiting tasks per queue."""
        self.depth[queue] = self.depth.get(queue, 0) + change

    def add(self, key: BucketKey, entry: Entry) -> None:
        """Queue a job's range, or one of its tasks again; its shape is looked at in the next pass."""
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Bucket()
            self.of_shape.setdefault(key.shape, {})[key] = None
        first = bucket.add(entry)
        # Where work may be stopped for other work, the first of a line may have what others of its shape have not: a
        # band above what runs, a share of its own, less service.
        if (first and self.eager) or not self.parked.get(key.shape, False):
            self.parked.pop(key.shape, None)
            self.awake[key.shape] = None

    def shut(self, key: BucketKey, gate: str) -> None:
        """Leave a line out of passes until a gate opens; one gate at a time, the one that was met last."""
        self._leave_gate(key)
        self.gated[key] = gate
        self.behind.setdefault(gate, {})[key] = None

    def open(self, gate: str) -> list[BucketKey]:
        """Look again at the lines behind a gate; gives those that are left out still, since their shape has no room."""
        self.opens.pop(gate, None)
        parked = []
        for key in self.behind.pop(gate, ()):
            del self.gated[key]
            if self.parked.get(key.shape, False):
                parked.append(key)
            else:
                self.wake(key.shape)
        return parked

    def park(self, shape: int, full: bool) -> None:
        """Leave a shape out of passes until a worker it could use gains room.

        `full`: no worker had any. Otherwise a job's own cap holds it back; another job of the shape is worth a look.
        """
        self.awake.pop(shape, None)
        if shape in self.of_shape:
            self.parked[shape] = full

    def wake(self, shape: int) -> None:
        """Look at a shape again."""
        if self.parked.pop(shape, None) is not None:
            self.awake[shape] = None

    def remove_bucket(self, key: BucketKey) -> None:
        """Forget a line in which nobody waits."""
        del self.buckets[key]
        self._leave_gate(key)
        keys = self.of_shape[key.shape]
        del keys[key]
        if not keys:
            del self.of_shape[key.shape]
            self.awake.pop(key.shape, None)
            self.parked.pop(key.shape, None)

    def _leave_gate(self, key: BucketKey) -> None:
        gate = self.gated.pop(key, "")
        if gate:
            del self.behind[gate][key]
            if not self.behind[gate]:
                del self.behind[gate]

    def entries(self, key: BucketKey) -> Iterator[Entry]:
        """Walk a line in order, stale entries included."""
        bucket = self.buckets[key]
        for place in range(bucket.head, len(bucket.entries)):
            yield bucket.entries[place]
