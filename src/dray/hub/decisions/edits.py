"""What may be changed about a job after its submit, and by whom: hold, release, edit, requeue.

Decided inside the turn, like every change. An ended job is never changed: its result stands. The surprising rule: a
submit that is repeated under its key or id is compared with the spec as it was submitted, not with what an edit has
made of it, so that a client's retry stays safe whatever was edited meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dray.core.lifecycle.state.events import Clock, Event, HoldChanged, JobEdited, RequeueRequested
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, JobState
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import TIERS, JobSpec, pack_spec, spec_document, unpack_spec
from dray.core.model.templates.rendering import edit_fault
from dray.core.model.units import parse_moment
from dray.errors import Conflict, InvalidInput, InvalidSpec, NoSpace, NotFound, Problem
from dray.hub.access.caller import Caller
from dray.hub.calls.reading import CallReader
from dray.hub.decisions.notifying import check_notifications
from dray.hub.decisions.pacing import priority_fault
from dray.hub.decisions.policy import check_queue
from dray.hub.decisions.prerequisites import resolve_edit
from dray.hub.decisions.workloads import check_workloads
from dray.hub.engine.turns import Decision
from dray.hub.rows import Rows
from dray.hub.store.base import AuditRecord

# What a job is, rather than what it asks for; `array` apart from its limit goes with them.
FIXED = ("id", "type", "user_id", "node_count", "function", "template", "params", "rendered")
# What may change while some of a job's tasks run or have run: none of it is part of the shape.
ANY_TIME = frozenset(
    "name labels priority queue scheduling_timeout_s after hold deadline expected_runtime_s array notify"
    " notify_to share uses workload objective".split()
)
Finish = Callable[[State, str, str], Any]


def hold(
    caller: Caller, job_id: str, on: bool, rows: Rows, finish: Finish
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one hold or release; one that changes nothing says so."""

    def decide(state: State, clock: Clock) -> Decision:
        job = living(caller, rows, job_id, "held" if on else "released")
        note = ""
        if job.held == on:
            note = f"held already, by {job.held_by}" if on else "it was not held"
        elif on and not job.waiting:
            note = "nothing of it waits now: the hold is for what is queued again"
        events: list[Event] = [] if job.held == on else [HoldChanged(job_id, on, caller.user)]
        record = _audit(caller, clock, "hold" if on else "release", job_id)
        return Decision(events, lambda after: finish(after, job_id, note), (record,) if events else ())

    return decide


def requeue(
    caller: Caller, job_id: str, index: int | None, calls: CallReader, finish: Finish
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one requeue: of all that runs of a job, or of one task."""

    def decide(state: State, clock: Clock) -> Decision:
        job = living(caller, calls.records, job_id, "queued again")
        if index is not None and not 0 <= index < job.total:
            raise NotFound(f"job {job_id!r} has no task {index}: it has {job.total}")
        ended = None if index is None else _task_state(calls, job, index)
        if ended is not None and ended.final:
            raise Conflict(
                f"task {index} of job {job_id} has ended ({ended}): its result never changes; submit it again"
            )
        if unpack_spec(job.spec).at_most_once:
            raise Conflict(f"job {job_id} may start once only (at_most_once): cancel it and submit it again")
        live = [state.attempts[uid] for uid in state.live_of.get(job_id, ())]
        # A group stops and starts as one, whichever of its members is meant; of batch work a gang is one.
        chosen = None if job.gang and not job.service else index
        meant = job.group_of(chosen) if chosen is not None and job.gang else (chosen,)
        wanted = [item for item in live if not item.cancel and any(_is_of(item, one) for one in meant)]
        acts = bool(wanted or job.resting)
        note = "" if acts else "nothing of it runs: it waits, or is stopping already"
        events = [RequeueRequested(job_id, -1 if chosen is None else chosen, caller.user)] if acts else []
        target = job_id if chosen is None or not job.numbered else f"{job_id}/{chosen}"
        record = _audit(caller, clock, "requeue", target)
        return Decision(events, lambda after: finish(after, job_id, note), (record,) if events else ())

    return decide


def _task_state(calls: CallReader, job: Job, index: int) -> JobState | None:
    """How one task stands, where it has a result or a record."""
    if job.calls:
        rows, _ = calls.rows(job.id, index, index + 1)
        if index in rows:
            return JobState(rows[index].state)
    task = calls.records.task(job.id, index)
    return task.state if task is not None else None


def edit(
    caller: Caller,
    job_id: str,
    changes: Mapping[str, Any],
    calls: CallReader,
    finish: Finish,
    low_space: Callable[[], bool],
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one edit: a new spec made of the old one and the changes, checked whole.

    It is stored beside the old one, so a disk that is nearly full has no room for it; a hold starts nothing new.
    """
    if not changes:
        raise InvalidInput("nothing is to be changed: give at least one field of the job")

    def decide(state: State, clock: Clock) -> Decision:
        job = living(caller, calls.records, job_id, "changed")
        before = unpack_spec(job.spec)
        spec = revise(before, changes)
        _check_stage(job, before, spec)
        _check_trees(before, spec)
        check_template(before, spec)
        if spec.queue != before.queue and (fault := check_queue(state.policy, spec.queue)):
            raise InvalidSpec(f"queue: {fault}", [Problem("queue", fault)])
        if spec.workload != before.workload:
            check_workloads(state, caller, [spec])
        if {"notify", "notify_to"} & set(changes):
            check_notifications(state.policy.notifications, [spec])
        if "deadline" in changes:
            check_deadlines([spec], clock)
        owned_spec = msgspec.structs.replace(spec, user_id=job.user)
        if (fault := priority_fault(state.policy, owned_spec)) and spec.priority != before.priority:
            raise InvalidSpec(f"priority: {fault}", [Problem("priority", fault)])
        events: list[Event] = []
        after = job.after
        if spec.after != before.after:
            after = resolve_edit(calls, caller, job, spec.after)
        if spec != before:
            if changes != {"hold": True}:
                check_space(low_space, "changes of jobs")
            events.append(JobEdited(job_id, pack_spec(spec), caller.user, after))
        if "hold" in changes and spec.hold != job.held:
            events.append(HoldChanged(job_id, spec.hold, caller.user))
        note = "" if events else "it was so already: nothing was changed"
        record = _audit(caller, clock, "edit", job_id, ", ".join(sorted(changes)))
        return Decision(events, lambda state: finish(state, job_id, note), (record,) if events else ())

    return decide


def _is_of(attempt: Attempt, index: int | None) -> bool:
    """Whether an attempt runs a task, or any (None); a lane runs the calls that are outstanding in it."""
    if index is None:
        return True
    return attempt.index == index if attempt.calls is None else attempt.calls.get(index, 0) > 0


def living(caller: Caller, rows: Rows, job_id: str, what: str) -> Job:
    """Give a job that the caller may change and that has not ended."""
    job = rows.job(job_id)
    if job is None or not caller.sees(job.user):
        raise NotFound(f"there is no job {job_id!r}, or it is not yours")
    if job.state.final or job_id not in rows.state.jobs:
        raise Conflict(
            f"job {job_id} has ended ({job.state}) and cannot be {what}: its result never changes; "
            f"to run it again: dray submit --from {job_id}"
        )
    return job


def revise(before: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    """Lay changes over a spec; null takes a field back to its default. Raises `InvalidSpec` with every problem."""
    raw = spec_document(before)
    if "job_tier" in changes and before.priority == TIERS[before.job_tier].priority:
        # Not there where it is the default of all.
        raw.pop("priority", None)
    array = changes.get("array")
    if array is not None and before.array is None:
        raise InvalidSpec(
            "array: the job is no array, so it has no limit", [Problem("array", "the job is no array")]
        )
    if isinstance(array, Mapping) and before.array is not None:
        changes = {**changes, "array": {**raw["array"], **array}}
    for field, value in changes.items():
        if value is None:
            raw.pop(field, None)
        else:
            raw[field] = value
    if changes.get("gpu_count") == 0:
        # The cards are dropped with all that was asked of them, unless the same edit asks for it.
        for field in ("gpu_type", "min_vram_gb", "vram_per_gpu_bytes", "gpu_milli"):
            if not changes.get(field):
                raw.pop(field, None)
    spec = check_spec(raw)
    problems = [
        Problem(field, "is what the job was submitted as and cannot be changed: submit a new job")
        for field in FIXED
        if getattr(spec, field) != getattr(before, field)
    ]
    if _without_limit(spec) != _without_limit(before):
        what = "the tasks of a job are fixed when it is submitted: only array.limit can be changed"
        problems.append(Problem("array", what))
    if changes.get("gpu_count") == 0 and spec.gpu_count:
        problems.append(Problem("gpu_count", "is 0, but other fields still ask for a card: change them too"))
    _refuse(problems)
    return spec


def check_deadlines(specs: Sequence[JobSpec], clock: Clock) -> None:
    """Refuse deadlines that have passed before anything could start."""
    problems = []
    for place, spec in enumerate(specs):
        if spec.deadline and parse_moment(spec.deadline) <= clock.at_ms:
            prefix = f"[{place}]." if len(specs) > 1 else ""
            problems.append(Problem(f"{prefix}deadline", f"{spec.deadline} is in the past"))
    _refuse(problems)


def check_space(low_space: Callable[[], bool], what: str) -> None:
    """Refuse what makes the store grow while there is hardly room for the results of what runs."""
    if low_space():
        raise NoSpace(
            f"the hub's disk is nearly full: {what} are refused until there is room; running work goes on"
        )


def _check_stage(job: Job, before: JobSpec, spec: JobSpec) -> None:
    if not (job.cursor or job.live or job.requeued):
        return
    changed = [field for field in JobSpec.__struct_fields__ if getattr(spec, field) != getattr(before, field)]
    what = (
        "cannot be changed any more: a task of the job has been placed by it; what can still be changed is "
        f"{', '.join(sorted(ANY_TIME - {'array'}))} and array.limit"
    )
    _refuse([Problem(field, what) for field in changed if field not in ANY_TIME])


def _check_trees(before: JobSpec, spec: JobSpec) -> None:
    """What a job refers to was settled when it was submitted."""
    what = "is what the job was submitted with: submit a new job with another"
    fields = ("snapshot_id", "snapshot_sha", "environment")
    _refuse([Problem(field, what) for field in fields if getattr(spec, field) != getattr(before, field)])


def check_template(before: JobSpec, spec: JobSpec) -> None:
    """What a template has set of a job stays, unless it left it open."""
    if before.rendered is None:
        return
    changed = [field for field in JobSpec.__struct_fields__ if getattr(spec, field) != getattr(before, field)]
    _refuse([Problem(field, fault) for field in changed if (fault := edit_fault(before.rendered, field))])


def _without_limit(spec: JobSpec) -> Any:
    return None if spec.array is None else msgspec.structs.replace(spec.array, limit=0)


def _audit(caller: Caller, clock: Clock, action: str, target: str, detail: str = "") -> AuditRecord:
    return AuditRecord(clock.at_ms, caller.user, caller.token_id, action, target, detail)


def _refuse(problems: list[Problem]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}{more}", problems)
