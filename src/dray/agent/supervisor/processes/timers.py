"""Deadlines on the monotonic clock, kept in one heap.

Owns no clock: the loop passes `now` in. Cancelled timers stay in the heap until they are the majority, because nearly
every attempt carries a day-long limit that it never reaches: without the rebuild a busy day would keep millions.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

REBUILD_AT = 256


class Timer:
    __slots__ = ("call", "order", "when")

    def __init__(self, when: float, order: int, call: Callable[[], None]) -> None:
        self.when = when
        self.order = order
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: Timer) -> bool:
        return (self.when, self.order) < (other.when, other.order)


class Timers:
    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._order = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        self._order += 1
        timer = Timer(when, self._order, call)
        heapq.heappush(self._heap, timer)
        return timer

    def cancel(self, timer: Timer | None) -> None:
        if timer is None or timer.call is None:
            return
        timer.call = None
        self._dead += 1
        if self._dead > REBUILD_AT and self._dead * 2 > len(self._heap):
            self._heap = [kept for kept in self._heap if kept.call is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def wait_s(self, now: float) -> float | None:
        """How long the loop may sleep; None means until something happens."""
        while self._heap and self._heap[0].call is None:
            heapq.heappop(self._heap)
            self._dead -= 1
        return max(0.0, self._heap[0].when - now) if self._heap else None

    def due(self, now: float) -> list[Callable[[], None]]:
        calls = []
        while self._heap and self._heap[0].when <= now:
            timer = heapq.heappop(self._heap)
            if timer.call is None:
                self._dead -= 1
                continue
            calls.append(timer.call)
            timer.call = None
        return calls
