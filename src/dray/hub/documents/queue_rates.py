"""How fast queues move: starts and ends per minute, and how long the last starts had waited.

Hears of what was committed; an hour is kept, in memory, since the hub started. One count per minute and queue: a
million short tasks cost as much room as ten.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MINUTE_MS = 60_000
KEPT_MINUTES = 60
KEPT_WAITS = 1000
MAX_QUEUES = 1000


class Rates(NamedTuple):
    """Per minute over the last five minutes and the last hour, as far as the hub has run that long."""

    starts_5m: float = 0.0
    starts_1h: float = 0.0
    ends_5m: float = 0.0
    ends_1h: float = 0.0
    wait_p50_s: float | None = None
    wait_p90_s: float | None = None


class _Queue:
    """One queue's last hour: (minute, count) pairs in order, and the waits of its last starts with their minute."""

    def __init__(self) -> None:
        self.starts: deque[list[int]] = deque(maxlen=KEPT_MINUTES + 1)
        self.ends: deque[list[int]] = deque(maxlen=KEPT_MINUTES + 1)
        self.waits: deque[tuple[int, int]] = deque(maxlen=KEPT_WAITS)


class QueueStatistics:
    """All queues of one hub; times are hub time."""

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._queues: dict[str, _Queue] = {}

    def note_start(self, queue: str, waited_ms: int, now_ms: int) -> None:
        kept = self._find(queue)
        _count(kept.starts, now_ms // MINUTE_MS)
        kept.waits.append((now_ms // MINUTE_MS, waited_ms))

    def note_end(self, queue: str, now_ms: int) -> None:
        _count(self._find(queue).ends, now_ms // MINUTE_MS)

    def rates(self, queue: str, now_ms: int) -> Rates:
        kept = self._queues.get(queue)
        if kept is None:
            return Rates()
        oldest = now_ms // MINUTE_MS - KEPT_MINUTES
        waits = sorted(waited for minute, waited in kept.waits if minute > oldest)
        return Rates(
            self._rate(kept.starts, 5, now_ms),
            self._rate(kept.starts, KEPT_MINUTES, now_ms),
            self._rate(kept.ends, 5, now_ms),
            self._rate(kept.ends, KEPT_MINUTES, now_ms),
            _share(waits, 0.5),
            _share(waits, 0.9),
        )

    def _find(self, queue: str) -> _Queue:
        kept = self._queues.pop(queue, None) or _Queue()
        # The last one heard of stands last: names that nobody uses any more are the first to go.
        self._queues[queue] = kept
        if len(self._queues) > MAX_QUEUES:
            del self._queues[next(iter(self._queues))]
        return kept

    def _rate(self, counts: deque[list[int]], minutes: int, now_ms: int) -> float:
        """The present minute has only begun: the window ends now and holds whole minutes before it."""
        first = now_ms // MINUTE_MS - minutes + 1
        began_ms = max(first * MINUTE_MS, self._started_ms)
        window_ms = max(now_ms - began_ms, MINUTE_MS)
        found = sum(count for minute, count in counts if minute >= first)
        return round(found * MINUTE_MS / window_ms, 3)


def _count(counts: deque[list[int]], minute: int) -> None:
    if counts and counts[-1][0] == minute:
        counts[-1][1] += 1
    else:
        counts.append([minute, 1])


def _share(waits: list[int], share: float) -> float | None:
    return waits[min(len(waits) - 1, int(len(waits) * share))] / 1000 if waits else None
