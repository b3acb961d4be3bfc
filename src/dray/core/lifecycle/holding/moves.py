"""Moves under way: a task leaves its worker and starts again on a worker named beforehand, to make room for another or
for its own sake.

A cache over the receipts, which are durable. The room on the other worker is the task's from the decision until its
next attempt, so nobody takes it between the two; it is given up when the task cannot use it any more. Of whoever is
moved for its own sake the room that it came from is kept too, until it has run elsewhere for a while. Surprising rule:
a move aside outlives the receipt it was decided with, since whoever it made room for may start, or go, before the task
does.
"""

from __future__ import annotations

import msgspec

from dray.core.lifecycle.holding.receipts import lapses_ms, receipts
from dray.core.lifecycle.providers.prices import cost_of_span
from dray.core.lifecycle.state.parties import gpus_of
from dray.core.lifecycle.state.state import Moving, State, TaskKey
from dray.core.model.records.ledger import (
    DONE,
    RETURNING,
    SETTLING,
    STARTING,
    UNDER_WAY,
    Receipt,
    Victim,
)
from dray.core.model.records.records import Attempt, Phase
from dray.core.model.specs.resources import WHOLE

# A task that could not start where it went to, or where it came from, for so long waits like any other.
START_MS = 5 * 60_000
# So long is the room that a move is for waited for, before anybody is asked to stop.
CLAIM_MS = 60_000
# Whoever has run so long elsewhere is there.
SETTLE_MS = 30_000


def begin(state: State, receipt: Receipt) -> None:
    """Keep room for those victims of a preemption that are moved."""
    if receipt.is_move:
        if receipt.status == "open":
            _begin_move(state, receipt)
        return
    until_ms = lapses_ms(receipt)
    for victim in receipt.victims:
        if victim.to:
            state.moves[victim.job_id, victim.index] = Moving(
                victim.uid, victim.to, victim.to_devices, victim.to_variant, until_ms
            )


def _begin_move(state: State, receipt: Receipt) -> None:
    state.moving[receipt.id] = receipt
    for victim in receipt.victims:
        keep_room(state, receipt, victim)


def keep_room(state: State, receipt: Receipt, victim: Victim) -> None:
    """Keep what a task that is moved has a right to at this stage, and nothing else."""
    key = victim.job_id, victim.index
    for kept in (state.moves, state.origins):
        # A task may be moved again before an earlier move of it is settled: that one's room is its own.
        if (one := kept.get(key)) is not None and one.receipt == receipt.id:
            del kept[key]
    task = state.tasks.get(key)
    if task is None or victim.stage not in UNDER_WAY:
        return
    if victim.stage in (STARTING, SETTLING) and keeps_origin(receipt, victim):
        state.origins[key] = origin_of(receipt, victim)
    waits = task.queued or task.last_uid == victim.uid
    if victim.stage == RETURNING and waits:
        state.moves[key] = origin_of(receipt, victim)._replace(uid=task.last_uid)
    elif victim.stage not in (RETURNING, SETTLING) and waits:
        until_ms = victim.since_ms + START_MS
        state.moves[key] = Moving(
            task.last_uid, victim.to, victim.to_devices, victim.to_variant, until_ms, receipt.id
        )


def keeps_origin(receipt: Receipt, victim: Victim) -> bool:
    """Whether the room that a task comes from is kept for it: not where another of the same move goes there."""
    return all(other.to != victim.worker for other in receipt.victims)


def origin_of(receipt: Receipt, victim: Victim) -> Moving:
    """The room that a task came from."""
    return Moving(
        victim.uid,
        victim.worker,
        victim.devices,
        victim.variant,
        victim.since_ms + START_MS,
        receipt.id,
    )


def restage(state: State, receipt: Receipt, victim: Victim, stage: str, note: str = "") -> Victim:
    """One task of a move came further; whatever room it gives up is there for others."""
    key = victim.job_id, victim.index
    before = [one.worker for kept in (state.moves, state.origins) if (one := kept.get(key)) is not None]
    after = msgspec.structs.replace(victim, stage=stage, since_ms=state.now_ms, note=note or victim.note)
    replace_victim(state, receipt, after)
    keep_room(state, receipt, after)
    for worker in before:
        row = state.columns.row_of.get(worker)
        if row is not None:
            state.columns.roomier[row] = None
    return after


def replace_victim(state: State, receipt: Receipt, after: Victim) -> None:
    """Write down what has become of one task of a move."""
    receipt.victims = tuple(after if one.uid == after.uid else one for one in receipt.victims)
    state.enter("receipt", receipt.id, receipt)


def recall(state: State) -> None:
    """Find what is still under way after a restart."""
    for record in state.ledger.values():
        if isinstance(record, Receipt):
            begin(state, record)
            for victim in record.victims:
                if victim.next_uid and not record.settled and victim.next_uid in state.attempts:
                    state.moved_to[victim.next_uid] = record.id
    for key in [
        key for key, move in state.moves.items() if not move.receipt and not is_under_way(state, key, move)
    ]:
        del state.moves[key]


def is_under_way(state: State, key: TaskKey, move: Moving) -> bool:
    """Whether the task still stops, or waits to start again, and may."""
    job, task = state.jobs.get(key[0]), state.tasks.get(key)
    if move.receipt:
        # It ends by its own rules; only once the task is placed again nothing is kept for it any more.
        return task is not None and task.last_uid == move.uid
    if job is None or task is None or job.barred or job.cancelled or task.last_uid != move.uid:
        return False
    attempt = state.attempts.get(move.uid)
    stops = attempt is not None and task.current == move.uid and attempt.phase is Phase.STOPPING
    return (stops or task.queued) and state.now_ms < move.until_ms


# --- what it has come to ----------------------------------------------------------------------------------------------


def judge(state: State, attempt: Attempt) -> None:
    """The attempt by which a moved task started again has ended: write down what its move has won."""
    receipt = state.ledger.get(("receipt", state.moved_to.pop(attempt.uid)))
    if not isinstance(receipt, Receipt):
        return
    for victim in receipt.victims:
        if victim.next_uid == attempt.uid and victim.stage == DONE:
            receipt.won += _won(state, receipt, victim, attempt)
    receipt.settled = all(one.next_uid not in state.moved_to for one in receipt.victims)
    state.enter("receipt", receipt.id, receipt)


def _won(state: State, receipt: Receipt, victim: Victim, attempt: Attempt) -> int:
    """What the price of an hour, or the speed, has come to for as long as it ran there, less what the move cost."""
    stood_ms = victim.lost_ms + victim.down_ms
    if receipt.unit == "money":
        spared = cost_of_span(abs(victim.rate - attempt.rate), attempt.span_ms)
        return (spared if victim.rate >= attempt.rate else -spared) - cost_of_span(attempt.rate, stood_ms)
    cards = gpus_of(state.asks(state.jobs[attempt.job_id].shape)[victim.variant]) / WHOLE
    return round(cards * (attempt.span_ms * _faster(state, victim, attempt) - stood_ms))


def _faster(state: State, victim: Victim, attempt: Attempt) -> float:
    """How much of its run time there was spared, by the steps that were saved before and after; 0 where none were."""
    before = state.attempts.get(victim.uid)
    if before is None or not (before.saved_step and before.saved_ms and attempt.saved_ms):
        return 0.0
    steps = attempt.saved_step - before.saved_step
    # Its first attempt alone began with step 0.
    if before.no != 1 or steps <= 0:
        return 0.0
    return 1 - (before.saved_step / before.saved_ms) / (steps / attempt.saved_ms)


def open_moves(state: State) -> list[Receipt]:
    """Those that are under way, oldest first."""
    return list(state.moving.values())


def move_receipts(state: State) -> list[Receipt]:
    """All moves that are remembered which were carried out for their own sake, newest first."""
    return [receipt for receipt in receipts(state) if receipt.is_move]
