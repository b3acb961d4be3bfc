"""The calls of one job as rows: their recorded results, their records where they had trouble, the rest by the job.

Read inside a turn, from memory, from the store and from what the turn itself has brought so far: its chunks can be read
from the store only after its commit, and no answer leaves before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import LANE, Attempt, Job, JobState, Phase, Task
from dray.hub.calls.results import CallRow, rows_of
from dray.hub.rows import Rows
from dray.hub.store.base import Chunk, ResultsChunk
from dray.wire.messages.worker import PackedValue

_PHASES = {"succeeded": Phase.SUCCEEDED, "failed": Phase.FAILED, "killed": Phase.KILLED}


class Call(NamedTuple):
    """One call: how it stands, its recorded result where it has one, and the tries that are known of it."""

    number: int
    task: Task
    row: CallRow | None
    attempts: list[Attempt]


class End(NamedTuple):
    """How one call ended."""

    number: int
    state: str
    value: PackedValue | None
    exit_class: str
    error: str
    worker: str = ""


class CallReader:
    """Reads calls. `fresh` gives the chunks of the turn that is under way."""

    def __init__(self, records: Rows, fresh: Callable[[], Sequence[Chunk]]) -> None:
        self.records, self._fresh = records, fresh

    def rows(self, job_id: str, first: int, end: int) -> tuple[dict[int, CallRow], dict[int, Task]]:
        """Give the recorded results of the calls `first` to `end - 1` by index, and their records as last written."""
        chunks, tasks = self.records.calls(job_id, first, end)
        found: dict[int, CallRow] = {}
        for chunk in chunks:
            found |= {row.index: row for row in rows_of(chunk, first, end)}
        for kept in self._fresh():
            if isinstance(kept, ResultsChunk) and kept.job_id == job_id:
                found |= {row.index: row for row in rows_of(kept, first, end)}
        return found, {task.index: task for task in tasks}

    def calls(self, job: Job, first: int, end: int) -> Iterator[Call]:
        """Give the calls `first` to `end - 1` in order; to be used inside a turn."""
        if min(end, job.total) <= first:
            return
        state = self.records.state
        (rows, tasks), given = self.rows(job.id, first, end), _given(state, job)
        for index in range(first, min(end, job.total)):
            known = state.tasks.get((job.id, index)) or tasks.get(index)
            yield _call(job, index, known, rows.get(index), given.get(index))

    def ends(self, job: Job, first: int, end: int) -> Iterator[End]:
        """Give those of the calls `first` to `end - 1` that have ended, without all that a document shows of them."""
        rows, known = self.rows(job.id, first, end) if min(end, job.total) > first else ({}, {})
        for index in range(first, min(end, job.total)):
            if (row := rows.get(index)) is not None:
                yield End(index, row.state, row.value, row.exit_class, row.error, row.worker)
                continue
            task = self.records.state.tasks.get((job.id, index)) or known.get(index)
            if task is None or (job.state.final and not task.state.final):
                task = _unplaced(job, index)
            if task.state.final:
                yield End(index, task.state.value, None, task.exit_class, task.error)

    def call(self, job: Job, index: int) -> Call:
        """Give one call."""
        return next(self.calls(job, index, index + 1))


def _given(state: State, job: Job) -> dict[int, tuple[int, Attempt]]:
    """The calls that are in lanes, with the number of the try."""
    lanes = (state.attempts[uid] for uid in state.live_of.get(job.id, ()))
    return {
        index: (number, lane) for lane in lanes for index, number in (lane.calls or {}).items() if number > 0
    }


def _call(
    job: Job, index: int, known: Task | None, row: CallRow | None, given: tuple[int, Attempt] | None
) -> Call:
    if row is not None:
        task = msgspec.structs.replace(known) if known is not None else Task(job_id=job.id, index=index)
        task.state, task.exit_class, task.error = JobState(row.state), row.exit_class, row.error
        task.queued, task.current, task.last_uid = False, "", row.lane
        task.attempts, task.ended_at_ms = max(task.attempts, row.no), row.at_ms
        task.started_at_ms = row.at_ms - row.wall_us // 1000
        return Call(index, task, row, [_ended_attempt(job, row)])
    if known is not None and known.state.final:
        return Call(index, known, None, [])
    if given is not None:
        number, lane = given
        task = msgspec.structs.replace(known) if known is not None else Task(job_id=job.id, index=index)
        task.state, task.current, task.attempts = JobState.RUNNING, lane.uid, number
        return Call(index, task, None, [call_of(lane, index)])
    return Call(index, known or _unplaced(job, index), None, [])


def _unplaced(job: Job, index: int) -> Task:
    """A call without any record: it waits, or shares how the job's rest ended."""
    ended = job.state.final or job.rest.final
    state = job.rest if job.rest.final else JobState.KILLED if ended else JobState.PENDING
    words = job.rest_class or ("cancelled" if state is JobState.KILLED else state.value)
    return Task(
        job_id=job.id,
        index=index,
        state=state,
        queued=not ended,
        exit_class=words if ended else "",
        error=job.error if ended else "",
    )


def _ended_attempt(job: Job, row: CallRow) -> Attempt:
    return Attempt(
        uid=row.lane,
        job_id=job.id,
        index=row.index,
        no=row.no,
        fence=0,
        worker=row.worker,
        shape=job.shape,
        phase=_PHASES[row.state],
        started=True,
        started_at_ms=row.at_ms - row.wall_us // 1000,
        ended_at_ms=row.at_ms,
        exit_class=row.exit_class,
        error=row.error,
        wall_s=row.wall_us / 1e6,
        value=row.value if isinstance(row.value, bytes) else b"",
        digest=row.value[0] if isinstance(row.value, tuple) else "",
        calls={},
    )


def call_of(lane: Attempt, index: int) -> Attempt:
    """The try of one call in a lane, whose number only memory may know."""
    place = max(index, 0)
    number = (lane.calls or {}).get(place, 0)
    return msgspec.structs.replace(lane, index=place, no=abs(number), calls={})


def is_call(attempt: Attempt) -> bool:
    """Whether an attempt is the try of a call, put together here from its lane: no store knows it by itself."""
    return attempt.calls is not None and attempt.index != LANE
