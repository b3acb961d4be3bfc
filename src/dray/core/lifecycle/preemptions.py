"""Preemption as it happens: victims asked to stop, a receipt written, room kept until the preemptor starts.

The receipt is durable and holds everything a person asks afterwards: for whom, by which rule, what was lost. While it
is open its room is the preemptor's. It is closed by the preemptor's start, or rolled back when the preemptor no longer
waits. Nobody is un-stopped: a process that was told to go may have begun to.
"""

from __future__ import annotations

from dray.core.lifecycle import jobs
from dray.core.lifecycle.effects import Effect, Note
from dray.core.lifecycle.events import Clock, Preemption
from dray.core.lifecycle.state import State
from dray.core.model.ids import task_id
from dray.core.model.ledger import Receipt, Victim
from dray.core.model.records import Attempt, Job, Task
from dray.core.model.spec import TIERS

KEPT = 1_000


def decided(state: State, preemption: Preemption, clock: Clock) -> list[Effect]:
    """Ask the victims to stop and write the receipt; advice that no longer holds changes nothing."""
    job = state.jobs.get(preemption.job_id)
    found = [state.attempts.get(uid) for uid in preemption.victims]
    victims = [
        attempt for attempt in found if attempt is not None and attempt.phase.live and not attempt.cancel
    ]
    if job is None or not job.waiting or len(victims) < len(found):
        return []
    close(state, job, "lapsed", clock)
    receipt = _receipt(state, job, preemption, victims, clock)
    state.enter("receipt", receipt.id, receipt)
    state.receipts[job.id] = receipt
    _forget_oldest(state)
    effects: list[Effect] = [Note("preemption_decided", job.id, data=_data(receipt))]
    for attempt, victim in zip(victims, receipt.victims, strict=True):
        effects += jobs.stop_attempt(state, attempt, "preempted", victim.grace_s, clock)
        said = {"by": job.id, "receipt": receipt.id, "rule": receipt.rule, "grace_s": victim.grace_s}
        effects.append(Note("task_preempting", attempt.job_id, state.spell(attempt), attempt.worker, said))
    return effects


def _receipt(state: State, job: Job, preemption: Preemption, victims: list[Attempt], clock: Clock) -> Receipt:
    number, state.counters.next_receipt = state.counters.next_receipt, state.counters.next_receipt + 1
    return Receipt(
        id=f"p{number}",
        at_ms=clock.at_ms,
        job_id=job.id,
        index=preemption.index,
        user=job.user,
        queue=job.queue,
        priority=job.priority,
        rule=preemption.rule,
        workers=preemption.workers,
        victims=tuple(_victim(state, attempt) for attempt in victims),
        kind=preemption.kind,
        devices=preemption.devices,
        variant=preemption.variant,
        now_ms=clock.now_ms,
    )


def _victim(state: State, attempt: Attempt) -> Victim:
    job = state.jobs[attempt.job_id]
    return Victim(
        uid=attempt.uid,
        job_id=job.id,
        index=attempt.index,
        worker=attempt.worker,
        user=job.user,
        priority=job.priority,
        ran_ms=ran_ms(state, attempt),
        lost_ms=lost_ms(state, attempt),
        grace_s=TIERS[job.tier].grace_s,
    )


def served(state: State, job: Job, clock: Clock) -> None:
    """The preemptor starts: its room is its own from here on."""
    close(state, job, "served", clock)


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


def victim_gone(state: State, attempt: Attempt, task: Task) -> None:
    """A victim is confirmed gone: it heads its band, and its receipt says so."""
    task.ahead = True
    for receipt in state.receipts.values():
        if attempt.uid in {victim.uid for victim in receipt.victims}:
            receipt.gone = (*receipt.gone, attempt.uid)
            state.enter("receipt", receipt.id, receipt)


def recall(state: State) -> None:
    """Find what is still kept after a restart."""
    for (kind, _), record in state.ledger.items():
        if kind == "receipt" and isinstance(record, Receipt) and record.status == "open":
            state.receipts[record.job_id] = record


def receipts(state: State) -> list[Receipt]:
    """All that are remembered, newest first."""
    found = [record for record in state.ledger.values() if isinstance(record, Receipt)]
    return sorted(found, key=lambda receipt: (-receipt.at_ms, receipt.id))


def recent(state: State) -> list[tuple[str, str]]:
    """Whom preemption has hit within the window of the policy's limits: (job, user) for each victim."""
    since_ms = state.now_ms - round(state.policy.preemption.limits.window_s * 1000)
    return [
        (victim.job_id, victim.user)
        for record in state.ledger.values()
        if isinstance(record, Receipt) and record.now_ms >= since_ms
        for victim in record.victims
    ]


def ran_ms(state: State, attempt: Attempt) -> int:
    """How long an attempt has run."""
    return max(0, state.now_ms - attempt.started_ms) if attempt.started else 0


def lost_ms(state: State, attempt: Attempt) -> int:
    """How much of its run would be lost: what its last checkpoint does not cover."""
    return max(0, ran_ms(state, attempt) - attempt.saved_ms)


def _forget_oldest(state: State) -> None:
    known = receipts(state)
    for receipt in known[KEPT:]:
        if receipt.status != "open":
            state.enter("receipt", receipt.id, None)


def _data(receipt: Receipt) -> dict[str, object]:
    return {
        "receipt": receipt.id,
        "rule": receipt.rule,
        "workers": list(receipt.workers),
        "victims": [task_id(victim.job_id, victim.index) for victim in receipt.victims],
        "lost_s": sum(victim.lost_ms for victim in receipt.victims) / 1000,
    }
