"""Moves as the documents that people and programs read: who goes where and why, how far it is, what it came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dray.core.lifecycle.holding.moves import move_receipts
from dray.core.lifecycle.holding.receipts import number_of
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.ids import task_id
from dray.core.model.policies.rebalancing import STRATEGIES
from dray.core.model.records.ledger import SAVING, UNDER_WAY, Receipt, Victim
from dray.core.scheduling.rebalancing.worth import Judged, Outlook, find_demotion, is_quiet
from dray.hub.access.caller import Caller
from dray.hub.documents.records import Document, moment
from dray.hub.rows import Rows

MOST_SHOWN = 500
_MICRO = 1_000_000


def move_document(rows: Rows, caller: Caller, receipt: Receipt, clock: Clock) -> Document:
    """One move. Of tasks that are none of the caller's business only the places are told."""
    return {
        "id": receipt.id,
        "status": receipt.status,
        "cause": receipt.cause,
        "by": receipt.by,
        "why": receipt.why,
        "tasks": [_task_document(rows, caller, receipt, victim, clock) for victim in receipt.victims],
        "unit": receipt.unit,
        "foretold_gain": spell_amount(receipt.unit, receipt.gain),
        "foretold_cost": spell_amount(receipt.unit, receipt.cost),
        "won": spell_amount(receipt.unit, receipt.won)
        if receipt.settled and receipt.status == "done"
        else None,
        "lost_s": sum(victim.lost_ms for victim in receipt.victims if victim.asked_ms) / 1000,
        "decided_at": moment(receipt.at_ms),
        "ended_at": moment(receipt.ended_at_ms),
    }


def spell_amount(unit: str, value: int) -> float | None:
    """In GPU-seconds, or in money; None where nothing was foretold."""
    if not unit:
        return None
    return round(value / _MICRO, 6) if unit == "money" else value / 1000


def _task_document(rows: Rows, caller: Caller, receipt: Receipt, victim: Victim, clock: Clock) -> Document:
    mine = caller.sees(victim.user)
    job, attempt = rows.job(victim.job_id), rows.attempt(victim.uid)
    since_ms = max(0, clock.now_ms - victim.since_ms) if victim.stage in UNDER_WAY else None
    left_s = None
    if victim.stage == SAVING and since_ms is not None:
        left_s = max(0.0, victim.grace_s - since_ms / 1000)
    return {
        "job_id": victim.job_id if mine else None,
        "task_id": task_id(victim.job_id, job.spelled(victim.index) if job is not None else -1)
        if mine
        else None,
        "user": victim.user if mine else None,
        "from": victim.worker,
        "to": victim.to,
        "stage": victim.stage,
        "stage_s": None if since_ms is None else since_ms / 1000,
        "grace_left_s": left_s,
        "saved_step": attempt.saved_step if mine and attempt is not None and attempt.saved_ms else None,
        "lost_s": victim.lost_ms / 1000 if victim.asked_ms else 0.0,
        "down_s": victim.down_ms / 1000 if victim.next_uid else None,
        "note": victim.note,
    }


def cursor_of(receipt: Receipt) -> str:
    """Where the next page goes on."""
    return str(number_of(receipt))


def plan_document(rows: Rows, state: State, outlook: Outlook) -> Document:
    """What would be moved, and what was found and is not, each with its reason."""
    return {
        "etag": outlook.etag,
        "mode": state.policy.rebalance.mode,
        "levels": {cause: round(level, 4) for cause, level in outlook.levels.items()},
        "proposals": [_proposal_document(rows, state, one) for one in outlook.judged[:MOST_SHOWN]],
        "chosen": len(outlook.chosen),
    }


def _proposal_document(rows: Rows, state: State, judged: Judged) -> Document:
    proposal, unit = judged.proposal, judged.proposal.unit
    tasks = []
    for move in proposal.moves:
        attempt = state.attempts[move.uid]
        job = state.jobs[attempt.job_id]
        name = task_id(job.id, job.spelled(attempt.index))
        tasks.append(
            {"job_id": job.id, "task_id": name, "user": job.user, "from": attempt.worker, "to": move.worker}
        )
    return {
        "cause": proposal.cause,
        "why": proposal.why,
        "refused": judged.refused,
        "unit": unit,
        "foretold_gain": spell_amount(unit, proposal.gain),
        "foretold_cost": spell_amount(unit, proposal.cost),
        "tasks": tasks,
    }


def standing_document(state: State) -> Document:
    """How the rebalancer stands: by each strategy what it has moved within a week, and what that came to."""
    rules = state.policy.rebalance
    known = move_receipts(state)
    causes = dict.fromkeys((*(rules.strategies or STRATEGIES), *(receipt.cause for receipt in known)))
    return {
        "mode": rules.mode,
        "quiet": is_quiet(rules, state.at_ms),
        "under_way": sum(1 for receipt in known if receipt.status == "open"),
        "strategies": [_strategy_document(state, cause, known) for cause in causes],
    }


def _strategy_document(state: State, cause: str, known: Sequence[Receipt]) -> Document:
    mine = [receipt for receipt in known if receipt.cause == cause]
    swing = dict(state.outlook.swings).get(cause)
    judged = [receipt for receipt in mine if receipt.settled and receipt.status == "done" and receipt.unit]
    unit = judged[0].unit if judged else ""
    return {
        "cause": cause,
        "level": round(swing.samples[-1][1], 4) if swing is not None and swing.samples else None,
        "moves": len(mine),
        "by_status": dict(sorted(Counter(receipt.status for receipt in mine).items())),
        "lost_s": sum(one.lost_ms for receipt in mine for one in receipt.victims if one.asked_ms) / 1000,
        "unit": unit,
        "foretold": spell_amount(unit, sum(one.gain for one in judged)),
        "won": spell_amount(unit, sum(one.won for one in judged)),
        "only_advises": find_demotion(state, cause),
    }
