"""What people may say of workers: take no work for a while, be called something, be gone for good.

Decided inside a turn. Surprising rule: a worker that is connected cannot be removed, since it would be back at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dray.core.lifecycle.holding.attempts import with_followers
from dray.core.lifecycle.state.events import (
    AttemptRevoked,
    AttemptsLost,
    Clock,
    Event,
    RequeueRequested,
    WorkerDrained,
    WorkerForgotten,
    WorkerLabelled,
)
from dray.core.lifecycle.state.service_events import WorkerEnding
from dray.core.lifecycle.state.state import State
from dray.core.model.labels import is_label_name
from dray.core.model.records.records import Phase
from dray.core.model.records.worker import Worker
from dray.core.model.specs.spec import unpack_spec
from dray.core.model.units import parse_moment, parse_seconds
from dray.errors import Conflict, InvalidInput, NotFound, Problem
from dray.hub.access.caller import Caller
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord

MAX_LABELS = 64
Decide = Callable[[State, Clock], Decision]
Finish = Callable[[State, str], Any]


def drain(
    caller: Caller,
    worker_id: str,
    on: bool,
    finish: Finish,
    reason: str = "",
    until: str = "",
    stop: bool = False,
    ends: str = "",
    move: bool = False,
) -> Decide:
    """Make the decision of one drain or resume. `until` is a moment, or how long from now; `stop`: what runs there is
    queued again, but for what may start once only, and services, which move by themselves; `move`: it is moved
    elsewhere, as there is room. `ends`: when the machine is taken away; what runs there is stopped in time for that.
    """
    if stop and move:
        raise InvalidInput(
            "what runs there is either stopped and queued again or moved: give one of stop and move"
        )

    def decide(state: State, clock: Clock) -> Decision:
        worker = _find(state, worker_id)
        event = WorkerDrained(worker_id, on, caller.user, reason, _read_until(until, clock), 0, move)
        told = (worker.drain_reason, worker.drain_until_ms)
        same = (
            worker.draining == on and (not on or told == (event.reason, event.until_ms)) and not worker.faults
        ) and (worker.emptying == (on and move))
        record = _audit(caller, clock, "drain" if on else "resume", worker_id, reason)
        answer = lambda after: finish(after, worker_id)  # noqa: E731 - short, and used twice
        events: list[Event] = [] if same else [event]
        if ends:
            events.append(WorkerEnding(worker_id, _read_until(ends, clock), caller.user, reason))
        events += _queue_again(state, worker_id, caller.user) if stop else ()
        return Decision(events, answer, (record,)) if events else Decision(answer=answer)

    return decide


def label(caller: Caller, worker_id: str, wanted: Mapping[str, str | None], finish: Finish) -> Decide:
    """Make the decision of giving labels, or of taking given ones back (None)."""
    bad = [
        Problem(name[:64], "is no name of a label: letters, digits, '.', '_', '-' and '/', 256 at most")
        for name in wanted
        if not is_label_name(name)
    ]
    bad += [
        Problem(name[:64], "the text of a label has 1,024 characters at most")
        for name, text in wanted.items()
        if text is not None and len(text) > 1024
    ]
    if bad:
        raise InvalidInput(f"{worker_id} keeps its labels: {bad[0].where}: {bad[0].what}", bad)

    def decide(state: State, clock: Clock) -> Decision:
        worker = _find(state, worker_id)
        given = {name: text for name, text in {**worker.given, **wanted}.items() if text is not None}
        if len(given) > MAX_LABELS:
            raise InvalidInput(
                f"a worker is given {MAX_LABELS} labels at most, {worker_id} would have {len(given)}"
            )
        own = [name for name, text in wanted.items() if text is None and name not in worker.given]
        if own:
            kept = [name for name in own if name in worker.labels]
            why = "it says so itself: change `labels` of its [worker]" if kept else "it has no such label"
            raise InvalidInput(f"{worker_id} cannot lose {', '.join(kept or own)}: {why}")
        record = _audit(
            caller, clock, "label", worker_id, " ".join(f"{k}={v}" for k, v in given.items())[:512]
        )
        events: list[Event] = [WorkerLabelled(worker_id, given, caller.user)] if given != worker.given else []
        return Decision(events, lambda after: finish(after, worker_id), (record,) if events else ())

    return decide


def remove(caller: Caller, worker_id: str, force: bool, finish: Finish) -> Decide:
    """Make the decision of forgetting a worker; with `force` what it may still run is given up as lost."""

    def decide(state: State, clock: Clock) -> Decision:
        _find(state, worker_id)
        if state.presence[worker_id].session:
            raise Conflict(
                f"worker {worker_id} is connected and would be back at once: stop its agent first, or keep work away "
                f"from it (`dray worker drain {worker_id}`)"
            )
        there = with_followers(state, state.held.get(worker_id, ()))
        held = [state.attempts[uid] for uid in there]
        if held and not force:
            raise Conflict(
                f"worker {worker_id} may still run {_count(len(held))}: wait until it is back or given up, or give up "
                f"now what it has (`dray worker rm --force {worker_id}`); the machine must be off for that, or a task "
                "may run twice"
            )
        why = f"its worker was removed by {caller.user}"
        given_back = [attempt.uid for attempt in held if attempt.phase is Phase.ASSIGNED]
        lost = tuple(sorted(attempt.uid for attempt in held if attempt.phase is not Phase.ASSIGNED))
        events: list[Event] = [AttemptRevoked(uid, why) for uid in given_back]
        events += [AttemptsLost(worker_id, lost, why)] if lost else []
        record = _audit(
            caller, clock, "worker.remove", worker_id, f"{_count(len(held))} lost" if held else ""
        )
        return Decision(
            [*events, WorkerForgotten(worker_id)], lambda after: finish(after, worker_id), (record,)
        )

    return decide


def _find(state: State, worker_id: str) -> Worker:
    worker = state.workers.get(worker_id)
    if worker is None:
        raise NotFound(f"there is no worker {worker_id!r}: see `dray worker ls --all`")
    return worker


def _queue_again(state: State, worker_id: str, user: str) -> list[Event]:
    """Have everything that runs on a worker stopped and queued; a gang once, whole."""
    found: dict[tuple[str, int], Event] = {}
    for uid in state.held.get(worker_id, ()):
        attempt = state.attempts[uid]
        job = state.jobs[attempt.job_id]
        if attempt.cancel or job.service or job.calls or unpack_spec(job.spec).at_most_once:
            continue
        index = -1 if job.gang else attempt.index
        found[job.id, index] = RequeueRequested(job.id, index, user)
    return list(found.values())


def _read_until(until: str, clock: Clock) -> int:
    if not until:
        return 0
    moment_ms = parse_moment(until) if "T" in until.upper() and "-" in until else 0
    at_ms = moment_ms or clock.at_ms + round(parse_seconds(until) * 1000)
    if at_ms <= clock.at_ms:
        raise InvalidInput(f"{until[:80]!r} is over already: give a later moment, or a span such as 2h")
    return at_ms


def _audit(caller: Caller, clock: Clock, action: str, worker_id: str, detail: str) -> AuditRecord:
    return AuditRecord(clock.at_ms, caller.user, caller.token_id, action, worker_id, detail)


def _count(tasks: int) -> str:
    return f"{tasks} task{'' if tasks == 1 else 's'}"
