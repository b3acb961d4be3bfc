"""Every operation that HTTP serves: one route each, and how it is spelled where its fields do not say it all.

What is allowed and what happens is the operation's; nothing of that is here.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec

from dray.core.model.ids import ID_PATTERN
from dray.core.model.policies.policy import DAY_S, Policy
from dray.core.model.policies.rebalancing import STRATEGIES
from dray.core.model.specs.spec import JobSpec
from dray.core.scheduling.rebalancing.proposals import CAUSES
from dray.errors import InvalidInput, Problem
from dray.hub.access.caller import Caller
from dray.hub.access.entrance import SECURE_COOKIE, SESSION_COOKIE
from dray.hub.answers.service import LogRequest, Submitted
from dray.hub.decisions.repeats import MODES
from dray.hub.documents.overview import SORTS
from dray.hub.documents.receipts import ReceiptFilter
from dray.hub.http.bodies import name_kind, read_struct
from dray.hub.http.bodies import read_key as _key
from dray.hub.http.replies import Answer, FileBody, Text, encode
from dray.hub.http.routes import API, Param, Request, Route
from dray.hub.http.streams import Stream
from dray.hub.http.view_calls import (
    CURSOR,
    EVENTS,
    LIMIT,
    SINCE,
    STATE,
    VIEW_ROUTES,
    read_after,
    write_events,
)
from dray.hub.http.workload_calls import WORKLOAD_ROUTES
from dray.hub.moves.answers import Wanted as WantedMoves
from dray.hub.notifications.outbox import STATES as TOLD_STATES
from dray.hub.notifications.outbox import Wanted
from dray.hub.operations import asks
from dray.hub.operations.operation import ANY, Desk, Operation
from dray.hub.operations.table import OPERATIONS
from dray.hub.store.uses import BY
from dray.wire.messages import client as wire
from dray.wire.messages.packed import Packed
from dray.wire.schemas import jobs as shapes
from dray.wire.schemas import launches as launch_shapes
from dray.wire.schemas import moves as move_shapes
from dray.wire.schemas import services as service_shapes
from dray.wire.schemas import templates as template_shapes

MAX_WAIT_S = 300
MAX_LINE = 1000
MAX_RECEIPTS = 200
MAX_WINDOW_S = 366 * DAY_S
PIECE_BYTES = 4 << 20
BINARY = "application/octet-stream"
_DIGEST = re.compile(r"[0-9a-f]{64}")

# --- what is asked ----------------------------------------------------------------------------------------------------


def _one_job(request: Request) -> dict[str, Any]:
    if not isinstance(request.body, dict):
        raise InvalidInput(f"the body must be one job, a JSON object, and is {name_kind(request.body)}")
    return request.body


def _read_submit(request: Request) -> asks.SubmitJobs:
    return asks.SubmitJobs([_one_job(request)], _key(request.headers), request.query["exists"])


def _read_batch(request: Request) -> asks.SubmitJobs:
    specs = request.body
    if not isinstance(specs, Packed):
        raise InvalidInput(f"the body must be a list of jobs and is {name_kind(specs)}")
    if not specs:
        raise InvalidInput("the list of jobs is empty: send at least one")
    return asks.SubmitJobs(specs, _key(request.headers), request.query["exists"])


def _read_count(request: Request) -> asks.GroupJobs:
    asked = dict(request.query)
    by, states = (tuple(dict.fromkeys(asked.pop(name))) for name in ("by", "state"))
    return asks.GroupJobs(by, states, **asked)


def _read_rerun(request: Request) -> asks.RerunJob:
    asked = read_struct(shapes.RerunRequest, request.body)
    return asks.RerunJob(request.path["id"], asked.changes, asked.failed, _key(request.headers))


def _read_tasks(request: Request) -> asks.ListTasks:
    asked = request.query
    states = tuple(dict.fromkeys(asked["state"]))
    return asks.ListTasks(request.path["id"], states, asked["cursor"], asked["limit"])


def _read_logs(request: Request) -> LogRequest:
    asked = dict(request.query)
    follow = asked.pop("follow") and request.scope["method"] != "HEAD"
    return LogRequest(job_id=request.path["id"], follow=follow, **asked)


def _read_cancel(request: Request) -> wire.Cancel:
    asked = read_struct(shapes.CancelRequest, request.body)
    return wire.Cancel(request.path["id"], asked.task, asked.grace_s, request.query["dry_run"])


def _read_session(request: Request) -> asks.OpenSession:
    asked = read_struct(shapes.SessionRequest, request.body)
    peer = (request.scope.get("client") or ("",))[0]
    return asks.OpenSession(asked.token, asked.code, peer, request.scope["scheme"] == "https")


def _read_drain(request: Request) -> asks.DrainWorker:
    asked = read_struct(shapes.DrainRequest, request.body)
    dry_run = request.query["dry_run"]
    return asks.DrainWorker(
        request.path["id"], asked.reason, asked.until, asked.stop, dry_run, asked.ends, asked.move
    )


def _read_move(request: Request) -> asks.MoveJob:
    asked = read_struct(move_shapes.MoveRequest, request.body)
    return asks.MoveJob(request.path["id"], asked.task, asked.to)


def _read_rebalance(request: Request) -> asks.StartRebalance:
    asked = read_struct(move_shapes.RebalanceRequest, request.body)
    return asks.StartRebalance(asked.etag, asked.cause)


def _read_moves(request: Request) -> WantedMoves:
    asked = dict(request.query)
    return WantedMoves(before=int(asked.pop("cursor") or 0), **asked)


def _read_labels(request: Request) -> asks.LabelWorker:
    return asks.LabelWorker(request.path["id"], read_struct(shapes.LabelRequest, request.body).labels)


def _read_requeue(request: Request) -> wire.Requeue:
    task = read_struct(shapes.RequeueRequest, request.body).task
    return wire.Requeue(request.path["id"], task, request.query["dry_run"])


def _read_scale(request: Request) -> wire.Scale:
    return wire.Scale(request.path["name"], read_struct(service_shapes.ScaleRequest, request.body).replicas)


def _read_share(request: Request) -> wire.Share:
    asked = read_struct(service_shapes.ShareRequest, request.body)
    return wire.Share(request.path["name"], asked.add, asked.remove)


def _read_restart(request: Request) -> asks.RestartService:
    asked = read_struct(service_shapes.RestartRequest, request.body)
    return asks.RestartService(request.path["name"], asked.replica, asked.at_once)


def _read_update(request: Request) -> wire.UpdateService:
    asked = read_struct(service_shapes.UpdateRequest, request.body)
    given = asked.spec if asked.spec is not None else asked.changes
    if (asked.spec is None) == (asked.changes is None) or given is None:
        raise InvalidInput(
            "the body must have one of `changes`, the fields to change, and `spec`, all of them"
        )
    return wire.UpdateService(request.path["name"], given, asked.spec is not None)


def _read_rollback(request: Request) -> wire.RollbackService:
    return wire.RollbackService(
        request.path["name"], read_struct(service_shapes.RollbackRequest, request.body).to
    )


def _read_stop(request: Request) -> asks.StopService:
    return asks.StopService(
        request.path["name"], read_struct(service_shapes.StopRequest, request.body).grace_s
    )


def _read_edit(request: Request) -> wire.Edit:
    if not isinstance(request.body, dict):
        raise InvalidInput(
            f"the body must be the fields to change, a JSON object, and is {name_kind(request.body)}"
        )
    return wire.Edit(request.path["id"], request.body, request.query["dry_run"])


def _read_plan(request: Request) -> asks.PlanJob:
    return asks.PlanJob(_one_job(request), request.query["eta_s"])


def _read_events(request: Request) -> asks.FollowEvents:
    asked = request.query
    return asks.FollowEvents(read_after(request), asked["job"], asked["worker"], tuple(asked["type"]))


def _read_policy(request: Request) -> asks.ApplyPolicy:
    if request.body is None:
        raise InvalidInput("the body must be the policy, a JSON object: {} stands for all defaults")
    return asks.ApplyPolicy(request.body, *(request.query[name] for name in ("dry_run", "force", "etag")))


def _read_template(request: Request) -> asks.AddTemplate:
    if not isinstance(request.body, dict):
        raise InvalidInput(f"the body must be one template, a JSON object, and is {name_kind(request.body)}")
    return asks.AddTemplate(request.body)


def _read_render(request: Request) -> asks.RenderTemplate:
    asked = read_struct(template_shapes.RenderRequest, request.body)
    return asks.RenderTemplate(asks.ShowTemplate(request.path["name"], asked.version), asked.params)


def _read_receipts(request: Request) -> ReceiptFilter:
    asked = dict(request.query)
    return ReceiptFilter(before=int(asked.pop("cursor") or 0), **asked)


def _read_wanted(request: Request) -> Wanted:
    asked = request.query
    states = tuple(dict.fromkeys(asked["state"]))
    return Wanted(None, asked["job"], states, int(asked["cursor"] or 0), asked["limit"])


def _read_put(request: Request) -> asks.PutBlob:
    length = request.headers.get(b"content-length", b"")
    return asks.PutBlob(_digest(request), int(length) if length.isdigit() else 0, _pieces(request))


def _read_get(request: Request) -> asks.GetBlob:
    # Who asks whether it is there is about to refer to it.
    return asks.GetBlob(_digest(request), request.scope["method"] == "HEAD")


async def _pieces(request: Request) -> AsyncIterator[tuple[list[bytes], bool]]:
    """Read a body; what arrives in small parts is handed on in larger ones."""
    held: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise InvalidInput("the connection ended inside the body: nothing was kept")
        if piece := message.get("body", b""):
            held.append(piece)
            size += len(piece)
        more = message.get("more_body", False)
        if size >= PIECE_BYTES or not more:
            yield held, not more
            held, size = [], 0


def _digest(request: Request) -> str:
    digest = request.path["digest"]
    if _DIGEST.fullmatch(digest) is None:
        what = "must be the SHA-256 of the bytes: 64 digits 0-9 and a-f"
        raise InvalidInput(f"digest {what}", [Problem("digest", what)])
    return digest


# --- what is answered -------------------------------------------------------------------------------------------------


def _write_job(done: Submitted) -> Answer:
    return Answer(done.jobs[0], 201 if done.created else 200)


def _write_batch(done: Submitted) -> Answer:
    return Answer(done.jobs, 201 if done.created else 200)


def _write_made(document: Any) -> Answer:
    return Answer(document, 201)


def _write_session(opened: tuple[Any, bytes]) -> Text:
    document, cookie = opened
    return Text(encode(document), "application/json", 201, ((b"set-cookie", cookie),))


def _write_closed(document: Any) -> Text:
    ended = tuple((b"set-cookie", name + b"=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0" + more)
                  for name, more in ((SESSION_COOKIE, b""), (SECURE_COOKIE, b"; Secure")))  # fmt: skip
    return Text(encode(document), "application/json", headers=ended)


def _write_output(pieces: AsyncIterator[bytes]) -> Stream:
    return Stream(pieces, "text/plain; charset=utf-8", cut_on_close=True)


def _write_file(file: asks.StoredFile) -> FileBody:
    return FileBody(*file)


def _write_value(value: asks.LeftValue) -> Text | FileBody:
    headers = ((b"x-dray-state", value.state.encode()),)
    if isinstance(value.packed, asks.StoredFile):
        return FileBody(*value.packed, headers)
    return Text(value.packed, BINARY, headers=headers)


# --- what is HTTP's own -----------------------------------------------------------------------------------------------


async def _tell_alive(desk: Desk, caller: Caller | None, ask: asks.Nothing) -> dict[str, str]:
    return {"status": "ok"}


async def _tell_ready(desk: Desk, caller: Caller | None, ask: asks.Nothing) -> dict[str, str]:
    # Whoever is not ready was refused before.
    return {"status": "ready"}


async def _show_openapi(desk: Desk, caller: Caller, ask: asks.Nothing) -> bytes:
    # Off the loop: the first one to ask has it made.
    return await asyncio.to_thread(_describe)


@functools.cache
def _describe() -> bytes:
    # The document is made from these routes.
    from dray.hub.http.openapi import openapi_text

    return openapi_text().encode()


_ALIVE = Operation("tell_alive", "Whether the hub lives", (), asks.Nothing, shapes.Health, _tell_alive,
                   needs_ready=False)  # fmt: skip
_READY = Operation(
    "tell_ready", "Whether the hub is ready to work", (), asks.Nothing, shapes.Health, _tell_ready
)
_DESCRIBE = Operation("show_openapi", "This description", ANY, asks.Nothing, dict[str, Any], _show_openapi,
                      needs_ready=False)  # fmt: skip

# --- the table --------------------------------------------------------------------------------------------------------

_TASK = Param("task", "index of the task; its only one by default", kind="whole", low=0, high=10**9)
_COUNTED = (
    Param("by", "by what they are counted; may repeat or hold commas", choices=asks.COUNTED_BY, many=True),
    STATE,
    *(Param(name, f"only jobs of this {name}", default="") for name in ("user", "queue", "name", "workload")),
)
_LOG_PARAMS = (
    _TASK,
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
_GIVE_UP = Param("force", "give up what it may still run", kind="flag", default=False)
_RECEIPTS = (
    Param("job", "only those that this job made or suffered", default="", pattern=ID_PATTERN),
    Param("user", "only those that this user's jobs made or suffered", default=""),
    Param("limit", "how many at most", kind="whole", default=50, low=1, high=MAX_RECEIPTS),
    CURSOR,
    Param("window_s", "how far back the statistics reach", kind="number", default=DAY_S, low=1, high=MAX_WINDOW_S),
)  # fmt: skip
_STRATEGY = (
    Param("cause", "by this strategy alone; all of the policy by default", default="", choices=("", *STRATEGIES)),
)  # fmt: skip
_MOVES = (
    Param("job", "only those of this job", default="", pattern=ID_PATTERN),
    Param("cause", "only those for this cause", default="", choices=("", *CAUSES)),
    Param("all", "also those that have ended", kind="flag", default=False),
    Param("limit", "how many at most", kind="whole", default=50, low=1, high=MAX_RECEIPTS),
    CURSOR,
)  # fmt: skip
_OVERVIEW = (
    Param("sort", "which workers come first", default="name", choices=SORTS),
    Param("match", "only workers whose name, or whose holder's, has this in it", default=""),
    Param("offset", "how many of them to pass over", kind="whole", default=0, low=0, high=10**7),
    Param("limit", "how many workers at most", kind="whole", default=50, low=0, high=500),
    Param("heads", "how many of those that wait at most", kind="whole", default=10, low=0, high=100),
)
_USAGE = (
    Param("by", "by what it is summed up", default="user", choices=tuple(BY)),
    Param("window_s", "how far back it reaches", kind="number", default=7 * DAY_S, low=1, high=MAX_WINDOW_S),
    Param("limit", "how many at most", kind="whole", default=100, low=1, high=1000),
)
_IDLE = Param("limit", "how many at most", kind="whole", default=100, low=1, high=1000)
_TOLD = (
    Param("job", "only of this job", default="", pattern=ID_PATTERN),
    Param("state", "only these states; may repeat or hold commas", choices=TOLD_STATES, many=True),
    LIMIT,
    CURSOR,
)
_LINE = Param("limit", "how many of the line at most", kind="whole", default=20, low=1, high=MAX_LINE)
_DRY_RUN = Param("dry_run", "only tell what would change", kind="flag", default=False)
_PREVIEW = Param("dry_run", "only tell what it would do, in `preview`", kind="flag", default=False)
_FORCE = Param("force", "let quotas be below what runs already", kind="flag", default=False)
_ETAG = Param(
    "etag", "that of the policy to be replaced, as it was shown: another one meanwhile is refused", default=""
)
_BATCH = Annotated[list[JobSpec], msgspec.Meta(min_length=1)]
_EXISTS = Param(
    "exists",
    "about ids that are taken: `same` takes the same spec for a retry, `refuse` none, `keep` leaves those jobs alone",
    default="same",
    choices=MODES,
)
_VERSION = Param("version", "which one; the newest by default", kind="whole", default=None, low=0, high=10**9)
# Not in the path: it is what workers say of themselves, with any sign in it.
_PROVIDER = Param("name", "the value of the label `provider`", default="")
_LAUNCHES = (
    Param("launcher", "only of this one", default=""),
    Param("all", "also those that are over", kind="flag", default=False),
)
_ONCE = ("Idempotency-Key",)


def _api(method: str, path: str, name: str, **more: Any) -> Route:
    return Route(method, API + path, OPERATIONS[name], **more)


ROUTES: tuple[Route, ...] = (
    _api("POST", "/jobs", "submit_job", body=JobSpec, params=(_EXISTS,), read=_read_submit, write=_write_job,
         statuses=(200, 201), headers=_ONCE),
    _api("POST", "/jobs:batch", "submit_batch", body=_BATCH, params=(_EXISTS,), read=_read_batch, write=_write_batch,
         statuses=(200, 201), headers=_ONCE, list_body=True),
    _api("POST", "/jobs:act", "act_on_jobs", body=wire.Act, read=lambda request: read_struct(wire.Act, request.body)),
    _api("GET", "/jobs/{id}", "show_job", params=(_WAIT,), waits="wait_s"),
    _api("GET", "/jobs:group", "group_jobs", params=_COUNTED, read=_read_count),
    _api("POST", "/jobs/{id}/rerun", "rerun_job", body=shapes.RerunRequest, body_optional=True, read=_read_rerun,
         write=_write_job, statuses=(200, 201), headers=_ONCE),
    _api("GET", "/jobs/{id}/task", "show_task", params=(_TASK,),
         read=lambda request: asks.ShowTask(request.path["id"], request.query["task"])),
    _api("GET", "/jobs/{id}/tasks", "list_tasks", params=(STATE, LIMIT, CURSOR), read=_read_tasks),
    _api("GET", "/jobs/{id}/events", "list_job_events"),
    _api("GET", "/jobs/{id}/why", "explain_job", params=(_FIX, _ETA), waits="eta_s"),
    _api("GET", "/jobs/{id}/logs", "read_logs", params=_LOG_PARAMS, read=_read_logs, write=_write_output,
         media="text/plain"),
    _api("POST", "/jobs/{id}/cancel", "cancel_job", body=shapes.CancelRequest, body_optional=True, read=_read_cancel,
         params=(_PREVIEW,)),
    _api("POST", "/jobs/{id}/hold", "hold_job", params=(_PREVIEW,)),
    _api("POST", "/jobs/{id}/release", "release_job", params=(_PREVIEW,)),
    _api("POST", "/jobs/{id}/requeue", "requeue_job", body=shapes.RequeueRequest, body_optional=True,
         read=_read_requeue, params=(_PREVIEW,)),
    _api("PATCH", "/jobs/{id}", "edit_job", body=JobSpec, read=_read_edit, params=(_PREVIEW,)),
    _api("GET", "/services", "list_services"),
    _api("GET", "/services/{name}", "show_service"),
    _api("GET", "/services/{name}/endpoints", "list_endpoints"),
    _api("POST", "/services/{name}/link", "link_service"),
    _api("POST", "/services/{name}/scale", "scale_service", body=service_shapes.ScaleRequest, read=_read_scale),
    _api("POST", "/services/{name}/share", "share_service", body=service_shapes.ShareRequest, read=_read_share),
    _api("POST", "/services/{name}/update", "update_service", body=service_shapes.UpdateRequest, read=_read_update),
    _api("POST", "/services/{name}/rollback", "rollback_service", body=service_shapes.RollbackRequest,
         body_optional=True, read=_read_rollback),
    _api("POST", "/services/{name}/restart", "restart_service", body=service_shapes.RestartRequest,
         body_optional=True, read=_read_restart),
    _api("POST", "/services/{name}/stop", "stop_service", body=service_shapes.StopRequest, body_optional=True,
         read=_read_stop),
    *WORKLOAD_ROUTES,
    _api("POST", "/plan", "plan_job", body=JobSpec, params=(_ETA,), read=_read_plan, waits="eta_s"),
    _api("GET", "/estimates", "show_estimates"),
    _api("PUT", "/blobs/{digest}", "put_blob", raw_body=True, read=_read_put, write=_write_made, statuses=(201,)),
    _api("GET", "/blobs/{digest}", "get_blob", read=_read_get, write=_write_file, media=BINARY),
    _api("POST", "/snapshots/{id}/check", "check_snapshot"),
    _api("GET", "/jobs/{id}/value", "read_value", params=(_TASK,), write=_write_value, media=BINARY),
    *VIEW_ROUTES,
    _api("GET", "/overview", "show_overview", params=_OVERVIEW),
    _api("PATCH", "/workers/{id}", "label_worker", body=shapes.LabelRequest, read=_read_labels),
    _api("DELETE", "/workers/{id}", "remove_worker", params=(_GIVE_UP,)),
    _api("POST", "/workers/{id}/drain", "drain_worker", body=shapes.DrainRequest, body_optional=True,
         read=_read_drain, params=(_PREVIEW,)),
    _api("POST", "/workers/{id}/resume", "resume_worker"),
    _api("POST", "/workers/{id}/token", "join_worker", write=_write_made, statuses=(201,)),
    _api("GET", "/events", "stream_events", params=(SINCE, *EVENTS), headers=("Last-Event-ID",), read=_read_events,
         write=write_events, media="text/event-stream"),
    _api("GET", "/hub", "show_hub"),
    _api("GET", "/hub/status", "show_role"),
    _api("POST", "/hub/resign", "resign_hub"),
    _api("GET", "/hubs", "list_hubs"),
    _api("GET", "/queues", "list_queues"),
    _api("GET", "/queues/{name}", "show_queue", params=(_LINE,)),
    _api("GET", "/quotas", "list_quotas"),
    _api("GET", "/paces", "list_paces"),
    _api("GET", "/limits", "list_limits"),
    _api("GET", "/policy", "show_policy"),
    _api("PUT", "/policy", "apply_policy", body=Policy, params=(_DRY_RUN, _FORCE, _ETAG), read=_read_policy),
    _api("GET", "/providers", "list_providers"),
    _api("POST", "/providers/rank", "rank_providers", body=JobSpec,
         read=lambda request: asks.PlanJob(_one_job(request))),
    _api("GET", "/provider", "show_provider", params=(_PROVIDER,)),
    _api("GET", "/launches", "list_launches", params=_LAUNCHES),
    _api("POST", "/launches", "start_launch", body=launch_shapes.LaunchRequest, write=_write_made, statuses=(201,),
         read=lambda request: read_struct(launch_shapes.LaunchRequest, request.body)),
    _api("GET", "/launches/{id}", "show_launch"),
    _api("POST", "/launches/{id}/stop", "stop_launch"),
    _api("GET", "/templates", "list_templates"),
    _api("POST", "/templates", "add_template", body=template_shapes.TemplateRequest, read=_read_template),
    _api("GET", "/templates/{name}", "show_template", params=(_VERSION,)),
    _api("DELETE", "/templates/{name}", "remove_template"),
    _api("GET", "/templates/{name}/history", "list_template_versions"),
    _api("POST", "/templates/{name}/render", "render_template", body=template_shapes.RenderRequest,
         body_optional=True, read=_read_render),
    _api("GET", "/config", "show_settings"),
    _api("GET", "/preemptions", "list_preemptions", params=_RECEIPTS, read=_read_receipts),
    _api("GET", "/preemptions/{id}", "show_preemption"),
    _api("POST", "/jobs/{id}/move", "move_job", body=move_shapes.MoveRequest, body_optional=True, read=_read_move),
    _api("GET", "/moves", "list_moves", params=_MOVES, read=_read_moves),
    _api("GET", "/moves/{id}", "show_move"),
    _api("POST", "/moves/{id}/cancel", "cancel_move"),
    _api("GET", "/rebalance", "show_rebalance"),
    _api("GET", "/rebalance/plan", "plan_rebalance", params=_STRATEGY),
    _api("POST", "/rebalance/start", "start_rebalance", body=move_shapes.RebalanceRequest, read=_read_rebalance),
    _api("POST", "/rebalance/stop", "stop_rebalance"),
    _api("GET", "/alarms", "list_alarms"),
    _api("GET", "/usage", "show_usage", params=_USAGE),
    _api("GET", "/usage/idle", "list_idle", params=(_IDLE,)),
    _api("GET", "/notifications", "list_notifications", params=_TOLD, read=_read_wanted),
    _api("GET", "/tokens", "list_tokens"),
    _api("POST", "/tokens", "create_token", body=shapes.TokenRequest, write=_write_made, statuses=(201,),
         read=lambda request: read_struct(shapes.TokenRequest, request.body)),
    _api("DELETE", "/tokens/{id}", "revoke_token"),
    _api("GET", "/doctor", "examine_hub"),
    _api("GET", "/audit", "list_audit", params=(LIMIT,)),
    _api("POST", "/session", "open_session", body=shapes.SessionRequest, read=_read_session, write=_write_session,
         statuses=(201,), most_bytes=4096),
    _api("GET", "/session", "show_session"),
    _api("DELETE", "/session", "close_session", write=_write_closed),
    _api("POST", "/session/code", "make_session_code", write=_write_made, statuses=(201,)),
    Route("GET", "/healthz", _ALIVE),
    Route("GET", "/readyz", _READY),
    Route("GET", "/metrics", OPERATIONS["show_metrics"], media="text/plain",
          write=lambda text: Text(text, "text/plain; version=0.0.4; charset=utf-8")),
    Route("GET", "/openapi.json", _DESCRIBE, write=lambda text: Text(text, "application/json")),
)  # fmt: skip
