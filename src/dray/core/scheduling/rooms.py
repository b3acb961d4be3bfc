"""Workers seen through a pass: columns plus an overlay of what the pass has claimed so far. Never a copy.

A dry run is the same with the overlay thrown away.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dray.core.lifecycle.state import State
from dray.core.model.resources import Ask
from dray.core.scheduling.filters import CLASS_FILTERS, Room, fits

Rows = np.ndarray[Any, np.dtype[np.intp]]


class Claim:
    """What a pass has taken on one worker."""

    __slots__ = ("cards", "cpu", "credit", "memory", "slots")

    def __init__(self, cards: dict[int, int]) -> None:
        self.cpu = self.memory = self.credit = 0
        self.slots = {"batch": 0, "service": 0}
        self.cards = dict(cards)


class Rooms:
    """The offer side of one pass."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._columns = state.columns
        self.claims: dict[int, Claim] = {}
        self._classes: dict[int, np.ndarray[Any, np.dtype[np.bool_]]] = {}

    def room(self, row: int, pool: str) -> Room:
        """One worker as it stands after the claims."""
        columns, get = self._columns, self._columns.get
        worker_id = columns.worker_of[row]
        claim = self.claims.get(row)
        live = get(f"{pool}_live", row) + (claim.slots[pool] if claim else 0)
        total = get(f"{pool}_total", row)
        presence = self._state.presence[worker_id]
        worker = self._state.workers[worker_id]
        return Room(
            worker=worker_id,
            offer=columns.offers[get("offer", row)],
            cards=columns.cards[row],
            card_used=claim.cards if claim else columns.card_used[row],
            total_cpu=get("total_cpu", row),
            free_cpu=get("total_cpu", row) - get("used_cpu", row) - (claim.cpu if claim else 0),
            total_mem=get("total_mem", row),
            free_mem=get("total_mem", row) - get("used_mem", row) - (claim.memory if claim else 0),
            slots_total=total,
            slots_free=total - max(get(f"{pool}_in_use", row), live),
            credit=get("credit", row) - (claim.credit if claim else 0),
            present=bool(presence.session) and not worker.silent,
            suspect=presence.suspect,
            draining=worker.draining,
        )

    def is_spent(self, row: int, pool: str) -> bool:
        """Whether this pass has used a worker up already: cheaper than asking every rule."""
        claim = self.claims.get(row)
        if claim is None:
            return False
        get = self._columns.get
        live = get(f"{pool}_live", row) + claim.slots[pool]
        return get("credit", row) <= claim.credit or get(f"{pool}_total", row) <= live

    def claim(self, row: int, ask: Ask, devices: tuple[int, ...]) -> None:
        """Take what one task needs for the rest of this pass."""
        claim = self.claims.get(row)
        if claim is None:
            claim = self.claims[row] = Claim(self._columns.card_used[row])
        claim.cpu += ask.cpu_milli
        claim.memory += ask.memory_bytes
        claim.credit += 1
        claim.slots[ask.pool] += 1
        for index in devices:
            claim.cards[index] = claim.cards.get(index, 0) + ask.gpu_milli

    def candidates(self, shape: int, ask: Ask) -> Rows:
        """Rows that may fit, by the columns alone (claims are looked at later), cheapest scan first."""
        view, count = self._columns.view, self._columns.count
        mask = (
            (view["open"][:count] > 0)
            & (view["credit"][:count] > 0)
            & self.class_mask(shape, ask)[view["offer"][:count]]
        )
        taken = np.maximum(view[f"{ask.pool}_in_use"][:count], view[f"{ask.pool}_live"][:count])
        mask &= view[f"{ask.pool}_total"][:count] > taken
        if ask.cpu_milli:
            mask &= view["total_cpu"][:count] - view["used_cpu"][:count] >= ask.cpu_milli
        if ask.memory_bytes:
            mask &= view["total_mem"][:count] - view["used_mem"][:count] >= ask.memory_bytes
        if ask.gpus:
            need = ask.gpus if ask.gpu_milli == 1000 else 0
            mask &= (view["free_gpu"][:count] >= need) & (view["total_gpu"][:count] > 0)
        return np.flatnonzero(mask)

    def class_mask(self, shape: int, ask: Ask) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which classes of worker match a shape at all; found once per pass and shape."""
        mask = self._classes.get(shape)
        if mask is None or len(mask) < len(self._columns.offers):
            verdicts = [self._matches(ask, index) for index in range(len(self._columns.offers))]
            mask = self._classes[shape] = np.array(verdicts, dtype=np.bool_)
        return mask

    def _matches(self, ask: Ask, offer: int) -> bool:
        cards = ()
        room = Room("", self._columns.offers[offer], cards, {}, 0, 0, 0, 0, 0, 0, 0, True, False, False)
        return fits(ask, room, CLASS_FILTERS)
