"""What may be done about workloads and by whom: made, changed, switched; and what may go into one.

Whose it is may do everything, its members may add to it and see it, to others it does not exist. Decided inside the
turn, like every change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.parties import Tally
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.workload_events import (
    ARCHIVE,
    CANCEL,
    PAUSE,
    SEAL,
    START,
    WorkloadChanged,
    WorkloadDropped,
    WorkloadMade,
    WorkloadSwitched,
)
from dray.core.model.ids import ID_RULE, is_id
from dray.core.model.records.workload import Terms, WorkloadRecord, WorkloadState
from dray.core.model.specs.spec import JobSpec
from dray.core.model.units import parse_moment
from dray.core.model.workloads.check import check_terms
from dray.core.model.workloads.laying import lay_under
from dray.errors import Closed, Conflict, Forbidden, InvalidInput, InvalidSpec, NotFound, Problem, Stale
from dray.hub.access.caller import Caller
from dray.hub.decisions.policy import check_queue
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord

MAX_WORKLOADS = 20_000
Finish = Callable[[State, str, str], Any]


def may_see(state: State, caller: Caller, name: str) -> bool:
    """Whether a workload is this caller's to see: its own, or one that it may add to."""
    tally = state.workloads.get(name)
    if tally is None:
        return False
    record = tally.record
    return caller.sees(record.user) or (caller.sees(caller.user) and caller.user in record.terms.members)


def find_tally(state: State, caller: Caller, name: str) -> Tally:
    """The workload of a name, if the caller may see it."""
    if not may_see(state, caller, name):
        raise NotFound(f"there is no workload {name!r}, or it is not yours; `dray workload ls` lists them")
    return state.workloads[name]


def own_record(state: State, caller: Caller, name: str) -> WorkloadRecord:
    """The record of a workload that the caller may change."""
    record = find_tally(state, caller, name).record
    if not caller.sees(record.user):
        raise Forbidden(
            f"workload {name} is {record.user}'s: as a member you may add to it and see it, and nothing else"
        )
    return record


def sealed_why(state: State, name: str) -> str:
    """Why a workload takes nothing more, in words; empty where it does, or there is none."""
    tally = state.workloads.get(name) if name else None
    if tally is None or not (tally.record.is_sealed or tally.record.is_cancelled or tally.record.is_archived):
        return ""
    word = tally.record.state
    return f"workload {name} {f'is {word}' if word.ended else 'was sealed'}"


def check_workloads(state: State, caller: Caller, specs: Sequence[JobSpec], retry: bool = False) -> None:
    """Refuse jobs for workloads that are not there, not the caller's, or take no more."""
    for place, spec in enumerate(specs):
        name = spec.workload
        if not name:
            continue
        if not may_see(state, caller, name):
            what = f"there is no workload {name!r}, or it is not yours: dray workload create {name}"
            where = f"[{place}].workload" if len(specs) > 1 else "workload"
            raise InvalidSpec(f"{where}: {what}", [Problem(where, what)])
        if not retry and (why := sealed_why(state, name)):
            raise Closed(f"{why} and takes no more jobs: make another workload for them")


def lay_terms(state: State, raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job with what its workload says under them; one that is not there is refused later."""
    name = raw.get("workload")
    tally = state.workloads.get(name) if isinstance(name, str) else None
    return raw if tally is None else lay_under(tally.record.terms, raw)


def check_place(state: State, terms: Terms) -> None:
    """Refuse terms that speak of a queue that is not there."""
    if terms.queue and (fault := check_queue(state.policy, terms.queue)):
        raise InvalidSpec(f"queue: {fault}", [Problem("queue", fault)])


def _check_deadline(terms: Terms, clock: Clock) -> None:
    if terms.deadline and parse_moment(terms.deadline) <= clock.at_ms:
        what = f"{terms.deadline} is in the past"
        raise InvalidSpec(f"deadline: {what}", [Problem("deadline", what)])


def create(
    caller: Caller, name: str, terms: Terms, finish: Callable[[State, bool], Any], dry_run: bool = False
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one create: a draft, or the same one again."""
    if not is_id(name):
        raise InvalidInput(
            f"{name[:64]!r} is no id of a workload: one is {ID_RULE}", [Problem("id", ID_RULE)]
        )

    def decide(state: State, clock: Clock) -> Decision:
        known = state.workloads.get(name)
        if known is not None:
            record = known.record
            if record.user != caller.user:
                raise Conflict(f"there is a workload {name!r} already: choose another id")
            if record.terms != terms:
                raise Conflict(
                    f"there is a workload {name!r} already ({record.state}), with other terms: choose another id, or "
                    f"change it with `dray workload set {name}`"
                )
            return Decision(answer=lambda after: finish(after, False))
        check_place(state, terms)
        _check_deadline(terms, clock)
        if len(state.workloads) >= MAX_WORKLOADS:
            raise Conflict(
                f"there are {len(state.workloads)} workloads, the limit: remove some that are over"
            )
        if dry_run:
            return Decision(answer=lambda after: finish(after, False))
        audit = _audit(caller, clock, "create_workload", name)
        return Decision([WorkloadMade(name, caller.user, terms)], lambda after: finish(after, True), (audit,))

    return decide


class Update(NamedTuple):
    """What is to be changed: fields by name, None takes one back to its default; `etag`: only if it is still so."""

    changes: Mapping[str, Any]
    etag: str = ""


def update(
    caller: Caller, name: str, asked: Update, finish: Finish, action: str = "update_workload"
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one change of terms."""

    def decide(state: State, clock: Clock) -> Decision:
        record = own_record(state, caller, name)
        if asked.etag and asked.etag != etag_of(record):
            raise Stale(
                f"workload {name} has changed meanwhile ({etag_of(record)}, not {asked.etag}): look at it again"
            )
        before = msgspec.to_builtins(record.terms)
        changes = {
            field: before.get(field, {}) | value if field in ("budget", "distribution") and value else value
            for field, value in asked.changes.items()
        }
        if (changes.get("distribution") or {}).get("mode") not in (None, "shares"):
            changes["distribution"].pop("shares", None)
        terms = check_terms(
            {field: value for field, value in (before | changes).items() if value is not None}
        )
        if record.state.ended and terms.failures == record.terms.failures:
            raise Conflict(
                f"workload {name} is {record.state}: nothing of it can be changed but title and failures"
            )
        if terms.queue != record.terms.queue:
            check_place(state, terms)
        if terms.deadline != record.terms.deadline:
            _check_deadline(terms, clock)
        if terms == record.terms:
            return Decision(
                answer=lambda after: finish(after, name, "it was so already: nothing was changed")
            )
        audit = _audit(caller, clock, action, name, ", ".join(sorted(asked.changes)))
        return Decision(
            [WorkloadChanged(name, terms, caller.user)], lambda after: finish(after, name, ""), (audit,)
        )

    return decide


def etag_of(record: WorkloadRecord) -> str:
    """What changes with each change that people make of a workload."""
    return f"{record.seq}-{record.changes}"


def switch(
    caller: Caller, name: str, verb: str, finish: Finish, stop: bool = False, grace_s: float = -1
) -> Callable[[State, Clock], Decision]:
    """Make the decision of one start, pause, seal, cancel or archive."""

    def decide(state: State, clock: Clock) -> Decision:
        record = own_record(state, caller, name)
        note = _idle(record, verb, stop)
        if note:
            return Decision(answer=lambda after: finish(after, name, note))
        event = WorkloadSwitched(name, verb, caller.user, stop, grace_s)
        audit = _audit(caller, clock, f"{verb}_workload", name, "and stop what runs" if stop else "")
        return Decision([event], lambda after: finish(after, name, ""), (audit,))

    return decide


def _idle(record: WorkloadRecord, verb: str, stop: bool) -> str:
    """Why a verb comes to nothing; raises where it makes no sense as the workload stands."""
    state = record.state
    if verb == ARCHIVE:
        if state is WorkloadState.ARCHIVED:
            return "it was archived before"
        if not state.ended:
            raise Conflict(f"workload {record.id} is {state}: it can be archived once it has ended")
        return ""
    if state.ended:
        if verb in (CANCEL, SEAL):
            return f"it has ended already: it is {state}"
        raise Conflict(
            f"workload {record.id} is {state}: it has ended, and nothing of it can {verb} any more"
        )
    if verb == START and record.is_started and not record.is_paused:
        return "it was started before"
    if verb == PAUSE and (record.is_paused or not record.is_started) and not (stop and record.running):
        return "it is paused already" if record.is_paused else "it was never started: nothing of it starts"
    return "it was sealed before" if verb == SEAL and record.is_sealed else ""


def drop(caller: Caller, name: str, finish: Finish) -> Callable[[State, Clock], Decision]:
    """Make the decision of one removal; its jobs stay as long as those of others."""

    def decide(state: State, clock: Clock) -> Decision:
        record = own_record(state, caller, name)
        if record.state is not WorkloadState.ARCHIVED:
            raise Conflict(f"workload {name} is {record.state}: archive it first, once it has ended")
        audit = _audit(caller, clock, "delete_workload", name)
        return Decision([WorkloadDropped(name, caller.user)], lambda after: finish(after, name, ""), (audit,))

    return decide


def _audit(caller: Caller, clock: Clock, action: str, target: str, detail: str = "") -> AuditRecord:
    return AuditRecord(clock.at_ms, caller.user, caller.token_id, action, target, detail)
