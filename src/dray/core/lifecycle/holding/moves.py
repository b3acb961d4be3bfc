"""Moves under way: a task leaves its worker to make room for another and starts again on a worker named beforehand.

A cache over the receipts, which are durable. The room on the other worker is the task's from the decision until its
next attempt, so nobody takes it between the two; it is given up when the task cannot use it any more. Surprising rule:
a move outlives the receipt it was decided with, since whoever it made room for may start, or go, before the task does.
"""

from __future__ import annotations

from dray.core.lifecycle.holding.receipts import lapses_ms
from dray.core.lifecycle.state.state import Moving, State, TaskKey
from dray.core.model.records.ledger import Receipt
from dray.core.model.records.records import Phase


def begin(state: State, receipt: Receipt) -> None:
    """Keep room for those victims of a preemption that are moved."""
    until_ms = lapses_ms(receipt)
    for victim in receipt.victims:
        if victim.to:
            state.moves[victim.job_id, victim.index] = Moving(
                victim.uid, victim.to, victim.to_devices, victim.to_variant, until_ms
            )


def recall(state: State) -> None:
    """Find what is still under way after a restart."""
    for record in state.ledger.values():
        if isinstance(record, Receipt):
            begin(state, record)
    for key in [key for key, move in state.moves.items() if not is_under_way(state, key, move)]:
        del state.moves[key]


def is_under_way(state: State, key: TaskKey, move: Moving) -> bool:
    """Whether the task still stops, or waits to start again, and may."""
    job, task = state.jobs.get(key[0]), state.tasks.get(key)
    if job is None or task is None or job.barred or job.cancelled or task.last_uid != move.uid:
        return False
    attempt = state.attempts.get(move.uid)
    stops = attempt is not None and task.current == move.uid and attempt.phase is Phase.STOPPING
    return (stops or task.queued) and state.now_ms < move.until_ms
