"""Moves as they happen: decided, asked to stop, started elsewhere, there; or called off, taken back, given up.

Rules only write down what they are told: which stage comes next, and whether room is there, is for scheduling to say.
The receipt is durable and holds all of it. Surprising rule: a task is asked to stop exactly as one that is preempted,
so a worker needs to know nothing of moves.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dray.core.lifecycle.happenings.preemptions import forget_oldest, victims_of
from dray.core.lifecycle.holding import moves
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.service_events import Move, MovesDecided, MoveStepped
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs
from dray.core.model.ids import task_id
from dray.core.model.records.ledger import (
    CALLED_OFF,
    CLAIMED,
    DONE,
    FAILED,
    ROLLED_BACK,
    SAVING,
    SETTLING,
    UNDER_WAY,
    Receipt,
    Victim,
)
from dray.core.model.records.records import Attempt, Phase

# Any of a later kind says more of the whole than all of an earlier one.
_WORSE = (DONE, CALLED_OFF, ROLLED_BACK, FAILED)


def decided(state: State, event: MovesDecided, clock: Clock) -> list[Effect]:
    """Write the receipt and keep the room. Advice that no longer holds changes nothing."""
    leaving = [state.attempts.get(move.uid) for move in event.moves]
    found = [attempt for attempt in leaving if attempt is not None and _may_go(state, attempt)]
    if not found or len(found) < len(event.moves):
        return []
    if any(move.worker not in state.workers for move in event.moves):
        return []
    receipt = _receipt(state, event, found, clock)
    state.enter("receipt", receipt.id, receipt)
    moves.begin(state, receipt)
    forget_oldest(state)
    state.set_timer(clock.now_ms + moves.CLAIM_MS, "move", receipt.id)
    effects: list[Effect] = []
    for victim in receipt.victims:
        said = {"receipt": receipt.id, "cause": receipt.cause, "to": victim.to, "why": receipt.why}
        said |= {"by": receipt.by} if receipt.by else {}
        effects.append(Note("task_moving", victim.job_id, _name(state, victim), victim.worker, said))
    return effects


def _may_go(state: State, attempt: Attempt) -> bool:
    key = attempt.job_id, attempt.index
    runs = attempt.phase in (Phase.ACCEPTED, Phase.RUNNING) and not attempt.cancel and not attempt.lane
    return runs and key not in state.moves and key not in state.origins


def _receipt(state: State, event: MovesDecided, leaving: list[Attempt], clock: Clock) -> Receipt:
    number, state.counters.next_receipt = state.counters.next_receipt, state.counters.next_receipt + 1
    first = state.jobs[leaving[0].job_id]
    going: dict[str, Move] = {move.uid: move for move in event.moves}
    victims = [
        msgspec.structs.replace(
            victim,
            devices=attempt.devices,
            variant=attempt.variant,
            stage=CLAIMED,
            since_ms=clock.now_ms,
            rate=attempt.rate,
        )
        for victim, attempt in zip(victims_of(state, leaving, tuple(going.values())), leaving, strict=True)
    ]
    return Receipt(
        id=f"p{number}",
        at_ms=clock.at_ms,
        job_id=first.id,
        index=leaving[0].index,
        user=first.user,
        queue=first.queue,
        priority=first.priority,
        rule=event.cause,
        workers=(),
        victims=tuple(victims),
        now_ms=clock.now_ms,
        cause=event.cause,
        by=event.user,
        why=event.why,
        gain=event.gain,
        cost=event.cost,
        unit=event.unit,
    )


def stepped(state: State, event: MoveStepped, clock: Clock) -> list[Effect]:
    """A move comes further; a step that comes too late changes nothing."""
    receipt = state.moving.get(event.receipt)
    if receipt is None:
        return []
    effects: list[Effect] = []
    for victim in receipt.victims:
        if victim.stage in UNDER_WAY and (not event.uid or victim.uid == event.uid):
            effects += _step_one(state, receipt, victim, event, clock)
    return effects + _conclude(state, receipt, clock)


def _step_one(
    state: State, receipt: Receipt, victim: Victim, event: MoveStepped, clock: Clock
) -> list[Effect]:
    effects: list[Effect] = []
    said: dict[str, object] = {"receipt": receipt.id, "cause": receipt.cause, "to": victim.to}
    task, attempt = state.tasks.get((victim.job_id, victim.index)), state.attempts.get(victim.uid)
    if event.stage == SAVING:
        if attempt is None or attempt.cancel:
            return []
        victim = msgspec.structs.replace(victim, asked_ms=clock.now_ms)
        effects += jobs.stop_attempt(state, attempt, "preempted", victim.grace_s, clock)
        said |= {"grace_s": victim.grace_s}
    elif event.stage == SETTLING and task is not None:
        down_ms = max(0, clock.now_ms - victim.asked_ms)
        victim = msgspec.structs.replace(victim, next_uid=task.current, down_ms=down_ms)
        state.moved_to[task.current] = receipt.id
        state.set_timer(clock.now_ms + moves.SETTLE_MS, "move", receipt.id)
    elif event.stage == FAILED and task is not None and task.queued:
        # What it could not start on is avoided; it stands in line like any other that was stopped.
        job = state.jobs[victim.job_id]
        job.blamed = victim.to
        state.touched.jobs[job.id] = None
    moves.restage(state, receipt, victim, event.stage, event.why)
    if event.stage in UNDER_WAY:
        state.set_timer(clock.now_ms + moves.START_MS, "move", receipt.id)
    said |= {"stage": event.stage} | ({"why": event.why} if event.why else {})
    said |= {"by": event.user} if event.user else {}
    kind = "task_moved" if event.stage == DONE else "move_stepped"
    return [*effects, Note(kind, victim.job_id, _name(state, victim), victim.worker, said)]


def _conclude(state: State, receipt: Receipt, clock: Clock) -> list[Effect]:
    """End the whole once each of its tasks has come to an end."""
    stages = [victim.stage for victim in receipt.victims]
    if any(stage in UNDER_WAY for stage in stages):
        return []
    receipt.status = max(stages, key=_WORSE.index)
    receipt.ended_at_ms = clock.at_ms
    receipt.settled = all(one.next_uid not in state.moved_to for one in receipt.victims)
    state.enter("receipt", receipt.id, receipt)
    del state.moving[receipt.id]
    return [Note("move_ended", receipt.job_id, data={"receipt": receipt.id, "status": receipt.status})]


def recall_timers(state: State, receipts: Iterable[Receipt], now_ms: int) -> None:
    """Look at what is under way once a hub is back."""
    for receipt in receipts:
        for wait_ms in (0, moves.SETTLE_MS, moves.START_MS):
            state.set_timer(now_ms + wait_ms, "move", receipt.id)


def _name(state: State, victim: Victim) -> str:
    job = state.jobs.get(victim.job_id)
    return task_id(victim.job_id, victim.index if job is None else job.spelled(victim.index))
