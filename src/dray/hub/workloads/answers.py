"""What the hub answers about workloads: made, found, changed, switched, filled, waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.events import Clock, JobEdited
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.workload_events import CANCEL, START
from dray.core.model.records.workload import Terms
from dray.core.model.specs.spec import JobSpec, pack_spec, unpack_spec
from dray.core.model.workloads.check import check_terms
from dray.core.model.workloads.laying import lay_under, said_of_jobs
from dray.errors import DrayError, InvalidInput
from dray.hub.access.caller import Caller
from dray.hub.answers.answers import Answers
from dray.hub.answers.service import Document, Submitted
from dray.hub.answers.slices import work_off
from dray.hub.decisions import workloads as decisions
from dray.hub.decisions.edits import revise
from dray.hub.decisions.workloads import Finish, Update, find_tally
from dray.hub.documents.public_feed import Feed
from dray.hub.documents.workloads import workload_document
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.workloads.reports import WorkloadReports

# So many workloads are looked at between two stops, and so many of their jobs changed in one turn.
STEP = 512
TURN_JOBS = 512


class Wanted(NamedTuple):
    """Which workloads a list wants, newest first; empty fields do not filter. `before`: further ones than this."""

    states: tuple[str, ...] = ()
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    all: bool = False
    before: int = 0
    limit: int = 100


class WorkloadAnswers:
    """One hub's answers about its workloads."""

    def __init__(self, answers: Answers, engine: Engine, feed: Feed) -> None:
        self._answers, self._engine = answers, engine
        self.reports = WorkloadReports(answers, engine, feed)
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    def hear(self, note: Note) -> None:
        """Wake whoever waits for the end of a workload."""
        if note.type == "workload_ended":
            for waiter in self._waiters.pop(note.data["workload"], ()):
                if not waiter.done():
                    waiter.set_result(None)

    # --- made and changed -------------------------------------------------------------------------------------------

    async def create(
        self, caller: Caller, raw: Mapping[str, Any], key: str = "", dry_run: bool = False
    ) -> Document:
        """Make a workload, with its first jobs: a draft first, so that whatever breaks off can be asked again."""
        given = dict(raw)
        name, jobs = given.pop("id", ""), given.pop("jobs", None) or []
        start, seal = bool(given.pop("start", False)), bool(given.pop("seal", False))
        if not isinstance(name, str):
            raise InvalidInput("id must be text: the name of the workload")
        terms = check_terms(given)
        specs = self._into(name, jobs)
        if jobs:
            # All of it is checked before any of it is made.
            laid = [lay_under(terms, spec) for spec in specs]
            await self._answers.read_specs(caller, [{**spec, "workload": ""} for spec in laid])

        def finish(state: State, created: bool) -> Document:
            known = name in state.workloads
            return self._document(state, caller, name) | {"created": created} if known else {"created": False}

        decide = decisions.create(caller, name, terms, finish, dry_run)
        document: Document = await self._engine.change(decide, who=caller.user, body=name, kind="workload")
        if dry_run:
            return {**document, "submitted": []}
        submitted: list[str] = []
        if jobs:
            done = await self._answers.submit(caller, specs, key or f"workload {name}")
            submitted = [job["id"] for job in done.jobs]
        if start and document["state"] in ("draft", "paused"):
            document |= await self.switch(caller, name, START)
        if seal and not document["sealed"]:
            document |= await self.switch(caller, name, "seal")
        if submitted:
            document |= await self.show(caller, name)
        return document | {"submitted": submitted}

    def _into(self, name: str, jobs: Any) -> list[dict[str, Any]]:
        if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
            raise InvalidInput("jobs must be a list of jobs, each an object")
        return [{**job, "workload": name} for job in jobs]

    async def update(self, caller: Caller, name: str, changes: Mapping[str, Any], etag: str = "") -> Document:
        """Change terms; what waits of its jobs and said nothing of its own follows them."""
        if not changes:
            raise InvalidInput("nothing is to be changed: give at least one field of the workload")
        before: list[Terms] = []

        def note_terms(state: State) -> None:
            before.append(find_tally(state, caller, name).record.terms)

        await self._engine.ask(note_terms)
        document = await self._change(caller, decisions.update, name, Update(changes, etag))
        if {"queue", "priority", "deadline", "labels"} & set(changes):
            await self._follow(caller, name, before[0])
        return document

    async def _follow(self, caller: Caller, name: str, before: Terms) -> None:
        """Edit the jobs that go on, one edit per job whatever its tasks, some hundred to a turn."""
        ids = await self._engine.ask(lambda state: list(find_tally(state, caller, name).jobs))
        for first in range(0, len(ids), TURN_JOBS):
            some = ids[first : first + TURN_JOBS]
            await self._engine.change(
                _follow_terms(caller, name, before, some), len(some), caller.user, (name, some[0]), "workload"
            )

    async def scale(self, caller: Caller, name: str, width: int) -> Document:
        return await self._change(caller, decisions.update, name, Update({"width": width}), "scale_workload")

    async def spread(self, caller: Caller, name: str, distribution: Mapping[str, Any]) -> Document:
        asked = Update({"distribution": dict(distribution)})
        return await self._change(caller, decisions.update, name, asked, "spread_workload")

    async def switch(
        self, caller: Caller, name: str, verb: str, stop: bool = False, grace_s: float | None = None
    ) -> Document:
        how = (stop, -1.0 if grace_s is None else grace_s)
        finish = self._finish(caller)
        decide = decisions.switch(caller, name, verb, finish, *how)
        weight = 8 if stop or verb == CANCEL else 1
        answer: Document = await self._engine.change(decide, weight, caller.user, (name, verb), "workload")
        return answer

    async def drop(self, caller: Caller, name: str) -> Document:
        decide = decisions.drop(caller, name, lambda state, removed, note: {"id": removed, "removed": True})
        answer: Document = await self._engine.change(decide, 1, caller.user, name, "workload")
        return answer

    async def _change(self, caller: Caller, make: Any, name: str, asked: Update, *more: Any) -> Document:
        decide = make(caller, name, asked, self._finish(caller), *more)
        answer: Document = await self._engine.change(decide, 1, caller.user, (name, asked), "workload")
        return answer

    def _finish(self, caller: Caller) -> Finish:
        def finish(state: State, name: str, note: str) -> Document:
            document = self._document(state, caller, name)
            return document | {"note": note} if note else document

        return finish

    # --- its jobs ---------------------------------------------------------------------------------------------------

    async def add(self, caller: Caller, name: str, jobs: Any, key: str = "", seal: bool = False) -> Submitted:
        """Submit jobs to it."""
        await self._engine.ask(lambda state: find_tally(state, caller, name))
        if not jobs:
            raise InvalidInput("the list of jobs is empty: send at least one")
        done = await self._answers.submit(caller, self._into(name, jobs), key)
        if seal:
            await self.switch(caller, name, "seal")
        return done

    async def attach(
        self, caller: Caller, name: str, attach: Sequence[str], detach: Sequence[str]
    ) -> Document:
        """Put jobs in, and take jobs out; of each it is told why nothing came of it."""
        await self._engine.ask(lambda state: decisions.own_record(state, caller, name))
        if not (attach or detach):
            raise InvalidInput("nothing is to be done: name jobs to attach or to detach")
        changed, unchanged = 0, dict[str, str]()
        for job_id, wanted in [*((one, name) for one in attach), *((one, "") for one in detach)]:
            try:
                if not wanted:
                    known = await self._answers.job(caller, job_id)
                    if known["workload"] != name:
                        unchanged[job_id] = f"it is not in workload {name}"
                        continue
                job = await self._answers.edit(caller, job_id, {"workload": wanted})
                if note := job.get("note", ""):
                    unchanged[job_id] = note
                changed += not note
            except DrayError as error:
                unchanged[job_id] = str(error)
        return await self.show(caller, name) | {"changed": changed, "unchanged": unchanged}

    # --- looked at --------------------------------------------------------------------------------------------------

    async def show(self, caller: Caller, name: str, wait_s: float = 0) -> Document:
        """One workload, once it has ended or the time is over."""
        if wait_s > 0:
            await self._wait(caller, name, wait_s)
        document = await self._engine.ask(lambda state: self._document(state, caller, name))
        return document | {"health": await self.reports.health(caller, name)}

    async def list(self, caller: Caller, wanted: Wanted) -> Document:
        """Those that the caller may see; archived ones where somebody asks for them."""

        def steps(state: State) -> Iterator[tuple[list[Document], bool]]:
            shown: list[Document] = []
            names = list(state.workloads)
            for place, name in enumerate(reversed(names)):
                tally = state.workloads.get(name)
                if tally is not None and _is_wanted(state, caller, tally.record, wanted):
                    if len(shown) == wanted.limit:
                        yield shown, True
                        return
                    shown.append(workload_document(tally, state.now_ms))
                if place % STEP == STEP - 1:
                    yield shown, False
            yield shown, False

        shown, more = await work_off(self._engine, steps)
        cursor = shown[-1]["etag"].partition("-")[0] if more and shown else None
        return {"workloads": shown, "next_cursor": cursor}

    def _document(self, state: State, caller: Caller, name: str) -> Document:
        return workload_document(find_tally(state, caller, name), state.now_ms)

    async def _wait(self, caller: Caller, name: str, wait_s: float) -> None:
        def join(state: State) -> asyncio.Future[None] | None:
            if find_tally(state, caller, name).record.state.ended:
                return None
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(name, []).append(waiter)
            return waiter

        waiter = await self._engine.read(join)
        if waiter is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiter, wait_s)
        waiting = self._waiters.get(name)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._waiters[name]


def _is_wanted(state: State, caller: Caller, record: Any, wanted: Wanted) -> bool:
    if wanted.before and record.seq >= wanted.before:
        return False
    if wanted.user and record.user != wanted.user:
        return False
    if not decisions.may_see(state, caller, record.id):
        return False
    if wanted.states and record.state not in wanted.states:
        return False
    if record.is_archived and not wanted.all and "archived" not in wanted.states:
        return False
    return all(record.terms.labels.get(key) == value for key, value in wanted.labels)


def _follow_terms(caller: Caller, name: str, before: Terms, ids: Sequence[str]) -> Any:
    """Edit those of some jobs that still say what their workload said of them."""

    def decide(state: State, clock: Clock) -> Decision:
        tally = state.workloads.get(name)
        if tally is None:
            return Decision(answer=lambda after: None)
        was, now = said_of_jobs(before), said_of_jobs(tally.record.terms)
        events = []
        for job_id in ids:
            job = state.jobs.get(job_id)
            if job is None or job.state.final or job.workload != name:
                continue
            spec = unpack_spec(job.spec)
            changed = _revised(spec, was, now)
            if changed != spec:
                events.append(JobEdited(job_id, pack_spec(changed), caller.user, job.after))
        return Decision(events, lambda after: None)

    return decide


def _revised(spec: JobSpec, was: Mapping[str, Any], now: Mapping[str, Any]) -> JobSpec:
    """A spec with what has changed of what its workload says, where it says nothing else itself."""
    blank = JobSpec()
    changes: dict[str, Any] = {
        field: now.get(field)
        for field in ("queue", "priority", "deadline")
        if was.get(field) != now.get(field) and getattr(spec, field) == was.get(field, getattr(blank, field))
    }
    old, new = was.get("labels", {}), now.get("labels", {})
    if old != new:
        own = {key: value for key, value in spec.labels.items() if old.get(key) != value}
        changes["labels"] = {**new, **own}
    return revise(spec, changes) if changes else spec
