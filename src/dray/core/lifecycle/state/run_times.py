"""How long work has run lately, by kind of job, and what share of its time limit work takes in general.

A bounded cache like all experience: empty after a restart unless it is told what was before. Read by estimates alone.
"""

from __future__ import annotations

from collections import deque

MOST_NAMES, MOST_SPANS, MOST_SHARES = 2_000, 20, 200
ENOUGH_SPANS, ENOUGH_SHARES = 3, 20


class Spans:
    """Run times in milliseconds, newest last."""

    def __init__(self) -> None:
        self.by_name: dict[str, tuple[int, ...]] = {}
        self.shares: deque[float] = deque(maxlen=MOST_SHARES)

    def copy(self) -> Spans:
        """What is known now; what is learnt later is not in it."""
        found = Spans()
        found.by_name.update(self.by_name)
        found.shares.extend(self.shares)
        return found

    def learn(self, name: str, span_ms: int, limit_ms: int) -> None:
        """Take in one run that came to its own end."""
        known = self.by_name.pop(name, ())
        self.by_name[name] = (*known, span_ms)[-MOST_SPANS:]
        if len(self.by_name) > MOST_NAMES:
            del self.by_name[next(iter(self.by_name))]
        if limit_ms:
            self.shares.append(min(1.0, span_ms / limit_ms))

    def likely(self, name: str, limit_ms: int) -> tuple[int, ...]:
        """How long such a run may take, each value as likely as any other; none where nothing is known."""
        known = self.by_name.get(name, ())
        if len(known) >= ENOUGH_SPANS:
            return known
        if limit_ms and len(self.shares) >= ENOUGH_SHARES:
            return (*known, *(round(share * limit_ms) for share in self.shares))
        # One run says little: that it comes to its limit stays as likely.
        return (*known, limit_ms) if known and limit_ms else known
