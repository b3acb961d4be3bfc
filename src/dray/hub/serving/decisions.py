"""What may be changed about a service, decided inside the turn: its size, by which revision of its
spec it runs, and who may reach it.

What is said of the job itself (its name, queue, priority) is no part of a revision: `dray set` changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dray.core.lifecycle.holding.rollouts import revisions_of
from dray.core.lifecycle.services.updates import OF_THE_JOB, keep_of_the_job
from dray.core.lifecycle.state.events import Clock, Event
from dray.core.lifecycle.state.service_events import ServiceScaled, ServiceUpdated, UpdateAbandoned
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.replicas import wanted
from dray.core.model.records.records import Job
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import MAX_REPLICAS, JobSpec, pack_spec, spec_document, unpack_spec
from dray.errors import Conflict, InvalidInput, InvalidSpec, NotFound, Problem
from dray.hub.access.caller import Caller
from dray.hub.calls.reading import CallReader
from dray.hub.decisions import edits
from dray.hub.decisions.edits import check_space, check_template, revise
from dray.hub.engine.turns import Decision
from dray.hub.serving.finding import find_service
from dray.hub.store.base import AuditRecord

Finish = Callable[[State, Job, str], Any]


def scale(
    caller: Caller, name: str, replicas: int, low_space: Callable[[], bool], finish: Finish
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one change of a service's size."""

    def decide(state: State, clock: Clock) -> Decision:
        job = find_service(state, caller, name)
        most = MAX_REPLICAS // job.group_size
        if not 0 <= replicas <= most:
            what = f"must be 0 to {most}, got {replicas}"
            raise InvalidInput(f"replicas {what}", [Problem("replicas", what)])
        before = wanted(job)
        if replicas > before:
            check_space(low_space, "new replicas")
        events: list[Event] = [ServiceScaled(job.id, replicas, caller.user)] if replicas != before else []
        note = "" if events else f"it has {replicas} already"
        words = f"from {before} to {replicas}"
        return _decision(caller, clock, "scale", job, words, events, lambda after: finish(after, job, note))

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


def update(
    caller: Caller,
    name: str,
    changes: Mapping[str, Any],
    whole: bool,
    low_space: Callable[[], bool],
    finish: Finish,
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one update: a new revision made of the spec and the changes, or of a `whole` spec. Another
    number of replicas alone is a change of size.
    """
    if not changes:
        raise InvalidInput("nothing is to be changed: give at least one field of the service")

    def decide(state: State, clock: Clock) -> Decision:
        job = find_service(state, caller, name)
        before = unpack_spec(job.spec)
        spec = _replace(before, _without_none(changes)) if whole else revise(before, _without_none(changes))
        _check_of_the_job(before, spec)
        check_template(before, spec)
        size = wanted(job)
        aim = int(changes["replicas"]) if changes.get("replicas") is not None else size
        spec = msgspec.structs.replace(spec, replicas=before.replicas)
        events: list[Event] = []
        if spec != before:
            check_space(low_space, "new revisions")
            events.append(ServiceUpdated(job.id, pack_spec(spec), caller.user, replicas=aim))
        elif aim != size:
            events.append(ServiceScaled(job.id, aim, caller.user))
        note = "" if events else "it was so already: nothing was changed"
        words = ", ".join(sorted(changes))
        return _decision(caller, clock, "update", job, words, events, lambda after: finish(after, job, note))

    return decide


def _without_none(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The changes without a size of no replicas at all, which a running service may have and a new one may not."""
    none = type(changes.get("replicas")) is int and not changes["replicas"]
    return {name: value for name, value in changes.items() if name != "replicas"} if none else changes


def _replace(before: JobSpec, given: Mapping[str, Any]) -> JobSpec:
    """A spec as a job file has it. What it leaves out of what is said of the job itself stays as it is."""
    known = spec_document(before)
    raw = {field: known[field] for field in OF_THE_JOB if field in known} | dict(given)
    raw |= {"id": before.id, "user_id": before.user_id}
    return check_spec(raw)


def _check_of_the_job(before: JobSpec, spec: JobSpec) -> None:
    what = "is said of the job, and no part of a revision: `dray set` changes what of it can be changed"
    problems = [
        Problem(field, what)
        for field in OF_THE_JOB
        if field != "replicas" and getattr(spec, field) != getattr(before, field)
    ]
    if problems:
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}", problems)


def restart(
    caller: Caller, name: str, low_space: Callable[[], bool], finish: Finish
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one restart of all replicas, start then stop: the same spec by another number."""

    def decide(state: State, clock: Clock) -> Decision:
        job = find_service(state, caller, name)
        if job.revision != job.stable:
            raise Conflict(
                f"service {name} is being updated to revision {job.revision}, which replaces its replicas anyway: "
                f"wait for it, or roll it back first"
            )
        check_space(low_space, "new revisions")
        events: list[Event] = [ServiceUpdated(job.id, job.spec, caller.user, "restart")]
        return _decision(caller, clock, "restart", job, "", events, lambda after: finish(after, job, ""))

    return decide


def rollback(caller: Caller, name: str, to: int | None, finish: Finish) -> Callable[[State, Clock], Decision]:
    """Make the decision of one rollback: an update that is under way is given up, else an earlier revision comes."""

    def decide(state: State, clock: Clock) -> Decision:
        job = find_service(state, caller, name)
        number = _choose(state, job, name, to)
        event: Event
        if number == job.stable and job.revision != job.stable:
            event = UpdateAbandoned(job.id, f"rolled back by {caller.user}", caller.user)
        else:
            spec = keep_of_the_job(revisions_of(state, job)[number].spec, job.spec)
            event = ServiceUpdated(job.id, spec, caller.user, "rollback", number)
        words = f"from revision {job.revision} to {number}"
        return _decision(
            caller, clock, "rollback", job, words, [event], lambda after: finish(after, job, words)
        )

    return decide


def _choose(state: State, job: Job, name: str, to: int | None) -> int:
    """The revision that is meant: the one named, else the last other one that was whole."""
    known = revisions_of(state, job)
    if to is not None:
        if to == job.revision:
            raise Conflict(f"service {name} is at revision {to}, or on its way there, already")
        if to not in known:
            listed = ", ".join(str(number) for number in known if number != job.revision) or "none other"
            raise NotFound(f"there is no revision {to} of service {name} to go back to: there is {listed}")
        return to
    if job.revision != job.stable:
        return job.stable
    whole = [
        one
        for one in known.values()
        if one.number != job.revision and one.outcome == "done" and one.spec != job.spec
    ]
    if not whole:
        raise Conflict(f"service {name} has no earlier revision to go back to")
    return max(whole, key=lambda one: (one.ended_at_ms, one.number)).number


def _decision(
    caller: Caller,
    clock: Clock,
    action: str,
    job: Job,
    words: str,
    events: list[Event],
    answer: Callable[[State], Any],
) -> Decision:
    record = AuditRecord(clock.at_ms, caller.user, caller.token_id, action, job.id, words)
    return Decision(events, answer, (record,) if events else ())
