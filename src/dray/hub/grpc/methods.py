"""Every method that has one answer: which operation it is, how its request is read and its answer spelled.

What is allowed and what happens is the operation's; nothing of that is here. Types come from the protos.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2
from google.protobuf.message_factory import GetMessageClass

from dray.core.model.ids import is_id
from dray.core.model.policies.policy import DAY_S
from dray.errors import InvalidInput, TooLarge
from dray.hub.answers.service import Document
from dray.hub.decisions.repeats import MODES
from dray.hub.documents.receipts import ReceiptFilter
from dray.hub.grpc.asking import (
    Page,
    read_changes,
    read_choice,
    read_cursor,
    read_filter,
    read_grace,
    read_id,
    read_key,
    read_labels,
    read_page,
    read_seconds,
    read_spec,
    read_task,
    read_text,
    read_whole,
    read_words,
    write_token,
    wrong,
)
from dray.hub.grpc.executors import (
    read_complete,
    read_dequeue,
    read_register,
    read_renew,
    read_return,
)
from dray.hub.grpc.spelling import read_struct
from dray.hub.operations import asks
from dray.hub.operations.operation import Operation
from dray.hub.operations.table import OPERATIONS
from dray.hub.views.board import STATES
from dray.hub.views.machines import SORTS, ListWorkers
from dray.v1 import scheduler_pb2, workload_manager_pb2
from dray.wire.messages import client as wire

MAX_LINE, MAX_RECEIPTS, MAX_IDS = 1000, 200, 1000
MOST_VALUE_BYTES = 4_000_000
MAX_WINDOW_S = 366 * DAY_S
BACKENDS = ("", "cpu", "nvidia", "metal", "vulkan")
Read = Callable[[Any], Any]
Write = Callable[[Any, Any], Mapping[str, Any]]
SERVICES = {
    one.full_name: one
    for one in (
        scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"],
        workload_manager_pb2.DESCRIPTOR.services_by_name["WorkloadManager"],
    )
}
_READS = descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS


class Kinds(NamedTuple):
    """The types of one method and its service, by its descriptor. `reads`: it changes nothing."""

    service: str
    request: type[Any]
    response: type[Any]
    reads: bool


class Method(NamedTuple):
    """One row. `write` gives the fields of the response, of what `finish` has made of the answer where there is one;
    `waits` names the field of what is asked that says how long the answer may take; `about` the field of the request
    that names something, and what that is.
    """

    name: str
    operation: Operation
    read: Read
    write: Write
    waits: str = ""
    about: tuple[str, str] = ("", "")
    finish: Callable[[Any], Awaitable[Any]] | None = None


def kinds_of(name: str) -> Kinds:
    """The types of a method; no two services have one of the same name."""
    service, found = next(
        (service, one.methods_by_name[name])
        for service, one in SERVICES.items()
        if name in one.methods_by_name
    )
    reads = found.GetOptions().idempotency_level == _READS
    return Kinds(service, GetMessageClass(found.input_type), GetMessageClass(found.output_type), reads)


# --- jobs -------------------------------------------------------------------------------------------------------------


def _exists(request: Any) -> str:
    return read_choice(request, "exists", MODES, "same")


def _read_submit(request: Any) -> asks.SubmitJobs:
    if not request.HasField("job"):
        raise wrong("job", "is missing: give the job that is to be submitted")
    return asks.SubmitJobs([read_spec(request.job)], read_key(request), _exists(request))


def _read_submits(request: Any) -> asks.SubmitJobs:
    if not request.jobs:
        raise wrong("jobs", "is empty: give at least one job")
    return asks.SubmitJobs([read_spec(job) for job in request.jobs], read_key(request), _exists(request))


def _read_cancel(request: Any) -> wire.Act:
    ids = list(request.jobs)
    if len(ids) > MAX_IDS:
        raise wrong("jobs", f"holds {len(ids)} ids, the limit is {MAX_IDS}: ask several times")
    if strange := next((job for job in ids if not is_id(job)), None):
        raise wrong("jobs", f"{strange[:64]!r} is no id of a job")
    asked = request.filter
    return wire.Act(
        "cancel",
        ids,
        list(read_words(asked, "states")),
        read_text(asked, "user"),
        read_text(asked, "queue"),
        read_text(asked, "name"),
        dict(read_labels(asked.labels, "filter.labels")),
        request.all,
        request.validate_only,
        read_grace(request),
    )


def _read_update(request: Any) -> wire.Edit:
    return wire.Edit(read_id(request, "job"), read_changes(request.changes, request.update_mask))


def _read_rerun(request: Any) -> asks.RerunJob:
    changes = read_changes(request.changes, request.update_mask)
    return asks.RerunJob(read_id(request, "job"), changes, request.failed, read_key(request))


def _read_count(request: Any) -> asks.GroupJobs:
    asked = request.filter
    if asked.labels or asked.worker or asked.exit_class or asked.q:
        raise wrong("filter", "jobs are counted by states, user, queue, name and workload alone")
    by = tuple(dict.fromkeys(request.by))
    if strange := next((name for name in by if name not in asks.COUNTED_BY), None):
        raise wrong("by", f"must be of {', '.join(asks.COUNTED_BY)}, got {strange[:64]!r}")
    texts = {name: read_text(asked, name) for name in ("user", "queue", "name", "workload")}
    return asks.GroupJobs(by, read_words(asked, "states"), **texts)


def _read_tasks(request: Any) -> asks.ListTasks:
    page = read_page(request)
    return asks.ListTasks(read_id(request, "job"), read_words(request, "states"), page.cursor, page.size)


def _read_plan(request: Any) -> asks.PlanJob:
    return asks.PlanJob(read_spec(request.job), read_seconds(request, "eta_s"))


def _named(field: str) -> Read:
    return lambda request: asks.Named(read_id(request, field))


def _nothing(request: Any) -> asks.Nothing:
    return asks.Nothing()


# --- the site ---------------------------------------------------------------------------------------------------------


def _read_policy(request: Any) -> asks.ApplyPolicy:
    policy = read_struct(request.policy)
    return asks.ApplyPolicy(policy, request.validate_only, request.force, read_text(request, "etag"))


def _read_receipts(request: Any) -> ReceiptFilter:
    page = read_page(request, MAX_RECEIPTS, 50)
    window_s = read_seconds(request, "window_s", MAX_WINDOW_S) or DAY_S
    job = read_id(request, "job") if request.job else ""
    return ReceiptFilter(job, read_text(request, "user"), page.size, read_cursor(page), window_s)


def _read_workers(request: Any) -> ListWorkers:
    page, states = read_page(request), tuple(dict.fromkeys(request.states))
    if strange := next((state for state in states if state not in STATES), None):
        raise wrong("states", f"must be of {', '.join(STATES)}, got {strange[:64]!r}")
    return ListWorkers(
        backend=read_choice(request, "backend", BACKENDS, ""),
        all=request.all,
        limit=page.size,
        cursor=page.cursor,
        states=states,
        kind=read_text(request, "kind"),
        labels=frozenset(read_labels(request.labels, "labels")),
        q=read_text(request, "q"),
        sort=read_choice(request, "sort", (*SORTS, *(f"-{name}" for name in SORTS)), "name"),
    )


def _read_drain(request: Any) -> asks.DrainWorker:
    if len(request.reason) > 512 or len(request.until) > 64:
        raise InvalidInput("reason is at most 512 characters and until 64: give less")
    return asks.DrainWorker(read_id(request, "worker"), request.reason, request.until)


async def _open_value(left: asks.LeftValue) -> Document:
    """The bytes of a value, wherever they are; a message holds no more than clients take by default."""
    packed = left.packed
    if isinstance(packed, asks.StoredFile):
        if packed.size > MOST_VALUE_BYTES:
            raise TooLarge(
                f"the value has {packed.size} bytes and a message holds {MOST_VALUE_BYTES}: read it over HTTP, "
                "GET /api/v1/jobs/JOB/value"
            )
        packed = await asyncio.to_thread(_read_file, packed)
    return {"state": left.state, "value": packed}


def _read_file(file: asks.StoredFile) -> bytes:
    with contextlib.closing(file.open()) as reading:
        return reading.read(file.size)


# --- answers ----------------------------------------------------------------------------------------------------------


def under(field: str) -> Write:
    """The whole answer as one field."""
    return lambda answer, request: {field: answer}


def same(answer: Document, request: Any) -> Document:
    """The answer as it is."""
    return answer


def page_of(answer: Document, request: Any) -> Document:
    """A page of a list, and the token of the next one."""
    return {**answer, "next_page_token": write_token(request, answer.get("next_cursor"))}


def _cut(field: str) -> Write:
    """A page of a list that the hub has whole."""

    def write(answer: Document, request: Any) -> Document:
        shown, token = cut_page(answer[field], request, read_page(request))
        return {**answer, field: shown, "next_page_token": token}

    return write


def cut_page(rows: Sequence[Any], request: Any, page: Page) -> tuple[Sequence[Any], str]:
    """A part of a list by its place in it."""
    first = read_cursor(page)
    end = first + page.size
    return rows[first:end], write_token(request, str(end) if end < len(rows) else None)


def row(name: str, operation: str, read: Read, write: Write, **more: Any) -> Method:
    """One method, by the name of its operation."""
    return Method(name, OPERATIONS[operation], read, write, **more)


_JOB, _TASK, _WORKER = ("job", "jobs"), ("task", "tasks"), ("worker", "workers")
METHODS: tuple[Method, ...] = (
    row("SubmitJob", "submit_job", _read_submit,
         lambda done, request: {"job": done.jobs[0], "created": done.created}),
    row("SubmitJobs", "submit_batch", _read_submits,
         lambda done, request: {"jobs": done.jobs, "created": done.created}),
    row("GetJob", "show_job", lambda request: asks.ShowJob(read_id(request, "job")), under("job"), about=_JOB),
    row("ListJobs", "list_jobs", read_filter, page_of),
    row("WaitJob", "show_job", lambda request: asks.ShowJob(read_id(request, "job"), read_seconds(request, "wait_s")),
         under("job"), waits="wait_s", about=_JOB),
    row("UpdateJob", "edit_job", _read_update, under("job"), about=_JOB),
    row("CancelJobs", "act_on_jobs", _read_cancel, same),
    row("HoldJob", "hold_job", lambda request: wire.Hold(read_id(request, "job")), under("job"), about=_JOB),
    row("ReleaseJob", "release_job", lambda request: wire.Release(read_id(request, "job")), under("job"), about=_JOB),
    row("RequeueJob", "requeue_job", lambda request: wire.Requeue(read_id(request, "job")), under("job"), about=_JOB),
    row("RerunJob", "rerun_job", _read_rerun,
        lambda done, request: {"job": done.jobs[0], "created": done.created}, about=_JOB),
    row("CountJobs", "group_jobs", _read_count, same),
    row("ListTasks", "list_tasks", _read_tasks, page_of, about=_JOB),
    row("GetTask", "show_task", lambda request: asks.ShowTask(*read_task(request)), under("task"), about=_TASK),
    row("CancelTask", "cancel_job", lambda request: wire.Cancel(*read_task(request), read_grace(request)),
         under("job"), about=_TASK),
    row("RequeueTask", "requeue_job", lambda request: wire.Requeue(*read_task(request)), under("job"), about=_TASK),
    row("GetTaskResult", "read_value", lambda request: asks.ReadValue(*read_task(request)), same, about=_TASK,
         finish=_open_value),
    row("ExplainJob", "explain_job",
         lambda request: asks.ExplainJob(read_id(request, "job"), not request.no_fix, read_seconds(request, "eta_s")),
         under("reason"), waits="eta_s", about=_JOB),
    row("PlanJob", "plan_job", _read_plan, under("plan"), waits="eta_s"),
    row("ListJobEvents", "list_job_events", _named("job"), _cut("events"), about=_JOB),
    row("GetEstimateRecord", "show_estimates", _nothing, under("record")),
    row("ListQueues", "list_queues", _nothing, _cut("queues")),
    row("GetQueue", "show_queue",
         lambda request: asks.ShowQueue(read_id(request, "queue"), read_whole(request, "limit", MAX_LINE) or 20),
         under("queue"), about=("queue", "queues")),
    row("ListLimits", "list_limits", _nothing, same),
    row("GetPolicy", "show_policy", _nothing, under("policy")),
    row("ApplyPolicy", "apply_policy", _read_policy, under("policy")),
    row("ListPreemptions", "list_preemptions", _read_receipts, page_of),
    row("GetPreemption", "show_preemption", _named("preemption"), under("preemption"),
         about=("preemption", "preemptions")),
    row("ListWorkers", "list_workers", _read_workers, page_of),
    row("GetWorker", "show_worker", _named("worker"), under("worker"), about=_WORKER),
    row("DrainWorker", "drain_worker", _read_drain, under("worker"), about=_WORKER),
    row("ResumeWorker", "resume_worker", _named("worker"), under("worker"), about=_WORKER),
    row("GetHub", "show_hub", _nothing, under("hub")),
    row("RegisterWorker", "register_worker", read_register, same),
    row("DequeueTasks", "lease_tasks", read_dequeue, same, waits="wait_s"),
    row("RenewLeases", "renew_leases", read_renew, same),
    row("CompleteTasks", "complete_leases", read_complete, same),
    row("ReturnTasks", "return_leases", read_return, same),
)  # fmt: skip
