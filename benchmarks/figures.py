"""A figure: what was measured, every run of it, the floors beside it, and the bars that it must clear.

Owns the words "pass" and "miss". Knows nothing about how anything is measured. A bar on a ratio whose floor could not
be measured is neither: it is "open", because a missing peer must not look like a success.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

PASS, MISS, OPEN, NONE = "pass", "miss", "open", ""


class Bar(msgspec.Struct, frozen=True, omit_defaults=True):
    """One condition on a figure, or on its ratio to the floor named in `of`."""

    at_least: float | None = None
    at_most: float | None = None
    of: str = ""

    def holds(self, value: float) -> bool:
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)

    def spell(self) -> str:
        sign, limit = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        assert limit is not None  # a bar has one of the two
        return f"{sign} {spell_number(limit)}" + (f" × {self.of}" if self.of else "")


class Figure(msgspec.Struct, omit_defaults=True):
    """One number of dray's: the median of `runs`. `floors` maps what it is compared with to its figure, same unit."""

    what: str
    unit: str
    value: float
    runs: list[float] = []
    floors: dict[str, float] = {}
    bars: list[Bar] = []
    note: str = ""

    def ratios(self) -> dict[str, float]:
        return {name: self.value / floor for name, floor in self.floors.items() if floor}

    def verdict(self) -> str:
        if not self.bars:
            return NONE
        ratios = self.ratios()
        known = [bar for bar in self.bars if not bar.of or bar.of in ratios]
        if not all(bar.holds(ratios[bar.of] if bar.of else self.value) for bar in known):
            return MISS
        return PASS if len(known) == len(self.bars) else OPEN


class Report(msgspec.Struct):
    """What one benchmark found in one run."""

    name: str
    command: str
    quick: bool
    began_at: str
    seconds: float
    machine: dict[str, Any]
    figures: dict[str, Figure]


def median_figure(what: str, unit: str, runs: Sequence[float], **more: Any) -> Figure:
    """A figure from several runs."""
    return Figure(what=what, unit=unit, value=statistics.median(runs), runs=[*runs], **more)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of all values lie, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spell_number(value: float) -> str:
    """A number as a person would round it: three digits that matter."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
