"""Answers for those who stay connected: many jobs at once, rows instead of documents, values.

Reads through `Answers` and changes nothing, so that ownership is settled in one place. What is not there and what
belongs to others comes back in `missing`: one bad id must not hide the other answers. An answer ends at a size, and
says what it left out, because a few ids may stand for gigabytes of specs and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job
from dray.core.model.specs.spec import JobSpec
from dray.hub.access.caller import Caller
from dray.hub.answers.answers import Answers
from dray.hub.answers.slices import portions
from dray.hub.decisions.commands import owned
from dray.hub.documents.records import Document, task_counts
from dray.hub.engine.engine import Engine
from dray.hub.rows import Rows, job_row
from dray.wire.messages.worker import PackedValue

ANSWER_BYTES = 4 << 20
_DOCUMENT_BYTES = 2048
SILENT = ("job_submitted", "cancel_requested")


class Batches:
    """One hub's answers about many jobs."""

    def __init__(self, answers: Answers, engine: Engine, rows: Rows) -> None:
        self._answers, self._engine, self._rows = answers, engine, rows
        self._watches = Watches(engine.state, lambda: engine.seq, self._last_row)
        answers.listeners.append(self._watches.hear)

    async def read_specs(self, caller: Caller, specs: Sequence[Any]) -> list[JobSpec]:
        """Check what is to be submitted."""
        return await self._answers.read_specs(caller, specs)

    async def submit(self, caller: Caller, checked: Sequence[JobSpec], key: str) -> Document:
        """Submit, and answer in two columns: a whole document per job would cost more than the job itself."""
        return await self._answers.submit_columns(caller, checked, key)

    async def watch(self, caller: Caller, ids: Sequence[str], watcher: Watcher) -> Document:
        """Show the jobs as they stand, and tell the watcher of those that go on."""

        def show(state: State, job: Job) -> Document:
            if not job.state.final:
                self._watches.add(job.id, watcher)
            return self._watches.row(state, job)

        return await self._collect(caller, ids, show)

    def drop(self, ids: Sequence[str], watcher: Watcher) -> None:
        """Tell the watcher no more of these jobs."""
        for job_id in ids:
            self._watches.drop(job_id, watcher)

    async def documents(self, caller: Caller, ids: Sequence[str]) -> Document:
        """Give whole documents."""
        return await self._collect(caller, ids, self._answers.documents.whole)

    async def results(self, caller: Caller, ids: Sequence[str]) -> Document:
        """Give documents and values of those that have ended."""

        def show(state: State, job: Job) -> Document | None:
            if not job.state.final:
                return None
            return {"id": job.id, "state": job.state.value, **self._last_row(state, job)}

        return await self._collect(caller, ids, show, "unfinished")

    async def values(self, caller: Caller, job_id: str, first: int, limit: int) -> Document:
        """Give states and values of a range of tasks in columns; None stands for a task without a value."""

        def find(state: State) -> Job:
            return owned(caller, self._rows.job(job_id), job_id)

        job = await self._engine.read(find, job_row(job_id))
        if job.calls:
            return await self._engine.read(lambda state: self._call_values(job, first, limit))

        def look(state: State, some: Sequence[int]) -> list[tuple[str, bytes | None]]:
            return self._rows.each(lambda index: self._task(state, job, index), some)

        shown: list[tuple[str, bytes | None]] = []
        size = 0
        async for tasks in portions(self._engine, range(first, min(job.total, first + limit)), look):
            for task in tasks:
                if size <= ANSWER_BYTES:
                    shown.append(task)
                    size += len(task[1] or b"")
            if size > ANSWER_BYTES:
                break
        end = first + len(shown)
        return {
            "id": job.id,
            "total": job.total,
            "first": first,
            "states": [task_state for task_state, _ in shown],
            "values": [value for _, value in shown],
            "next": end if shown and end < job.total else None,
        }

    def _call_values(self, job: Job, first: int, limit: int) -> Document:
        states: list[str] = []
        values: list[PackedValue | None] = []
        size = 0
        for call in self._answers.calls.calls(job, first, first + limit):
            if size > ANSWER_BYTES:
                break
            states.append(call.task.state.value)
            values.append(call.row.value if call.row is not None else None)
            size += len(values[-1] or b"")
        end = first + len(states)
        following = end if states and end < job.total else None
        shown = {"states": states, "values": values, "next": following}
        return {"id": job.id, "total": job.total, "first": first, **shown}

    async def _collect(
        self,
        caller: Caller,
        ids: Sequence[str],
        show: Callable[[State, Job], Document | None],
        unshown: str = "",
    ) -> Document:
        """Show jobs as far as an answer goes; those that `show` gives nothing for are named under `unshown`."""
        answer: Document = {"jobs": [], "missing": [], "left": []} | ({unshown: []} if unshown else {})
        size = 0

        def look(state: State, some: Sequence[str]) -> list[tuple[str, str, Document | None, int]]:
            room = ANSWER_BYTES - size

            def one(job_id: str) -> tuple[str, str, Document | None, int]:
                nonlocal room
                if room < 0:
                    return "left", job_id, None, 0
                job = self._rows.job(job_id)
                if job is None or not caller.sees(job.user):
                    return "missing", job_id, None, 0
                row = show(state, job)
                if row is None:
                    return unshown, job_id, None, 0
                weight = 0
                if "document" in row or "spec" in row:
                    weight = _DOCUMENT_BYTES + len(job.spec) + len(row.get("value", b""))
                room -= weight
                return "jobs", job_id, row, weight

            return self._rows.each(one, some)

        async for found in portions(self._engine, list(dict.fromkeys(ids)), look):
            for kind, job_id, row, weight in found:
                answer[kind].append(job_id if row is None else row)
                size += weight
        return answer

    def _last_row(self, state: State, job: Job) -> Document:
        attempts = [] if job.numbered else self._answers.documents.attempts_of(state, job, 0)
        ending: Document = {"document": self._answers.documents.whole(state, job, attempts)}
        value: PackedValue | None = _value(attempts)
        if job.calls and not job.numbered:
            row = self._answers.calls.call(job, 0).row
            value = row.value if row is not None else None
        return ending | {"value": value} if value else ending

    def _task(self, state: State, job: Job, index: int) -> tuple[str, bytes | None]:
        task = self._rows.task(job.id, index)
        if task is None:
            return job.rest.value, None
        value = _value(self._answers.documents.attempts_of(state, job, index)) if task.state.final else b""
        return task.state.value, value or None


def _value(attempts: Sequence[Attempt]) -> bytes:
    return attempts[-1].value if attempts else b""


# --- who is told of which job ----------------------------------------------------------------------------------------
# Rows are built when a turn's notes are handed out, when memory equals the last commit: later they could show what a
# failing commit takes back. A row carries the number of its turn, because the answer to `watch` is built inside a turn
# and may reach its reader after what the same turn pushed.


class Watcher(Protocol):
    """One reader of rows. `last` marks the row after which nothing more comes for that job."""

    def tell(self, job_id: str, row: Document, last: bool) -> None: ...


class Watches:
    """Watchers by job. `last_row` builds the row of a job that has ended, with its whole document."""

    def __init__(
        self,
        state: State,
        turn: Callable[[], int],
        last_row: Callable[[State, Job], Document],
    ) -> None:
        self._state, self._turn, self._last_row = state, turn, last_row
        self._watchers: dict[str, list[Watcher]] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, job_id: str, watcher: Watcher) -> None:
        """Tell `watcher` of this job from now on; once, however often it is asked for."""
        known = self._watchers.setdefault(job_id, [])
        if watcher not in known:
            known.append(watcher)

    def drop(self, job_id: str, watcher: Watcher) -> None:
        """Tell `watcher` no more of this job."""
        known = self._watchers.get(job_id, [])
        if watcher in known:
            known.remove(watcher)
            if not known:
                del self._watchers[job_id]

    def hear(self, note: Note) -> None:
        """Pass a committed note on as a row."""
        watchers = self._watchers.get(note.job_id)
        if watchers is None or note.type in SILENT:
            return
        job = self._state.jobs.get(note.job_id)
        last = note.type == "job_ended"
        # A job that ended within this turn has its last note still to come: one document is enough.
        if job is None or (job.state.final and not last):
            return
        row = self.row(self._state, job)
        if last:
            del self._watchers[note.job_id]
        for watcher in watchers:
            watcher.tell(note.job_id, row, last)

    def row(self, state: State, job: Job) -> Document:
        """Show a job in a few fields, or with its document once it has ended."""
        row: Document = {"id": job.id, "state": job.state.value, "turn": self._turn()}
        if job.numbered:
            row["tasks"] = task_counts(job)
        if job.state.final:
            return row | self._last_row(state, job)
        task = state.tasks.get((job.id, 0))
        attempt = state.attempts.get(task.current) if task is not None and not job.numbered else None
        row["phase"] = attempt.phase.value if attempt is not None else "queued" if job.waiting else ""
        return row
