"""Operations on jobs: to submit, list, show, explain and change them, and to read what they print."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dray.errors import Conflict, NoSpace
from dray.hub.access.caller import Caller
from dray.hub.answers.service import LogRequest, Submitted
from dray.hub.operations import asks
from dray.hub.operations.operation import READ, SUBMIT, Desk, Operation
from dray.hub.store.base import JobFilter
from dray.wire.messages import client as wire
from dray.wire.schemas import jobs as shapes
from dray.wire.schemas import providers as provider_shapes
from dray.wire.schemas import reasons as reason_shapes


async def submit(desk: Desk, caller: Caller, ask: asks.SubmitJobs) -> Submitted:
    return await desk.service.submit(caller, *ask)


async def read_logs(desk: Desk, caller: Caller, ask: LogRequest) -> AsyncIterator[bytes]:
    return desk.service.logs(caller, ask)


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
    Operation("list_job_events", "List what happened to a job", READ, asks.Named, shapes.JobEvents,
              lambda desk, caller, ask: desk.service.job_events(caller, ask.id), weight=2),
    Operation("explain_job", "Explain why a job waits", READ, asks.ExplainJob, reason_shapes.Why,
              lambda desk, caller, ask: desk.service.why(caller, ask.id, ask.fix, ask.eta_s), weight=5),
    Operation("read_logs", "Read or follow the output of a task", READ, LogRequest, str, read_logs, streams="out"),
    Operation("cancel_job", "Cancel a job or one of its tasks", SUBMIT, wire.Cancel, shapes.JobDocument,
              lambda desk, caller, ask: desk.service.cancel(caller, ask.id, ask.task, ask.grace_s),
              repeat="same", errors=(Conflict,)),
    Operation("hold_job", "Keep a job from starting until it is released", SUBMIT, wire.Hold, shapes.JobDocument,
              lambda desk, caller, ask: desk.service.hold(caller, ask.id, True), repeat="same", errors=(Conflict,)),
    Operation("release_job", "Let a held job start", SUBMIT, wire.Release, shapes.JobDocument,
              lambda desk, caller, ask: desk.service.hold(caller, ask.id, False), repeat="same", errors=(Conflict,)),
    Operation("requeue_job", "Stop what runs of a job and queue it again", SUBMIT, wire.Requeue, shapes.JobDocument,
              lambda desk, caller, ask: desk.service.requeue(caller, ask.id, ask.task),
              repeat="anew", errors=(Conflict,)),
    Operation("act_on_jobs", "Cancel, hold, release or requeue many jobs at once, or count them", SUBMIT, wire.Act,
              shapes.ActAnswer, lambda desk, caller, ask: desk.service.act(caller, ask), weight=5, repeat="anew"),
    Operation("edit_job", "Change a job that waits", SUBMIT, wire.Edit, shapes.JobDocument,
              lambda desk, caller, ask: desk.service.edit(caller, ask.id, ask.changes),
              repeat="same", errors=(Conflict,)),
    Operation("plan_job", "Tell where a job would run; nothing is written", READ, asks.PlanJob,
              reason_shapes.PlanAnswer, lambda desk, caller, ask: desk.service.plan(caller, ask.spec, ask.eta_s),
              weight=5),
    Operation("rank_providers", "Tell what a job would cost, and how long it would take, where", READ,
              asks.PlanJob, provider_shapes.Ranking, lambda desk, caller, ask: desk.service.rank(caller, ask.spec),
              weight=5),
    Operation("show_estimates", "Tell how good start-time estimates were", READ, asks.Nothing,
              reason_shapes.EstimateRecord, lambda desk, caller, ask: desk.service.estimates(caller), weight=2),
)  # fmt: skip
