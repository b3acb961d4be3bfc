"""The calls of the HTTP API about workloads."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from dray.core.model.records.records import JobState
from dray.core.model.records.workload import WorkloadState
from dray.core.model.specs.spec import JobSpec
from dray.errors import InvalidInput
from dray.hub.answers.service import Submitted
from dray.hub.http.bodies import ONCE, name_kind, read_key, read_struct
from dray.hub.http.replies import Answer
from dray.hub.http.routes import API, Param, Request, Route
from dray.hub.http.view_calls import CURSOR, EVENT_ID, LABEL, LIMIT, read_label
from dray.hub.operations import workloads as asks
from dray.hub.operations.table import OPERATIONS
from dray.hub.workloads.answers import Wanted
from dray.wire.messages.packed import Packed
from dray.wire.schemas import workloads as shapes

_BATCH = Annotated[list[JobSpec], msgspec.Meta(min_length=1)]
MAX_WAIT_S = 300
_STATES = tuple(state.value for state in WorkloadState)


def _document(request: Request) -> dict[str, Any]:
    if not isinstance(request.body, dict):
        raise InvalidInput(f"the body must be a workload, a JSON object, and is {name_kind(request.body)}")
    return request.body


def _read_create(request: Request) -> asks.CreateWorkload:
    return asks.CreateWorkload(_document(request), read_key(request.headers), request.query["dry_run"])


def _read_list(request: Request) -> Wanted:
    asked = request.query
    labels = tuple(read_label(text) for text in asked["label"])
    states = tuple(dict.fromkeys(asked["state"]))
    return Wanted(states, asked["user"], labels, asked["all"], int(asked["cursor"] or 0), asked["limit"])


def _read_update(request: Request) -> asks.UpdateWorkload:
    changes = dict(_document(request))
    etag = changes.pop("etag", "") or ""
    if not isinstance(etag, str):
        raise InvalidInput("etag must be text, as the workload shows it")
    return asks.UpdateWorkload(request.path["id"], changes, etag)


def _read_pause(request: Request) -> asks.PauseWorkload:
    return asks.PauseWorkload(request.path["id"], read_struct(shapes.PauseRequest, request.body).stop)


def _read_scale(request: Request) -> asks.ScaleWorkload:
    return asks.ScaleWorkload(request.path["id"], read_struct(shapes.WidthRequest, request.body).width)


def _read_spread(request: Request) -> asks.SpreadWorkload:
    return asks.SpreadWorkload(request.path["id"], _document(request))


def _read_cancel(request: Request) -> asks.CancelWorkload:
    return asks.CancelWorkload(
        request.path["id"], read_struct(shapes.CancelWorkloadRequest, request.body).grace_s
    )


def _read_add(request: Request) -> asks.AddJobs:
    if not isinstance(request.body, list | Packed):
        raise InvalidInput(f"the body must be a list of jobs and is {name_kind(request.body)}")
    return asks.AddJobs(
        request.path["id"], list(request.body), read_key(request.headers), request.query["seal"]
    )


def _read_attach(request: Request) -> asks.AttachJobs:
    asked = read_struct(shapes.AttachRequest, request.body)
    return asks.AttachJobs(request.path["id"], asked.attach, asked.detach)


def _read_tasks(request: Request) -> asks.ListWorkloadTasks:
    asked = request.query
    states = tuple(dict.fromkeys(asked["state"]))
    return asks.ListWorkloadTasks(request.path["id"], states, asked["cursor"], asked["limit"])


def _write_created(document: dict[str, Any]) -> Answer:
    return Answer(document, 201 if document["created"] else 200)


def _write_added(done: Submitted) -> Answer:
    return Answer({"jobs": done.jobs, "created": done.created}, 201 if done.created else 200)


_FILTERS = (
    Param("state", "only these states; may repeat or hold commas", choices=_STATES, many=True),
    Param("user", "only workloads of this user", default=""),
    Param("label", "only workloads with this label, `key=value`; may repeat", pattern=LABEL, many=True),
    Param("all", "also archived ones", kind="flag", default=False),
    LIMIT,
    CURSOR,
)
_DRY_RUN = Param("dry_run", "only check it; nothing is made", kind="flag", default=False)
_WAIT = Param("wait_s", "wait this long for its end", kind="number", default=0, low=0, high=MAX_WAIT_S)
_TASK_STATE = Param("state", "only tasks in these states; may repeat or hold commas", many=True,
                    choices=tuple(state.value for state in JobState))  # fmt: skip
_TASK_CURSOR = Param(
    "cursor", "`next_cursor` of the page before", pattern=r"[0-9]{1,18}\.[0-9]{0,18}", default=""
)
_AFTER = Param("after", "`next` of the answer before", pattern=EVENT_ID, default="")
_RESULTS_WAIT = Param(
    "wait_s", "with none, wait this long for one", kind="number", default=0, low=0, high=MAX_WAIT_S
)
_BY = Param("by", "the worker label; that of the workload by default", default="")
_SEAL = Param("seal", "they are the last ones", kind="flag", default=False)


def _api(method: str, path: str, name: str, **more: Any) -> Route:
    """The route of one operation."""
    return Route(method, API + path, OPERATIONS[name], **more)


WORKLOAD_ROUTES = (
    _api("POST", "/workloads", "create_workload", body=shapes.WorkloadRequest, params=(_DRY_RUN,), read=_read_create,
        write=_write_created, statuses=(200, 201), headers=ONCE),
    _api("GET", "/workloads", "list_workloads", params=_FILTERS, read=_read_list),
    _api("GET", "/workloads/{id}", "show_workload", params=(_WAIT,), waits="wait_s"),
    _api("PATCH", "/workloads/{id}", "update_workload", body=shapes.WorkloadUpdate, read=_read_update),
    _api("DELETE", "/workloads/{id}", "delete_workload"),
    _api("POST", "/workloads/{id}/start", "start_workload"),
    _api("POST", "/workloads/{id}/pause", "pause_workload", body=shapes.PauseRequest, body_optional=True,
        read=_read_pause),
    _api("POST", "/workloads/{id}/scale", "scale_workload", body=shapes.WidthRequest, read=_read_scale),
    _api("POST", "/workloads/{id}/spread", "spread_workload", body=shapes.DistributionDocument, read=_read_spread),
    _api("POST", "/workloads/{id}/seal", "seal_workload"),
    _api("POST", "/workloads/{id}/cancel", "cancel_workload", body=shapes.CancelWorkloadRequest, body_optional=True,
        read=_read_cancel),
    _api("POST", "/workloads/{id}/archive", "archive_workload"),
    _api("POST", "/workloads/{id}/jobs", "add_jobs", body=_BATCH, params=(_SEAL,), read=_read_add, write=_write_added,
        statuses=(200, 201), headers=ONCE, list_body=True),
    _api("POST", "/workloads/{id}/retry", "retry_workload"),
    _api("GET", "/workloads/{id}/tasks", "list_workload_tasks", params=(_TASK_STATE, LIMIT, _TASK_CURSOR),
         read=_read_tasks),
    _api("GET", "/workloads/{id}/results", "list_results", params=(_AFTER, LIMIT, _RESULTS_WAIT), waits="wait_s"),
    _api("GET", "/workloads/{id}/why", "explain_workload"),
    _api("GET", "/workloads/{id}/forecast", "forecast_workload"),
    _api("GET", "/workloads/{id}/health", "show_workload_health"),
    _api("GET", "/workloads/{id}/distribution", "show_distribution", params=(_BY,)),
    _api("POST", "/workloads/{id}/attach", "attach_jobs", body=shapes.AttachRequest, read=_read_attach),
)  # fmt: skip
