"""`HubService` on the engine: what every way into the hub is answered with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

import dray
from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.results import find
from dray.core.model.records.records import Attempt, Job, JobState
from dray.core.model.specs.spec import JobSpec
from dray.core.scheduling.explain.explain import View
from dray.core.scheduling.turns.order import waiting_in_order
from dray.errors import NotReady
from dray.hub.access.caller import Caller
from dray.hub.answers.estimates import Forecasts
from dray.hub.answers.job_documents import JobDocuments, JobReads
from dray.hub.answers.metrics import Metrics
from dray.hub.answers.output import LogReader
from dray.hub.answers.pages import count_ended, count_living, is_countable, read_page, spell_cursor
from dray.hub.answers.service import CountAsked, LogRequest, Submitted
from dray.hub.answers.site import SiteAnswers
from dray.hub.answers.slices import portions, spread, work_off
from dray.hub.calls.reading import CallReader, call_of
from dray.hub.calls.snapshots import Holds, Snapshots
from dray.hub.decisions import bulk, commands, edits, machines
from dray.hub.decisions.commands import KeyMemory, Sources, owned
from dray.hub.decisions.repeats import Repeats
from dray.hub.decisions.workloads import check_workloads, lay_terms, may_see
from dray.hub.documents.overview import overview_steps
from dray.hub.documents.public_feed import Feed, FeedEvent
from dray.hub.documents.records import (
    Document,
    group_failures,
    moment,
    worker_document,
)
from dray.hub.documents.why_and_plan import make_guest, plan_steps, rank_steps, why_steps
from dray.hub.engine.engine import Engine
from dray.hub.engine.failed_turns import Setbacks
from dray.hub.rows import Rows, job_row
from dray.hub.store.base import JobFilter, Store
from dray.hub.templates.answers import TemplateAnswers
from dray.hub.workers.outputs import Outputs
from dray.wire.messages.client import Act

VIEWED_JOBS = 128
# Of so many new jobs the documents are made with the turn that made them; of the rest in slices behind it.
BRIEF_JOBS = 64
# So many tasks of a job that did not succeed are looked at for the reasons of its failure.
JUDGED_TASKS = 100
MOST_GROUPS = 1000
UNSUCCESSFUL = tuple(state.value for state in JobState if state.final and state is not JobState.SUCCEEDED)


class Parts(NamedTuple):
    """What the answers are made from."""

    engine: Engine
    store: Store
    rows: Rows
    feed: Feed
    outputs: Outputs
    metrics: Metrics
    low_space: Callable[[], bool]
    batch_specs: int
    started_at_ms: int
    site: SiteAnswers
    forecasts: Forecasts
    templates: TemplateAnswers
    setbacks: Setbacks


class Answers:
    """One hub's answers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine, self._store, self._rows = parts.engine, parts.store, parts.rows
        self.calls = CallReader(parts.rows, lambda: parts.engine.fresh)
        self.documents = JobDocuments(parts.rows, self.calls, parts.forecasts)
        self.sources = Sources(parts.rows, self.calls, KeyMemory(), parts.low_space, pacing=parts.site.pacing)
        self._reads = JobReads(parts.engine, parts.rows, self.documents)
        self._logs = LogReader(parts.engine, parts.rows, parts.outputs, self.documents.attempts_of)
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        # Where tasks of several users share an account, in words.
        self.shared_accounts: Callable[[], list[str]] = list
        # Where trees are that jobs run in; it is wired once values are.
        self.snapshots: Snapshots | None = None
        self.listeners: list[Callable[[Note], None]] = [parts.site.hear, parts.forecasts.hear]
        self.checks: list[Callable[[State], Document]] = []
        self.ready = False

    @property
    def forecasts(self) -> Forecasts:
        """The start-time estimates."""
        return self._parts.forecasts

    @property
    def rows(self) -> Rows:
        """The reader of records."""
        return self._rows

    @property
    def site(self) -> SiteAnswers:
        """The answers about the site's rules."""
        return self._parts.site

    @property
    def templates(self) -> TemplateAnswers:
        """The answers about templates."""
        return self._parts.templates

    # --- changes ----------------------------------------------------------------------------------------------------

    async def submit(
        self, caller: Caller, specs: Sequence[Any], key: str = "", exists: str = "same"
    ) -> Submitted:
        checked, repeats = await self.read_specs(caller, specs), Repeats(exists)
        holds = await self.settle_snapshots(caller, checked)

        def finish(
            state: State, ids: Sequence[str], created: bool
        ) -> tuple[list[Document], Sequence[str], bool]:
            return (
                self._rows.each(lambda job_id: self.documents.brief(state, job_id), ids[:BRIEF_JOBS]),
                ids[BRIEF_JOBS:],
                created,
            )

        shown, left, created = await self._engine.change(
            commands.submit(caller, checked, key, self.sources, finish, repeats, holds),
            len(checked),
            caller.user,
            key or checked,
            "submit",
            wants=commands.submit_rows(caller, checked, key),
        )
        self.note_snapshots(holds)

        def look(state: State, some: Sequence[str]) -> list[Document]:
            return self._rows.each(lambda job_id: self.documents.brief(state, job_id), some)

        try:
            async for briefs in portions(self._engine, left, look):
                shown += briefs
            for document in shown if repeats.kept else ():
                document["note"] = repeats.kept.get(document["id"], "")
            return Submitted(shown, created)
        except NotReady:
            # The hub stops, and the jobs are recorded: nobody may be told that they are not.
            rest = left[len(shown) - BRIEF_JOBS :]
            return Submitted([*shown, *({"id": job_id, "state": "pending"} for job_id in rest)], created)

    async def read_specs(self, caller: Caller, specs: Sequence[Any]) -> list[JobSpec]:
        """Check what is to be submitted; many of them in slices."""
        return await spread(
            commands.read_steps(
                caller, specs, self._parts.batch_specs, expand=self.templates.expand, lay=self._lay
            )
        )

    def _lay(self, raw: dict[str, Any]) -> dict[str, Any]:
        return lay_terms(self._engine.state, raw)

    async def submit_columns(self, caller: Caller, checked: Sequence[JobSpec], key: str = "") -> Document:
        """Submit by the same rules what has been checked, and answer with ids and states alone."""

        def finish(state: State, ids: Sequence[str], created: bool) -> Document:
            new = [JobState.PENDING.value] * len(ids)
            states = new if created else self._rows.each(self.documents.state_of, ids)
            return {"ids": ids, "states": states, "created": created}

        holds = await self.settle_snapshots(caller, checked)
        answer: Document = await self._engine.change(
            commands.submit(caller, checked, key, self.sources, finish, holds=holds),
            len(checked),
            caller.user,
            key or checked,
            "submit",
            wants=commands.submit_rows(caller, checked, key),
        )
        self.note_snapshots(holds)
        return answer

    async def settle_snapshots(self, caller: Caller, specs: Sequence[JobSpec]) -> Holds:
        """See that the trees which jobs run in are here, before a turn is asked for."""
        wanted = {named for spec in specs for named in (spec.snapshot_id, spec.environment) if named}
        return await self.snapshots.settle(caller, sorted(wanted)) if wanted and self.snapshots else {}

    def note_snapshots(self, holds: Holds) -> None:
        """What snapshots hold is recorded."""
        if self.snapshots is not None and holds:
            self.snapshots.recorded(holds)

    async def cancel(
        self, caller: Caller, job_id: str, index: int | None = None, grace_s: float | None = None
    ) -> Document:
        def finish(state: State, ids: Sequence[str], done: bool) -> Document:
            document = self.documents.document(state, caller, job_id)
            if not done:
                return document | {"note": "already finished: nothing to cancel"}
            job = self._rows.job(job_id)
            if index is not None and job is not None and job.gang:
                what = "group" if job.service else "gang"
                return document | {"note": f"cancelled whole: the tasks of a {what} end together"}
            return document

        answer: Document = await self._engine.change(
            commands.cancel(caller, job_id, index, grace_s, self._rows, finish),
            who=caller.user,
            body=(job_id, index),
            kind="cancel",
            wants=(job_row(job_id),),
        )
        return answer

    async def hold(self, caller: Caller, job_id: str, on: bool) -> Document:
        return await self._change(caller, edits.hold, job_id, on, self._rows)

    async def requeue(self, caller: Caller, job_id: str, index: int | None = None) -> Document:
        return await self._change(caller, edits.requeue, job_id, index, self.calls)

    async def edit(self, caller: Caller, job_id: str, wanted: Mapping[str, Any]) -> Document:
        return await self._change(
            caller, edits.edit, job_id, wanted, self.calls, low_space=self.sources.low_space
        )

    async def act(self, caller: Caller, ask: Act) -> Document:
        """Change many jobs, a turn's worth at a time: whoever asks hears of it when the last of them is recorded."""
        bulk.check_act(caller, ask)
        chosen = await work_off(self._engine, lambda state: bulk.choose_steps(state, caller, ask))
        changed = len(chosen.ids)
        for first in range(0, 0 if ask.dry_run else changed, bulk.TURN_JOBS):
            some = chosen.ids[first : first + bulk.TURN_JOBS]
            left = await self._engine.change(
                bulk.act(caller, ask, some), len(some), caller.user, (ask, some[0]), "act"
            )
            for why, count in left.items():
                chosen.unchanged[why] = chosen.unchanged.get(why, 0) + count
                changed -= count
        return bulk.spell(ask, chosen, changed)

    async def _change(
        self,
        caller: Caller,
        make: Callable[..., Any],
        job_id: str,
        what: Any,
        reader: Rows | CallReader,
        **more: Any,
    ) -> Document:
        def finish(state: State, _: str, note: str) -> Document:
            document = self.documents.document(state, caller, job_id)
            return document | {"note": note} if note else document

        decide = make(caller, job_id, what, reader, finish, **more)
        answer: Document = await self._engine.change(
            decide, 1, caller.user, (job_id, what), make.__name__, wants=(job_row(job_id),)
        )
        return answer

    async def drain(
        self,
        caller: Caller,
        worker_id: str,
        on: bool,
        reason: str = "",
        until: str = "",
        stop: bool = False,
        ends: str = "",
        move: bool = False,
    ) -> Document:
        decide = machines.drain(caller, worker_id, on, worker_document, reason, until, stop, ends, move)
        answer: Document = await self._engine.change(decide, 1, caller.user, (worker_id, on), "drain")
        return answer

    async def label_worker(
        self, caller: Caller, worker_id: str, labels: Mapping[str, str | None]
    ) -> Document:
        decide = machines.label(caller, worker_id, labels, worker_document)
        answer: Document = await self._engine.change(decide, 1, caller.user, (worker_id, labels), "label")
        return answer

    async def remove_worker(self, caller: Caller, worker_id: str, force: bool) -> Document:
        decide = machines.remove(caller, worker_id, force, lambda state, removed: {"id": removed})
        answer: Document = await self._engine.change(decide, 1, caller.user, (worker_id, force), "remove")
        return answer

    # --- jobs -------------------------------------------------------------------------------------------------------

    async def job(self, caller: Caller, job_id: str, wait_s: float = 0) -> Document:
        if wait_s > 0:
            await self._wait_for_end(caller, job_id, wait_s)
        return await self._reads.job(caller, job_id)

    async def jobs(self, caller: Caller, wanted: JobFilter) -> Document:
        if not caller.may("admin"):
            if wanted.user and wanted.user != caller.user:
                return {"jobs": [], "next_cursor": None, "total": 0 if wanted.count else None}
            wanted = msgspec.structs.replace(wanted, user=caller.user)
        await self._engine.settle()
        # Off the loop: a name or a label may be looked for among all jobs.
        rows, more = await asyncio.to_thread(read_page, self._store, wanted)
        total = await self._count(wanted) if is_countable(wanted) else None

        if any(row.state is JobState.PENDING for row in rows):
            self.forecasts.want()

        def look(state: State, some: Sequence[Job]) -> list[Document]:
            view = View(state)
            known = [state.jobs.get(row.id, row) for row in some]
            return self._rows.each(lambda job: self.documents.listed(state, job, view), known)

        shown: list[Document] = []
        async for lines in portions(self._engine, rows, look, VIEWED_JOBS):
            shown += lines
        return {
            "jobs": shown,
            "next_cursor": spell_cursor(wanted, rows[-1]) if more else None,
            "total": total,
        }

    async def count(self, caller: Caller, asked: CountAsked) -> Document:
        """How many jobs there are in each group; of everybody's for admins, of their own for others."""
        user = asked.user if caller.may("admin") else caller.user
        if asked.user not in ("", user):
            return {"groups": [], "others": 0}
        wanted = JobFilter(
            states=asked.states,
            user=user,
            queue=asked.queue,
            name=asked.name,
            workload=asked.workload,
            limit=MOST_GROUPS + 1,
        )
        await self._engine.settle()
        # Off the loop: it walks over all jobs that the store has.
        found = await asyncio.to_thread(self._store.group_jobs, asked.by, wanted)
        shown = found[:MOST_GROUPS]
        others = 0
        if len(found) > MOST_GROUPS:
            whole = await asyncio.to_thread(self._store.group_jobs, (), wanted)
            others = sum(jobs for _, jobs in whole) - sum(jobs for _, jobs in shown)
        return {
            "groups": [{"values": list(values), "jobs": jobs} for values, jobs in shown],
            "others": others,
        }

    async def _count(self, wanted: JobFilter) -> int | None:
        ended = await asyncio.to_thread(count_ended, self._store, wanted)
        if ended is None:
            return None
        return ended + await work_off(self._engine, lambda state: count_living(state, wanted))

    async def tasks(
        self, caller: Caller, job_id: str, states: tuple[str, ...], cursor: str, limit: int
    ) -> Document:
        return await self._reads.tasks(caller, job_id, states, cursor, limit)

    async def job_events(self, caller: Caller, job_id: str) -> Document:
        return await self._reads.events(caller, job_id)

    async def why(self, caller: Caller, job_id: str, fix: bool = True, eta_s: float = 0) -> Document:
        def find(state: State) -> Job:
            return owned(caller, self._rows.job(job_id), job_id)

        now_ms = self.forecasts.now_ms()
        answer = await work_off(self._engine, lambda state: why_steps(state, find, caller.sees, fix, now_ms))
        if answer["place"] is not None:
            self.forecasts.want()
            if eta_s:
                await self.forecasts.wait(job_id, eta_s)
            answer["estimate"] = self.forecasts.document(job_id)

        def has_failed(state: State) -> bool:
            # Replicas of a service that goes on have ended because they were replaced, or are too many.
            job = find(state)
            return job.ended > job.succeeded and not (job.service and not job.state.final)

        failed = await self._engine.read(has_failed, job_row(job_id))
        if failed:
            page = await self.tasks(caller, job_id, UNSUCCESSFUL, "", JUDGED_TASKS)
            answer["failures"] = group_failures(page["tasks"])
        return answer

    async def plan(self, caller: Caller, spec: Any, eta_s: float = 0) -> Document:
        checked = self.read_one(caller, spec)
        answer = await self._try_out(
            caller, checked, lambda state, clock: plan_steps(state, checked, clock, caller.sees)
        )
        if eta_s and not answer["starts_now"] and answer["place"] is not None:
            at_ms = self._engine.clock_ms()
            guest = await self._engine.read(
                lambda state: make_guest(state, checked, Clock(state.now_ms, at_ms))
            )
            answer["estimate"] = await self.forecasts.foresee(guest, eta_s)
        return answer

    async def rank(self, caller: Caller, spec: Any) -> Document:
        """What a job could choose between: providers and cards with their money and time."""
        checked = self.read_one(caller, spec)
        return await self._try_out(caller, checked, lambda state, clock: rank_steps(state, checked, clock))

    def read_one(self, caller: Caller, spec: Any) -> JobSpec:
        how: Any = {"calls": True, "expand": self.templates.expand, "lay": self._lay}
        return commands.read_specs(caller, [spec], 1, **how)[0]

    async def _try_out(
        self, caller: Caller, checked: JobSpec, steps: Callable[[State, Clock], Iterator[Document]]
    ) -> Document:
        """Work something out about a job that is not submitted, where it could be."""

        def begin(state: State) -> Iterator[Document]:
            clock = Clock(state.now_ms, self._engine.clock_ms())
            commands.check_queues(state.policy, [checked])
            commands.check_templates(state.policy, [checked])
            check_workloads(state, caller, [checked])
            edits.check_deadlines([checked], clock)
            return steps(state, clock)

        return await work_off(self._engine, begin)

    async def estimates(self, caller: Caller) -> Document:
        """How good start-time estimates have been."""
        return self.forecasts.record()

    async def logs(self, caller: Caller, request: LogRequest) -> AsyncIterator[bytes]:
        async for piece in self._logs.read(caller, request):
            yield piece

    # --- workers, the hub itself --------------------------------------------------------------------------------------

    async def overview(
        self, caller: Caller, sort: str, match: str, offset: int, limit: int, heads: int
    ) -> Document:
        """Totals, as many workers as are shown, and the first that wait, each with its reason and estimate."""
        answer = await work_off(
            self._engine, lambda state: overview_steps(state, caller.sees, sort, match, offset, limit)
        )

        def look(state: State) -> list[Document]:
            view = View(state)
            queues = [name for name, depth in state.backlog.depth.items() if depth > 0]
            found = [place for name in queues for place in waiting_in_order(state, name, heads)]
            jobs = [state.jobs[job_id] for job_id, _ in found if caller.sees(state.jobs[job_id].user)]
            return [self.documents.listed(state, job, view) for job in jobs[:heads]]

        first = await self._engine.read(look)
        if first:
            self.forecasts.want()
        return {**answer, "heads": first}

    async def feed(self, caller: Caller, after: str = "") -> AsyncIterator[FeedEvent | None]:
        owners: dict[str, str] = {}

        async def sees(event: FeedEvent) -> bool:
            job_id = event.data.get("job_id", "")
            if event.data.get("workload") and "owner" in event.data:
                return caller.sees(event.data["owner"]) or may_see(
                    self._engine.state, caller, event.data["workload"]
                )
            if not job_id or caller.may("admin"):
                return True
            if job_id not in owners:
                try:
                    job = await self._engine.ask(lambda state: self._rows.job(job_id), job_row(job_id))
                except NotReady:
                    # The hub stops, and this feed with it: its reader asks again from the last event it was shown.
                    return False
                owners[job_id] = job.user if job is not None else ""
            return caller.sees(owners[job_id])

        async for event in self._parts.feed.follow(after, sees):
            yield event

    async def doctor(self, caller: Caller) -> Document:
        def look(state: State) -> Document:
            found = problems(state)
            checks = [{"name": "invariants", "ok": not found, "detail": "; ".join(found[:20])}]
            low = self._parts.low_space()
            checks.append(
                {
                    "name": "disk",
                    "ok": not low,
                    "detail": "nearly full: submits and edits are refused" if low else "",
                }
            )
            braked = "over half the workers fell silent at once: no loss is decided" if state.braked else ""
            checks.append({"name": "mass-loss brake", "ok": not state.braked, "detail": braked})
            strange = [worker.id for worker in state.workers.values() if worker.quarantined]
            detail = (
                f"unknown tasks run on {', '.join(sorted(strange))}: see `dray worker show`"
                if strange
                else ""
            )
            checks.append({"name": "quarantine", "ok": not strange, "detail": detail})
            # Somebody has said yes to it: told, and no failure.
            checks.append({"name": "accounts", "ok": True, "detail": "; ".join(self.shared_accounts())})
            checks += self._parts.setbacks.checks()
            checks += [check(state) for check in self.checks]
            facts = {
                "version": dray.__version__,
                "epoch": state.counters.epoch,
                "seq": self._engine.seq,
                "jobs": len(state.jobs),
                "tasks": len(state.tasks),
                "attempts": len(state.attempts),
                "workers": len(state.workers),
                "store_bytes": self._store.size_bytes(),
            }
            reports = [msgspec.to_builtins(report) for report in self._parts.setbacks.reports.open()]
            sound = all(check["ok"] for check in checks)
            return {"ok": sound, "checks": checks, "facts": facts, "reports": reports}

        return await self._engine.read(look)

    async def audit(self, caller: Caller, limit: int) -> Document:
        await self._engine.read(lambda state: None)
        rows = await asyncio.to_thread(self._store.audit, limit)
        return {"records": [row._asdict() | {"at": moment(row.at_ms)} for row in rows]}

    async def hub(self, caller: Caller) -> Document:
        epoch = await self._engine.ask(lambda state: state.counters.epoch)
        started = moment(self._parts.started_at_ms)
        return {
            "version": dray.__version__,
            "epoch": epoch,
            "started_at": started,
            "ready": self.ready,
            "reports": len(self._parts.setbacks.reports.open()),
            "shared_accounts": self.shared_accounts() if caller.may("admin") else [],
            "user": caller.user,
            "scopes": sorted(caller.scopes),
        }

    def metrics_text(self) -> bytes:
        return self._parts.metrics.text()

    # --- waiting ----------------------------------------------------------------------------------------------------

    def notice(self, note: Note) -> None:
        """Hear of a committed note: those who wait for a job's end are woken."""
        for listener in self.listeners:
            listener(note)
        if note.type == "job_ended":
            for waiter in self._waiters.pop(note.job_id, ()):
                if not waiter.done():
                    waiter.set_result(None)
        elif note.type == "task_started":
            self._parts.metrics.observe_start_wait(note.data["waited_ms"] / 1000)

    async def _wait_for_end(self, caller: Caller, job_id: str, wait_s: float) -> None:
        def join(state: State) -> asyncio.Future[None] | None:
            job = owned(caller, self._rows.job(job_id), job_id)
            if job.state.final:
                return None
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(job_id, []).append(waiter)
            return waiter

        waiter = await self._engine.read(join, job_row(job_id))
        if waiter is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiter, wait_s)
        waiting = self._waiters.get(job_id)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._waiters[job_id]


def find_owner(rows: Rows) -> Callable[[str, str, int, str], Attempt | None]:
    """Find the attempt that a worker's message speaks of, in memory or in the rows."""

    def look(worker: str, job_id: str, index: int, uid: str) -> Attempt | None:
        lane = rows.attempt(uid) if uid else None
        if lane is not None and lane.lane:
            return call_of(lane, index) if (lane.worker, lane.job_id) == (worker, job_id) else None
        attempt = find(rows.state, worker, job_id, index, uid)
        if attempt is None:
            known = rows.attempt(uid) if uid else rows.newest_attempt(worker, job_id, max(index, 0))
            if known is not None and (known.worker, known.job_id) == (worker, job_id):
                attempt = known
        return attempt

    return look
