"""How fast queues move, from what was committed."""

from __future__ import annotations

from dray.hub.documents import queue_rates as queue_statistics
from dray.hub.documents.queue_rates import QueueStatistics, Rates

HOUR_MS = 3_600_000


def test_rates_over_five_minutes_and_an_hour() -> None:
    statistics = QueueStatistics(0)
    for minute in range(60):
        for _ in range(6 if minute >= 55 else 1):
            statistics.note_start("q", minute * 1000, minute * 60_000 + 1)
        statistics.note_end("q", minute * 60_000 + 1)
    rates = statistics.rates("q", HOUR_MS - 1)
    assert round(rates.starts_5m) == 6
    assert round(rates.starts_1h, 1) == round((55 + 30) / 60, 1)
    assert round(rates.ends_5m) == round(rates.ends_1h) == 1
    assert statistics.rates("other", HOUR_MS) == Rates()


def test_waits_of_the_last_starts() -> None:
    statistics = QueueStatistics(0)
    for waited in range(1, 101):
        statistics.note_start("q", waited * 1000, 60_000)
    rates = statistics.rates("q", 60_000)
    assert (rates.wait_p50_s, rates.wait_p90_s) == (51, 91)
    assert statistics.rates("q", 60_000 + 2 * HOUR_MS).wait_p50_s is None


def test_a_young_hub_does_not_exaggerate() -> None:
    statistics = QueueStatistics(1_000_000)
    statistics.note_start("q", 0, 1_000_010)
    assert statistics.rates("q", 1_000_010).starts_5m == 1


def test_names_nobody_uses_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(queue_statistics, "MAX_QUEUES", 3)
    statistics = QueueStatistics(0)
    for name in ("a", "b", "a", "c", "d"):
        statistics.note_end(name, 1)
    assert statistics.rates("b", 1) == Rates()
    assert statistics.rates("a", 1).ends_5m > 0
