"""What people may order of work that runs: that it goes elsewhere, that it stays after all.

Decided inside a turn, on the state as it is then. Surprising rule: of a job with many tasks each that runs is a move of
its own, so that one without a place keeps none of the others from going.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.core.lifecycle.holding.moves import move_receipts
from dray.core.lifecycle.state.events import Clock, Event
from dray.core.lifecycle.state.service_events import MovesDecided, MoveStepped
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import CALLED_OFF, CLAIMED, Receipt
from dray.core.model.records.records import Attempt, Job
from dray.core.scheduling.rebalancing.proposals import EVACUATE, PERSON
from dray.core.scheduling.rebalancing.scene import Scene
from dray.core.scheduling.rebalancing.worth import look_ahead
from dray.errors import Conflict, NotFound
from dray.hub.access.caller import Caller
from dray.hub.decisions.edits import living
from dray.hub.engine.turns import Decision
from dray.hub.rows import Rows
from dray.hub.store.base import AuditRecord

MOST_AT_ONCE = 64
Decide = Callable[[State, Clock], Decision]
Finish = Callable[[State, list[str]], Any]


def move(caller: Caller, job_id: str, index: int | None, to: str, rows: Rows, finish: Finish) -> Decide:
    """Make the decision that what runs of a job goes to a worker, or to wherever there is the best room."""

    def decide(state: State, clock: Clock) -> Decision:
        job = living(caller, rows, job_id, "moved")
        _check_target(state, to)
        leaving = _leaving(state, job, index)
        scene, events = Scene(state), list[Event]()
        why_not = ""
        for attempt in leaving[:MOST_AT_ONCE]:
            reason = scene.why_not(attempt)
            if not reason and attempt.worker == to:
                reason = f"it runs on {to} already"
            row = state.columns.row_of.get(to, -1)
            found = None if reason else scene.find_place(attempt, lambda one: not to or one == row)  # noqa: B023 - asked at once
            if found is None:
                name = state.spell(attempt)
                why_not = why_not or f"{name} stays on {attempt.worker}: {reason or _no_room(state, to)}"
                continue
            scene.take((found,))
            events.append(MovesDecided((found,), PERSON, caller.user))
        if not events:
            raise Conflict(why_not)
        uids = [move.uid for event in events if isinstance(event, MovesDecided) for move in event.moves]
        target = job_id if index is None or not job.numbered else f"{job_id}/{index}"
        record = AuditRecord(clock.at_ms, caller.user, caller.token_id, "move", target, to)
        return Decision(events, lambda after: finish(after, uids), (record,))

    return decide


def _check_target(state: State, to: str) -> None:
    if not to:
        return
    worker = state.workers.get(to)
    if worker is None:
        raise NotFound(f"there is no worker {to!r}: see `dray worker ls`")
    if worker.draining:
        raise Conflict(
            f"worker {to} gets no new work, it is {worker.drain_word}: name another, or resume it first"
        )


def _leaving(state: State, job: Job, index: int | None) -> list[Attempt]:
    if index is not None and not 0 <= index < job.total:
        raise NotFound(f"job {job.id!r} has no task {index}: it has {job.total}")
    live = [state.attempts[uid] for uid in state.live_of.get(job.id, ())]
    meant = [one for one in live if index is None or one.index == index]
    if not meant:
        raise Conflict(f"nothing runs of job {job.id} that could be moved: it waits (`dray why {job.id}`)")
    if job.service:
        raise Conflict(
            f"{job.id} is a service: drain the worker (`dray worker drain {meant[0].worker}`) and its replicas leave "
            "it, each once another is ready elsewhere"
        )
    if job.gang:
        raise Conflict(
            f"{job.id} is a gang, which moves only as a whole: `dray worker drain --move {meant[0].worker}` has it "
            "leave that worker"
        )
    return meant


def _no_room(state: State, to: str) -> str:
    if to:
        return f"{to} does not suit it, or has no room for it now: name another with --to, or leave --to out"
    return "no other worker that suits it has room now: `dray plan` shows when there is any"


def cancel(caller: Caller, move_id: str, finish: Callable[[State], Any]) -> Decide:
    """Make the decision that a move is called off, for as long as nobody was asked to stop for it."""

    def decide(state: State, clock: Clock) -> Decision:
        receipt = find_move(state, caller, move_id)
        stages = {victim.stage for victim in receipt.victims}
        if receipt.status != "open":
            raise Conflict(
                f"move {move_id} has ended ({receipt.status.replace('_', ' ')}): nothing is left to call off"
            )
        if stages != {CLAIMED}:
            raise Conflict(
                f"move {move_id} is past calling off: what it moves was asked to stop and starts again on "
                f"{receipt.victims[0].to}; `dray move show {move_id}` tells how far it is"
            )
        step = MoveStepped(receipt.id, CALLED_OFF, why="called off by hand", user=caller.user)
        record = AuditRecord(clock.at_ms, caller.user, caller.token_id, "call off", move_id, "")
        return Decision([step], finish, (record,))

    return decide


def find_move(state: State, caller: Caller, move_id: str) -> Receipt:
    """A move that the caller may know of."""
    found = state.ledger.get(("receipt", move_id))
    if not isinstance(found, Receipt) or not found.is_move or not sees(caller, found):
        raise NotFound(f"there is no move {move_id!r}, or it is not yours: see `dray move ls`")
    return found


def sees(caller: Caller, receipt: Receipt) -> bool:
    """Whether a move is any business of the caller's."""
    return any(caller.sees(victim.user) for victim in receipt.victims)


def visible_moves(state: State, caller: Caller) -> list[Receipt]:
    """All that the caller may know of, newest first."""
    return [receipt for receipt in move_receipts(state) if sees(caller, receipt)]


def start(caller: Caller, etag: str, cause: str, finish: Finish) -> Decide:
    """Make the decision that a plan is carried out, unless it would be another by now."""

    def decide(state: State, clock: Clock) -> Decision:
        outlook = look_ahead(state, cause)
        if outlook.etag != etag:
            raise Conflict(
                "the plan is another by now: something has started, ended or was moved since it was made; look at it "
                "again (`dray rebalance plan`) and start that one"
            )
        if not outlook.chosen:
            raise Conflict("nothing is to be moved: `dray rebalance plan` tells why")
        events: list[Event] = [
            MovesDecided(one.moves, one.cause, caller.user, one.gain, one.cost, one.unit, one.why)
            for one in outlook.chosen
        ]
        uids = [move.uid for one in outlook.chosen for move in one.moves]
        record = AuditRecord(clock.at_ms, caller.user, caller.token_id, "rebalance", cause or "all", etag)
        return Decision(events, lambda after: finish(after, uids), (record,))

    return decide


def stop(caller: Caller, finish: Finish) -> Decide:
    """Make the decision that all is called off which strategies have decided, as far as nobody was asked to stop."""

    def decide(state: State, clock: Clock) -> Decision:
        found = [
            receipt
            for receipt in state.moving.values()
            if receipt.cause not in (PERSON, EVACUATE)
            and {victim.stage for victim in receipt.victims} == {CLAIMED}
        ]
        events: list[Event] = [
            MoveStepped(one.id, CALLED_OFF, why="called off with all others", user=caller.user)
            for one in found
        ]
        ids = [one.id for one in found]
        record = AuditRecord(clock.at_ms, caller.user, caller.token_id, "stop rebalancing", "", str(len(ids)))
        return Decision(events, lambda after: finish(after, ids), (record,) if events else ())

    return decide
