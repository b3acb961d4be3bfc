"""What tasks that run have used, minute by minute for an hour: from the last word of their workers, in memory alone.

A minute is five numbers, so that ten thousand tasks cost ten megabytes. Those that hold cards go first where there are
more than are kept. Empty after a restart, like the words that it is made of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job
from dray.core.model.records.worker import Use
from dray.errors import NotFound
from dray.hub.access.caller import Caller
from dray.hub.answers.slices import work_off
from dray.hub.decisions.commands import owned
from dray.hub.documents.records import Document, moment
from dray.hub.engine.engine import Engine
from dray.hub.rows import Rows, job_row
from dray.hub.views.board import SLICE_S

KEPT_MINUTES = 60
MOST_KEPT = 20_000
MOST_SHOWN = 64
STEP_USES = 512


class Minute(NamedTuple):
    """What was said at a moment: core-seconds so far, memory at most so far, how busy its cards are and what they hold;
    -1 where nobody could look.
    """

    at_ms: int
    cpu_s: float
    rss_bytes: int
    gpu_share: float
    gpu_bytes: int


class Loads:
    """One hub's memory of them."""

    def __init__(self, engine: Engine, rows: Rows) -> None:
        self._engine, self._rows = engine, rows
        self._kept: dict[str, deque[Minute]] = {}

    async def take(self) -> None:
        """Note what was said since the last time, and forget what runs no longer since an hour."""
        await work_off(self._engine, self._steps, SLICE_S)

    def _steps(self, state: State) -> Iterator[None]:
        uses = list(state.uses.items())
        for first in range(0, len(uses), STEP_USES):
            yield None
            for uid, use in uses[first : first + STEP_USES]:
                line = self._kept.get(uid)
                if line is None:
                    if len(self._kept) >= MOST_KEPT and not use.cards:
                        continue
                    line = self._kept[uid] = deque(maxlen=KEPT_MINUTES)
                if not line or line[-1].at_ms < use.at_ms:
                    line.append(_minute(use))
        early_ms = self._engine.clock_ms() - KEPT_MINUTES * 60_000
        kept = list(self._kept.items())
        for first in range(0, len(kept), STEP_USES):
            yield None
            for uid, line in kept[first : first + STEP_USES]:
                if line[-1].at_ms < early_ms:
                    del self._kept[uid]
        while len(self._kept) > 2 * MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        yield None

    async def show(self, caller: Caller, job_id: str, task: int | None) -> Document:
        """The tries of a job, or of one task of it, that are remembered."""

        def find(state: State) -> tuple[Job, list[Attempt]]:
            job = owned(caller, self._rows.job(job_id), job_id)
            live = [state.attempts[uid] for uid in state.live_of.get(job_id, ())]
            return job, [one for one in live if task is None or one.index == task]

        await self.take()
        job, live = await self._engine.read(find, job_row(job_id))
        if task is not None and task >= job.total:
            raise NotFound(f"job {job_id!r} has no task {task}: it has {job.total}")
        shown = [one for one in live if one.uid in self._kept][:MOST_SHOWN]
        return {
            "loads": [_spell(one, self._kept[one.uid]) for one in shown],
            "left_out": len(live) - len(shown),
        }


def _minute(use: Use) -> Minute:
    cards = use.cards
    share = sum(card.share for card in cards) / len(cards) if cards else -1.0
    held = sum(card.memory_bytes for card in cards) if cards else -1
    return Minute(use.at_ms, use.cpu_s, use.max_rss_bytes, round(share, 4), held)


def _spell(attempt: Attempt, line: deque[Minute]) -> Document:
    minutes = list(line)
    before = [None, *minutes[:-1]]
    return {
        "attempt": attempt.no,
        "task": attempt.index,
        "worker": attempt.worker,
        "at": [moment(one.at_ms) for one in minutes],
        "cores": [_cores(one, last) for one, last in zip(minutes, before, strict=True)],
        "max_rss_bytes": [one.rss_bytes for one in minutes],
        "gpu_share": [one.gpu_share if one.gpu_share >= 0 else None for one in minutes],
        "gpu_bytes": [one.gpu_bytes if one.gpu_bytes >= 0 else None for one in minutes],
    }


def _cores(one: Minute, last: Minute | None) -> float | None:
    if last is None or one.at_ms <= last.at_ms:
        return None
    return round(max(0.0, one.cpu_s - last.cpu_s) * 1000 / (one.at_ms - last.at_ms), 3)
