"""What a task printed, as one text: of one attempt, or, while following, of all its attempts in order.

Following starts at the first attempt and goes on through retries, with a line between them, so that the same
request gives the same text from its beginning: a reader that was cut off skips what it has and reads on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job
from dray.errors import InvalidInput, NotFound
from dray.hub.access.caller import Caller
from dray.hub.answers.service import LogRequest
from dray.hub.calls.reading import is_call
from dray.hub.decisions.commands import owned
from dray.hub.engine.engine import Engine
from dray.hub.rows import Rows
from dray.hub.workers.outputs import Outputs
from dray.wire.messages.worker import STREAMS

NEXT_LOOK_S = 0.1
HELD_BYTES = 1 << 20
AttemptsOf = Callable[[State, Job, int | None], list[Attempt]]


class Tries(NamedTuple):
    """The attempts of one task so far, and whether another may come."""

    attempts: list[Attempt]
    more: bool


class LogReader:
    """Reads recordings on behalf of callers."""

    def __init__(self, engine: Engine, rows: Rows, outputs: Outputs, attempts_of: AttemptsOf) -> None:
        self._engine, self._rows, self._outputs, self._attempts_of = engine, rows, outputs, attempts_of

    async def read(self, caller: Caller, request: LogRequest) -> AsyncIterator[bytes]:
        """Give the text, less what the caller has already."""
        tries = await self._engine.read(lambda state: self._tries(state, caller, request))
        newest = tries.attempts[-1:]
        pieces = self._follow(caller, request, tries) if request.follow else self._whole(newest, request)
        skip = request.skip
        async for piece in pieces:
            if skip >= len(piece):
                skip -= len(piece)
            else:
                yield piece[skip:]
                skip = 0

    async def _whole(self, attempts: list[Attempt], request: LogRequest) -> AsyncIterator[bytes]:
        held = b""
        for attempt in attempts:
            async for piece in self._outputs.read(attempt, _streams(request), None):
                if request.tail is None:
                    yield piece
                    continue
                held += piece
                if len(held) > HELD_BYTES:
                    held = _last_lines(held, request.tail)
        if request.tail is not None:
            yield _last_lines(held, request.tail)

    async def _follow(self, caller: Caller, request: LogRequest, tries: Tries) -> AsyncIterator[bytes]:
        shown = 0
        while True:
            for attempt in [attempt for attempt in tries.attempts if attempt.no > shown]:
                if shown:
                    yield f"[dray: attempt {attempt.no}, on {attempt.worker}]\n".encode()
                shown = attempt.no
                async for piece in self._outputs.read(attempt, _streams(request), self._runs(attempt)):
                    yield piece
            if request.attempt is not None and shown:
                return
            more = tries.more
            tries = await self._engine.read(lambda state: self._tries(state, caller, request))
            if tries.attempts and tries.attempts[-1].no > shown:
                continue
            if not more:
                return
            await asyncio.sleep(NEXT_LOOK_S)

    def _runs(self, attempt: Attempt) -> Callable[[], bool]:
        def runs() -> bool:
            current = self._engine.state.attempts.get(attempt.uid)
            if current is None or not current.phase.live:
                return False
            # A lane lives on after a call that went through it.
            return not is_call(attempt) or attempt.index in (current.calls or {})

        return runs

    def _tries(self, state: State, caller: Caller, request: LogRequest) -> Tries:
        job = owned(caller, self._rows.job(request.job_id), request.job_id)
        index = 0 if request.task is None else request.task
        if job.numbered and request.task is None:
            raise InvalidInput(f"job {job.id!r} has {job.total} tasks: name one, such as {job.id}/0")
        if not 0 <= index < job.total:
            raise NotFound(f"job {job.id!r} has no task {index}: it has {job.total}")
        attempts = self._attempts_of(state, job, index)
        wanted = request.attempt
        chosen = [attempt for attempt in attempts if wanted in (None, attempt.no)]
        if wanted is not None and not chosen:
            raise NotFound(f"task {index} of job {job.id!r} has no attempt {wanted}: it has {len(attempts)}")
        task = state.tasks.get((job.id, index))
        more = job.id in state.jobs and not job.state.final and (task is None or not task.state.final)
        return Tries(chosen, more and (task is not None or index >= job.cursor))


def _streams(request: LogRequest) -> tuple[int, ...]:
    return (0, 1) if request.stream == "both" else (STREAMS.index(request.stream),)


def _last_lines(text: bytes, count: int) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join(lines[len(lines) - count :]) if count < len(lines) else text
