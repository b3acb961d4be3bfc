"""Waiting work by class: shapes, and for each the jobs that wait, in order.

One entry per job, whatever its size: an array is a range. Entries go stale in place (cancelled, placed) and are
skipped, never searched for. A shape that fits nowhere is parked until a worker it could use gains room, so a pass
costs what changed. Lines of one shape whose work passes the same gates but for those of their users are a crowd: such
a gate shuts them out together. A line whose head may no longer be the one that a pass last saw is stirred: whoever
leaves a line, joins it or may go on in it says so, and no pass need look at the others. While somebody is due for a
reservation it is noted too of whom something was heard since the last pass: none of the others need be asked again.
What each line waits for, as passes found it, is counted as time (`waiting.times`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from dray.core.lifecycle.waiting.times import NONE, Times
from dray.core.model.records.waits import ROOM, reason_of_gate
from dray.core.model.specs.resources import Asks

RANGE = 1 << 40
# So many lines are looked at one by one, and may be moved one by one, whatever becomes of them.
FEW_LINES = 2


class Timed(Protocol):
    """Who knows what time it is."""

    now_ms: int


class BucketKey(NamedTuple):
    """Tasks that only differ in their place in the line. The party is their queue, user and what rules tell apart."""

    party: int
    priority: int
    shape: int


class CrowdKey(NamedTuple):
    """Lines that only differ in their user and priority."""

    queue: str
    marks: tuple[str, ...]
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


# A job, a line or a crowd.
Doubt = str | BucketKey | CrowdKey


class Crowd:
    """Lines that gates shut out together. `gate`: the one that does; `apart`: how many are shut out one by one."""

    __slots__ = ("apart", "gate", "key", "lines", "times")

    def __init__(self, key: CrowdKey, times: Times) -> None:
        self.key, self.times = key, times
        self.lines: dict[BucketKey, None] = {}
        self.gate = ""
        self.apart = 0

    @property
    def open_lines(self) -> int:
        """How many of them no gate is known to hold back."""
        return 0 if self.gate else len(self.lines) - self.apart


class Bucket:
    """Entries in order with a moving head: appending is the common case, inserting the rare one."""

    def __init__(self, crowd: Crowd, now_ms: int) -> None:
        self.entries: list[Entry] = []
        self.head = 0
        self.crowd = crowd
        self.times = Times(crowd.times, now_ms)

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
    """Who waits, by shape. `time`: whoever says what time it is, which is the state."""

    def __init__(self, time: Timed) -> None:
        self._time = time
        self._times: dict[int, Times] = {}
        self.buckets: dict[BucketKey, Bucket] = {}
        self.of_shape: dict[int, dict[CrowdKey, Crowd]] = {}
        self.awake: dict[int, None] = {}
        self.parked: dict[int, bool] = {}
        self.stirred: dict[int, dict[BucketKey, None]] = {}
        self.doubts: dict[Doubt, None] | None = None
        self.depth: dict[str, int] = {}
        self.eager = False
        self.open_lines = 0
        self.gated: dict[BucketKey, str] = {}
        self.behind: dict[str, dict[BucketKey | CrowdKey, None]] = {}
        self.opens: dict[str, int] = {}

    def count(self, queue: str, change: int) -> None:
        """Keep the number of waiting tasks per queue."""
        self.depth[queue] = self.depth.get(queue, 0) + change

    def add(self, key: BucketKey, entry: Entry, crowd: CrowdKey) -> None:
        """Queue a job's range, or one of its tasks again; its shape is looked at in the next pass."""
        bucket = self.buckets.get(key)
        if bucket is None:
            crowds = self.of_shape.setdefault(key.shape, {})
            his = crowds.get(crowd)
            now_ms = self._time.now_ms
            if his is None:
                times = self._times.get(key.shape)
                if times is None:
                    times = self._times[key.shape] = Times()
                his = crowds[crowd] = Crowd(crowd, Times(times, now_ms))
            bucket = self.buckets[key] = Bucket(his, now_ms)
            his.lines[key] = None
            self.open_lines += not his.gate
        first = bucket.add(entry)
        self.stir(key)
        # Where work may be stopped for other work, the first of a line may have what others of its shape have not: a
        # band above what runs, a share of its own, less service.
        if (first and self.eager) or not self.parked.get(key.shape, False):
            self.parked.pop(key.shape, None)
            self.awake[key.shape] = None

    def stir(self, key: BucketKey) -> None:
        """Look at this line in the next pass over its shape, also where others of it find no room."""
        if key in self.buckets:
            stirred = self.stirred.get(key.shape)
            if stirred is None:
                self.stirred[key.shape] = {key: None}
            else:
                stirred[key] = None
            self.doubt(key)

    def doubt(self, key: Doubt) -> None:
        """Ask again, before the next pass, whether those may start who are due for a reservation, if anybody is."""
        if self.doubts is not None:
            self.doubts[key] = None

    def rouse(self, key: BucketKey) -> None:
        """Look at this line again: its shape is looked at in the next pass."""
        self.stir(key)
        self.wake(key.shape)

    def _stir_few(self, crowd: Crowd) -> None:
        """Few lines are not kept in an order of their own: each hears of it when the gate of their crowd moves."""
        for line in crowd.lines if len(crowd.lines) <= FEW_LINES else ():
            self.stir(line)

    def settle(self) -> None:
        """All lines of shapes that are awake were looked at."""
        for shape in self.awake if self.stirred else ():
            self.stirred.pop(shape, None)

    def lines_of(self, shape: int) -> Iterator[BucketKey]:
        """The lines of a shape."""
        for crowd in self.of_shape.get(shape, {}).values():
            yield from crowd.lines

    def is_gated(self, key: BucketKey) -> bool:
        """Whether a gate is known to hold a line back."""
        if key in self.gated:
            return True
        bucket = self.buckets.get(key)
        return bucket is not None and bool(bucket.crowd.gate)

    def shut(self, key: BucketKey | CrowdKey, gate: str) -> None:
        """Leave a line, or a whole crowd, out of passes until a gate opens; the one that was met last."""
        if isinstance(key, CrowdKey):
            crowd = self.of_shape.get(key.shape, {}).get(key)
            if crowd is None:
                return
            self._leave_gate_together(crowd)
            self.open_lines -= crowd.open_lines
            crowd.gate = gate
            crowd.times.turn(reason_of_gate(gate), self._time.now_ms)
            self._stir_few(crowd)
            self.doubt(key)
        else:
            self._leave_gate(key)
            self.gated[key] = gate
            bucket = self.buckets[key]
            bucket.times.turn(reason_of_gate(gate), self._time.now_ms)
            crowd = bucket.crowd
            crowd.apart += 1
            self.open_lines -= not crowd.gate
            self.stir(key)
        self.behind.setdefault(gate, {})[key] = None

    def open(self, gate: str) -> dict[BucketKey | CrowdKey, None]:
        """Look again at what stands behind a gate; gives what is left out still, since its shape has no room."""
        self.opens.pop(gate, None)
        parked: dict[BucketKey | CrowdKey, None] = {}
        for key in list(self.behind.get(gate, ())):
            if isinstance(key, CrowdKey):
                crowd = self.of_shape[key.shape][key]
                self._leave_gate_together(crowd)
                self._stir_few(crowd)
            else:
                self._leave_gate(key)
                self.stir(key)
            if self.parked.get(key.shape, False):
                parked[key] = None
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
            self._times[shape].turn(ROOM if full else NONE, self._time.now_ms)

    def wake(self, shape: int) -> None:
        """Look at a shape again."""
        if self.parked.pop(shape, None) is not None:
            self.awake[shape] = None

    def remove_bucket(self, key: BucketKey) -> None:
        """Forget a line in which nobody waits."""
        self._leave_gate(key)
        crowd = self.buckets.pop(key).crowd
        self.open_lines -= not crowd.gate
        del crowd.lines[key]
        if crowd.lines:
            self.stirred.setdefault(key.shape, {})[key] = None
            return
        self._leave_gate_together(crowd)
        crowds = self.of_shape[key.shape]
        del crowds[crowd.key]
        self.stirred.setdefault(key.shape, {})[key] = None
        if not crowds:
            del self.of_shape[key.shape], self._times[key.shape]
            self.stirred.pop(key.shape, None)
            self.awake.pop(key.shape, None)
            self.parked.pop(key.shape, None)

    def _leave_gate(self, key: BucketKey) -> None:
        gate = self.gated.pop(key, "")
        if gate:
            bucket = self.buckets[key]
            bucket.times.turn(NONE, self._time.now_ms)
            crowd = bucket.crowd
            crowd.apart -= 1
            self.open_lines += not crowd.gate
            self._step_out(key, gate)

    def _leave_gate_together(self, crowd: Crowd) -> None:
        if crowd.gate:
            self._step_out(crowd.key, crowd.gate)
            crowd.gate = ""
            crowd.times.turn(NONE, self._time.now_ms)
            self.open_lines += crowd.open_lines

    def _step_out(self, key: BucketKey | CrowdKey, gate: str) -> None:
        del self.behind[gate][key]
        if not self.behind[gate]:
            del self.behind[gate]

    def entries(self, key: BucketKey) -> Iterator[Entry]:
        """Walk a line in order, stale entries included."""
        bucket = self.buckets[key]
        for place in range(bucket.head, len(bucket.entries)):
            yield bucket.entries[place]
