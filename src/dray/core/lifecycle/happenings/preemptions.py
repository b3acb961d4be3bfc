"""Preemption as it happens: victims asked to stop, a receipt written, room kept until the preemptor starts.

The receipt is durable and holds everything a person asks afterwards: for whom, by which rule, what was lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.core.lifecycle.holding import attempts, moves
from dray.core.lifecycle.holding.receipts import close, lost_ms, ran_ms, receipts
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock, PlanDecided, Preemption
from dray.core.lifecycle.state.service_events import Move
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs, prewarms
from dray.core.model.records.ledger import ASIDE, Receipt, Victim
from dray.core.model.records.records import Attempt, Job
from dray.core.model.specs.spec import TIERS

KEPT = 1_000


def planned(state: State, event: PlanDecided, clock: Clock) -> list[Effect]:
    """Fold a plan in: first who starts, then who is stopped for whom."""
    effects = jobs.planned(state, event, clock)
    for placement in event.placements if state.prewarms else ():
        if placement.uid in state.attempts:
            prewarms.took(state, placement.worker, state.jobs[placement.job_id])
    for preemption in event.preemptions:
        effects += decided(state, preemption, clock)
    return effects


def decided(state: State, preemption: Preemption, clock: Clock) -> list[Effect]:
    """Ask the victims to stop and write the receipt; without any an earlier preemption is given up.

    Advice that no longer holds changes nothing.
    """
    job = state.jobs.get(preemption.job_id)
    found = [state.attempts.get(uid) for uid in preemption.victims]
    victims = [
        attempt for attempt in found if attempt is not None and attempt.phase.live and not attempt.cancel
    ]
    if job is None or not job.waiting or len(victims) < len(found):
        return []
    effects = close(state, job, "lapsed", clock)
    if not victims:
        return effects
    receipt = _receipt(state, job, preemption, victims, clock)
    state.enter("receipt", receipt.id, receipt)
    state.receipts[job.id] = receipt
    moves.begin(state, receipt)
    forget_oldest(state)
    effects.append(Note("preemption_decided", job.id, data=_data(receipt)))
    for attempt, victim in zip(victims, receipt.victims, strict=True):
        for uid in list(attempts.with_followers(state, (attempt.uid,)))[1:]:
            # Its place is another's from now on. One that has begun meanwhile, since it ended by itself, stops as well.
            effects += jobs.stop_attempt(state, state.attempts[uid], "revoked", 0, clock)
        effects += jobs.stop_attempt(state, attempt, "preempted", victim.grace_s, clock)
        # Each side hears of the other's user alone: whose jobs are which is told by the receipt, to those who may know.
        said = {"by": job.user, "receipt": receipt.id, "rule": receipt.rule, "grace_s": victim.grace_s}
        said |= {"to": victim.to} if victim.to else {}
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
        victims=victims_of(state, victims, preemption.moves),
        kind=preemption.kind,
        devices=preemption.devices,
        variant=preemption.variant,
        now_ms=clock.now_ms,
        cause=ASIDE if preemption.moves else "",
    )


def victims_of(state: State, attempts: Sequence[Attempt], moves: Sequence[Move] = ()) -> tuple[Victim, ...]:
    """What stopping these attempts now costs each of them; a gang goes whole and is counted with its first."""
    found: list[Victim] = []
    going = {move.uid: move for move in moves}
    for attempt in attempts:
        job = state.jobs[attempt.job_id]
        group = job.group_of(attempt.index)
        counted = job.gang and any(one.job_id == job.id and one.index in group for one in found)
        members = 0 if counted else len(group)
        found.append(_victim(state, attempt, members, going.get(attempt.uid)))
    return tuple(found)


def _victim(state: State, attempt: Attempt, members: int, move: Move | None) -> Victim:
    job = state.jobs[attempt.job_id]
    return Victim(
        uid=attempt.uid,
        job_id=job.id,
        index=attempt.index,
        worker=attempt.worker,
        user=job.user,
        priority=job.priority,
        ran_ms=ran_ms(state, attempt),
        lost_ms=lost_ms(state, attempt) * members,
        grace_s=TIERS[job.tier].grace_s,
        members=members,
        to=move.worker if move is not None else "",
        to_devices=move.devices if move is not None else (),
        to_variant=move.variant if move is not None else 0,
    )


def forget_oldest(state: State) -> None:
    """Keep as many receipts as people look back at."""
    known = receipts(state)
    for receipt in known[KEPT:]:
        if receipt.status != "open":
            state.enter("receipt", receipt.id, None)


def _data(receipt: Receipt) -> dict[str, object]:
    return {
        "receipt": receipt.id,
        "rule": receipt.rule,
        "workers": list(receipt.workers),
        "victims": sum(victim.members for victim in receipt.victims),
        "moved": sum(1 for victim in receipt.victims if victim.to),
        "lost_s": sum(victim.lost_ms for victim in receipt.victims) / 1000,
    }
