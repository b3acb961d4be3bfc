"""Services and their replicas as documents. Pure: state in, plain dicts out."""

from __future__ import annotations

from dray.core.lifecycle.holding.rollouts import revisions_of, spec_of
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.replicas import READY, ready_replicas, wanted
from dray.core.model.records.ledger import Revision
from dray.core.model.records.records import Attempt, Job
from dray.core.model.specs.ports import name_ports
from dray.core.model.specs.spec import unpack_spec
from dray.core.scheduling.explain.services import (
    LOOPING,
    Standing,
    replicas_of,
    tasks_of,
    tell_rolled_back,
    tell_rollout,
    tell_service,
)
from dray.hub.documents.records import Document, moment


def standing_document(state: State, job: Job) -> Document | None:
    """How a service stands, for its job's document; None of what is none, or has been stopped."""
    if not job.service or job.state.final or job.id not in state.jobs:
        return None
    return _count(job, replicas_of(state, job)) | {"update": tell_rollout(state, job)}


def _count(job: Job, found: list[Standing]) -> Document:
    return {
        "replicas": wanted(job),
        "ready": sum(1 for one in found if one.health == READY),
        "crash_looping": sum(1 for one in found if one.health == LOOPING),
    }


def service_document(state: State, job: Job, whole: bool = True) -> Document:
    """A service; `whole`: with each of its replicas."""
    found = replicas_of(state, job)
    document: Document = {
        "id": job.id,
        "name": job.name,
        "user": job.user,
        "queue": job.queue,
        "state": job.state.value,
        "command": unpack_spec(job.spec).command,
        "nodes": job.group_size,
        "share": unpack_spec(job.spec).share,
        "submitted_at": moment(job.submitted_at_ms),
        "summary": tell_service(state, job),
        "revision": job.revision,
        "update": tell_rollout(state, job) or tell_rolled_back(state, job),
        **_count(job, found),
    }
    return document | {
        "revisions": _revision_documents(state, job) if whole else [],
        "replica_list": [_replica_document(state, job, one) for one in tasks_of(state, job)] if whole else [],
    }


def _revision_documents(state: State, job: Job) -> list[Document]:
    """All that is known of; one that was never updated has the one that it was submitted with."""
    known = revisions_of(state, job) or {
        job.revision: Revision(job.revision, job.spec, job.user, job.submitted_at_ms, "submit", "done")
    }
    return [
        {
            "number": one.number,
            "kind": one.kind,
            "user": one.user,
            "command": unpack_spec(spec_of(state, job, one.number)).command,
            "outcome": one.outcome,
            "why": one.why,
            "at": moment(one.at_ms),
            "current": one.number == job.revision,
        }
        for one in known.values()
    ]


def shared_document(document: Document) -> Document:
    """A service as those see it whom it is shared with: that it runs, and not how it was started or what it printed."""
    own = {"message": "", "last_error": "", "last_exit_code": None}
    summary = document["summary"].partition(";")[0]
    replicas = [one | own for one in document["replica_list"]]
    own_words = {"command": [], "share": [], "update": "", "revisions": [], "note": ""}
    return document | own_words | {"summary": summary, "replica_list": replicas}


def _replica_document(state: State, job: Job, one: Standing) -> Document:
    task, attempt = one.task, one.attempt
    in_ms = max(0, task.again_ms - state.now_ms) if task is not None and task.again_ms else None
    return {
        "id": f"{job.id}/{one.task_index}" if job.spelled(one.task_index) >= 0 else job.id,
        "index": one.task_index,
        "group": one.task_index // job.group_size,
        "rank": one.task_index % job.group_size,
        "health": one.health,
        "message": one.message,
        "revision": task.revision if task is not None else job.revision,
        "worker": attempt.worker if attempt is not None else "",
        "attempt": attempt.no if attempt is not None else task.attempts if task is not None else 0,
        "started_at": moment(attempt.started_at_ms) if attempt is not None else None,
        "address": _address(state, attempt.worker, attempt.address) if attempt is not None else "",
        "ports": _ports(state, job, attempt) if attempt is not None else {},
        "restarts": task.restarts if task is not None else 0,
        "next_try_in_s": None if in_ms is None else in_ms / 1000,
        "last_exit_code": task.exit_code if task is not None else None,
        "last_error": task.error if task is not None else "",
    }


def endpoints_document(state: State, job: Job, own: bool = True) -> Document:
    """Where a service may be asked now: its ready replicas, and nobody who starts, stops or is silent.

    The uid of an attempt is for whoever may act on it (`own`).
    """
    return {
        "service": job.name or job.id,
        "id": job.id,
        "endpoints": [
            {
                "id": state.spell(attempt),
                "index": attempt.index,
                "worker": attempt.worker,
                "attempt": attempt.uid if own else "",
                "address": _address(state, attempt.worker, attempt.address),
                "ports": _ports(state, job, attempt),
            }
            for attempt in ready_replicas(state, job)
        ],
    }


def _ports(state: State, job: Job, attempt: Attempt) -> dict[str, int]:
    return name_ports(unpack_spec(spec_of(state, job, attempt.revision)).ports, attempt.ports)


def _address(state: State, worker: str, said: str) -> str:
    """Where an attempt listens: as it said itself, else where its worker is."""
    return said or (state.workers[worker].address if worker in state.workers else "")
