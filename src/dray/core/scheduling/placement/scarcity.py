"""What room costs that only some of the work can use, or that some of the work cannot do without.

A kind of room (one class of card, so many idle cards on one worker) that the usual work needs in a larger share than it
is there is scarce: taking it for work that could have gone elsewhere is charged, the more the closer the need comes to
all of it. Owns the charges alone; what else a placement does is `packing_worth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.state.columns import Columns, Numbers
from dray.core.model.specs.resources import WHOLE
from dray.core.scheduling.capacity.memory import Floats
from dray.core.scheduling.placement.packing_worth import Usual

# How suddenly the charge rises: half as much need as there is room costs a sixteenth.
STEEPNESS = 4
MOST_NEEDS = 64


class Need(NamedTuple):
    """Work that can use one kind of room only: its share of all that is asked for."""

    matches: tuple[bool, ...]
    gpus: int
    share: float


def find_needs(usual: Sequence[Usual]) -> list[Need]:
    """The kinds of room that not all work can use, and how much of the work needs them."""
    if not usual:
        return []
    anywhere = tuple(map(any, zip(*(one.matches for one in usual), strict=True)))
    asked = sum(one.weight * one.gpus * one.share for one in usual)
    kinds = dict.fromkeys((one.matches, one.gpus) for one in usual if one.gpus > 1 or one.matches != anywhere)
    needs = []
    for matches, gpus in list(kinds)[:MOST_NEEDS]:
        bound = sum(
            one.weight * one.gpus * one.share
            for one in usual
            if one.gpus >= gpus
            and all(wide or not mine for mine, wide in zip(one.matches, matches, strict=True))
        )
        needs.append(Need(matches, gpus, bound / asked))
    return needs


class Charges:
    """Charges as they stand, from 0 to 1 of what is taken: by class of worker, and by its wholly idle cards."""

    def __init__(self, needs: Sequence[Need], columns: Columns) -> None:
        offers, most = len(columns.offers), columns.device_free.shape[1]
        self.cards = most
        self._each: Floats = np.zeros(offers, dtype=np.float64)
        self._whole: Floats = np.zeros((offers, most + 1), dtype=np.float64)
        self.any = bool(needs)
        if not needs:
            return
        devices = columns.device_free[: columns.count]
        offer = columns.view["offer"][: columns.count]
        idle = np.bincount(offer, weights=devices.sum(axis=1), minlength=offers)
        wholes = (devices == WHOLE).sum(axis=1)
        shelves = np.bincount(offer * (most + 1) + wholes, minlength=offers * (most + 1))
        stock = shelves.reshape(offers, most + 1) * np.arange(most + 1) * WHOLE
        total = idle.sum() + 1
        for need in needs:
            here = np.array(need.matches, dtype=np.bool_)
            room = idle[here].sum() if need.gpus == 1 else stock[here, need.gpus :].sum()
            charge = min(1.0, (need.share * total / (room + 1)) ** STEEPNESS)
            if need.gpus == 1:
                self._each[here] += charge
            else:
                steps = np.arange(most + 1) * WHOLE * charge
                steps[: need.gpus] = 0
                self._whole[here] += steps

    def of(self, offers: Numbers, wholes: Numbers, taken: int, opened: int) -> Floats:
        """What taking so much from workers costs of which so many cards are wholly idle and some are broken into."""
        charge: Floats = self._each[offers] * taken
        if opened:
            charge += self._whole[offers, wholes] - self._whole[offers, np.maximum(wholes - opened, 0)]
        return charge
