"""The commonest way to place: tasks without cards, every worker filled before the next, over very many workers.

Most of the work of a large pass is done here, so it looks at the most packed workers first and at the others only once
these can no longer hold the best: a worker further back cannot score more than `ceiling` says. The choice is the same
as that of a `Walk` over all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.model.records.records import Job
from dray.core.scheduling.capacity.memory import Mask
from dray.core.scheduling.placement.candidates import RANK_BITS, Spot
from dray.core.scheduling.placement.kept_keys import keep_keys
from dray.core.scheduling.placement.scorers import Sight, Wish, to_integers

if TYPE_CHECKING:
    from dray.core.scheduling.placement.placer import Placer

FIRST_REACH, STEP = 512, 8
OUT = -(1 << 62)
ABOVE_ALL = 1 << 62
FEWEST_WORKERS = 2 * FIRST_REACH


class Front:
    """Workers with a free slot of a pool, most packed first, then by id. Shared by all shapes of a pass."""

    def __init__(self, placer: Placer, pool: str) -> None:
        self._rooms = placer.rooms
        rows = np.flatnonzero(placer.rooms.usable(pool))
        packed, ranks = placer.sight.packed_share()[rows], placer.inverse_rank()[rows]
        order = np.argsort((to_integers(packed) << RANK_BITS) + ranks)[::-1]
        self.rows = rows[order]
        self.ranks = ranks[order]
        place_of = np.full(placer.state.columns.count, len(rows), dtype=np.int64)
        place_of[self.rows] = np.arange(len(rows))
        self.place_of: list[int] = place_of.tolist()
        # The best that is still to come behind each place.
        self.packed_behind = np.maximum.accumulate(packed[order][::-1])[::-1]
        self.rank_behind = np.maximum.accumulate(self.ranks[::-1])[::-1]
        self.steepest_cpu = float(placer.sight.inverse("total_cpu").max(initial=0))
        self.steepest_mem = float(placer.sight.inverse("total_mem").max(initial=0))
        self._sights: dict[int, Sight] = {}
        self._pool, self._read = pool, 0
        self._spent = np.zeros(len(rows), dtype=np.int64)
        self._shut, self._first = bytearray(len(rows) + 1), 0

    def spent(self, reach: int) -> Numbers:
        """What to add to keys so that workers without a free slot fall below all others: kept once for all shapes."""
        listed, lefts = self._rooms.spent, self._rooms.lefts
        if self._read < len(listed):
            for row in listed[self._read :]:
                left, place = lefts[row], self.place_of[row]
                if place < len(self._spent) and not (left.credit and left.slots(self._pool)):
                    self._spent[place], self._shut[place] = OUT, 1
            self._read = len(listed)
        return self._spent[:reach]

    def first_open(self) -> int:
        """The first place of a worker that has a free slot; the number of all where none has."""
        if self._read < len(self._rooms.spent):
            self.spent(0)
        first, shut = self._first, self._shut
        while shut[first]:
            first += 1
        self._first = first
        return first

    def sight(self, reach: int) -> Sight:
        """The first so many workers."""
        found = self._sights.get(reach)
        if found is None:
            found = self._sights[reach] = Sight(self._rooms, self.rows[:reach])
        return found


class PlainWalk:
    """A shape with one alternative and no cards on its way through the workers; guards must be asked elsewhere."""

    def __init__(self, placer: Placer, key: tuple[int, str], job: Job | None) -> None:
        self._placer, self._rooms, self._key = placer, placer.rooms, key
        (self._ask,) = placer.state.asks(key[0])
        self._wish = Wish(placer.state, self._ask, job)
        self._front = placer.front(self._ask.pool)
        self._reach = FIRST_REACH
        self._spot: Spot | None = None
        self._build()

    def take(self, most: int, owner: str = "") -> list[Spot]:
        """Claim room for some tasks on the best worker: at least one, unless there is no room for any."""
        ask, rooms, spot = self._ask, self._rooms, self._spot
        if spot is None or not rooms.lefts[spot.row].holds(ask):
            spot = self._spot = self._find()
            if spot is None:
                return []
        times = rooms.lefts[spot.row].times(ask, most) if most > 1 else 1
        rooms.claim(spot.row, ask, (), times)
        return [spot] * times

    def _find(self) -> Spot | None:
        while (place := self._best()) >= 0:
            row = place if self._front is None else self._front.rows.item(place)
            if self._rooms.left(row).holds(self._ask):
                return self._placer.plain_spot(row)
            self._strike(place)
            self._strike_full()
        return None

    def _build(self) -> None:
        self._read = self._ceiling = 0
        self._kept = self._falling = False
        front = self._front
        if front is None or self._reach >= len(front.rows):
            self._front = None
            self._keys, self._kept = keep_keys(self._placer, *self._key, self._wish), True
            return
        sight, reach = front.sight(self._reach), self._reach
        mask = self._mask(sight)
        if mask is not None and not mask.any():
            self._keys, self._ceiling = np.full(reach, -1, dtype=np.int64), ABOVE_ALL
            return
        keys = self._placer.score(sight, self._wish) << RANK_BITS
        keys += front.ranks[:reach]
        if mask is not None:
            keys[~mask] = -1
        self._keys = keys
        self._falling = bool((keys[1:] < keys[:-1]).all())
        self._ceiling = (self._placer.ceiling(front, reach, self._wish) << RANK_BITS) + int(
            front.rank_behind[reach]
        )

    def _mask(self, sight: Sight) -> Mask | None:
        """Which workers in sight have the class and the room asked for; None where all of them do."""
        ask = self._ask
        classes = self._rooms.class_mask(ask)
        same = classes.all()
        if same and ask.cpu_milli <= sight.least("cpu") and ask.memory_bytes <= sight.least("mem"):
            return None
        mask = np.ones(len(sight), dtype=np.bool_) if same else classes[sight.column("offer")]
        if ask.cpu_milli:
            mask &= sight.free_cpu >= ask.cpu_milli
        if ask.memory_bytes:
            mask &= sight.free_mem >= ask.memory_bytes
        return mask

    def _best(self) -> int:
        """The place of the best worker but for those whose slots are used up; what else is full shows when tried."""
        while True:
            keys, front = self._keys, self._front
            if front is not None:
                if self._falling:
                    # As among workers of one make: whoever comes first of those with a free slot is the best.
                    place = front.first_open()
                    if place < self._reach and keys.item(place) >= self._ceiling:
                        return place
                now = keys + front.spent(self._reach)
                place = int(now.argmax())
                if now[place] >= self._ceiling:
                    return place
                self._reach *= STEP
                self._build()
                continue
            self._strike_full()
            keys = self._keys
            if not len(keys):
                return -1
            place = int(keys.argmax())
            return place if keys[place] >= 0 else -1

    def _strike_full(self) -> None:
        """Strike out all that was claimed and has no room for this ask any more."""
        claimed, lefts = self._rooms.claimed, self._rooms.lefts
        place_of = None if self._front is None else self._front.place_of
        for row in dict.fromkeys(claimed[self._read :]):
            place = row if place_of is None else place_of[row]
            if place < len(self._keys) and not lefts[row].holds(self._ask):
                self._strike(place)
        self._read = len(claimed)

    def _strike(self, place: int) -> None:
        if self._kept:
            self._keys, self._kept = self._keys.copy(), False  # others will read them
        self._falling = False
        self._keys[place] = -1
