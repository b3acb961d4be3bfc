"""What a change would do, told before it is done: the very decision is made inside a turn, and its events are left out.

So whoever would be refused is refused, with the same words. What is told of the rest is counted off the state: what
stops, how much of its run time would be lost, what would never start, who depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from dray.core.lifecycle.state.events import (
    CancelRequested,
    Clock,
    HoldChanged,
    JobEdited,
    RequeueRequested,
)
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.records.records import Attempt, Job
from dray.core.model.specs.spec import unpack_spec
from dray.core.scheduling.claims.reservations import end_ms
from dray.core.scheduling.explain.reason import span
from dray.core.scheduling.rebalancing.emptying import find_places
from dray.core.scheduling.rebalancing.scene import Scene
from dray.hub.access.caller import Caller
from dray.hub.answers.answers import Answers
from dray.hub.decisions import commands, edits, machines
from dray.hub.documents.records import Document, moment, worker_document
from dray.hub.engine.engine import Engine
from dray.hub.engine.turns import Decision
from dray.hub.rows import job_row
from dray.wire.messages import client as wire

MOST_NAMED = 20
Decide = Callable[[State, Clock], Decision]


class Previews:
    """One hub's previews."""

    def __init__(self, engine: Engine, answers: Answers) -> None:
        self._engine, self._answers = engine, answers

    async def cancel(self, caller: Caller, ask: wire.Cancel) -> Document:
        decide = commands.cancel(caller, ask.id, ask.task, ask.grace_s, self._answers.rows, _nothing)
        return await self._job(caller, ask.id, decide)

    async def hold(self, caller: Caller, job_id: str, on: bool) -> Document:
        return await self._job(caller, job_id, edits.hold(caller, job_id, on, self._answers.rows, _nothing))

    async def requeue(self, caller: Caller, ask: wire.Requeue) -> Document:
        decide = edits.requeue(caller, ask.id, ask.task, self._answers.calls, _nothing)
        return await self._job(caller, ask.id, decide)

    async def edit(self, caller: Caller, ask: wire.Edit) -> Document:
        space = self._answers.sources.low_space
        decide = edits.edit(caller, ask.id, ask.changes, self._answers.calls, _nothing, low_space=space)
        return await self._job(caller, ask.id, decide)

    async def drain(
        self, caller: Caller, worker_id: str, reason: str, until: str, stop: bool, move: bool
    ) -> Document:
        decide = machines.drain(caller, worker_id, True, _nothing, reason, until, stop, move=move)

        def dry(state: State, clock: Clock) -> Decision:
            decide(state, clock)
            found = foretell_drain(state, caller, worker_id, clock, stop, move)
            return Decision(answer=lambda after: worker_document(after, worker_id) | {"preview": found})

        document: Document = await self._engine.change(dry, 1, caller.user, (worker_id,), "drain")
        return document

    async def _job(self, caller: Caller, job_id: str, decide: Decide) -> Document:
        def dry(state: State, clock: Clock) -> Decision:
            events = decide(state, clock).events
            job = state.jobs.get(job_id)
            found = (
                foretell(state, job, events, clock) if job is not None else _tell(["nothing: it has ended"])
            )
            return Decision(
                answer=lambda after: (
                    self._answers.documents.document(after, caller, job_id) | {"preview": found}
                )
            )

        document: Document = await self._engine.change(
            dry, 1, caller.user, (job_id,), "preview", wants=(job_row(job_id),)
        )
        return document


def _nothing(*_: Any) -> None:
    """No answer: it is made elsewhere."""


def foretell(state: State, job: Job, events: Iterable[object], clock: Clock) -> Document:
    """What would follow of the events of one decision about a job."""
    said: list[str] = []
    found: Document = {"stops": 0, "lost_s": 0.0, "never_start": 0, "also": [], "changes": []}
    for event in events:
        if isinstance(event, CancelRequested | RequeueRequested):
            _foretell_stop(state, job, event, clock, found, said)
        elif isinstance(event, HoldChanged):
            waits = f"{job.waiting:,} task{'' if job.waiting == 1 else 's'}"
            said.append(f"keeps {waits} from starting" if event.on else f"lets {waits} start")
            found["undo"] = "release" if event.on else "hold"
        elif isinstance(event, JobEdited):
            before, after = unpack_spec(job.spec), unpack_spec(event.spec)
            found["changes"] += [
                {"name": name, "old": _plain(old), "new": _plain(new)}
                for name in before.__struct_fields__
                if (old := getattr(before, name)) != (new := getattr(after, name))
            ]
    if found["changes"]:
        told = (f"{one['name']} {one['old']!r} → {one['new']!r}" for one in found["changes"])
        said.append(f"changes {', '.join(told)}")
    return found | _tell(said or ["nothing: it is so already"])


def _foretell_stop(
    state: State,
    job: Job,
    event: CancelRequested | RequeueRequested,
    clock: Clock,
    found: Document,
    said: list[str],
) -> None:
    whole = event.index < 0 or job.gang
    live = [state.attempts[uid] for uid in state.live_of.get(job.id, ())]
    meant = [one for one in live if not one.cancel and (whole or one.index == event.index)]
    found["stops"], found["lost_s"] = len(meant), sum(_lost_ms(one, clock) for one in meant) / 1000
    if meant:
        said.append(f"stops {_tasks(len(meant))}, {span(round(found['lost_s'] * 1000))} of work is lost")
    if isinstance(event, RequeueRequested):
        said.append("queues what it stops again")
        return
    found["never_start"] = job.waiting if whole else int(not meant)
    if found["never_start"]:
        said.append(f"{_tasks(found['never_start'])} never start{'s' if found['never_start'] == 1 else ''}")
    if whole and (behind := list(state.dependents.get(job.id, ()))):
        found["also"] = behind[:MOST_NAMED]
        said.append(f"{len(behind):,} job{' waits' if len(behind) == 1 else 's wait'} for its end")


def foretell_drain(
    state: State, caller: Caller, worker_id: str, clock: Clock, stop: bool, move: bool = False
) -> Document:
    """What would follow of taking a worker out: what goes on there until when, and what was kept for whom."""
    live = [state.attempts[uid] for uid in state.held.get(worker_id, ())]
    ends = [end_ms(state, one) for one in live]
    lost_s = sum(_lost_ms(one, clock) for one in live) / 1000 if stop else 0.0
    last = max(ends, default=0)
    until = moment(clock.at_ms + last - clock.now_ms) if live and last < NEVER and not stop else None
    row = state.columns.row_of.get(worker_id, -1)
    kept = [one.job_id for one in state.reservations.values() if any(spot[1] == row for spot in one.spots)]
    said = ["nothing new starts there"]
    if live and stop:
        said.append(
            f"stops {_tasks(len(live))} and queues them again, {span(round(lost_s * 1000))} of work is lost"
        )
    elif live and move:
        going = sum(len(moves) for moves in find_places(Scene(state), worker_id))
        said.append(f"{going:,} of {_tasks(len(live))} find room elsewhere now and move there")
    elif live:
        when = f"until {until} at the latest" if until else "nobody knows until when"
        said.append(f"{_tasks(len(live))} go{'es' if len(live) == 1 else ''} on, {when}")
    if kept:
        said.append(
            f"room that is kept there for {len(kept):,} job{'' if len(kept) == 1 else 's'} is looked for elsewhere"
        )
    named = [job_id for job_id in kept if (job := state.jobs.get(job_id)) and caller.sees(job.user)]
    return {
        "stops": len(live) if stop else 0,
        "lost_s": lost_s,
        "goes_on": 0 if stop else len(live),
        "until": until,
        "also": named[:MOST_NAMED],
        "undo": "resume",
    } | _tell(said)


def _lost_ms(attempt: Attempt, clock: Clock) -> int:
    if not attempt.started_ms:
        return 0
    return max(0, clock.now_ms - attempt.started_ms - attempt.saved_ms)


def _tell(said: Sequence[str]) -> Document:
    sentence = "; ".join(said)
    return {"sentence": f"{sentence[:1].upper()}{sentence[1:]}."}


def _tasks(count: int) -> str:
    return f"{count:,} task{'' if count == 1 else 's'}"


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)
