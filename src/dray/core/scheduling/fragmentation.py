"""How much idle GPU the usual work could not use: fragmentation, and what a placement would add to it.

For each typical shape, the idle share of a worker's cards counts as lost where the shape does not fit there, or asks
for no GPU; where it fits, only the cards too small for it do. Weights are whole numbers, so that "no change" is exactly
none: the score is rounded down, and a difference of one part in a million million would move it.
"""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.columns import Numbers
from dray.core.lifecycle.state import State
from dray.core.model.resources import WHOLE, Ask
from dray.core.scheduling.rooms import Mask, matches_offer
from dray.core.scheduling.scorers import Floats, Sight, Wish

CHUNK = 2_048
MOST_BOOKS = 512
_NONE = -(1 << 60)


class Book:
    """The gains of one ask on every worker, and how far the list of changed workers was read."""

    def __init__(self) -> None:
        self.gains: Numbers = np.zeros(0, dtype=np.int64)
        self.read = -1


class Fragments:
    """Fragmentation measured against the typical shapes of a site. Kept from pass to pass: see `fragments_of`."""

    def __init__(self, state: State) -> None:
        experience = state.experience
        self._state = state
        self._typical = experience.typical()
        self.version = experience.typical_version
        asks = [alternatives[0] for alternatives, _ in self._typical]
        counts = [count for _, count in self._typical]
        self.covered = max(1, sum(counts))
        self._weights = np.array(counts, dtype=np.int64)
        self._cpu = np.array([ask.cpu_milli for ask in asks], dtype=np.int64)
        self._gpus = np.array([ask.gpus for ask in asks], dtype=np.int64)
        shares = sorted({ask.gpu_milli for ask in asks if ask.gpus})
        self._shares = shares or [WHOLE]
        self._share_of = np.array(
            [shares.index(ask.gpu_milli) if ask.gpus else 0 for ask in asks], dtype=np.int64
        )
        self._classes: Mask = np.zeros((len(asks), 0), dtype=np.bool_)
        self._books: dict[tuple[int, ...], Book] = {}

    def measure(self, cpu: Numbers, devices: Numbers, offers: Numbers) -> Numbers:
        """Fragmentation of each of these workers, times `covered`."""
        total = devices.sum(axis=1)
        if not len(self._weights):
            return np.zeros(len(cpu), dtype=np.int64)
        enough = np.stack([(devices >= share).sum(axis=1) for share in self._shares], axis=1)
        small = np.stack(
            [np.where(devices < share, devices, 0).sum(axis=1) for share in self._shares], axis=1
        )
        fits = cpu[:, None] >= self._cpu
        fits &= enough[:, self._share_of] >= self._gpus
        fits &= self._class_table()[:, offers].T
        fits &= self._gpus > 0
        lost = np.where(fits, small[:, self._share_of], total[:, None])
        measured: Numbers = lost @ self._weights
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
        cpu, devices, offers = sight.free_cpu[part], sight.devices[part], sight.column("offer")[part]
        before = self.measure(cpu, devices, offers)
        after_cpu = cpu - ask.cpu_milli
        if not ask.gpus:
            return (before - self.measure(after_cpu, devices, offers))[:, None]
        if ask.gpu_milli < WHOLE:
            return self._shared(ask, sight.vram[part], (before, after_cpu, devices, offers))
        idle = devices == WHOLE
        if ask.vram_each_bytes:
            idle &= sight.vram[part] >= ask.vram_each_bytes
        taken = idle & (np.cumsum(idle, axis=1) <= ask.gpus)
        gain = before - self.measure(after_cpu, np.where(taken, 0, devices), offers)
        return np.where(idle.sum(axis=1) >= ask.gpus, gain, _NONE)[:, None]

    def _shared(self, ask: Ask, vram: Numbers, now: tuple[Numbers, Numbers, Numbers, Numbers]) -> Numbers:
        before, cpu, devices, offers = now
        least = max(ask.vram_each_bytes, ask.vram_total_bytes)
        usable = (devices >= ask.gpu_milli) & (vram >= least)
        gains = np.full(devices.shape, _NONE, dtype=np.int64)
        for card in range(devices.shape[1]):
            rows = np.flatnonzero(usable[:, card])
            if len(rows):
                after = devices[rows]
                after[:, card] -= ask.gpu_milli
                gains[rows, card] = before[rows] - self.measure(cpu[rows], after, offers[rows])
        return gains

    def gains(self, sight: Sight, ask: Ask) -> Numbers:
        """The best that placing an ask on each of these workers would win."""
        best: Numbers = self.options(sight, ask).max(axis=1, initial=_NONE)
        return best

    def kept_gains(self, sight: Sight, ask: Ask) -> Numbers:
        """The same for all workers before the pass's claims; only workers that changed are measured again."""
        key = (ask.cpu_milli, ask.gpus, ask.gpu_milli, ask.vram_each_bytes, ask.vram_total_bytes)
        book = self._books.get(key)
        if book is None:
            if len(self._books) >= MOST_BOOKS:
                self._books.clear()
            book = self._books[key] = Book()
        columns = self._state.columns
        now, first = columns.changes_dropped + len(columns.changes), book.read - columns.changes_dropped
        if len(book.gains) != columns.count or first < 0:
            book.gains = self.gains(sight, ask)
        elif now > book.read:
            rows = np.unique(np.array(columns.changes[first:], dtype=np.intp))
            book.gains[rows] = self.gains(Sight(sight.rooms, rows), ask)
        book.read = now
        return book.gains

    def share(self, gains: Numbers) -> Floats:
        """A gain as a score from 0 to 1: one half where nothing changes."""
        scaled = np.clip(gains / self.covered / 1000.0, -500.0, 500.0)
        shares: Floats = 1.0 / (1.0 + np.exp(-scaled))
        return np.where(gains == _NONE, 0.0, shares)

    def marks(self, gains: Numbers) -> Numbers:
        """The same as whole marks from 0 to 100, rounded down: many ways are equally good, and ties pack."""
        return np.floor(100.0 * self.share(gains)).astype(np.int64)

    def best_card(self, sight: Sight, ask: Ask) -> int:
        """Which card a shared ask should get on the one worker in sight; the first of equals."""
        return int(np.argmax(self.marks(self.options(sight, ask)[0])))

    def _class_table(self) -> Mask:
        columns = self._state.columns
        known, wanted = self._classes.shape[1], len(columns.offers)
        if known < wanted:
            new = [
                [any(matches_offer(ask, columns, offer) for ask in asks) for offer in range(known, wanted)]
                for asks, _ in self._typical
            ]
            self._classes = np.concatenate([self._classes, np.array(new, dtype=np.bool_)], axis=1)
        return self._classes


def fragments_of(state: State) -> Fragments:
    """The measure in force; made anew when what is usually asked for has changed."""
    state.experience.typical()
    kept = state.experience.fragments
    if isinstance(kept, Fragments) and kept.version == state.experience.typical_version:
        return kept
    made = state.experience.fragments = Fragments(state)
    return made


def fragmentation(sight: Sight, wish: Wish) -> Floats | None:
    """Placements that leave idle GPUs usable for the usual work are better than those that do not."""
    fragments = fragments_of(wish.state)
    if sight.rows is None:
        return fragments.share(fragments.kept_gains(sight, wish.ask))
    return fragments.share(fragments.gains(sight, wish.ask))
