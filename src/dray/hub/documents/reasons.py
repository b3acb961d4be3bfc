"""A reason as the document of the API, with what the caller may not see left out.

Who waits or runs is its owner's and the admins' to know: of others only what they hold is told, not their names.
"""

from __future__ import annotations

from collections.abc import Callable

from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.ids import is_fake
from dray.core.model.specs.resources import Rejection
from dray.core.scheduling.explain.reason import (
    Blocker,
    Change,
    Holder,
    Place,
    Reason,
    Start,
    Underway,
    WorkerClass,
    message_of,
    tell_class,
    tell_holder,
    tell_place,
    tell_start,
    tell_underway,
)
from dray.hub.documents.records import Document

Sees = Callable[[str], bool]


def reason_document(state: State, reason: Reason, sees: Sees) -> Document:
    """The whole answer of `why`."""
    return {
        "state": reason.state,
        "summary": reason.summary,
        "ever": reason.ever,
        "blockers": [blocker_document(state, blocker, sees) for blocker in reason.blockers],
        "classes": [_class_document(group) for group in reason.classes],
        "workers": [_worker_document(worker, found) for worker, found in reason.workers],
        "workers_total": reason.known,
        "holders": [holder_document(veil(holder, sees)) for holder in reason.holders],
        "place": place_document(reason.place),
        "start": start_document(reason.start),
        "estimate": None,
        "preemption": _underway_document(reason.underway, sees, state),
        "fix": reason.fix,
        "change": change_document(reason.change),
    }


def blocker_document(state: State, blocker: Blocker, sees: Sees) -> Document:
    owner = state.jobs.get(blocker.who)
    shown = blocker.who if owner is not None and sees(owner.user) else ""
    return {
        "kind": blocker.kind,
        "need": blocker.need,
        "have": blocker.have,
        "workers": blocker.workers,
        "ever": blocker.ever,
        "variant": blocker.variant,
        "in_s": blocker.in_ms / 1000 if blocker.in_ms else None,
        "by": shown,
        "message": f"{blocker.message} ({shown})" if shown else blocker.message,
    }


def _class_document(group: WorkerClass) -> Document:
    return {
        "name": group.name,
        "workers": group.workers,
        "fit": group.fit,
        "variant": group.variant,
        "message": tell_class(group),
        "blockers": [
            {"kind": no.kind, "need": no.need, "have": no.have, "workers": no.workers, "ever": no.ever}
            for no in group.blockers
        ],
    }


def _worker_document(worker: str, found: list[Rejection]) -> Document:
    return {
        "id": worker,
        "fake": is_fake(worker),
        "rejections": [
            {"kind": no.kind, "need": no.need, "have": no.have, "ever": no.ever, "message": message_of(no)}
            for no in found
        ],
    }


def veil(holder: Holder, sees: Sees) -> Holder:
    """Leave out whose task it is where the caller may not know."""
    return holder if sees(holder.user) else holder._replace(task_id="", user="")


def holder_document(holder: Holder) -> Document:
    return {
        "task_id": holder.task_id,
        "user": holder.user,
        "worker": holder.worker,
        "what": holder.what,
        "ends_in_s": _seconds(holder.ends_in_ms),
        "message": tell_holder(holder),
    }


def place_document(place: Place | None) -> Document | None:
    return None if place is None else {**place._asdict(), "message": tell_place(place)}


def start_document(start: Start | None) -> Document | None:
    if start is None:
        return None
    return {
        "in_s": _seconds(start.in_ms),
        "workers": list(start.workers),
        "variant": start.variant,
        "reserved": start.reserved,
        "message": tell_start(start),
    }


def _underway_document(underway: Underway | None, sees: Sees, state: State) -> Document | None:
    if underway is None:
        return None
    return {
        "receipt": underway.receipt,
        "rule": underway.rule,
        "victims": underway.victims,
        "stopping": len(underway.stopping),
        "ends_in_s": _seconds(underway.ends_in_ms),
        "message": tell_underway(underway),
    }


def change_document(change: Change | None) -> Document | None:
    if change is None:
        return None
    return {
        "kind": change.kind,
        "flag": change.flag,
        "value": change.value,
        "was": change.was,
        "worker": change.worker,
        "victims": change.victims,
        "assign": change.assign,
        "message": change.message,
    }


def _seconds(ms: int) -> float | None:
    return None if ms >= NEVER else ms / 1000
