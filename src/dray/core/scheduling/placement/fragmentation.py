"""How much idle GPU the usual work could not use: fragmentation, and what a placement would add to it.

For each typical shape, the idle share of a worker's cards counts as lost where the shape does not fit there, or asks
for no GPU; where it fits, only the cards too small for it do. Weights are whole numbers, so that "no change" is exactly
none: the score is rounded down, and a difference of one part in a million million would move it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.lifecycle.state.state import State
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.scheduling.capacity.memory import Floats, Mask, memory_of
from dray.core.scheduling.capacity.remaining import matches_offer
from dray.core.scheduling.placement.kept_columns import Book, Books
from dray.core.scheduling.placement.scorers import Sight, Wish

CHUNK = 2_048
_NONE = -(1 << 60)


class Place(NamedTuple):
    """Workers of which an ask would have taken its cores: what they are left with, and their cards as they stand."""

    cpu: Numbers
    devices: Numbers
    offers: Numbers


class Fragments:
    """Fragmentation measured against the typical shapes of a site. Kept from pass to pass: see `fragments_of`."""

    def __init__(self, state: State) -> None:
        experience = state.experience
        self._columns = state.columns
        self._typical = experience.typical()
        self.version = experience.typical_version
        self._whole = sum(count for _, count in self._typical)
        self.covered = max(1, self._whole)
        self._books = Books(state.columns)
        self._now = Book()
        self._group()

    def _group(self) -> None:
        """Sort the shapes into kinds, again when new classes of worker have come.

        Shapes that differ in cores alone are one kind: how much of its weight has cores enough is looked up.
        """
        columns = self._columns
        self._offers = len(columns.offers)
        kinds: dict[tuple[int, int, tuple[bool, ...]], dict[int, int]] = {}
        for alternatives, count in self._typical:
            ask = alternatives[0]
            if not ask.gpus:
                continue
            matches = tuple(
                any(matches_offer(one, columns, offer) for one in alternatives)
                for offer in range(self._offers)
            )
            by_cpu = kinds.setdefault((ask.gpu_milli, ask.gpus, matches), {})
            by_cpu[ask.cpu_milli] = by_cpu.get(ask.cpu_milli, 0) + count
        shares = sorted({share for share, _, _ in kinds})
        self._shares = np.array(shares or [WHOLE], dtype=np.int64)
        self._share_of = np.array([shares.index(share) for share, _, _ in kinds], dtype=np.intp)
        self._gpus = np.array([gpus for _, gpus, _ in kinds], dtype=np.int64)
        self._steps = np.array(sorted({cpu for by_cpu in kinds.values() for cpu in by_cpu}), dtype=np.int64)
        weights = np.zeros((len(self._steps) + 1, len(kinds)), dtype=np.int64)
        for kind, by_cpu in enumerate(kinds.values()):
            for cpu, count in by_cpu.items():
                weights[int(np.searchsorted(self._steps, cpu)) + 1 :, kind] += count
        # By class of worker, cores that are enough, and kind.
        classes = np.array([matches for _, _, matches in kinds], dtype=np.int64).reshape(
            len(kinds), self._offers
        )
        self._weights = weights[None, :, :] * classes.T[:, None, :]

    def measure(self, cpu: Numbers, devices: Numbers, offers: Numbers) -> Numbers:
        """Fragmentation of each of these workers, times `covered`."""
        if len(self._columns.offers) > self._offers:
            self._group()
        total: Numbers = devices.sum(axis=1)
        if not len(self._gpus) or not len(cpu):
            return total * self._whole
        large = devices[:, None, :] >= self._shares[None, :, None]
        enough = large.sum(axis=2)
        kept = np.where(large, devices[:, None, :], 0).sum(axis=2)
        # Where a shape fits only the cards too small for it are lost: all but what is kept for it.
        weights = self._weights[offers, np.searchsorted(self._steps, cpu, side="right")]
        weights *= enough[:, self._share_of] >= self._gpus
        measured: Numbers = total * self._whole - (weights * kept[:, self._share_of]).sum(axis=1)
        return measured

    def options(self, sight: Sight, ask: Ask) -> Numbers:
        """What each way to place an ask would win (fragmentation before less after, times `covered`).

        One column per card for a shared ask, else a single one. Ways that do not exist win less than any that does.
        """
        count = len(sight)
        parts = [
            self._options(sight, ask, slice(first, first + CHUNK)) for first in range(0, max(count, 1), CHUNK)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _options(self, sight: Sight, ask: Ask, part: slice) -> Numbers:
        cpu, devices, vram = sight.free_cpu[part], sight.devices[part], sight.vram[part]
        usable = (devices >= ask.gpu_milli) & (vram >= ask.vram_each_bytes)
        if ask.gpus and ask.gpu_milli < WHOLE:
            usable &= vram >= ask.vram_total_bytes
        # What does not fit need not be measured: most of a full cluster does not.
        rows = np.flatnonzero((cpu >= ask.cpu_milli) & (usable.sum(axis=1) >= ask.gpus))
        wide = devices.shape[1] if ask.gpus and ask.gpu_milli < WHOLE else 1
        gains = np.full((len(cpu), wide), _NONE, dtype=np.int64)
        if not len(rows):
            return gains
        place = Place(cpu[rows] - ask.cpu_milli, devices[rows], sight.column("offer")[part][rows])
        before = self._before(sight, part, rows)
        if wide > 1 or (ask.gpus and ask.gpu_milli < WHOLE):
            gains[rows] = self._shared(ask, usable[rows], before, place)
            return gains
        left = place.devices
        if ask.gpus:
            idle = usable[rows]
            left = np.where(idle & (np.cumsum(idle, axis=1) <= ask.gpus), 0, left)
        gains[rows, 0] = before - self.measure(place.cpu, left, place.offers)
        return gains

    def _before(self, sight: Sight, part: slice, rows: Numbers) -> Numbers:
        """What the workers lose as they stand; of all of them that is kept, whatever is asked for."""
        if not sight.claims:
            kept = self._kept_now(Sight(sight.rooms))
            return kept[part][rows] if sight.rows is None else kept[sight.rows[part][rows]]
        cpu, devices = sight.free_cpu[part][rows], sight.devices[part][rows]
        return self.measure(cpu, devices, sight.column("offer")[part][rows])

    def _kept_now(self, sight: Sight) -> Numbers:
        def look(seen: Sight) -> Numbers:
            return self.measure(seen.free_cpu, seen.devices, seen.column("offer"))

        return self._books.follow(self._now, sight, look)

    def _shared(self, ask: Ask, usable: Mask, before: Numbers, place: Place) -> Numbers:
        gains = np.full(place.devices.shape, _NONE, dtype=np.int64)
        for card in range(place.devices.shape[1]):
            again = (place.devices[:, :card] == place.devices[:, card : card + 1]) & usable[:, :card]
            # A card that stands as an earlier one does wins as much: the earlier one is taken.
            rows = np.flatnonzero(usable[:, card] & ~again.any(axis=1))
            if len(rows):
                after = place.devices[rows]
                after[:, card] -= ask.gpu_milli
                gains[rows, card] = before[rows] - self.measure(place.cpu[rows], after, place.offers[rows])
        return gains

    def gains(self, sight: Sight, ask: Ask) -> Numbers:
        """The best that placing an ask on each of these workers would win."""
        best: Numbers = self.options(sight, ask).max(axis=1, initial=_NONE)
        return best

    def kept_gains(self, sight: Sight, ask: Ask) -> Numbers:
        """The same for all workers before the pass's claims; only workers that changed are measured again."""
        return self._books.follow(self._books.of(ask), sight, lambda seen: self.gains(seen, ask))

    def share(self, gains: Numbers) -> Floats:
        """A gain as a score from 0 to 1: one half where nothing changes."""
        scaled = np.clip(gains / self.covered / 1000.0, -500.0, 500.0)
        shares: Floats = 1.0 / (1.0 + np.exp(-scaled))
        return np.where(gains == _NONE, 0.0, shares)

    def marks(self, gains: Numbers) -> Numbers:
        """The same as whole marks from 0 to 100, rounded down: many ways are equally good, and ties pack."""
        return np.floor(100.0 * self.share(gains)).astype(np.int64)

    def scores(self, sight: Sight, ask: Ask) -> Numbers:
        """The marks of an ask on the workers in sight."""
        return self.marks(self.kept_gains(sight, ask) if sight.rows is None else self.gains(sight, ask))

    def best_card(self, sight: Sight, ask: Ask) -> int:
        """Which card a shared ask should get on the one worker in sight; the first of equals."""
        return int(np.argmax(self.marks(self.options(sight, ask)[0])))


def fragments_of(state: State) -> Fragments:
    """The measure in force; made anew when what is usually asked for has changed."""
    state.experience.typical()
    measures = memory_of(state).measures
    kept = measures.get(Fragments)
    if isinstance(kept, Fragments) and kept.version == state.experience.typical_version:
        return kept
    made = measures[Fragments] = Fragments(state)
    return made


def fragmentation(sight: Sight, wish: Wish) -> Floats | None:
    """Placements that leave idle GPUs usable for the usual work are better than those that do not."""
    fragments = fragments_of(wish.state)
    if sight.rows is None:
        return fragments.share(fragments.kept_gains(sight, wish.ask))
    return fragments.share(fragments.gains(sight, wish.ask))
