"""Start-time estimates: asked of a side process while somebody wants to know, kept until the next ones, and judged.

Packs scenes between turns, never waits for an answer in one. Owns the side process and the record of how good the
estimates were; knows nothing about how they are made. Everything here is a cache: empty after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.effects import Note
from dray.core.model.ids import split_task_id
from dray.core.model.records.records import Job
from dray.core.scheduling.explain.reason import span
from dray.core.scheduling.passes.snapshot import pack_scene
from dray.hub.aside.foreseeing import Foresight
from dray.hub.aside.process import TROUBLES, SideProcess
from dray.hub.documents.records import Document
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine

FIRST = 1_000
WANTED_S = 120.0
PATIENCE_S = 60.0
KEPT = 1_000
MOST_PREDICTED = 5_000
logger = logging.getLogger("dray.hub.answers.estimates")
_decode = msgspec.msgpack.Decoder(Foresight).decode


class Estimate(NamedTuple):
    """When a task starts, in hub time, and when that was found."""

    p50_ms: int
    p90_ms: int
    made_ms: int


class Forecasts:
    """One hub's estimates. `every_s`: how often they are made anew at most; 0 makes none."""

    def __init__(self, engine: Engine, clock: HubClock, every_s: float) -> None:
        self._engine, self._clock, self._every_s = engine, clock, every_s
        self._known: dict[str, Estimate] = {}
        # Where and when work will run, by one run into the future, and the moment that its times count from.
        self.foresight, self.foreseen_ms = Foresight([], [], {}), 0
        self._predicted: dict[str, Estimate] = {}
        self._record: deque[tuple[float, float, float]] = deque(maxlen=KEPT)
        self._side = SideProcess(engine, clock)
        self._asked_s = -WANTED_S
        self._bell, self._news = asyncio.Event(), asyncio.Event()

    # --- asking -------------------------------------------------------------------------------------------------------

    def want(self) -> None:
        """Somebody looks at what waits: estimates are worth making for a while."""
        if self._every_s:
            self._asked_s = asyncio.get_running_loop().time()
            self._bell.set()

    def now_ms(self) -> int:
        """Hub time."""
        return self._clock.read().now_ms

    def of(self, job_id: str) -> Estimate | None:
        """When the next task of a job starts, as far as is known."""
        return self._known.get(job_id)

    def document(self, job_id: str) -> Document | None:
        """The same, for people."""
        estimate = self._known.get(job_id)
        return None if estimate is None else estimate_document(estimate, self._clock.read().now_ms)

    async def wait(self, job_id: str, wait_s: float) -> None:
        """Wait until a job has an estimate, or the next ones are there without one for it."""
        if not self._every_s or job_id in self._known:
            return
        self.want()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                for _ in range(2):
                    await self._news.wait()
                    if job_id in self._known:
                        return

    async def foresee(self, guest: Job, wait_s: float) -> Document | None:
        """When a job would start that nobody has submitted."""
        if not self._every_s:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                now_ms, found = await self._ask((guest,))
                mine = [task for task in found.found if task.job_id == guest.id and task.index == 0]
                if mine:
                    estimate = Estimate(now_ms + mine[0].p50_ms, now_ms + mine[0].p90_ms, now_ms)
                    return estimate_document(estimate, now_ms)
        return None

    # --- making -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make estimates while they are wanted, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._bell.wait()
                self._bell.clear()
                while loop.time() - self._asked_s < WANTED_S:
                    began = loop.time()
                    await self._refresh()
                    # One that takes long is made less often: the side process must not keep a core busy.
                    await asyncio.sleep(max(self._every_s, 3 * (loop.time() - began)))
        finally:
            self._side.stop()

    async def _refresh(self) -> None:
        waiting = await self._engine.read(lambda state: any(state.backlog.depth.values()))
        if not waiting:
            self._known.clear()
            self.foresight = Foresight([], [], {})
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                now_ms, found = await self._ask(())
        except TROUBLES:
            logger.exception("estimates could not be made; the next try begins with a new process")
            return
        known: dict[str, Estimate] = {}
        self.foresight, self.foreseen_ms = found, now_ms
        for task in found.found:
            estimate = Estimate(now_ms + task.p50_ms, now_ms + task.p90_ms, now_ms)
            known.setdefault(task.job_id, estimate)
            self._predicted.setdefault(f"{task.job_id}/{task.index}", estimate)
        while len(self._predicted) > MOST_PREDICTED:
            del self._predicted[next(iter(self._predicted))]
        self._known = known
        self._news.set()
        self._news.clear()

    async def _ask(self, guests: Sequence[Job]) -> tuple[int, Foresight]:
        now_ms, packed = await self._side.ask(
            "foresee", lambda state, clock: pack_scene(state, clock, FIRST, guests)
        )
        return now_ms, _decode(packed)

    # --- judging ------------------------------------------------------------------------------------------------------

    def hear(self, note: Note) -> None:
        """Compare what was foreseen with what happened."""
        if note.type == "task_started":
            job_id, index = split_task_id(note.task_id) or (note.job_id, -1)
            self._known.pop(job_id, None)
            estimate = self._predicted.pop(f"{job_id}/{max(index, 0)}", None)
            if estimate is not None:
                real_s = (self._clock.read().now_ms - estimate.made_ms) / 1000
                p50_s, p90_s = ((at_ms - estimate.made_ms) / 1000 for at_ms in estimate[:2])
                self._record.append((p50_s, p90_s, real_s))
        elif note.type == "job_ended":
            self._known.pop(note.job_id, None)

    def record(self) -> Document:
        """How good the estimates were: the first one that a task got, against its real start."""
        errors = sorted(abs(real_s - p50_s) for p50_s, _, real_s in self._record)
        within = sum(real_s <= p90_s for _, p90_s, real_s in self._record)
        later = sum(real_s > p50_s for p50_s, _, real_s in self._record)
        count = len(self._record)
        return {
            "every_s": self._every_s,
            "known": len(self._known),
            "judged": count,
            "error_p50_s": round(statistics.median(errors), 3) if errors else None,
            "error_p90_s": round(errors[min(count - 1, count * 9 // 10)], 3) if errors else None,
            "later_than_p50": round(later / count, 4) if count else None,
            "within_p90": round(within / count, 4) if count else None,
            "last": [
                {"p50_s": p50_s, "p90_s": p90_s, "real_s": real_s}
                for p50_s, p90_s, real_s in list(self._record)[-20:]
            ],
        }


def estimate_document(estimate: Estimate, now_ms: int) -> Document:
    """An estimate as it is shown: from now on, and how old it is."""
    p50_ms, p90_ms = (max(0, at_ms - now_ms) for at_ms in estimate[:2])
    return {
        "p50_s": p50_ms / 1000,
        "p90_s": p90_ms / 1000,
        "age_s": max(0, now_ms - estimate.made_ms) / 1000,
        "message": f"starts in ~{span(p50_ms)} (p90 {span(p90_ms)})",
    }
