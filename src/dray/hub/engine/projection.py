"""Rows follow the log: what changed is written within 50 ms or 1,000 changes, one upsert per entity, then let go
if it ended.

Rows are taken at a turn's end, when memory equals the last commit: the projection never runs ahead of the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from dray.core.lifecycle.recovery import release, take_touched
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State, Touched
from dray.core.model.records.ledger import LedgerKey, pack_record
from dray.core.model.records.records import Attempt, Job
from dray.core.model.specs.resources import Ask
from dray.core.model.specs.spec import unpack_spec
from dray.errors import NotReady
from dray.hub.store.base import AttemptRow, JobRow, LedgerRow, Projection
from dray.hub.store.writer import StoreWriter

# A commit waits behind the rows that are being written: few at a time keep it short.
MAX_CHANGES = 1_000
MAX_DELAY_S = 0.05
_pack = msgspec.msgpack.Encoder().encode


class Projector:
    """Owns what was touched since the last projection; at most one projection is under way."""

    def __init__(self, writer: StoreWriter, seq: int) -> None:
        self._writer = writer
        self._since: float | None = None
        self._under_way: asyncio.Task[None] | None = None
        self._written: list[Touched] = []
        self._applied = seq
        # Hears of rows once they were written.
        self.listener: Callable[[Projection], None] | None = None

    def lag(self, state: State, seq: int) -> int:
        """How many turns the rows are behind. One that changes no row leaves nothing to wait for."""
        idle = self._under_way is None or self._under_way.done()
        return 0 if idle and not len(state.touched) else seq - self._applied

    def wait_s(self, state: State) -> float | None:
        """How long until the rows are due; None while nothing changed."""
        if not len(state.touched) and not self._written:
            return None
        if self._written:
            return 0.0
        if self._since is None:
            self._since = time.monotonic()
        if self._under_way is not None and not self._under_way.done():
            return MAX_DELAY_S
        return max(0.0, self._since + MAX_DELAY_S - time.monotonic())

    def is_due(self, state: State) -> bool:
        """Whether to write now. Also lets go of what an earlier projection has written."""
        self._release(state)
        wait = self.wait_s(state)
        busy = self._under_way is not None and not self._under_way.done()
        return wait is not None and not busy and (wait <= 0 or len(state.touched) >= MAX_CHANGES)

    async def project(
        self, state: State, seq: int, clock: Clock, settlers: Sequence[asyncio.Future[None]] = ()
    ) -> None:
        """Hand the rows to the writer and go on; `settlers` are told when they can be read.

        A failure surfaces at the next projection or commit.
        """
        if self._under_way is not None:
            await self._under_way
        # Before the list of changes starts anew: what changed since the last rows must not be let go with them.
        self._release(state)
        touched, self._since = take_touched(state), None
        projection = build_projection(state, touched, seq, clock)
        self._under_way = asyncio.create_task(self._write(projection, touched, settlers))

    async def _write(
        self, projection: Projection, touched: Touched, settlers: Sequence[asyncio.Future[None]]
    ) -> None:
        try:
            await self._writer.project(projection)
        except BaseException as failure:
            for settler in settlers:
                if not settler.done():
                    settler.set_exception(NotReady(f"the rows could not be written: {failure}"))
            raise
        self._written.append(touched)
        self._applied = projection.applied_seq
        if self.listener is not None:
            self.listener(projection)
        for settler in settlers:
            if not settler.done():
                settler.set_result(None)

    async def flush(self, state: State, seq: int, clock: Clock) -> None:
        """Write all that is left and wait for it."""
        if len(state.touched):
            await self.project(state, seq, clock)
        if self._under_way is not None:
            await self._under_way
        self._release(state)

    def _release(self, state: State) -> None:
        for touched in self._written:
            again = state.touched
            release(
                state,
                [key for key in touched.jobs if key not in again.jobs],
                [key for key in touched.tasks if key not in again.tasks],
                [key for key in touched.attempts if key not in again.attempts],
            )
        self._written.clear()


def build_projection(state: State, touched: Touched, seq: int, clock: Clock) -> Projection:
    """Copy what changed into rows, as of now."""
    workers = [state.workers[worker_id] for worker_id in touched.workers if worker_id in state.workers]
    return Projection(
        applied_seq=seq,
        now_ms=clock.now_ms,
        counters=_pack(state.counters),
        jobs=[_job_row(state.jobs[job_id]) for job_id in touched.jobs if job_id in state.jobs],
        tasks=[msgspec.structs.replace(state.tasks[key]) for key in touched.tasks if key in state.tasks],
        attempts=[
            _attempt_row(state, state.attempts[uid]) for uid in touched.attempts if uid in state.attempts
        ],
        workers=[msgspec.structs.replace(worker) for worker in workers],
        gone_workers=[worker_id for worker_id in touched.workers if worker_id not in state.workers],
        ledger=[_ledger_row(state, key) for key in touched.ledger],
    )


def _ledger_row(state: State, key: LedgerKey) -> LedgerRow:
    record = state.ledger.get(key)
    return LedgerRow(*key, None if record is None else pack_record(record))


def _job_row(job: Job) -> JobRow:
    return JobRow(msgspec.structs.replace(job), unpack_spec(job.spec).labels)


def _attempt_row(state: State, attempt: Attempt) -> AttemptRow:
    job, worker = state.jobs[attempt.job_id], state.workers.get(attempt.worker)
    gpu_type = worker.capability.gpu_type if worker and attempt.devices else ""
    # What is outstanding in a lane changes in place: the row keeps it as it is now.
    calls = None if attempt.calls is None else dict(attempt.calls)
    return AttemptRow(
        msgspec.structs.replace(attempt, calls=calls),
        job.name,
        job.user,
        shape_name(state.ask(attempt)),
        gpu_type,
        job.queue,
        job.plugin,
        job.template,
    )


@lru_cache(maxsize=4096)
def shape_name(ask: Ask) -> str:
    """Spell a shape for history: what differs from an empty ask."""
    empty = Ask()
    parts = [
        f"{name}={getattr(ask, name)}"
        for name in Ask.__struct_fields__
        if getattr(ask, name) != getattr(empty, name)
    ]
    return " ".join(parts)
