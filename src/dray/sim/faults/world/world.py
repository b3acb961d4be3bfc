"""Virtual time and chance: one heap of things to come, one generator that decides how they go.

Everything random is drawn here, in the order in which things happen, so that a seed is a whole history.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple


class Size(NamedTuple):
    """How big a world is and how much goes wrong in it."""

    workers: int
    jobs: int
    faults: int
    span_ms: int
    most_tasks: int


SMALL = Size(workers=4, jobs=20, faults=60, span_ms=300_000, most_tasks=4)
LARGE = Size(workers=12, jobs=50, faults=300, span_ms=900_000, most_tasks=6)
CALM_MS = 4 * 3600 * 1000
# In some worlds time goes in steps: what a busy hub does within one millisecond by chance happens all the time there.
COARSE, STEP_MS = 0.1, 50


class Failure(AssertionError):
    """A promise was broken in this world."""


class World:
    """One history. `now_ms` only moves when the next thing happens."""

    def __init__(self, seed: int, size: Size) -> None:
        self.seed, self.size = seed, size
        self.rng = random.Random(seed)
        self.now_ms = 0
        # Drawn apart: the other worlds stay as they were.
        coarse = random.Random(f"coarse time {seed}").random() < COARSE  # chance, no secret
        self._step_ms = STEP_MS if coarse else 1
        self.wall_shift_ms = 1_700_000_000_000
        self.steps = 0
        self.faulty = True
        self.counts: Counter[str] = Counter()
        self.story: list[str] = []
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    def at(self, delay_ms: int, call: Callable[..., None], *arguments: Any) -> None:
        """Let something happen later."""
        self._order += 1
        when = self.now_ms + max(0, delay_ms)
        when += -when % self._step_ms
        heapq.heappush(self._heap, (when, self._order, call, arguments))

    def step(self) -> bool:
        """Let the next thing happen; False when nothing is left."""
        if not self._heap:
            return False
        when, _, call, arguments = heapq.heappop(self._heap)
        self.now_ms = max(self.now_ms, when)
        self.steps += 1
        call(*arguments)
        return True

    def chance(self, share: float) -> bool:
        """True with this probability, never once the faults have stopped."""
        return self.faulty and self.rng.random() < share

    def tell(self, line: str) -> None:
        """Keep the last lines of the story for whoever has to read a failure."""
        self.story.append(f"{self.now_ms / 1000:9.3f} {line}")
        if len(self.story) > 4000:
            del self.story[:2000]

    def fail(self, problem: str) -> None:
        """Break off: this seed has shown something."""
        raise Failure(f"seed {self.seed} at {self.now_ms / 1000:.3f} s, step {self.steps}: {problem}")
