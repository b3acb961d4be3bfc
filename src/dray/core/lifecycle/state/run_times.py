"""How long work has run lately, by kind of job, and what share of its time limit work takes in general.

A bounded cache like all experience: empty after a restart unless it is told what was before. Read by estimates alone.
"""

from __future__ import annotations

from collections import deque

MOST_NAMES, MOST_SPANS, MOST_SHARES = 2_000, 20, 200
MOST_FIRSTS, MOST_STEPS, LEAST_SPAN_MS = 10_000, 1 << 53, 10_000
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


class StepRates:
    """How many steps a second jobs of one name make on one kind of card, by what they say of their progress.

    Between the first and the last word of an attempt, so that a run that goes on from a saved step counts only what it
    did itself; told for too short a time, or backwards, it says nothing. What is said is bounded, since anybody may
    say anything.
    """

    def __init__(self) -> None:
        self.firsts: dict[str, tuple[int, int]] = {}
        self.rates: dict[tuple[str, str], tuple[float, int]] = {}

    def began(self, uid: str, step: int, at_ms: int) -> None:
        """Remember the first step that an attempt tells of."""
        if uid in self.firsts or not 0 <= step <= MOST_STEPS:
            return
        if len(self.firsts) >= MOST_FIRSTS:
            del self.firsts[next(iter(self.firsts))]
        self.firsts[uid] = step, at_ms

    def ended(self, uid: str, name: str, kind: str, step: int | None, at_ms: int) -> None:
        """Take in the last step that an attempt told of, when it has ended."""
        first = self.firsts.pop(uid, None)
        if first is None or step is None or not name or not first[0] < step <= MOST_STEPS:
            return
        span_ms = at_ms - first[1]
        if span_ms < LEAST_SPAN_MS:
            return
        rate = (step - first[0]) * 1000 / span_ms
        mean, count = self.rates.pop((name, kind), (rate, 0))
        count = min(count + 1, MOST_SPANS)
        self.rates[name, kind] = mean + (rate - mean) / count, count
        if len(self.rates) > MOST_NAMES:
            del self.rates[next(iter(self.rates))]

    def rate_of(self, name: str, kind: str) -> float:
        """Steps a second; 0 where nothing is known."""
        return self.rates.get((name, kind), (0.0, 0))[0]
