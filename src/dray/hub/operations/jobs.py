"""Operations on jobs: to submit, list, show, explain and change them, and to read what they print."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dray.core.model.records.records import JobState
from dray.errors import Conflict, NoSpace, NotFound
from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document, LogRequest, Submitted
from dray.hub.operations import asks
from dray.hub.operations.operation import READ, SUBMIT, Desk, Operation
from dray.hub.store.base import JobFilter
from dray.hub.views.previews import Previews
from dray.wire.messages import client as wire
from dray.wire.schemas import jobs as shapes
from dray.wire.schemas import providers as provider_shapes
from dray.wire.schemas import reasons as reason_shapes

_ENDED = tuple(state.value for state in JobState if state.final)
_UNSUCCESSFUL = tuple(state for state in _ENDED if state != JobState.SUCCEEDED.value)
# Of a job's record what belongs to that job alone, and what a template has left in it already.
_NOT_AGAIN = ("id", "user_id", "rendered", "template", "params")


async def submit(desk: Desk, caller: Caller, ask: asks.SubmitJobs) -> Submitted:
    return await desk.service.submit(caller, *ask)


async def read_logs(desk: Desk, caller: Caller, ask: LogRequest) -> AsyncIterator[bytes]:
    return desk.service.logs(caller, ask)


async def show_task(desk: Desk, caller: Caller, ask: asks.ShowTask) -> Document:
    page = await desk.service.tasks(caller, ask.id, (), str(ask.task or 0), 1)
    shown: Document = next(iter(page["tasks"]), {"index": None})
    # The only task of a job has no index, and may be called its first.
    if shown["index"] != (-1 if ask.task is None else ask.task) and (shown["index"], ask.task) != (-1, 0):
        named = "single task: name one of them, such as JOB/0" if ask.task is None else f"task {ask.task}"
        raise NotFound(f"job {ask.id!r} has no {named}")
    return shown


async def rerun(desk: Desk, caller: Caller, ask: asks.RerunJob) -> Submitted:
    """Whoever asks has the new job; what a template gave is in the record of the old one already."""
    job = await desk.service.job(caller, ask.id)
    if job["calls"]:
        raise Conflict(f"job {ask.id} holds calls of a function, which its program has: call it again there")
    spec = {name: value for name, value in job["spec"].items() if name not in _NOT_AGAIN}
    if ask.failed:
        spec["array"] = await _failed_part(desk, caller, job)
    for name, value in ask.changes.items():
        if value is None:
            spec.pop(name, None)
        else:
            spec[name] = value
    return await desk.service.submit(caller, [spec], ask.key)


async def _failed_part(desk: Desk, caller: Caller, job: Document) -> Document:
    """The indices of those that did not succeed; while a job goes on nobody knows all of them."""
    if job["state"] not in _ENDED:
        raise Conflict(
            f"job {job['id']} goes on ({job['state']}): which tasks fail is known when it has ended"
        )
    indices: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await desk.service.tasks(caller, job["id"], _UNSUCCESSFUL, cursor, 1000)
        indices += [task["array_index"] for task in page["tasks"] if task["array_index"] is not None]
        cursor = page["next_cursor"]
    if not indices:
        raise Conflict(f"no task of an array failed in job {job['id']}: there is nothing to run again")
    return {"indices": ",".join(map(str, indices)), "limit": job["spec"]["array"].get("limit", 0)}


def _previews(desk: Desk) -> Previews:
    assert desk.views is not None  # every hub has them
    return desk.views.previews


async def cancel_job(desk: Desk, caller: Caller, ask: wire.Cancel) -> Document:
    if ask.dry_run:
        return await _previews(desk).cancel(caller, ask)
    return await desk.service.cancel(caller, ask.id, ask.task, ask.grace_s)


async def _hold(desk: Desk, caller: Caller, ask: wire.Hold | wire.Release, on: bool) -> Document:
    change = _previews(desk).hold if ask.dry_run else desk.service.hold
    return await change(caller, ask.id, on)


async def requeue_job(desk: Desk, caller: Caller, ask: wire.Requeue) -> Document:
    if ask.dry_run:
        return await _previews(desk).requeue(caller, ask)
    return await desk.service.requeue(caller, ask.id, ask.task)


async def edit_job(desk: Desk, caller: Caller, ask: wire.Edit) -> Document:
    if ask.dry_run:
        return await _previews(desk).edit(caller, ask)
    return await desk.service.edit(caller, ask.id, ask.changes)


JOBS = (
    Operation("submit_job", "Submit a job", SUBMIT, asks.SubmitJobs, shapes.JobDocument, submit,
              repeat="key", errors=(Conflict, NoSpace)),
    Operation("submit_batch", "Submit several jobs, all or none", SUBMIT, asks.SubmitJobs, list[shapes.JobDocument],
              submit, weight=0, repeat="key", errors=(Conflict, NoSpace)),
    Operation("list_jobs", "List jobs, newest first", READ, JobFilter, shapes.JobList,
              lambda desk, caller, ask: desk.service.jobs(caller, ask), weight=2, paged=True),
    Operation("show_job", "Show a job, or wait for its end", READ, asks.ShowJob, shapes.JobDocument,
              lambda desk, caller, ask: desk.service.job(caller, ask.id, ask.wait_s)),
    Operation("list_tasks", "List the tasks of a job", READ, asks.ListTasks, shapes.TaskList,
              lambda desk, caller, ask: desk.service.tasks(caller, *ask), weight=0.5, paged=True),
    Operation("show_task", "Show a task with its attempts", READ, asks.ShowTask, shapes.TaskDocument, show_task),
    Operation("group_jobs", "Count jobs by state, user, queue, name or workload", READ, asks.GroupJobs,
              shapes.JobGroups, lambda desk, caller, ask: desk.service.count(caller, ask), weight=5),
    Operation("rerun_job", "Submit a job again, as it was or changed; all of it, or what failed", SUBMIT,
              asks.RerunJob, shapes.JobDocument, rerun, repeat="key", errors=(Conflict, NoSpace)),
    Operation("list_job_events", "List what happened to a job", READ, asks.Named, shapes.JobEvents,
              lambda desk, caller, ask: desk.service.job_events(caller, ask.id), weight=2),
    Operation("explain_job", "Explain why a job waits", READ, asks.ExplainJob, reason_shapes.Why,
              lambda desk, caller, ask: desk.service.why(caller, ask.id, ask.fix, ask.eta_s), weight=5),
    Operation("read_logs", "Read or follow the output of a task", READ, LogRequest, str, read_logs, streams="out"),
    Operation("cancel_job", "Cancel a job or one of its tasks", SUBMIT, wire.Cancel, shapes.JobDocument,
              cancel_job, repeat="same", errors=(Conflict,)),
    Operation("hold_job", "Keep a job from starting until it is released", SUBMIT, wire.Hold, shapes.JobDocument,
              lambda desk, caller, ask: _hold(desk, caller, ask, True), repeat="same", errors=(Conflict,)),
    Operation("release_job", "Let a held job start", SUBMIT, wire.Release, shapes.JobDocument,
              lambda desk, caller, ask: _hold(desk, caller, ask, False), repeat="same", errors=(Conflict,)),
    Operation("requeue_job", "Stop what runs of a job and queue it again", SUBMIT, wire.Requeue, shapes.JobDocument,
              requeue_job,
              repeat="anew", errors=(Conflict,)),
    Operation("act_on_jobs", "Cancel, hold, release or requeue many jobs at once, or count them", SUBMIT, wire.Act,
              shapes.ActAnswer, lambda desk, caller, ask: desk.service.act(caller, ask), weight=5, repeat="anew"),
    Operation("edit_job", "Change a job that waits", SUBMIT, wire.Edit, shapes.JobDocument,
              edit_job, repeat="same", errors=(Conflict,)),
    Operation("plan_job", "Tell where a job would run; nothing is written", READ, asks.PlanJob,
              reason_shapes.PlanAnswer, lambda desk, caller, ask: desk.service.plan(caller, ask.spec, ask.eta_s),
              weight=5),
    Operation("rank_providers", "Tell what a job would cost, and how long it would take, where", READ,
              asks.PlanJob, provider_shapes.Ranking, lambda desk, caller, ask: desk.service.rank(caller, ask.spec),
              weight=5),
    Operation("show_estimates", "Tell how good start-time estimates were", READ, asks.Nothing,
              reason_shapes.EstimateRecord, lambda desk, caller, ask: desk.service.estimates(caller), weight=2),
)  # fmt: skip
