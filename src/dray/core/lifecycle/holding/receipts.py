"""Receipts of preemptions: what is kept for a preemptor while its victims leave, and what is remembered after.

While a receipt is open its room is the preemptor's. It is closed by the preemptor's start, or rolled back when the
preemptor no longer waits. Nobody is un-stopped: a process that was told to go may have begun to.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import Receipt, Victim
from dray.core.model.records.records import Attempt, Job, Phase

# A preemption whose victims have not gone so long after their grace has led nowhere.
STALE_MS = 60_000


def lapses_ms(receipt: Receipt) -> int:
    """When a preemption that has led nowhere is given up."""
    grace_ms = max((round(victim.grace_s * 1000) for victim in receipt.victims), default=0)
    return receipt.now_ms + grace_ms + STALE_MS


def close(state: State, job: Job, status: str, clock: Clock) -> list[Effect]:
    """End what is kept for a job, if anything is."""
    receipt = state.receipts.pop(job.id, None)
    if receipt is None:
        return []
    receipt.status, receipt.ended_at_ms = status, clock.at_ms
    if status == "served":
        receipt.served_at_ms = clock.at_ms
    state.enter("receipt", receipt.id, receipt)
    # Room that was kept is there for others now, and nobody else will say so.
    for worker in receipt.workers:
        row = state.columns.row_of.get(worker)
        if row is not None:
            state.columns.roomier[row] = None
    return [Note(f"preemption_{status}", job.id, data={"receipt": receipt.id})]


def victim_gone(state: State, attempt: Attempt) -> None:
    """A victim is confirmed gone: the receipt of its preemption says so, and what was lost in the end.

    A receipt may be closed by then, and the victim may have saved or even finished its work within its grace.
    """
    if attempt.cancel != "preempted":
        return
    for receipt in receipts(state):
        if all(victim.uid != attempt.uid for victim in receipt.victims):
            continue
        if attempt.uid not in receipt.gone:
            receipt.gone = (*receipt.gone, attempt.uid)
        receipt.victims = tuple(
            _settled(state, attempt, victim) if victim.uid == attempt.uid else victim
            for victim in receipt.victims
        )
        state.enter("receipt", receipt.id, receipt)
        return


def _settled(state: State, attempt: Attempt, victim: Victim) -> Victim:
    lost = 0 if attempt.phase is Phase.SUCCEEDED else lost_ms(state, attempt) * victim.members
    return msgspec.structs.replace(victim, ran_ms=ran_ms(state, attempt), lost_ms=lost)


def recall(state: State) -> None:
    """Find what is still kept after a restart."""
    for (kind, _), record in state.ledger.items():
        if kind == "receipt" and isinstance(record, Receipt) and record.is_open:
            state.receipts[record.job_id] = record


def receipts(state: State) -> list[Receipt]:
    """All that are remembered, newest first."""
    found = [record for record in state.ledger.values() if isinstance(record, Receipt)]
    return sorted(found, key=number_of, reverse=True)


def receipts_about(state: State, job_id: str) -> list[Receipt]:
    """Those that a job made or suffered, newest first."""
    return [
        receipt
        for receipt in receipts(state)
        if receipt.job_id == job_id or any(victim.job_id == job_id for victim in receipt.victims)
    ]


def number_of(receipt: Receipt) -> int:
    """Its number: they are counted from 1 on, and wall clocks may be set back."""
    return int(receipt.id[1:])


class Hit(NamedTuple):
    """A victim as the limits count it; `moved`: it was moved, and that for its own sake (`own`) or aside."""

    job_id: str
    number: int
    user: str
    moved: bool
    own: bool = False


def recent(state: State) -> list[Hit]:
    """Whom preemption has hit within the window of the policy's limits."""
    since_ms = state.now_ms - round(state.policy.preemption.limits.window_s * 1000)
    return [
        Hit(victim.job_id, victim.index, victim.user, bool(victim.to), record.is_move)
        for record in state.ledger.values()
        if isinstance(record, Receipt) and record.now_ms >= since_ms
        for victim in record.victims
        if not record.is_move or victim.asked_ms
    ]


def ran_ms(state: State, attempt: Attempt) -> int:
    """How long an attempt has run."""
    return max(0, state.now_ms - attempt.started_ms) if attempt.started else 0


def lost_ms(state: State, attempt: Attempt) -> int:
    """How much of its run would be lost: what its last checkpoint does not cover."""
    return max(0, ran_ms(state, attempt) - attempt.saved_ms)
