"""Jobs and their tasks as documents, put together from memory and rows; by whoever has a state to look at.

Live work is read from the state as of the last commit, finished work from its rows. Memory keeps an entity until
its row is written, so one of the two always has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dray.core.lifecycle.holding.receipts import receipts_about
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, JobState
from dray.core.scheduling.explain.explain import View, headline
from dray.errors import InvalidInput
from dray.hub.access.caller import Caller
from dray.hub.answers.estimates import Forecasts
from dray.hub.answers.pages import PAGE_BYTES, weigh_task
from dray.hub.answers.slices import portions, work_off
from dray.hub.calls.reading import CallReader
from dray.hub.decisions.commands import owned
from dray.hub.documents.records import (
    Document,
    job_document,
    moment,
    task_document,
    tell_silence,
    waits_document,
)
from dray.hub.documents.services import standing_document
from dray.hub.documents.story import job_history
from dray.hub.rows import Reader, Rows, job_row

SCANNED_CALLS = 10_000
SCANNED_TASKS = 1_000


class JobDocuments:
    """The documents of one hub's jobs."""

    def __init__(self, rows: Rows, calls: CallReader, forecasts: Forecasts) -> None:
        self._rows, self._calls, self._forecasts = rows, calls, forecasts

    def document(self, state: State, caller: Caller, job_id: str) -> Document:
        job = owned(caller, self._rows.job(job_id), job_id)
        return self.whole(state, job)

    def find(self, job_id: str) -> Job | None:
        """A job, from memory or its row."""
        return self._rows.job(job_id)

    def state_of(self, job_id: str) -> str:
        job = self._rows.job(job_id)
        return job.state.value if job is not None else "forgotten"

    def whole(self, state: State, job: Job, attempts: Sequence[Attempt] | None = None) -> Document:
        """A job's whole document, for whoever has settled that it may be shown; `attempts` where they are at hand."""
        document = self._whole(state, job, attempts)
        document["service"] = standing_document(state, job) if job.service else None
        document["waits"] = waits_document(state.waits.read(job, self._forecasts.now_ms()))
        return document

    def _whole(self, state: State, job: Job, attempts: Sequence[Attempt] | None) -> Document:
        waits = job.state is JobState.PENDING and job.waiting
        reason = headline(state, job, View(state)) if waits else ""
        if job.numbered:
            return job_document(job, None, [], reason)
        if job.calls:
            call = self._calls.call(job, 0)
            return job_document(job, call.task, call.attempts, reason, state.progress, state.uses)
        task = self._rows.task(job.id, 0)
        known = self.attempts_of(state, job, 0) if attempts is None else attempts
        return job_document(
            job, task, known, reason or tell_silence(state, known), state.progress, state.uses
        )

    def brief(self, state: State, job_id: str) -> Document:
        """A submit's answer: a new job has no history, so nothing is looked up for it."""
        job = self._rows.job(job_id)
        if job is None:
            return {
                "id": job_id,
                "state": "forgotten",
                "note": "this job ended and its retention time is over",
            }
        if job.cursor or job.rest.final:
            return self.whole(state, job)
        return job_document(job, None, [])

    def listed(self, state: State, job: Job, view: View) -> Document:
        """A line of a list; a job whose record is odd is named all the same, and hides no other."""
        try:
            return self._line(state, job, view)
        except Exception as error:  # noqa: BLE001 - whatever is odd about one job, the list is of the others too
            note = f"this job's record cannot be read ({type(error).__name__}): see `dray doctor`"
            known = {
                "id": job.id,
                "name": job.name,
                "state": job.state.value,
                "user": job.user,
                "queue": job.queue,
            }
            return known | {
                "priority": job.priority,
                "submitted_at": moment(job.submitted_at_ms),
                "note": note,
            }

    def _line(self, state: State, job: Job, view: View) -> Document:
        reason = ""
        if job.state is JobState.PENDING and job.waiting and job.id in state.jobs:
            reason = headline(state, job, view)
        document = self._brief_document(state, job, reason)
        document["estimate"] = self._forecasts.document(job.id) if reason else None
        document["service"] = standing_document(state, job) if job.service else None
        return document

    def _brief_document(self, state: State, job: Job, reason: str) -> Document:
        if job.numbered:
            return job_document(job, None, [], reason)
        untouched = not job.cursor and not job.rest.final
        if job.calls and not untouched:
            call = self._calls.call(job, 0)
            return job_document(job, call.task, call.attempts, reason, state.progress, state.uses)
        task = None if untouched else self._rows.task(job.id, 0)
        attempts = [] if untouched else self.attempts_of(state, job, 0)
        return job_document(
            job, task, attempts, reason or tell_silence(state, attempts), state.progress, state.uses
        )

    def task_document(self, state: State, job: Job, index: int) -> Document:
        task = self._rows.task(job.id, index)
        attempts = self.attempts_of(state, job, index) if task is not None and task.attempts else []
        return task_document(job, index, task, attempts, state.progress, state.uses)

    def call_documents(
        self, state: State, job: Job, states: tuple[str, ...], first: int, limit: int
    ) -> Iterator[Document]:
        """A page of calls; one that looks for few among many ends early, with a cursor to go on from."""
        shown: list[Document] = []
        size = 0
        most = max(limit, SCANNED_CALLS if states else 0)
        end = min(job.total, first + most)
        for call in self._calls.calls(job, first, first + most):
            if len(shown) == limit or size > PAGE_BYTES:
                end = call.number
                break
            if not states or call.task.state.value in states:
                shown.append(
                    task_document(job, call.number, call.task, call.attempts, state.progress, state.uses)
                )
                size += weigh_task(shown[-1])
            yield {}
        yield {"tasks": shown, "next_cursor": str(end) if end < job.total else None}

    def indices(
        self, state: State, job: Job, states: tuple[str, ...], first: int, limit: int
    ) -> tuple[Sequence[int], int]:
        """The tasks of a page, and where the next one begins; one that looks for few among many ends early."""
        if not states:
            end = min(job.total, first + limit)
            return range(first, end), end
        rows = self._rows.tasks(job.id, first, limit, states)
        found = {task.index for task in rows}
        # Rows were looked at up to here; what lies behind is the next page's.
        end = rows[-1].index + 1 if len(rows) == limit else job.total
        if job.rest.value in states:
            index, scanned = max(first, job.cursor), 0
            touched = self._touched(job, index)
            while index < end and len(found) < 2 * limit and scanned < SCANNED_TASKS:
                if index not in touched and (job.id, index) not in state.tasks:
                    found.add(index)
                index, scanned = index + 1, scanned + 1
            end = min(end, index)
        kept = sorted(index for index in found if index < end)
        return kept[:limit], end if len(kept) <= limit else kept[limit - 1] + 1

    def _touched(self, job: Job, first: int) -> set[int]:
        """Tasks beyond the cursor that have rows, as far as a scan goes; in fixed steps, since the cursor moves."""
        if not job.holes:
            return set()
        start = first - first % SCANNED_TASKS
        return {task.index for task in self._rows.tasks(job.id, start, 2 * SCANNED_TASKS)}

    def attempts_of(self, state: State, job: Job, index: int | None) -> list[Attempt]:
        """Attempts of a job's task (None: of all its tasks), memory before rows. Those of a call are its lane's."""
        if job.calls and index is not None:
            return self._calls.call(job, index).attempts
        task = state.tasks.get((job.id, index)) if index is not None else None
        if task is not None and task.attempts <= 1 and task.last_uid in state.attempts:
            # Most tasks are tried once: neither the rows nor the other attempts in memory need to be looked at.
            return [state.attempts[task.last_uid]]
        found = {attempt.uid: attempt for attempt in self._rows.attempts(job.id, index)}
        newer = (
            [attempt for attempt in state.attempts.values() if attempt.job_id == job.id]
            if len(state.attempts) < 512
            else (self._live_attempts(state, job))
        )
        found |= {attempt.uid: attempt for attempt in newer if index is None or attempt.index == index}
        return sorted(found.values(), key=lambda attempt: (attempt.index, attempt.no))

    def _live_attempts(self, state: State, job: Job) -> list[Attempt]:
        uids = [*state.live_of.get(job.id, ()), *(uid for uid in state.touched.attempts)]
        found = [state.attempts[uid] for uid in uids if uid in state.attempts]
        return [attempt for attempt in found if attempt.job_id == job.id]


class JobReads:
    """One job as it is read: its document, its tasks, what happened to it."""

    def __init__(self, reader: Reader, rows: Rows, documents: JobDocuments) -> None:
        self._reader, self._rows, self._documents = reader, rows, documents

    async def job(self, caller: Caller, job_id: str) -> Document:
        return await self._reader.ask(
            lambda state: self._documents.document(state, caller, job_id), job_row(job_id)
        )

    async def tasks(
        self, caller: Caller, job_id: str, states: tuple[str, ...], cursor: str, limit: int
    ) -> Document:
        if cursor and not cursor.isdigit():
            raise InvalidInput(f"cursor {cursor[:40]!r} is not one that this list gave")
        await self._reader.settle()
        first = int(cursor) if cursor else 0

        def find(state: State) -> Job:
            return owned(caller, self._rows.job(job_id), job_id)

        job = await self._reader.read(find, job_row(job_id))
        if job.calls:
            return await work_off(
                self._reader, lambda state: self._documents.call_documents(state, job, states, first, limit)
            )
        indices, following = await self._reader.read(
            lambda state: self._documents.indices(state, job, states, first, limit)
        )

        def look(state: State, some: Sequence[int]) -> list[Document]:
            return self._rows.each(lambda index: self._documents.task_document(state, job, index), some)

        shown: list[Document] = []
        size = 0
        async for tasks in portions(self._reader, indices, look):
            for task in tasks:
                if size <= PAGE_BYTES:
                    shown.append(task)
                    size += weigh_task(task)
            if size > PAGE_BYTES:
                break
        if len(shown) < len(indices):
            following = indices[len(shown)]
        return {"tasks": shown, "next_cursor": str(following) if following < job.total else None}

    async def events(self, caller: Caller, job_id: str) -> Document:
        def look(state: State) -> Document:
            job = owned(caller, self._rows.job(job_id), job_id)
            attempts = self._documents.attempts_of(state, job, None)
            return {"events": job_history(job, attempts, receipts_about(state, job.id))}

        return await self._reader.read(look, job_row(job_id))
