"""Every call of the HTTP API: one handler each, and the one table that routes, guards and documents them.

Handlers translate between HTTP and `HubService`; what is allowed and what happens is decided behind it. A token
with `submit` may also read: whoever starts a job must be able to see how it ends, and both see only what is their
own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from dray.core.model.records.records import JobState
from dray.core.model.specs.check import MAX_PROBLEMS, suggest
from dray.core.model.specs.spec import JobSpec
from dray.errors import InvalidInput, NotReady, Problem, TooLarge
from dray.hub.access.tokens import Tokens
from dray.hub.answers.calls import CallAnswers
from dray.hub.answers.service import HubService, LogRequest
from dray.hub.calls.blob_access import BlobAccess
from dray.hub.calls.blobs import Blobs
from dray.hub.http.blob_calls import VALUE_ROUTES
from dray.hub.http.replies import Answer, Text
from dray.hub.http.routes import ADMIN, API, READ, SUBMIT, Param, Request, Route
from dray.hub.http.site_calls import SITE_ROUTES
from dray.hub.http.streams import Stream, Streams, feed_lines
from dray.hub.store.base import JobFilter
from dray.hub.workers.owners import Owners
from dray.wire.messages.packed import Packed
from dray.wire.schemas import jobs as shapes
from dray.wire.schemas import reasons as reason_shapes

ANY = ("read", "submit", "worker")
JOIN = ("join",)
EVENT_ID = r"[0-9]{1,18}\.[0-9]{1,9}"
MAX_WAIT_S = 300
_KEY = re.compile(r"[\x20-\x7e]{1,128}")
_STATES = tuple(state.value for state in JobState)
_UNSCOPED = r"\$(?:\.|\[)?"
T = TypeVar("T", bound=msgspec.Struct)


class Desk(NamedTuple):
    """What handlers work with."""

    service: HubService
    tokens: Tokens
    owners: Owners
    streams: Streams
    batch_specs: int
    describe: Callable[[], bytes]
    blobs: Blobs | None = None
    calls: CallAnswers | None = None
    access: BlobAccess | None = None


async def submit_job(desk: Desk, request: Request) -> Answer:
    if not isinstance(request.body, dict):
        raise InvalidInput(f"the body must be one job, a JSON object, and is {_kind(request.body)}")
    submitted = await desk.service.submit(request.caller, [request.body], _key(request))
    return Answer(submitted.jobs[0], 201 if submitted.created else 200)


async def submit_batch(desk: Desk, request: Request) -> Answer:
    specs = request.body
    if not isinstance(specs, Packed):
        raise InvalidInput(f"the body must be a list of jobs and is {_kind(specs)}")
    if not specs:
        raise InvalidInput("the list of jobs is empty: send at least one")
    if len(specs) > desk.batch_specs:
        raise TooLarge(
            f"{len(specs)} jobs are over the limit of {desk.batch_specs} per batch: send several batches"
        )
    submitted = await desk.service.submit(request.caller, specs, _key(request))
    return Answer(submitted.jobs, 201 if submitted.created else 200)


async def list_jobs(desk: Desk, request: Request) -> Answer:
    asked = request.query
    wanted = JobFilter(
        states=tuple(dict.fromkeys(asked["state"])),
        user=asked["user"],
        queue=asked["queue"],
        name=asked["name"],
        labels=tuple(_label(text) for text in asked["label"]),
        before_seq=int(asked["cursor"] or 0),
        limit=asked["limit"],
    )
    return Answer(await desk.service.jobs(request.caller, wanted))


async def show_job(desk: Desk, request: Request) -> Answer:
    job_id, caller = request.path["id"], request.caller
    return await _wait(desk, request, request.query["wait_s"], lambda s: desk.service.job(caller, job_id, s))


async def list_tasks(desk: Desk, request: Request) -> Answer:
    asked = request.query
    states = tuple(dict.fromkeys(asked["state"]))
    return Answer(
        await desk.service.tasks(request.caller, request.path["id"], states, asked["cursor"], asked["limit"])
    )


async def list_job_events(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.job_events(request.caller, request.path["id"]))


async def explain_job(desk: Desk, request: Request) -> Answer:
    asked, job_id, caller = request.query, request.path["id"], request.caller
    return await _wait(
        desk, request, asked["eta_s"], lambda s: desk.service.why(caller, job_id, asked["fix"], s)
    )


async def read_logs(desk: Desk, request: Request) -> Stream:
    asked = request.query
    wanted = LogRequest(
        job_id=request.path["id"],
        task=asked["task"],
        attempt=asked["attempt"],
        stream=asked["stream"],
        follow=asked["follow"] and request.scope["method"] != "HEAD",
        tail=asked["tail"],
        skip=asked["skip"],
    )
    return Stream(desk.service.logs(request.caller, wanted), "text/plain; charset=utf-8", cut_on_close=True)


async def cancel_job(desk: Desk, request: Request) -> Answer:
    asked = read_struct(shapes.CancelRequest, request.body)
    job = await desk.service.cancel(request.caller, request.path["id"], asked.task, asked.grace_s)
    return Answer(job)


async def hold_job(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.hold(request.caller, request.path["id"], True))


async def release_job(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.hold(request.caller, request.path["id"], False))


async def requeue_job(desk: Desk, request: Request) -> Answer:
    asked = read_struct(shapes.RequeueRequest, request.body)
    return Answer(await desk.service.requeue(request.caller, request.path["id"], asked.task))


async def edit_job(desk: Desk, request: Request) -> Answer:
    if not isinstance(request.body, dict):
        raise InvalidInput(
            f"the body must be the fields to change, a JSON object, and is {_kind(request.body)}"
        )
    return Answer(await desk.service.edit(request.caller, request.path["id"], request.body))


async def plan_job(desk: Desk, request: Request) -> Answer:
    if not isinstance(request.body, dict):
        raise InvalidInput(f"the body must be one job, a JSON object, and is {_kind(request.body)}")
    caller, body = request.caller, request.body
    return await _wait(desk, request, request.query["eta_s"], lambda s: desk.service.plan(caller, body, s))


async def show_estimates(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.estimates(request.caller))


async def list_workers(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.workers(request.caller, request.query["backend"]))


async def show_worker(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.worker(request.caller, request.path["id"]))


async def drain_worker(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.drain(request.caller, request.path["id"], True))


async def resume_worker(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.drain(request.caller, request.path["id"], False))


async def stream_events(desk: Desk, request: Request) -> Stream:
    # What a reader saw last outranks where it first asked to begin: browsers repeat the query when they reconnect.
    after = request.headers.get(b"last-event-id", b"").decode("latin-1") or request.query["since"]
    if after and re.fullmatch(EVENT_ID, after) is None:
        what = f"must be the id of an event, like 1024.3, got {after[:64]!r}"
        raise InvalidInput(f"Last-Event-ID {what}", [Problem("Last-Event-ID", what)])
    lines = feed_lines(desk.service.feed(request.caller, after))
    return Stream(lines, "text/event-stream", keep_alive=b": keep-alive\n\n")


async def list_tokens(desk: Desk, request: Request) -> Answer:
    listed = desk.tokens.documents()
    for token in listed["tokens"]:
        if "worker" in token["scopes"]:
            token["worker"] = desk.owners.worker_of(token["id"]) or None
    return Answer(listed)


async def create_token(desk: Desk, request: Request) -> Answer:
    asked = read_struct(shapes.TokenRequest, request.body)
    user = asked.user or request.caller.user
    if asked.worker:
        if asked.scopes != ["worker"]:
            what = "goes with the scope worker and no other"
            raise InvalidInput(f"no token was made: worker: {what}", [Problem("worker", what)])
        made = await desk.owners.issue(request.caller, asked.worker, user, asked.expires_s, on_purpose=True)
        return Answer(made, 201)
    made = await desk.tokens.create(
        request.caller, user, asked.scopes, asked.expires_s, shared_account=asked.shared_account
    )
    if "join" in asked.scopes:
        made["join"] = desk.owners.tell_join(made["token"])
    return Answer(made, 201)


async def join_worker(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.owners.issue(request.caller, request.path["id"]), 201)


async def revoke_token(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.tokens.revoke(request.caller, request.path["id"]))


async def examine_hub(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.doctor(request.caller))


async def list_audit(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.audit(request.caller, request.query["limit"]))


async def show_hub(desk: Desk, request: Request) -> Answer:
    return Answer(await desk.service.hub(request.caller))


async def tell_alive(desk: Desk, request: Request) -> Answer:
    return Answer({"status": "ok"})


async def tell_ready(desk: Desk, request: Request) -> Answer:
    if not desk.service.ready or desk.streams.closing.is_set():
        raise NotReady("the hub is starting or stopping: ask again in a second")
    return Answer({"status": "ready"})


async def show_metrics(desk: Desk, request: Request) -> Text:
    return Text(desk.service.metrics_text(), "text/plain; version=0.0.4; charset=utf-8")


async def show_openapi(desk: Desk, request: Request) -> Text:
    # Off the loop: the first one to ask has it made.
    return Text(await asyncio.to_thread(desk.describe), "application/json")


async def _wait(
    desk: Desk, request: Request, wait_s: float, ask: Callable[[float], Awaitable[Any]]
) -> Answer:
    """Ask for an answer that may take `wait_s`; a hub that stops meanwhile answers what it knows."""
    if wait_s:
        document = await desk.streams.wait_for(request.receive, ask(wait_s), request.caller.token_id)
        if document is not None:
            return Answer(document)
    return Answer(await ask(0))


def read_struct(kind: type[T], document: Any) -> T:
    """Read a small body as its type; a field it does not have is an error with a suggestion."""
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object and is {_kind(document)}")
    known = [field.name for field in msgspec.structs.fields(kind)]
    problems = [
        Problem(name[:64], f"is no field of this body{suggest(name, known)}; it takes {', '.join(known)}")
        for name in list(document)[:MAX_PROBLEMS]
        if name not in known
    ]
    if not problems:
        # JSON has one kind of number: 3.0 is as whole as 3.
        document = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in document.items()
        }
        try:
            return msgspec.convert(document, kind)
        except msgspec.ValidationError as fault:
            what, _, where = str(fault).partition(" - at `")
            problems = [Problem(re.sub(_UNSCOPED, "", where.rstrip("`"), count=1), what)]
    raise InvalidInput(f"{problems[0].where}: {problems[0].what}".lstrip(": "), problems)


def _key(request: Request) -> str:
    given = request.headers.get(b"idempotency-key")
    if given is None:
        return ""
    key = given.decode("latin-1")
    if _KEY.fullmatch(key) is None:
        what = "must be 1 to 128 printable ASCII characters"
        raise InvalidInput(f"Idempotency-Key {what}", [Problem("Idempotency-Key", what)])
    return key


def _label(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "empty or null",
    }
    return names.get(type(value), "a number")


_STATE = Param("state", "only these states; may repeat or hold commas", choices=_STATES, many=True)
_LIMIT = Param("limit", "how many at most", kind="whole", default=100, low=1, high=1000)
_CURSOR = Param("cursor", "`next_cursor` of the page before", pattern=r"[0-9]{1,18}", default="")
_JOB_FILTERS = (
    _STATE,
    Param("user", "only jobs of this user", default=""),
    Param("queue", "only jobs of this queue", default=""),
    Param("name", "only jobs of this name", default=""),
    Param(
        "label",
        "only jobs with this label, `key=value`; may repeat",
        pattern=r"[^=\x00-\x1f\x7f]+=[^\x00-\x1f\x7f]*",
        many=True,
    ),
    _LIMIT,
    _CURSOR,
)
_LOG_PARAMS = (
    Param("task", "index of the task; its only one by default", kind="whole", low=0, high=10**9),
    Param("attempt", "number of the attempt; the newest by default", kind="whole", low=0, high=10**9),
    Param("stream", "which output", default="both", choices=("stdout", "stderr", "both")),
    Param("follow", "stay until the task has ended", kind="flag", default=False),
    Param("tail", "only the last lines", kind="whole", low=0, high=10**7),
    Param("skip", "bytes of the text that were received before", kind="whole", default=0, low=0, high=2**53),
)
_WAIT = Param("wait_s", "wait this long for the job to end", kind="number", default=0, low=0, high=MAX_WAIT_S)
_ETA = Param(
    "eta_s", "wait this long for a start-time estimate", kind="number", default=0, low=0, high=MAX_WAIT_S
)
_FIX = Param("fix", "look for the smallest change that would start it", kind="flag", default=True)
_SINCE = Param("since", "begin after this event id", pattern=EVENT_ID, default="")
_BACKENDS = ("cpu", "nvidia", "metal", "vulkan")
_BACKEND = Param("backend", "only workers with this backend", default="", choices=_BACKENDS)
_SPEC_ERRORS = (409, 413, 415, 429, 507)
_BATCH = Annotated[list[JobSpec], msgspec.Meta(min_length=1)]
_HOLDS = {200: shapes.JobDocument, 201: shapes.JobDocument}
_BATCH_HOLDS = {200: list[shapes.JobDocument], 201: list[shapes.JobDocument]}


def _get(path: str, name: str, about: str, handler: Any, answer: Any, **more: Any) -> Route:
    return Route(
        "GET", API + path, name, about, handler, **{"scopes": READ, "answers": {200: answer}, **more}
    )


def _post(path: str, name: str, about: str, handler: Any, scopes: tuple[str, ...], **more: Any) -> Route:
    return Route("POST", API + path, name, about, handler, scopes, **more)


_JOB_ROUTES = (
    _post("/jobs", "submit_job", "Submit a job", submit_job, SUBMIT,
          body=JobSpec, answers=_HOLDS, headers=("Idempotency-Key",), errors=_SPEC_ERRORS),
    _post("/jobs:batch", "submit_batch", "Submit several jobs, all or none", submit_batch, SUBMIT,
          body=_BATCH, answers=_BATCH_HOLDS, headers=("Idempotency-Key",), errors=_SPEC_ERRORS, weight=0,
          list_body=True),
    _get("/jobs", "list_jobs", "List jobs, newest first", list_jobs, shapes.JobList, params=_JOB_FILTERS, weight=2),
    _get("/jobs/{id}", "show_job", "Show a job, or wait for its end", show_job, shapes.JobDocument, params=(_WAIT,)),
    _get("/jobs/{id}/tasks", "list_tasks", "List the tasks of a job", list_tasks, shapes.TaskList,
         params=(_STATE, _LIMIT, _CURSOR), weight=2),
    _get("/jobs/{id}/events", "list_job_events", "List what happened to a job", list_job_events, shapes.JobEvents,
         weight=2),
    _get("/jobs/{id}/why", "explain_job", "Explain why a job waits", explain_job, reason_shapes.Why,
         params=(_FIX, _ETA), weight=5),
    _get("/jobs/{id}/logs", "read_logs", "Read or follow the output of a task", read_logs, str,
         params=_LOG_PARAMS, media="text/plain", stays=True),
    _post("/jobs/{id}/cancel", "cancel_job", "Cancel a job or one of its tasks", cancel_job, SUBMIT,
          body=shapes.CancelRequest, body_optional=True, answers={200: shapes.JobDocument}, errors=(409, 413, 415)),
    _post("/jobs/{id}/hold", "hold_job", "Keep a job from starting until it is released", hold_job, SUBMIT,
          answers={200: shapes.JobDocument}, errors=(409,)),
    _post("/jobs/{id}/release", "release_job", "Let a held job start", release_job, SUBMIT,
          answers={200: shapes.JobDocument}, errors=(409,)),
    _post("/jobs/{id}/requeue", "requeue_job", "Stop what runs of a job and queue it again", requeue_job, SUBMIT,
          body=shapes.RequeueRequest, body_optional=True, answers={200: shapes.JobDocument}, errors=(409, 413, 415)),
    Route("PATCH", f"{API}/jobs/{{id}}", "edit_job", "Change a job that waits", edit_job, SUBMIT,
          body=JobSpec, answers={200: shapes.JobDocument}, errors=(409, 413, 415)),
    _post("/plan", "plan_job", "Tell where a job would run; nothing is written", plan_job, READ,
          body=JobSpec, answers={200: reason_shapes.PlanAnswer}, errors=(413, 415), params=(_ETA,), weight=5),
    _get("/estimates", "show_estimates", "Tell how good start-time estimates were", show_estimates,
         reason_shapes.EstimateRecord, weight=2),
)  # fmt: skip
_CLUSTER_ROUTES = (
    _get("/workers", "list_workers", "List workers", list_workers, shapes.WorkerList, params=(_BACKEND,), weight=2),
    _get("/workers/{id}", "show_worker", "Show a worker and what it runs", show_worker, shapes.WorkerDetail),
    _post("/workers/{id}/drain", "drain_worker", "Give a worker no new work", drain_worker, ADMIN,
          answers={200: shapes.WorkerDocument}),
    _post("/workers/{id}/resume", "resume_worker", "Give a drained worker work again", resume_worker, ADMIN,
          answers={200: shapes.WorkerDocument}),
    _post("/workers/{id}/token", "join_worker", "Make a worker a token of its own, for a join token", join_worker, JOIN,
          answers={201: shapes.NewToken}, errors=(409,)),
    _get("/events", "stream_events", "Follow all that is committed, as server-sent events", stream_events, str,
         params=(_SINCE,), headers=("Last-Event-ID",), media="text/event-stream", stays=True),
    _get("/hub", "show_hub", "Show the hub itself", show_hub, shapes.HubDocument),
)  # fmt: skip
_ADMIN_ROUTES = (
    _get("/tokens", "list_tokens", "List tokens", list_tokens, shapes.TokenList, scopes=ADMIN),
    _post("/tokens", "create_token", "Make a token; its text is shown once", create_token, ADMIN,
          body=shapes.TokenRequest, answers={201: shapes.NewToken}, errors=(413, 415)),
    Route("DELETE", f"{API}/tokens/{{id}}", "revoke_token", "Revoke a token", revoke_token, ADMIN,
          answers={200: shapes.TokenDocument}, errors=(409,)),
    _get("/doctor", "examine_hub", "Check that the hub's state holds together", examine_hub, shapes.Doctor,
         scopes=ADMIN, weight=20),
    _get("/audit", "list_audit", "List who changed what", list_audit, shapes.AuditList, scopes=ADMIN, params=(_LIMIT,),
         weight=2),
)  # fmt: skip
_PLAIN_ROUTES = (
    Route("GET", "/healthz", "tell_alive", "Whether the hub lives", tell_alive,
          answers={200: shapes.Health}, needs_ready=False),
    Route("GET", "/readyz", "tell_ready", "Whether the hub is ready to work", tell_ready,
          answers={200: shapes.Health}, needs_ready=False, errors=(503,)),
    Route("GET", "/metrics", "show_metrics", "Metrics in the text form of Prometheus", show_metrics, READ,
          answers={200: str}, needs_ready=False, media="text/plain", weight=2),
    Route("GET", "/openapi.json", "show_openapi", "This description", show_openapi, ANY,
          answers={200: dict[str, Any]}, needs_ready=False),
)  # fmt: skip
ROUTES: tuple[Route, ...] = (
    *_JOB_ROUTES,
    *VALUE_ROUTES,
    *_CLUSTER_ROUTES,
    *SITE_ROUTES,
    *_ADMIN_ROUTES,
    *_PLAIN_ROUTES,
)
