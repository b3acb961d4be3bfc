"""What is told of a workload beyond its record: its tasks and results, why it waits, when it ends, how it does; and
what failed of it, submitted again.

Reads the state as of the last commit. The surprising rule: results are read off the log of events, so that each is told
once whoever asks when, and a reader goes on behind the last one it saw.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.lifecycle.state.workload_events import WorkloadRetried
from dray.core.model.records.records import Job
from dray.core.model.records.workload import WorkloadState
from dray.core.model.specs.again import again_spec
from dray.core.scheduling.explain.explain import View, explain, headline
from dray.core.scheduling.passes.workload_forecasts import foretell, judge
from dray.core.scheduling.placement.spreading import Lies
from dray.errors import Conflict
from dray.hub.access.caller import Caller
from dray.hub.answers.answers import Answers
from dray.hub.answers.service import Document
from dray.hub.answers.slices import work_off
from dray.hub.decisions import commands
from dray.hub.decisions.workloads import find_tally, own_record
from dray.hub.documents.public_feed import Feed, FeedEvent
from dray.hub.documents.records import moment
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.rows import job_row
from dray.hub.store.base import JobFilter

FAILED = ("failed", "worker_failed", "unschedulable")
MOST_LOOKED_AT, MOST_GROUPS = 2_000, 20
PAGE, MOST_RETRIED = 200, 10_000
_TOLD = ("state", "exit_code", "exit_class", "error")


class WorkloadReports:
    """One hub's reports on its workloads."""

    def __init__(self, answers: Answers, engine: Engine, feed: Feed) -> None:
        self._answers, self._engine, self._feed = answers, engine, feed

    # --- tasks and results ------------------------------------------------------------------------------------------

    async def tasks(
        self, caller: Caller, name: str, states: tuple[str, ...] = (), cursor: str = "", limit: int = 100
    ) -> Document:
        """Its tasks over all of its jobs, the newest job first; those of others' jobs are not shown."""
        await self._engine.ask(lambda state: find_tally(state, caller, name))
        before, _, inside = cursor.partition(".")
        shown: list[Document] = []
        before_seq = int(before or 0)
        while True:
            page = await self._answers.jobs(caller, JobFilter(workload=name, before_seq=before_seq, limit=1))
            for job in page["jobs"]:
                found = await self._answers.tasks(caller, job["id"], states, inside, limit - len(shown))
                inside = ""
                shown += [{**task, "job": job["id"]} for task in found["tasks"]]
                before_seq = await self._seq_of(job["id"])
                if found["next_cursor"] is not None:
                    return {"tasks": shown, "next_cursor": f"{before_seq + 1}.{found['next_cursor']}"}
            if page["next_cursor"] is None:
                return {"tasks": shown, "next_cursor": None}
            if len(shown) >= limit:
                return {"tasks": shown, "next_cursor": f"{before_seq}."}

    async def _seq_of(self, job_id: str) -> int:
        def look(state: State) -> int:
            job = self._answers.documents.find(job_id)
            return 0 if job is None else job.seq

        return await self._engine.read(look, job_row(job_id))

    async def results(
        self, caller: Caller, name: str, after: str = "", limit: int = 1000, wait_s: float = 0
    ) -> Document:
        """What has ended of it behind an event, each task once, in the order in which that was recorded; with none the
        answer comes once there is one, or the time is over. Calls are told by how many ended how.
        """
        made_ms = await self._engine.ask(lambda state: find_tally(state, caller, name).record.made_ms)
        position = after or await self._feed.find(made_ms)
        until, mine, shown = time.monotonic() + wait_s, dict[str, bool](), list[Document]()
        while True:
            bell = self._feed.bell
            # Asked first: what ended it is among what is found then.
            over = await self._engine.ask(lambda state: find_tally(state, caller, name).record.state.ended)
            found = await self._feed.since(position)
            for event in found:
                position = event.id
                if line := await self._result(caller, name, event, mine):
                    shown.append(line)
                    if len(shown) == limit:
                        return {"results": shown, "next": position, "done": False}
            left = until - time.monotonic()
            if not found and (shown or over or left <= 0 or not await self._feed.wait(bell, left)):
                return {"results": shown, "next": position, "done": over}

    async def _result(
        self, caller: Caller, name: str, event: FeedEvent, mine: dict[str, bool]
    ) -> Document | None:
        if event.type not in ("task_ended", "calls_ended"):
            return None
        job_id = event.data["job_id"]
        if job_id not in mine:

            def look(state: State) -> bool:
                job = self._answers.documents.find(job_id)
                tally = state.workloads.get(name)
                if job is None or tally is None or job.workload != name or job.seq < tally.record.first_job:
                    return False
                return caller.sees(job.user) or caller.sees(tally.record.user)

            mine[job_id] = await self._engine.read(look, job_row(job_id))
        if not mine[job_id]:
            return None
        at = {"job": job_id, "at": event.data["at"]}
        if event.type == "task_ended":
            told = {field: event.data.get(field) for field in _TOLD}
            return {**at, "task": event.data.get("task_id", job_id), **told, "calls": {}}
        words = ("succeeded", "failed", "killed", "lost")
        calls = {word: event.data[word] for word in words if event.data.get(word)}
        nothing = {"state": "", "exit_code": None, "exit_class": "", "error": ""}
        return {**at, "task": "", **nothing, "calls": calls} if calls else None

    # --- how it does ------------------------------------------------------------------------------------------------

    async def forecast(self, caller: Caller, name: str) -> Document:
        """When it ends, and whether it meets its deadline."""

        def look(state: State) -> Document:
            tally, at_ms = find_tally(state, caller, name), self._engine.clock_ms()
            found = foretell(state, tally, at_ms)
            known = found.p50_ms < NEVER
            return {
                "id": name,
                "left": found.left,
                "side_by_side": found.side_by_side,
                "p50_s": found.p50_ms / 1000 if known else None,
                "p90_s": found.p90_ms / 1000 if known else None,
                "ends_p50": moment(at_ms + found.p50_ms) if known and found.left else None,
                "ends_p90": moment(at_ms + found.p90_ms) if known and found.left else None,
                "deadline": tally.record.terms.deadline or None,
                "meets_deadline": found.in_time,
            }

        return await self._engine.read(look)

    async def health(self, caller: Caller, name: str) -> Document:
        """One verdict and its reasons."""

        def look(state: State) -> Document:
            tally = find_tally(state, caller, name)
            forecast = foretell(state, tally, self._engine.clock_ms())
            waits = (state.jobs[job_id] for job_id in tally.jobs)
            first = next(
                (job for job in waits if job.waiting and not job.barred and not job.state.final), None
            )
            reason = explain(state, first) if first is not None else None
            never = reason is not None and any(one.ever and one.kind != "workload" for one in reason.blockers)
            word = judge(state, tally, forecast, "" if reason is None else reason.summary, never)
            return {"verdict": word.word, "reasons": list(word.reasons), "meets_deadline": forecast.in_time}

        return await self._engine.read(look)

    async def why(self, caller: Caller, name: str) -> Document:
        """What keeps the rest of it waiting, the largest part first."""

        def steps(state: State) -> Iterator[Document]:
            tally = find_tally(state, caller, name)
            view, groups = View(state), dict[str, list[Job]]()
            waits = [state.jobs[job_id] for job_id in tally.jobs if state.jobs[job_id].waiting]
            for job in waits[:MOST_LOOKED_AT]:
                groups.setdefault(headline(state, job, view), []).append(job)
                yield {}
            ranked = sorted(groups.items(), key=lambda pair: -sum(job.waiting for job in pair[1]))
            shown = [
                {
                    "tasks": sum(job.waiting for job in jobs),
                    "jobs": len(jobs),
                    "first": jobs[0].id,
                    "reason": reason,
                }
                for reason, jobs in ranked[:MOST_GROUPS]
            ]
            waiting = sum(job.waiting for job in waits)
            summary = (
                f"{shown[0]['tasks']:,} of {waiting:,} wait: {shown[0]['reason']}"
                if shown
                else "nothing waits"
            )
            yield {"id": name, "waiting": waiting, "summary": summary, "groups": shown}

        return await work_off(self._engine, steps)

    async def distribution(self, caller: Caller, name: str, by: str = "") -> Document:
        """Where its tasks run, against where they should."""

        def look(state: State) -> Document:
            tally = find_tally(state, caller, name)
            lies = Lies(state, tally, by)
            total = sum(lies.counts.values())
            parts = [
                {
                    "value": place,
                    "running": count,
                    "share": round(count / total, 6) if total else 0.0,
                    "wanted": round(lies.wanted(place), 6),
                }
                for place, count in sorted(lies.counts.items())
            ]
            away = (abs(count - lies.wanted(place) * total) for place, count in lies.counts.items())
            off = max(away, default=0.0)
            mode = tally.record.terms.distribution.mode
            return {"id": name, "mode": mode, "by": lies.by, "parts": parts, "off_by": round(off, 3)}

        return await self._engine.read(look)

    # --- again ------------------------------------------------------------------------------------------------------

    async def retry(self, caller: Caller, name: str) -> Document:
        """Submit again what failed of it, each task once; what it was counts as no failure any more."""
        known = await self._engine.ask(lambda state: own_record(state, caller, name))
        if known.state in (WorkloadState.CANCELLED, WorkloadState.ARCHIVED):
            raise Conflict(f"workload {name} is {known.state}: nothing of it runs again")
        specs, tasks, left = await self._failed(caller, name, known.retried)
        made: list[str] = []
        if specs:
            checked = await self._answers.read_specs(caller, specs)
            submit = commands.submit(
                caller, checked, "", self._answers.sources, lambda state, ids, created: list(ids), retry=True
            )

            def decide(state: State, clock: Clock) -> Decision:
                own_record(state, caller, name)
                decided = submit(state, clock)
                events = [*decided.events, WorkloadRetried(name, tasks, caller.user)]
                return decided._replace(events=events)

            made = await self._engine.change(
                decide, len(checked), caller.user, (name, "retry"), "workload",
                wants=commands.submit_rows(caller, checked),
            )  # fmt: skip
        return {"id": name, "tasks": sum(tasks.values()), "jobs": made, "left_out": left}

    async def _failed(
        self, caller: Caller, name: str, retried: dict[str, int]
    ) -> tuple[list[dict[str, Any]], dict[str, int], dict[str, str]]:
        """The specs of what failed, how many tasks of which job that is, and what is left out why."""
        specs: list[dict[str, Any]] = []
        tasks: dict[str, int] = {}
        left: dict[str, str] = {}
        cursor: str | None = "0"
        while cursor is not None:
            wanted = JobFilter(workload=name, states=FAILED, before_seq=int(cursor), limit=PAGE)
            page = await self._answers.jobs(caller, wanted)
            for job in page["jobs"]:
                if job["id"] in retried:
                    continue
                failed = sum(job["tasks"][word] for word in FAILED)
                if job["calls"]:
                    left[job["id"]] = "it runs a function: call it again from its program"
                elif len(specs) == MOST_RETRIED:
                    left[job["id"]] = "so many at once are enough: ask again"
                else:
                    indices = await self._indices(caller, job) if job["spec"].get("array") else None
                    specs.append({**again_spec(job["spec"], indices), "workload": name})
                    tasks[job["id"]] = failed
            cursor = page["next_cursor"]
        return specs, tasks, left

    async def _indices(self, caller: Caller, job: Document) -> list[int]:
        found: list[int] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await self._answers.tasks(caller, job["id"], FAILED, cursor, 1000)
            found += [int(task["array_index"]) for task in page["tasks"]]
            cursor = page["next_cursor"]
        return found
