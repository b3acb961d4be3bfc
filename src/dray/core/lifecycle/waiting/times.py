"""Time by first reason, kept for a shape, a crowd of its lines, and a line: each counts what is its own.

A line that a gate holds back waits for that gate, else for what its crowd waits for, and that for what its shape does.
So a gate that shuts or a shape that is parked is written down once, however many wait behind it. What no reason covers
is counted by nobody. The surprising rule: the same object is given back while nothing has been counted, which is how
most reads are over at once.
"""

from __future__ import annotations

from dray.core.model.records.waits import NOTHING, add, put

NONE = -1
Ledger = tuple[int, ...]


class Times:
    """One of them. `above`: whose reasons count while it has none of its own."""

    __slots__ = ("_above", "_base", "_since_ms", "_sums", "reason")

    def __init__(self, above: Times | None = None, now_ms: int = 0) -> None:
        self._above, self.reason, self._since_ms = above, NONE, 0
        self._sums = NOTHING
        self._base = NOTHING if above is None else above.read(now_ms)

    def read(self, now_ms: int) -> Ledger:
        """What has been counted by a moment."""
        if self.reason != NONE:
            return put(self._sums, self.reason, max(0, now_ms - self._since_ms))
        if self._above is None:
            return self._sums
        return grown(self._sums, self._base, self._above.read(now_ms))

    def turn(self, reason: int, now_ms: int) -> None:
        """From here on it waits for this, or for what those above it do."""
        if reason != self.reason:
            self._sums = self.read(now_ms)
            self.reason, self._since_ms = reason, now_ms
            if self._above is not None and reason == NONE:
                self._base = self._above.read(now_ms)


def grown(ledger: Ledger, base: Ledger, read: Ledger) -> Ledger:
    """A ledger with what was counted from one reading to another."""
    if read is base or read == base:
        return ledger
    return add(ledger, [after - before for after, before in zip(read, base, strict=True)])
