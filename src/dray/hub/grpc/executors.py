"""Methods of executors: what they say, read as fields of the worker protocol, whose codec bounds it."""

from __future__ import annotations

from typing import Any

from dray.core.model.ids import split_task_id
from dray.hub.grpc.asking import read_id, read_labels, read_seconds, read_text, read_whole, wrong
from dray.hub.grpc.spelling import to_document, word_of
from dray.hub.workers import leases

MOST_EPOCH = (1 << 23) - 1
ENDS = ("succeeded", "failed", "killed")


def read_register(request: Any) -> leases.RegisterLeasing:
    return leases.RegisterLeasing(
        read_id(request, "worker"),
        {"gpu_backend": "cpu", **to_document(request.capabilities)},
        request.slots,
        read_text(request, "incarnation"),
        dict(read_labels(request.labels, "labels")),
        dict(request.resources),
        [(_read_lease(one), _read_task(one)) for one in request.active],
        read_whole(request, "max_epoch_seen", MOST_EPOCH),
    )


def read_dequeue(request: Any) -> leases.Dequeue:
    return leases.Dequeue(_read_said(request), request.max_tasks, read_seconds(request, "wait_s"))


def read_renew(request: Any) -> leases.Renew:
    return leases.Renew(
        _read_said(request), [{**to_document(one), "lease": _read_lease(one)} for one in request.leases]
    )


def read_complete(request: Any) -> leases.Complete:
    return leases.Complete(_read_said(request), [_read_result(one) for one in request.results])


def read_return(request: Any) -> leases.GiveBack:
    return leases.GiveBack(
        _read_said(request), list(request.leases), read_text(request, "reason"), request.leave
    )


def _read_said(request: Any) -> leases.Said:
    return leases.Said(read_id(request, "worker"), read_text(request, "session"))


def _read_lease(one: Any) -> str:
    if not one.lease:
        raise wrong("lease", "is missing: say which lease is meant")
    return read_text(one, "lease")


def _read_task(one: Any) -> str:
    if split_task_id(one.task) is None:
        raise wrong("task", f"must be the id of a task, as its lease names it, got {one.task[:64]!r}")
    return str(one.task)


def _read_result(one: Any) -> dict[str, Any]:
    found = {**to_document(one), "lease": _read_lease(one), "task_id": _read_task(one)}
    del found["task"]
    state = word_of(one.DESCRIPTOR.fields_by_name["state"].enum_type, one.state)
    if state not in ENDS:
        raise wrong("state", f"must be one of {', '.join(ENDS)}, got {state}")
    return found
