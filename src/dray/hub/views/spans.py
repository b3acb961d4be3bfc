"""From when to when somebody asks: two moments, or spans back from now, within what anybody can mean."""

from __future__ import annotations

from typing import NamedTuple

from dray.core.model.units import parse_moment, parse_seconds
from dray.errors import InvalidInput, Problem

DAY_MS = 86_400_000
MOST_MS = 366 * DAY_MS


class Span(NamedTuple):
    """From one moment to another, in wall time."""

    since_ms: int
    until_ms: int

    @property
    def length_ms(self) -> int:
        return self.until_ms - self.since_ms


def read_span(since: str, until: str, at_ms: int, default_ms: int, ahead_ms: int = 0) -> Span:
    """Read both ends: a moment as RFC 3339 has it, or how long ago (`6h`). `ahead_ms`: how far it may reach ahead."""
    first = read_moment("from", since, at_ms) if since else None
    last = read_moment("to", until, at_ms) if until else None
    last = min(at_ms + ahead_ms if last is None else last, at_ms + ahead_ms)
    if first is None:
        first = last - default_ms
    if first >= last:
        what = (
            "must be earlier than `to`, which is now at the latest"
            if not ahead_ms
            else "must be earlier than `to`"
        )
        raise InvalidInput(f"from {what}", [Problem("from", what)])
    return Span(max(first, last - MOST_MS, 0), last)


def read_moment(name: str, text: str, at_ms: int) -> int:
    """One moment; spans count back from now."""
    try:
        if "T" in text.upper() and "-" in text:
            return max(0, parse_moment(text))
        span_s = parse_seconds(text)
        return at_ms - round(min(max(span_s, 0.0), MOST_MS / 1000) * 1000)
    except (InvalidInput, ValueError, OverflowError):
        what = (
            f"must be a moment such as 2030-01-31T18:00:00Z, or how long ago, such as 6h, got {text[:40]!r}"
        )
        raise InvalidInput(f"{name} {what}", [Problem(name, what)]) from None
