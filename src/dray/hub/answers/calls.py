"""What clients ask about calls: to add some, to collect results, to hear of those that are still to come.

Between the client channel and the engine; who may see a job is settled as everywhere else. An answer ends at a size,
and says where to go on: a thousand values of 64 KiB are no message.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.errors import Conflict, NotFound
from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document
from dray.hub.calls.reading import CallReader, End
from dray.hub.calls.subscriptions import CallFeed, Listener
from dray.hub.decisions.calls import CallSources, add_calls, read_call_spec
from dray.hub.decisions.commands import owned, submit_rows, works_for
from dray.hub.decisions.workloads import lay_terms
from dray.hub.engine.engine import Engine
from dray.hub.rows import job_row
from dray.wire.messages.client import Calls, Collect
from dray.wire.messages.worker import PackedValue

ANSWER_BYTES = 4 << 20
# How much work a message brings to a turn, counted in messages of the ordinary kind.
CALLS_PER_UNIT = 16


class Value(NamedTuple):
    """The value of one task that has ended: its bytes, or the blob that holds them; `state` says how it ended."""

    state: str
    packed: PackedValue


class CallAnswers:
    """One hub's answers about calls."""

    def __init__(self, engine: Engine, sources: CallSources, reader: CallReader, feed: CallFeed) -> None:
        self._engine, self._sources, self._reader, self.feed = engine, sources, reader, feed
        self._rows = sources.submit.rows

    def add(self, caller: Caller, body: Calls, listener: Listener) -> asyncio.Future[Document]:
        """Add calls, and tell `listener` of their results."""
        spec = read_call_spec(caller, body, partial(lay_terms, self._engine.state))

        def finish(state: State, job_id: str) -> Document:
            job = owned(caller, self._rows.job(job_id), job_id)
            self.feed.add(job, listener)
            return {"job": job.id, "total": job.total, "state": job.state.value}

        decide = add_calls(caller, body, spec, self._sources, finish)
        weight = 1 + len(body.args) // CALLS_PER_UNIT
        wants = (job_row(body.job), *(submit_rows(caller, [spec]) if spec is not None else ()))
        return self._engine.change(decide, weight, caller.user, body, wants=wants)

    async def collect(self, caller: Caller, body: Collect, listener: Listener) -> Document:
        """Give the results so far of a part of a job's calls, and tell `listener` of the others."""

        def look(state: State) -> Document:
            job = self._find(caller, body.job)
            collected = self._collected(job, body.first, body.first + body.limit)
            self.feed.add(job, listener)
            return collected

        return await self._engine.read(look, job_row(body.job))

    async def value(self, caller: Caller, job_id: str, index: int | None) -> Value:
        """Give the value of one call, or of a job's only task; to a worker while it works for the job's user."""
        is_worker = not (caller.may("read") or caller.may("submit"))

        def look(state: State) -> Value:
            found = self._rows.job(job_id)
            if is_worker and found is not None and not works_for(state, caller, found.user):
                found = None
            job = found if is_worker and found is not None else owned(caller, found, job_id)
            place = _place(job, index)
            if not job.calls:
                return self._left_by(job, place)
            call = self._reader.call(job, place)
            if not call.task.state.final:
                raise Conflict(f"call {place} of job {job.id} has not ended: it is {call.task.state}")
            if call.row is None or call.row.value is None:
                words = f": {call.task.error}" if call.task.error else ""
                raise NotFound(f"call {place} of job {job.id} left no value: it is {call.task.state}{words}")
            return Value(call.row.state, call.row.value)

        return await self._engine.read(look, job_row(job_id))

    def _left_by(self, job: Job, index: int) -> Value:
        """What a task that runs a command left: a worker may give a few bytes with its result."""
        task = self._rows.task(job.id, index)
        attempt = self._rows.attempt(task.last_uid) if task is not None and task.last_uid else None
        if attempt is None or task is None or not attempt.value:
            raise NotFound(f"job {job.id} runs a command: it leaves output (`dray logs`), and no value here")
        return Value(task.state.value, attempt.value)

    def _find(self, caller: Caller, job_id: str) -> Job:
        job = owned(caller, self._rows.job(job_id), job_id)
        if not job.calls:
            raise Conflict(f"job {job.id} runs a command: it has no calls")
        return job

    def _collected(self, job: Job, first: int, end: int) -> Document:
        shown: list[End] = []
        size, cut = 0, min(job.total, end)
        for one in self._reader.ends(job, first, end):
            if size > ANSWER_BYTES:
                cut = one.number
                break
            shown.append(one)
            size += len(one.error) + (len(one.value) if isinstance(one.value, bytes) else 96)
        return {
            "job": job.id,
            "index": [one.number for one in shown],
            "state": _alike([one.state for one in shown]),
            "value": [one.value for one in shown],
            "worker": _alike([one.worker for one in shown]),
            "details": {
                str(one.number): (one.exit_class, one.error) for one in shown if one.state != "succeeded"
            },
            "next": cut if cut < job.total else None,
            "total": job.total,
            "job_state": job.state.value,
            "error": job.error,
        }


def _alike(column: list[str]) -> str | list[str]:
    """A column whose rows all say the same is said once."""
    return column[0] if column and column.count(column[0]) == len(column) else column


def _place(job: Job, index: int | None) -> int:
    if index is None and job.numbered:
        raise Conflict(f"job {job.id!r} has {job.total} tasks: name one, such as {job.id}/0")
    place = index or 0
    if not 0 <= place < job.total:
        raise NotFound(f"job {job.id!r} has no task {place}: it has {job.total}")
    return place
