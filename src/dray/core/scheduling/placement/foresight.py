"""Placing with foresight: a task goes where the most of the usual work could still go afterwards.

What a placement costs is the worth of the worker's room before (`packing_worth`) less what the task takes and less the
worth after, and the charge for room that others cannot do without (`scarcity`). Costs are compared in tenths of a
card: many workers are equally good, and ties fill the first. The usual work is lined up anew only when as much again
has been placed: everything that is kept here hangs on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.lifecycle.state.state import State
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.scheduling.capacity.memory import Floats, memory_of
from dray.core.scheduling.capacity.remaining import matches_offer
from dray.core.scheduling.placement.kept_columns import Book, Books
from dray.core.scheduling.placement.packing_worth import LINES, Fillings, Usual
from dray.core.scheduling.placement.scarcity import Charges, find_needs
from dray.core.scheduling.placement.scorers import Sight

TENTH = WHOLE // 10
MOST_UNSEEN = 20_000
CHARGED_EVERY = 100
_NONE = -(1 << 40)
_SHIFT = 1 << 30


class Ways(NamedTuple):
    """Ways to place a shared ask: on which worker, on which card, what that wins, whether an idle card is opened."""

    rows: Numbers
    cards: Numbers
    gains: Numbers
    opens: Numbers


class Foresight:
    """The worth of rooms to the usual work of a site. Kept from pass to pass: see `foresight_of`."""

    def __init__(self, state: State) -> None:
        self._columns = state.columns
        self._typical = state.experience.typical()
        self.version = state.experience.typical_version
        self.placed, self.pinned = state.experience.placed_ever, state.experience.pinned
        self.prepare()

    def prepare(self) -> None:
        """Line up the usual work; again when new classes of worker have come."""
        columns = self._columns
        self.offers = len(columns.offers)
        usual: dict[tuple[int, int, int, tuple[bool, ...]], int] = {}
        for alternatives, count in self._typical:
            ask = alternatives[0]
            if ask.gpus:
                matches = tuple(
                    any(matches_offer(one, columns, offer) for one in alternatives)
                    for offer in range(self.offers)
                )
                key = (ask.cpu_milli, ask.gpus, ask.gpu_milli, matches)
                usual[key] = usual.get(key, 0) + count
        lined = [Usual(*key[:3], count, key[3]) for key, count in usual.items()]
        self._fillings = Fillings(lined)
        self._needs = find_needs(lined)
        self._books, self._now = Books(columns), Book()
        self._charges, self._charged_at = Charges((), columns), -1

    def scores(self, sight: Sight, ask: Ask) -> Numbers:
        """How good each worker in sight is for an ask: what its room is worth less for it, in tenths of a card."""
        if sight.rows is None:
            gains = self._books.follow(self._books.of(ask), sight, lambda seen: self._gains(seen, ask))
        else:
            gains = self._gains(sight, ask)
        nets = self._net(sight, ask, gains).max(axis=1, initial=_NONE)
        scores: Numbers = np.floor(nets / TENTH + 0.5).astype(np.int64) + _SHIFT
        return np.maximum(scores, 0)

    def best_card(self, sight: Sight, ask: Ask) -> int:
        """Which card a shared ask should get on the one worker in sight; the first of equals."""
        devices, before = sight.devices, self._worth(sight)
        ways = self._ways(sight, ask, np.zeros(1, dtype=np.intp), devices, before)
        if not len(ways.rows):
            return int(np.argmax(devices[0] >= ask.gpu_milli))
        table = np.full((len(ways.rows), 2), _NONE, dtype=np.int64)
        table[np.arange(len(ways.rows)), ways.opens] = ways.gains
        nets = self._net(sight, ask, table).max(axis=1)
        return int(ways.cards[int(np.argmax(nets))])

    def _net(self, sight: Sight, ask: Ask, gains: Numbers) -> Floats:
        """Gains in thousandths of a card, charges taken off: first without opening an idle card, then with."""
        nets: Floats = gains / LINES
        charges = self._charge_now()
        if charges.any and ask.gpus:
            offers, taken = sight.column("offer"), ask.gpus * ask.gpu_milli
            wholes = (sight.devices == WHOLE).sum(axis=1)
            nets[:, 0] -= charges.of(offers, wholes, taken, 0)
            nets[:, 1] -= charges.of(offers, wholes, taken, ask.gpus)
        return nets

    def _charge_now(self) -> Charges:
        columns = self._columns
        now = columns.changes_read
        fresh = self._charged_at >= 0 and now - self._charged_at < CHARGED_EVERY
        if not fresh or self._charges.cards != columns.device_free.shape[1]:
            self._charges, self._charged_at = Charges(self._needs, columns), now
        return self._charges

    def _gains(self, sight: Sight, ask: Ask) -> Numbers:
        """What placing an ask wins on each worker, times `LINES`: without opening an idle card, and with."""
        gains = np.full((len(sight), 2), _NONE, dtype=np.int64)
        cpu, devices, vram = sight.free_cpu, sight.devices, sight.vram
        usable = (devices >= ask.gpu_milli) & (vram >= ask.vram_each_bytes)
        # What does not fit need not be tried: most of a full cluster does not.
        rows = np.flatnonzero((cpu >= ask.cpu_milli) & (usable.sum(axis=1) >= ask.gpus))
        if not len(rows):
            return gains
        before = self._before(sight)
        if ask.gpus and ask.gpu_milli < WHOLE:
            ways = self._ways(sight, ask, rows, devices, before)
            np.maximum.at(gains, (ways.rows, ways.opens), ways.gains)
            return gains
        left = devices[rows]
        if ask.gpus:
            idle = usable[rows]
            left = np.where(idle & (np.cumsum(idle, axis=1) <= ask.gpus), 0, left)
        after = self._fillings.values(cpu[rows] - ask.cpu_milli, left, sight.column("offer")[rows])
        gains[rows, 1 if ask.gpus else 0] = ask.gpus * WHOLE * LINES + after - before[rows]
        return gains

    def _ways(self, sight: Sight, ask: Ask, rows: Numbers, devices: Numbers, before: Numbers) -> Ways:
        cards = devices[rows]
        usable = (cards >= ask.gpu_milli) & (
            sight.vram[rows] >= max(ask.vram_each_bytes, ask.vram_total_bytes)
        )
        for card in range(cards.shape[1] - 1, 0, -1):
            again = (cards[:, :card] == cards[:, card : card + 1]) & usable[:, :card]
            # A card that stands as an earlier one does wins as much: the earlier one is taken.
            usable[:, card] &= ~again.any(axis=1)
        places, chosen = np.nonzero(usable)
        found = rows[places]
        left = cards[places]
        opens = (left[np.arange(len(places)), chosen] == WHOLE).astype(np.intp)
        left[np.arange(len(places)), chosen] -= ask.gpu_milli
        after = self._fillings.values(
            sight.free_cpu[found] - ask.cpu_milli, left, sight.column("offer")[found]
        )
        return Ways(found, chosen, ask.gpu_milli * LINES + after - before[found], opens)

    def _before(self, sight: Sight) -> Numbers:
        """What the workers in sight are worth as they stand; of all of them that is kept, whatever is asked for."""
        if sight.claims:
            return self._worth(sight)
        kept = self._books.follow(self._now, Sight(sight.rooms), self._worth)
        return kept if sight.rows is None else kept[sight.rows]

    def _worth(self, sight: Sight) -> Numbers:
        return self._fillings.values(sight.free_cpu, sight.devices, sight.column("offer"))


def foresight_of(state: State) -> Foresight:
    """The foresight in force; made anew when as much again has been placed since, and taught something new."""
    experience = state.experience
    experience.typical()
    measures = memory_of(state).measures
    kept = measures.get(Foresight)
    if isinstance(kept, Foresight) and kept.pinned == experience.pinned:
        unseen = experience.placed_ever - kept.placed
        if kept.version == experience.typical_version or unseen < min(kept.placed, MOST_UNSEEN):
            if len(state.columns.offers) > kept.offers:
                kept.prepare()
            return kept
    made = measures[Foresight] = Foresight(state)
    return made
