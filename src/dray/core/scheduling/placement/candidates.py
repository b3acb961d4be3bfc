"""One shape's way through its candidates in a pass.

Keys hold score, alternative and worker rank in one integer per candidate, so that the best is a maximum. What other
shapes claimed meanwhile is read from the list that rooms keep: only those workers are looked at again. Within a pass
room only shrinks, so a candidate that no longer fits is struck out for good; one that a guard refused is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import IN_ORDER
from dray.core.scheduling.capacity.remaining import Devices
from dray.core.scheduling.placement.scorers import Sight, Wish

if TYPE_CHECKING:
    from dray.core.scheduling.placement.placer import Placer

RANK_BITS = 24
# What a score stays below, with 16 alternatives above it and the rank below it in 63 bits.
SCORE_BITS = 35
LAST_RANK = (1 << RANK_BITS) - 1


class Spot(NamedTuple):
    """Where one task goes: a worker's row, the alternative by which it runs, its cards."""

    row: int
    variant: int
    devices: Devices


class Candidate(NamedTuple):
    """A worker that fits, with its score in the strategy's own integers."""

    row: int
    variant: int
    score: int
    devices: Devices


def score_all(
    placer: Placer, wish: Wish, variant: int = 0, alternatives: int = 1, ordered: bool = False
) -> Numbers:
    """The keys of an ask over all workers as the pass found them; -1 where it cannot fit."""
    mask = placer.rooms.mask(wish.ask)
    if not mask.any():
        return np.full(len(mask), -1, dtype=np.int64)
    keys = make_keys(placer, placer.sight, wish, variant, alternatives, ordered)
    if not mask.all():
        keys[~mask] = -1
    return keys


def make_keys(
    placer: Placer, sight: Sight, wish: Wish, variant: int, alternatives: int, ordered: bool = False
) -> Numbers:
    """Score, alternative and worker rank in one integer per worker; `ordered`: the alternative counts first."""
    keys = placer.score(sight, wish)
    if ordered:
        keys = keys + ((alternatives - 1 - variant) << SCORE_BITS)
    elif alternatives > 1:
        keys = keys * alternatives + (alternatives - 1 - variant)
    keys = keys << RANK_BITS
    ranks = placer.inverse_rank()
    keys += ranks if sight.rows is None else ranks[sight.rows]
    return keys


class Walk:
    """Candidates are numbered alternative by alternative; within one by row, or by place in the hint."""

    def __init__(self, placer: Placer, shape: int, job: Job | None, hint: Sequence[int] | None) -> None:
        self._placer, self._rooms = placer, placer.rooms
        self._asks = placer.state.asks(shape)
        self._in_order = len(self._asks) > 1 and any(IN_ORDER in ask.prefer for ask in self._asks)
        self._job = job
        self._rows = None if hint is None else np.array(hint, dtype=np.intp)
        self._span = placer.state.columns.count if hint is None else len(hint)
        self._place_of = None if hint is None else {row: place for place, row in enumerate(hint)}
        self._sticky = placer.sticky
        self._current = -1
        self._refused: dict[int, str] = {}
        self._read = 0
        self._keys: Numbers = np.zeros(0, dtype=np.int64)
        self._last: Numbers | None = None
        self.rebuild()

    def rebuild(self) -> None:
        """Score all candidates as the pass found them; claims follow when the list of them is read."""
        parts = [self._score_all(variant) for variant in range(len(self._asks))]
        self._keys = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._read = 0
        self._refused.clear()
        self._set_aside()

    def _set_aside(self) -> None:
        """Keep those that come last out of sight until nobody else is left."""
        shunned = self._placer.shunned
        if shunned is None:
            return
        if self._rows is not None:
            shunned = shunned[self._rows]
        aside = np.tile(shunned, len(self._asks)) & (self._keys >= 0)
        self._last = np.where(aside, self._keys, -1)
        self._keys[aside] = -1

    def _bring_back(self) -> bool:
        """Let those that come last take part; False where there are none."""
        last, self._last = self._last, None
        if last is None or last.max(initial=-1) < 0:
            return False
        self._keys = np.maximum(self._keys, last)
        self._read = 0
        self._catch_up()
        return True

    def take(self, most: int, owner: str) -> list[Spot]:
        """Claim room for some tasks on the best worker: at least one, unless there is no room for any."""
        if self._refused:
            self._reconsider(owner)
        entry = self._current if self._sticky else -1
        while True:
            if entry < 0:
                entry = self._best()
                if entry < 0:
                    self._current = -1
                    return []
            row, variant = self._spot_of(entry)
            found = self._claim(row, variant, most, owner)
            if found:
                self._current = entry
                return found
            self._strike(entry, row, variant, owner)
            entry = -1

    def take_beside(self, row: int, most: int, owner: str) -> list[Spot]:
        """The same, and on this worker only where no other has room."""
        self._catch_up()
        place = row if self._place_of is None else self._place_of.get(row, -1)
        if place < 0:
            return self.take(most, owner)
        entries = [variant * self._span + place for variant in range(len(self._asks))]
        kept = self._keys[entries]
        self._keys[entries] = -1
        if self._current in entries:
            self._current = -1
        found = self.take(most, owner)
        self._keys[entries] = kept
        return found or self.take(most, owner)

    def muster(self, owner: str, avoided: set[int]) -> list[Spot] | None:
        """Find distinct workers for a whole gang, one member each; None where there are not enough."""
        found = self._muster(owner, avoided)
        return self._muster(owner, avoided) if found is None and self._bring_back() else found

    def _muster(self, owner: str, avoided: set[int]) -> list[Spot] | None:
        self._catch_up()
        columns, nodes = self._placer.state.columns, self._asks[0].nodes
        backends = np.array([offer.backend for offer in columns.offers] or [""])
        best: tuple[int, int, list[Spot]] | None = None
        for variant, ask in enumerate(self._asks):
            entries = self._ordered(variant)
            kinds = backends[columns.view["offer"][self._rows_of(entries)]]
            groups = [""] if ask.mixed_backends else sorted(set(kinds.tolist()))
            for group in groups:
                chosen = entries if ask.mixed_backends else entries[kinds == group]
                if len(chosen) < nodes:
                    continue
                found = self._members(chosen.tolist(), nodes, owner, avoided)
                if found is not None and (best is None or found[:2] > best[:2]):
                    best = found
        return None if best is None else best[2]

    def ranking(self, owner: str, most: int | None = None) -> list[Candidate]:
        """All candidates that fit now, or so many of them, best first."""
        found = self._ranked(owner, most)
        if (most is None or len(found) < most) and self._bring_back():
            known = {(one.row, one.variant) for one in found}
            found += [one for one in self._ranked(owner, None) if (one.row, one.variant) not in known]
        return found[:most]

    def _ranked(self, owner: str, most: int | None) -> list[Candidate]:
        self._catch_up()
        order = np.argsort(self._keys, kind="stable")[::-1]
        found, alternatives = [], len(self._asks)
        for entry in order.tolist():
            key = int(self._keys[entry])
            if key < 0:
                break
            row, variant = self._spot_of(entry)
            devices = self._placer.fit(row, self._asks[variant], owner)
            if devices is not None:
                score = key >> RANK_BITS
                score = score & ((1 << SCORE_BITS) - 1) if self._in_order else score // alternatives
                found.append(Candidate(row, variant, score, devices))
                if len(found) == most:
                    break
        return found

    # --- scores -------------------------------------------------------------------------------------------------------

    def _score_all(self, variant: int) -> Numbers:
        ask, placer = self._asks[variant], self._placer
        wish = Wish(placer.state, ask, self._job)
        if self._rows is not None:
            good = self._rooms.class_mask(ask)[placer.state.columns.view["offer"][self._rows]]
            if len(self._rows) == 1:
                return np.where(good, 1, -1)  # nothing to compare it with
            return np.where(good, self._keys_of(Sight(self._rooms, self._rows), wish, variant), -1)
        return score_all(placer, wish, variant, len(self._asks), self._in_order)

    def _keys_of(self, sight: Sight, wish: Wish, variant: int) -> Numbers:
        return make_keys(self._placer, sight, wish, variant, len(self._asks), self._in_order)

    def _catch_up(self) -> None:
        """Read what was claimed since: strike out what no longer fits, score the rest again where that may matter."""
        claimed = self._rooms.claimed
        if self._read == len(claimed):
            return
        fresh, self._read = dict.fromkeys(claimed[self._read :]), len(claimed)
        keys, lefts, place_of = self._keys, self._rooms.lefts, self._place_of
        rows = list(fresh) if place_of is None else [row for row in fresh if row in place_of]
        for variant, ask in enumerate(self._asks):
            base, still = variant * self._span, []
            for row in rows:
                place = base + (row if place_of is None else place_of[row])
                if not lefts[row].holds(ask):
                    keys[place] = -1
                elif not self._sticky and keys[place] >= 0:
                    still.append(row)
            if still:
                self._score_again(still, variant)

    def _score_again(self, rows: list[int], variant: int) -> None:
        some = np.array(rows, dtype=np.intp)
        wish = Wish(self._placer.state, self._asks[variant], self._job)
        keys = self._keys_of(Sight(self._rooms, some, claims=True), wish, variant)
        places = (
            some if self._place_of is None else np.array([self._place_of[row] for row in rows], dtype=np.intp)
        )
        self._keys[variant * self._span + places] = keys

    # --- choosing -----------------------------------------------------------------------------------------------------

    def _best(self) -> int:
        self._catch_up()
        if not len(self._keys):
            return -1
        entry = int(self._keys.argmax())
        if self._keys[entry] < 0 and self._last is not None and self._bring_back():
            entry = int(self._keys.argmax())
        return entry if self._keys[entry] >= 0 else -1

    def _claim(self, row: int, variant: int, most: int, owner: str) -> list[Spot]:
        ask, rooms = self._asks[variant], self._rooms
        if not (ask.gpus or ask.resources) and self._sticky and row not in rooms.guards:
            times = rooms.left(row).times(ask, most)
            if times <= 0:
                return []
            spot = Spot(row, variant, ())
            self._placer.claim(spot, ask, owner, times)
            return [spot] * times
        devices = self._placer.fit(row, ask, owner)
        if devices is None:
            return []
        spot = Spot(row, variant, devices)
        self._placer.claim(spot, ask, owner)
        return [spot]

    def _strike(self, entry: int, row: int, variant: int, owner: str) -> None:
        if row in self._rooms.guards and self._rooms.left(row).holds(self._asks[variant]):
            self._refused[entry] = owner
        self._keys[entry] = -1

    def _reconsider(self, owner: str) -> None:
        """Give candidates that a guard kept from another job a second look."""
        again = [entry for entry, other in self._refused.items() if other != owner]
        if not again:
            return
        for entry in again:
            del self._refused[entry]
        self._current = -1
        for variant in range(len(self._asks)):
            rows = [row for row, which in map(self._spot_of, again) if which == variant]
            if rows:
                self._score_again(rows, variant)

    def _members(
        self, entries: list[int], nodes: int, owner: str, avoided: set[int]
    ) -> tuple[int, int, list[Spot]] | None:
        """The best members by key, avoided workers last: how many of those (fewer is more), the sum of keys, who."""
        spots: list[Spot] = []
        total = strained = 0
        for shunned in (False, True):
            some = [entry for entry in entries if (self._spot_of(entry)[0] in avoided) is shunned]
            for entry, spot in self._gather(some, nodes - len(spots), owner):
                spots.append(spot)
                total += int(self._keys[entry]) >> RANK_BITS
                strained += shunned
        for spot in spots:
            self._placer.gather(spot.row, -1)
        return (-strained, total, spots) if len(spots) == nodes else None

    def _gather(self, entries: list[int], most: int, owner: str) -> list[tuple[int, Spot]]:
        """So many members at most, each looked for beside those before it."""
        found: list[tuple[int, Spot]] = []
        again = True
        while again and len(found) < most:
            again, rest = False, list[int]()
            for place, entry in enumerate(entries):
                if len(found) == most:
                    rest += entries[place:]
                    break
                row, variant = self._spot_of(entry)
                devices = self._placer.fit(row, self._asks[variant], owner)
                if devices is None:
                    rest.append(entry)
                else:
                    found.append((entry, Spot(row, variant, devices)))
                    again = self._placer.gather(row, 1) or again
            entries = rest
        return found

    def _ordered(self, variant: int) -> Numbers:
        keys = self._keys[variant * self._span : (variant + 1) * self._span]
        order = np.argsort(keys, kind="stable")[::-1]
        return order[keys[order] >= 0] + variant * self._span

    def _rows_of(self, entries: Numbers) -> Numbers:
        places = entries % self._span if self._span else entries
        return places if self._rows is None else self._rows[places]

    def _spot_of(self, entry: int) -> tuple[int, int]:
        variant, place = divmod(entry, self._span)
        return (place if self._place_of is None else int(self._rows[place])), variant  # type: ignore[index]  # hinted
