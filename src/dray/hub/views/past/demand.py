"""How many cards will be wanted at once, hour by hour and by kind of ask: from what was wanted in the last two weeks.

Wanted is what waits and what runs. The forecast is the last value for the next hours, blended by a day ahead into the
median of the same hour over a week: on recorded work nothing cleverer was better. How far it was off in the past week
is printed beside it, and its bounds are made of that. Pure but for the class that reads the store.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dray.core.model.records.records import Job
from dray.core.model.specs.resources import WHOLE, Ask, asks_of_packed
from dray.hub.documents.records import Document, moment
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.store.base import JobFilter, Store

HOUR_MS = 3_600_000
DAYS, DAY, WEEK = 15, 24, 168
SURE_H, BLENDED_H = 3, 24
AHEAD = (1, 3, 6, 12, 24)
PAGE, MOST_JOBS, MOST_KINDS = 1_000, 100_000, 20
ASSUMES = "the same users with the same habits: nothing is known of work that nobody has submitted yet"


class Wanted(NamedTuple):
    """What one job wanted: cards from one moment to another; an array's fade away between start and end."""

    kind: str
    cards: float
    since_ms: int
    start_ms: int
    until_ms: int
    fades: bool

    def at(self, at_ms: int) -> float:
        """How many at a moment."""
        if not self.since_ms <= at_ms < self.until_ms:
            return 0.0
        if not self.fades or at_ms <= self.start_ms:
            return self.cards
        return self.cards * (self.until_ms - at_ms) / max(1, self.until_ms - self.start_ms)


class Foretold(NamedTuple):
    """Cards wanted so many hours ahead, what nine of ten past errors stayed within, and the mean error as a share."""

    ahead_h: int
    cards: float
    low: float
    high: float
    error: float | None


def kind_of(ask: Ask) -> str:
    """A kind of ask in words, as tables show it."""
    model = f" {ask.gpu_type}" if ask.gpu_type else ""
    if ask.gpu_milli < WHOLE:
        return f"shared{model}"
    nodes = f"{ask.nodes} x " if ask.nodes > 1 else ""
    return f"{nodes}{ask.gpus}{model}"


def read_wants(jobs: Iterable[Job], now_ms: int) -> list[Wanted]:
    """What jobs that ask for cards wanted, until now where they have not ended."""
    found = []
    for job in jobs:
        ask = asks_of_packed(job.spec)[0]
        cards = ask.gpus * ask.gpu_milli / WHOLE * job.total
        if not cards or job.service:
            continue
        until_ms = job.ended_at_ms or now_ms + 1
        start_ms = job.started_at_ms or until_ms
        fades = job.total > ask.nodes and bool(job.ended_at_ms)
        left = 1.0 if job.ended_at_ms else (job.total - job.ended) / max(1, job.total)
        found.append(Wanted(kind_of(ask), cards * left, job.submitted_at_ms, start_ms, until_ms, fades))
    return found


def wanted_by_hour(wants: Iterable[Wanted], now_ms: int) -> dict[str, list[float]]:
    """Cards wanted at each full hour of the last two weeks and now, oldest first, by kind; `all` of them together."""
    hours = (DAYS - 1) * DAY
    series: dict[str, list[float]] = {"all": [0.0] * (hours + 1)}
    for one in wants:
        line = series.setdefault(one.kind, [0.0] * (hours + 1))
        first = max(0, hours - (now_ms - one.since_ms) // HOUR_MS)
        last = min(hours, hours - max(0, now_ms - one.until_ms) // HOUR_MS)
        for place in range(first, last + 1):
            cards = one.at(now_ms - (hours - place) * HOUR_MS)
            line[place] += cards
            series["all"][place] += cards
    return series


def predict(line: Sequence[float], place: int, ahead: int) -> float | None:
    """What would have been said at `place` of the value so many hours later; None where too little was known."""
    target = place + ahead
    same = [line[past] for past in range(target - DAY, -1, -DAY) if past <= place][:7]
    if place < 0 or not same:
        return None
    share = min(1.0, max(0.0, (ahead - SURE_H) / (BLENDED_H - SURE_H)))
    return line[place] * (1 - share) + statistics.median(same) * share


def foretell(line: Sequence[float], ahead: int) -> Foretold | None:
    """The value so many hours ahead, with bounds and error by its own record of the past week."""
    last = len(line) - 1
    if last < DAY:
        return None
    said = predict(line, last, ahead)
    if said is None:
        return None
    pairs = [
        (guess, line[place + ahead])
        for place in range(max(0, last - WEEK - ahead), last - ahead + 1)
        if (guess := predict(line, place, ahead)) is not None
    ]
    errors = sorted(real - guess for guess, real in pairs)
    wanted = sum(real for _, real in pairs)
    if not errors:
        return Foretold(ahead, said, said, said, None)
    low, high = errors[len(errors) // 10], errors[min(len(errors) - 1, len(errors) * 9 // 10)]
    error = sum(map(abs, errors)) / wanted if wanted else None
    return Foretold(ahead, said, max(0.0, said + min(0.0, low)), said + max(0.0, high), error)


class DemandView:
    """One hub's forecasts of demand, made when somebody asks."""

    def __init__(self, engine: Engine, clock: HubClock, store: Store) -> None:
        self._engine, self._clock, self._store = engine, clock, store

    async def show(self) -> Document:
        """Cards wanted at once, by kind of ask and hours ahead."""
        await self._engine.settle()
        # Off the loop: two weeks of jobs are read.
        return await asyncio.to_thread(self._read, self._clock.read().at_ms)

    def _read(self, now_ms: int) -> Document:
        jobs, cut = self._jobs(now_ms - DAYS * DAY * HOUR_MS)
        known_h = min(
            (now_ms - min((job.submitted_at_ms for job in jobs), default=now_ms)) // HOUR_MS, (DAYS - 1) * DAY
        )
        series = wanted_by_hour(read_wants(jobs, now_ms), now_ms)
        ranked = sorted(series, key=lambda kind: (kind != "all", -sum(series[kind]), kind))
        # Hours before the first job of all say nothing of anybody's habits.
        told = {kind: series[kind][-known_h - 1 :] for kind in ranked[: MOST_KINDS + 1]}
        return {
            "at": moment(now_ms),
            "known_h": known_h,
            "cut": cut,
            "kinds": [_spell(kind, line) for kind, line in told.items()],
            "assumes": ASSUMES,
        }

    def _jobs(self, since_ms: int) -> tuple[list[Job], bool]:
        found: list[Job] = []
        before = 0
        while len(found) < MOST_JOBS:
            page = self._store.list_jobs(
                JobFilter(submitted_after_ms=since_ms, before_seq=before, limit=PAGE)
            )
            found += page
            if len(page) < PAGE:
                return found, False
            before = page[-1].seq
        return found, True


def _spell(kind: str, line: Sequence[float]) -> Document:
    said = [foretold for ahead in AHEAD if (foretold := foretell(line, ahead)) is not None]
    return {
        "kind": kind,
        "now": round(line[-1], 3),
        "ahead": [
            {
                "in_h": one.ahead_h,
                "cards": round(one.cards, 3),
                "p10": round(one.low, 3),
                "p90": round(one.high, 3),
                "error": None if one.error is None else round(one.error, 4),
            }
            for one in said
        ],
    }
