"""Methods of the service WorkloadManager: campaigns of jobs, what they used, and providers of machines."""

from __future__ import annotations

import re
from typing import Any

from dray.core.model.ids import is_id
from dray.core.model.policies.policy import DAY_S
from dray.core.model.records.workload import WorkloadState
from dray.hub.grpc.asking import (
    read_after,
    read_changes,
    read_choice,
    read_cursor,
    read_grace,
    read_id,
    read_key,
    read_labels,
    read_page,
    read_seconds,
    read_spec,
    read_text,
    read_whole,
    read_words,
    wrong,
)
from dray.hub.grpc.methods import MAX_IDS, MAX_WINDOW_S, Method, page_of, row, same, under
from dray.hub.grpc.spelling import to_document
from dray.hub.operations import asks
from dray.hub.operations import workloads as told
from dray.hub.store.uses import BY
from dray.hub.workloads.answers import Wanted
from dray.wire.messages.client import Usage

MOST_WIDTH = 10**12
_CURSOR = re.compile(r"[0-9]{1,18}\.[0-9]{0,18}")
_STATES = tuple(state.value for state in WorkloadState)
_WORKLOAD = ("workload", "workloads")


def _read_create(request: Any) -> told.CreateWorkload:
    document = {
        **to_document(request.terms),
        "id": read_id(request, "id"),
        "jobs": [read_spec(job) for job in request.jobs],
        "start": request.start,
        "seal": request.seal,
    }
    return told.CreateWorkload(document, read_key(request), request.validate_only)


def _write_created(answer: dict[str, Any], request: Any) -> dict[str, Any]:
    return {"workload": answer, "created": answer.get("created"), "submitted": answer.get("submitted")}


def _read_list(request: Any) -> Wanted:
    page, states = read_page(request), tuple(dict.fromkeys(request.states))
    if strange := next((state for state in states if state not in _STATES), None):
        raise wrong("states", f"must be of {', '.join(_STATES)}, got {strange[:64]!r}")
    labels = read_labels(request.labels, "labels")
    return Wanted(states, read_text(request, "user"), labels, request.all, read_cursor(page), page.size)


def _read_update(request: Any) -> told.UpdateWorkload:
    changes = read_changes(request.changes, request.update_mask)
    return told.UpdateWorkload(_id(request), changes, read_text(request, "etag"))


def _read_add(request: Any) -> told.AddJobs:
    if not request.jobs:
        raise wrong("jobs", "is empty: give at least one job")
    return told.AddJobs(
        _id(request), [read_spec(job) for job in request.jobs], read_key(request), request.seal
    )


def _read_attach(request: Any) -> told.AttachJobs:
    for field in ("attach", "detach"):
        ids = getattr(request, field)
        if len(ids) > MAX_IDS or not all(map(is_id, ids)):
            raise wrong(field, f"holds {len(ids)} ids of jobs: {MAX_IDS} at most, each a job's")
    return told.AttachJobs(_id(request), list(request.attach), list(request.detach))


def _read_usage(request: Any) -> Usage:
    by: Any = read_choice(request, "by", tuple(BY), "user")
    window_s = read_seconds(request, "window_s", MAX_WINDOW_S) or 7 * DAY_S
    return Usage(by, window_s, read_whole(request, "limit", 1000) or 100)


def _read_tasks(request: Any) -> told.ListWorkloadTasks:
    page = read_page(request)
    if page.cursor and _CURSOR.fullmatch(page.cursor) is None:
        raise wrong("page_token", "is none that this hub gave: begin anew without it")
    return told.ListWorkloadTasks(_id(request), read_words(request, "states"), page.cursor, page.size)


def _read_results(request: Any) -> told.ListResults:
    limit = read_whole(request, "limit", MAX_IDS) or MAX_IDS
    return told.ListResults(_id(request), read_after(request), limit, read_seconds(request, "wait_s"))


def _read_rank(request: Any) -> asks.PlanJob:
    if not request.HasField("job"):
        raise wrong("job", "is missing: give the job that is to be priced")
    return asks.PlanJob(read_spec(request.job))


def _id(request: Any) -> str:
    return read_id(request, "workload")


def _named(request: Any) -> told.Named:
    return told.Named(_id(request))


def _of_one(name: str, operation: str, read: Any = _named, **more: Any) -> Method:
    return row(name, operation, read, under("workload"), about=_WORKLOAD, **more)


WORKLOADS: tuple[Method, ...] = (
    row("CreateWorkload", "create_workload", _read_create, _write_created),
    _of_one("GetWorkload", "show_workload", lambda request: told.ShowWorkload(_id(request))),
    row("ListWorkloads", "list_workloads", _read_list, page_of),
    _of_one("UpdateWorkload", "update_workload", _read_update),
    row("DeleteWorkload", "delete_workload", _named, same, about=_WORKLOAD),
    _of_one("StartWorkload", "start_workload"),
    _of_one("PauseWorkload", "pause_workload", lambda request: told.PauseWorkload(_id(request), request.stop)),
    _of_one("ScaleWorkload", "scale_workload",
            lambda request: told.ScaleWorkload(_id(request), read_whole(request, "width", MOST_WIDTH))),
    _of_one("SetDistribution", "spread_workload",
            lambda request: told.SpreadWorkload(_id(request), to_document(request.distribution))),
    _of_one("SealWorkload", "seal_workload"),
    _of_one("CancelWorkload", "cancel_workload",
            lambda request: told.CancelWorkload(_id(request), read_grace(request))),
    _of_one("ArchiveWorkload", "archive_workload"),
    _of_one("WaitWorkload", "show_workload",
            lambda request: told.ShowWorkload(_id(request), read_seconds(request, "wait_s")), waits="wait_s"),
    row("AddTasks", "add_jobs", _read_add, lambda done, request: {"jobs": done.jobs, "created": done.created},
        about=_WORKLOAD),
    row("AttachJobs", "attach_jobs", _read_attach,
        lambda answer, request: {**answer, "workload": answer}, about=_WORKLOAD),
    row("RetryTasks", "retry_workload", _named, same, about=_WORKLOAD),
    row("ListWorkloadTasks", "list_workload_tasks", _read_tasks, page_of, about=_WORKLOAD),
    row("ListResults", "list_results", _read_results, same, waits="wait_s", about=_WORKLOAD),
    row("ExplainWorkload", "explain_workload", _named, under("why"), about=_WORKLOAD),
    row("ForecastWorkload", "forecast_workload", _named, under("forecast"), about=_WORKLOAD),
    row("GetWorkloadHealth", "show_workload_health", _named, under("health"), about=_WORKLOAD),
    row("GetDistribution", "show_distribution",
        lambda request: told.ShowDistribution(_id(request), read_text(request, "by")), under("distribution"),
        about=_WORKLOAD),
    row("RankProviders", "rank_providers", _read_rank, same),
    row("ListUsage", "show_usage", _read_usage, under("report")),
    row("ListProviders", "list_providers", lambda request: asks.Nothing(), same),
    row("GetProvider", "show_provider", lambda request: asks.NamedSo(read_id(request, "provider")), under("provider"),
        about=("provider", "providers")),
)  # fmt: skip
