"""How much of the usual work a worker's room could still take: tried out, not estimated.

The usual work is lined up in several orders, and each line is let onto the worker until it has passed: whatever fits
is put there, on the card that it fills best. What was taken, over all lines, is the worth of that room. Rooms that
look alike are worth the same, and most do: worths are kept. The surprising rule: the lines are drawn by a fixed mixing
of numbers, never by chance, so that two runs decide alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.model.specs.resources import WHOLE
from dray.core.scheduling.capacity.memory import Mask

LINES, LENGTH = 16, 30
CORE = 1000
CHUNK = 1_024
MOST_KEPT = 1 << 17
_NEVER = 1 << 20
_MOST_CPU = 1 << 30
_BITS = (1 << 64) - 1
Small = np.ndarray[Any, np.dtype[np.int32]]


class Usual(NamedTuple):
    """One kind of usual work: cores, cards, the share of each, how often, and which classes of worker it may use."""

    cpu: int
    gpus: int
    share: int
    weight: int
    matches: tuple[bool, ...]


class Step(NamedTuple):
    """What comes at one place of every line. `wide` names the lines where that takes several cards, and how many."""

    cpus: Small
    shares: Small
    suits: Mask
    wide: tuple[tuple[int, int], ...]


def mix(number: int) -> int:
    """Scatter whole numbers over 64 bits."""
    number = (number + 0x9E3779B97F4A7C15) & _BITS
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _BITS
    return number ^ (number >> 31)


def line_up(usual: Sequence[Usual]) -> list[list[Usual]]:
    """Lines in which everything comes as often as it is asked for, each in an order of its own."""
    sums = list(accumulate(one.weight for one in usual))
    lines = []
    for line in range(LINES):
        places = range(line * LENGTH, (line + 1) * LENGTH)
        drawn = [
            # One draw from each of as many equal parts, somewhere within the part.
            bisect_right(sums, (((at - places[0]) << 64) + mix(2 * at)) * sums[-1] // (LENGTH << 64))
            for at in places
        ]
        order = sorted(range(LENGTH), key=lambda at: mix(2 * places[at] + 1))
        lines.append([usual[drawn[at]] for at in order])
    return lines


class Fillings:
    """The worth of rooms, in thousandths of a card times `LINES`."""

    def __init__(self, usual: Sequence[Usual]) -> None:
        self._kept: dict[bytes, int] = {}
        self._steps: list[Step] = []
        self._kind_of: Small = np.zeros(0, dtype=np.int32)
        if not usual:
            return
        lines = line_up(usual)
        classes = list(zip(*(one.matches for one in usual), strict=True))
        kinds = {found: number for number, found in enumerate(dict.fromkeys(classes))}
        self._kind_of = np.array([kinds[found] for found in classes], dtype=np.int32)
        offers = [classes.index(found) for found in kinds]
        for at in range(LENGTH):
            here = [line[at] for line in lines]
            self._steps.append(
                Step(
                    np.array([one.cpu for one in here], dtype=np.int32),
                    np.array([one.share if one.gpus == 1 else _NEVER for one in here], dtype=np.int32),
                    np.array([[one.matches[offer] for one in here] for offer in offers], dtype=np.bool_),
                    tuple((line, one.gpus) for line, one in enumerate(here) if one.gpus > 1),
                )
            )

    def values(self, cpu: Numbers, devices: Numbers, offers: Numbers) -> Numbers:
        """The worth of rooms: free cores, the idle share of each card, and the class of worker."""
        worths = np.zeros(len(cpu), dtype=np.int64)
        rows = np.flatnonzero(devices.any(axis=1))
        if not self._steps or not len(rows):
            return worths
        table = np.empty((len(rows), devices.shape[1] + 2), dtype=np.int32)
        table[:, 0] = self._kind_of[offers[rows]]
        table[:, 1] = np.clip(cpu[rows] // CORE, 0, _MOST_CPU // CORE)
        table[:, 2:] = np.sort(devices[rows], axis=1)
        raw, wide = table.tobytes(), table.strides[0]
        keys = [raw[first : first + wide] for first in range(0, len(raw), wide)]
        missing = {key: place for place, key in enumerate(keys) if key not in self._kept}
        if missing:
            self._learn(list(missing), table[list(missing.values())])
        kept = self._kept
        worths[rows] = [kept[key] for key in keys]
        if len(kept) > MOST_KEPT:
            kept.clear()
        return worths

    def _learn(self, keys: list[bytes], table: Small) -> None:
        for first in range(0, len(keys), CHUNK):
            part = table[first : first + CHUNK]
            worths = self._fill(part[:, 1] * CORE, part[:, 2:], part[:, 0])
            self._kept.update(zip(keys[first : first + CHUNK], worths.tolist(), strict=True))

    def _fill(self, cpus: Small, cards: Small, kinds: Small) -> Numbers:
        """Let every line onto every one of these rooms."""
        cpu = np.repeat(cpus[:, None], LINES, axis=1)
        left = np.repeat(cards[:, None, :], LINES, axis=1)
        flat = left.reshape(-1)
        first = np.arange(cpu.size, dtype=np.intp).reshape(cpu.shape) * cards.shape[1]
        for step in self._steps:
            good = (cpu >= step.cpus) & step.suits[kinds]
            if not good.any():
                continue
            for line, gpus in step.wide:
                _take_whole(left[:, line], cpu[:, line], good[:, line], gpus, int(step.cpus[line]))
            open_cards = np.where(left >= step.shares[:, None], left, _NEVER)
            tightest = open_cards.argmin(axis=2)
            tightest += first
            found = flat[tightest]
            good &= found >= step.shares
            flat[tightest] = found - good * step.shares
            cpu -= good * step.cpus
        worths: Numbers = cards.sum(axis=1, dtype=np.int64) * LINES - left.sum(axis=(1, 2), dtype=np.int64)
        return worths


def _take_whole(left: Small, cpu: Small, good: Mask, gpus: int, cpu_milli: int) -> None:
    """One task of several cards at its place of one line, on every room."""
    idle = left == WHOLE
    fits = good & (idle.sum(axis=1) >= gpus)
    left[idle & (idle.cumsum(axis=1) <= gpus) & fits[:, None]] = 0
    cpu[fits] -= cpu_milli
