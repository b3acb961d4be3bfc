"""How many jobs there are in each state, and the sentence about those of one user."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping

from dray.core.lifecycle.state.state import State
from dray.core.scheduling.explain.reason import span
from dray.hub.access.caller import Caller
from dray.hub.answers.estimates import Forecasts
from dray.hub.answers.slices import work_off
from dray.hub.documents.records import Document
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.store.base import Store
from dray.hub.views.board import SLICE_S
from dray.hub.views.spans import read_moment

STEP_JOBS = 1024
# So many that have ended are counted; of more than that it is told that there are more.
MOST_ENDED = 100_000


class CountsView:
    """One hub's counts."""

    def __init__(self, engine: Engine, clock: HubClock, store: Store, forecasts: Forecasts) -> None:
        self._engine, self._clock, self._store, self._forecasts = engine, clock, store, forecasts

    async def show(self, caller: Caller, user: str, ended_after: str) -> Document:
        """Count jobs that a caller may see, of one user or of all."""
        since_ms = read_moment("ended_after", ended_after, self._clock.read().at_ms) if ended_after else 0
        if not caller.may("admin"):
            user = caller.user if user in ("", caller.user) else "\0"
        await self._engine.settle()
        ended = await asyncio.to_thread(self._store.count_jobs, user, since_ms, MOST_ENDED)
        live, first = await work_off(self._engine, lambda state: self._count(state, user), SLICE_S)
        if live["pending"]:
            self._forecasts.want()
        next_ms = None if first is None else max(0, first - self._clock.read().now_ms)
        return {
            "headline": say_counts(live, ended, next_ms, ended_after),
            "live": dict(live),
            "ended": ended,
            "more": sum(ended.values()) >= MOST_ENDED,
            "next_start_s": None if next_ms is None else next_ms / 1000,
        }

    def _count(self, state: State, user: str) -> Iterator[tuple[Counter[str], int | None]]:
        live, first = Counter({"pending": 0, "running": 0, "held": 0}), None
        ids = list(state.jobs)
        for begin in range(0, len(ids), STEP_JOBS):
            yield live, first
            for job_id in ids[begin : begin + STEP_JOBS]:
                job = state.jobs.get(job_id)
                if job is None or job.state.final or user not in ("", job.user):
                    continue
                live["held" if job.held else job.state.value] += 1
                if (estimate := self._forecasts.of(job_id)) is not None:
                    first = estimate.p50_ms if first is None else min(first, estimate.p50_ms)
        yield live, first


def say_counts(live: Mapping[str, int], ended: Mapping[str, int], next_ms: int | None, since: str) -> str:
    """Where are mine?"""
    waits = f"{live['pending']:,} wait"
    if live["pending"] and next_ms is not None:
        waits += f" (next in ~{span(next_ms)})"
    said = [f"{live['running']:,} run", waits, *([f"{live['held']:,} held"] if live["held"] else [])]
    bad = sum(count for state, count in ended.items() if state != "succeeded")
    well = ended.get("succeeded", 0)
    ends = [f"{well:,} succeeded", *([f"{bad:,} did not"] if bad else [])]
    return f"{', '.join(said)}; {' and '.join(ends)}{f' since {since}' if since else ''}."
