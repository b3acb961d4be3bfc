"""What may be changed about a service, decided inside the turn: how many replicas it has, and who may reach it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dray.core.lifecycle.state.events import Clock, Event
from dray.core.lifecycle.state.service_events import ServiceScaled
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.replicas import wanted
from dray.core.model.records.records import Job
from dray.core.model.specs.spec import MAX_REPLICAS, unpack_spec
from dray.errors import InvalidInput, Problem
from dray.hub.access.caller import Caller
from dray.hub.calls.reading import CallReader
from dray.hub.decisions import edits
from dray.hub.decisions.edits import check_space
from dray.hub.engine.turns import Decision
from dray.hub.serving.finding import find_service
from dray.hub.store.base import AuditRecord

Finish = Callable[[State, Job, str], Any]


def scale(
    caller: Caller, name: str, replicas: int, low_space: Callable[[], bool], finish: Finish
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one change of a service's size."""
    if not 0 <= replicas <= MAX_REPLICAS:
        what = f"must be 0 to {MAX_REPLICAS}, got {replicas}"
        raise InvalidInput(f"replicas {what}", [Problem("replicas", what)])

    def decide(state: State, clock: Clock) -> Decision:
        job = find_service(state, caller, name)
        before = wanted(job)
        if replicas > before:
            check_space(low_space, "new replicas")
        events: list[Event] = [ServiceScaled(job.id, replicas, caller.user)] if replicas != before else []
        note = "" if events else f"it has {replicas} already"
        words = f"from {before} to {replicas}"
        record = AuditRecord(clock.at_ms, caller.user, caller.token_id, "scale", job.id, words)
        return Decision(events, lambda after: finish(after, job, note), (record,) if events else ())

    return decide


def share(
    caller: Caller,
    name: str,
    add: Sequence[str],
    remove: Sequence[str],
    calls: CallReader,
    low_space: Callable[[], bool],
    finish: edits.Finish,
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one change of those who may reach a service: it is an edit of its spec."""

    def decide(state: State, clock: Clock) -> Decision:
        job = find_service(state, caller, name)
        before = unpack_spec(job.spec).share
        wanted = sorted({*before, *add} - {*remove})
        return edits.edit(caller, job.id, {"share": wanted}, calls, finish, low_space)(state, clock)

    return decide
