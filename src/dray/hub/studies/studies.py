"""Studies: each worked out beside the hub, one after the other, followed by its id, and called off by its owner.

A caller has one under way at a time and the hub a few in all; what was found is kept for an hour, in memory. The
surprising rule: a study that is called off takes its process with it, and the next one has another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dray.errors import Conflict, InvalidInput, NotFound, TooManyRequests
from dray.hub.access.caller import Caller
from dray.hub.aside.process import TROUBLES, SideProcess
from dray.hub.documents.records import Document, moment
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine

MOST_WAITING = 8
MOST_KEPT = 64
KEPT_S = 3600.0
PATIENCE_S = 600.0
NICER = 15
logger = logging.getLogger("dray.hub.studies")
_decode = msgspec.msgpack.Decoder(tuple[int, int, str]).decode


class Study:
    """One of them. `answer` is made by `work`, which is given the study and the process."""

    def __init__(self, user: str, kind: str, asked: Any, at_ms: int, work: Work) -> None:
        self.id = secrets.token_hex(6)
        self.user, self.kind, self.asked, self.at_ms, self.work = user, kind, asked, at_ms, work
        self.state, self.error = "waiting", ""
        self.done = self.of = 0
        self.what = ""
        self.answer: Document | None = None
        self.task: asyncio.Task[Document] | None = None
        self.news = asyncio.Event()
        self.ended_s = 0.0

    @property
    def is_over(self) -> bool:
        return self.state not in ("waiting", "running")

    def hear(self, packed: bytes) -> None:
        """It has come so far."""
        self.done, self.of, self.what = _decode(packed)

    def end(self, state: str, error: str = "") -> None:
        self.state, self.error = state, error
        self.ended_s = asyncio.get_running_loop().time()
        self.news.set()

    def document(self) -> Document:
        return {
            "id": self.id,
            "kind": self.kind,
            "state": self.state,
            "asked_at": moment(self.at_ms),
            "progress": 1.0 if self.state == "done" else round(self.done / self.of, 4) if self.of else 0.0,
            "doing": self.what if self.state == "running" else "",
            "error": self.error,
            "answer": self.answer,
        }


Work = Callable[[Study, SideProcess], Awaitable[Document]]


class Studies:
    """One hub's studies."""

    def __init__(self, engine: Engine, clock: HubClock) -> None:
        self._clock = clock
        self._side = SideProcess(engine, clock, NICER)
        self._known: dict[str, Study] = {}
        self._queue: deque[Study] = deque()
        self._bell = asyncio.Event()

    async def run(self) -> None:
        """Work them off, until cancelled."""
        try:
            while True:
                while self._queue:
                    await self._work_off(self._queue.popleft())
                self._bell.clear()
                await self._bell.wait()
        finally:
            self._side.stop()

    def begin(self, caller: Caller, kind: str, asked: Any, work: Work) -> Document:
        """Take a question on; the same once more while it is under way is the same study."""
        self._forget()
        mine = next(
            (one for one in self._known.values() if one.user == caller.user and not one.is_over), None
        )
        if mine is not None and (mine.kind, mine.asked) == (kind, asked):
            return mine.document()
        if mine is not None:
            raise Conflict(
                f"study {mine.id} of yours ({mine.kind}) is {mine.state}: wait for it, or call it off "
                f"(DELETE /api/v1/studies/{mine.id})"
            )
        if len(self._queue) >= MOST_WAITING:
            raise TooManyRequests(f"{len(self._queue)} studies wait already: try again in a minute", 60)
        study = Study(caller.user, kind, asked, self._clock.read().at_ms, work)
        self._known[study.id] = study
        self._queue.append(study)
        self._bell.set()
        return study.document()

    async def show(self, caller: Caller, study_id: str, wait_s: float) -> Document:
        """How far a study is, once it is over or so long has passed."""
        study = self._find(caller, study_id)
        if wait_s and not study.is_over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await study.news.wait()
        return study.document()

    def cancel(self, caller: Caller, study_id: str) -> Document:
        """Call a study off; one that is over stays as it is."""
        study = self._find(caller, study_id)
        if study.state == "waiting":
            self._queue.remove(study)
            study.end("cancelled")
        elif study.task is not None and not study.is_over:
            study.task.cancel()
            study.end("cancelled")
        return study.document()

    def _find(self, caller: Caller, study_id: str) -> Study:
        study = self._known.get(study_id)
        if study is None or not (study.user == caller.user or caller.may("admin")):
            raise NotFound(f"there is no study {study_id}: what was found is kept for an hour")
        return study

    async def _work_off(self, study: Study) -> None:
        study.state = "running"
        study.task = asyncio.create_task(self._answer(study))
        try:
            await asyncio.wait({study.task})
        except asyncio.CancelledError:
            study.task.cancel()
            raise
        if not study.task.cancelled() and (error := study.task.exception()) is not None:
            logger.error("study %s (%s) failed", study.id, study.kind, exc_info=error)
            study.end("failed", f"{type(error).__name__}: {error}")
        study.task = None

    async def _answer(self, study: Study) -> Document:
        try:
            async with asyncio.timeout(PATIENCE_S):
                study.answer = await study.work(study, self._side)
        except InvalidInput as fault:
            study.end("failed", str(fault))
        except TimeoutError:
            study.end("failed", f"it took longer than {PATIENCE_S:.0f} s: ask for less")
        except TROUBLES as fault:
            study.end("failed", str(fault) or "its process is gone: ask again")
        else:
            study.end("done")
        return study.document()

    def _forget(self) -> None:
        now_s = asyncio.get_running_loop().time()
        over = [one for one in self._known.values() if one.is_over]
        for number, study in enumerate(over):
            if now_s - study.ended_s > KEPT_S or len(over) - number > MOST_KEPT:
                del self._known[study.id]
