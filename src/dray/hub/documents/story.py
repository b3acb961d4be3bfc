"""A job's own story, told from its record, its attempts and its receipts: no second log to keep in step."""

from __future__ import annotations

from collections.abc import Sequence

from dray.core.model.ids import task_id
from dray.core.model.records.ledger import Receipt, Victim
from dray.core.model.records.records import Attempt, Job
from dray.core.model.units import format_seconds
from dray.hub.documents.records import Document, moment

_STEPS = (
    ("assigned_at_ms", "task_assigned", "given to {worker}"),
    ("accepted_at_ms", "task_accepted", "accepted by {worker}"),
    ("started_at_ms", "task_started", "started on {worker}"),
    ("ended_at_ms", "attempt_ended", "{phase}{detail}"),
)
# Room for what is told between two steps of one attempt.
_PLACES = 2 * len(_STEPS)
_ENDS = {
    "served": "the room of receipt {id} is free, and it is given to it",
    "rolled_back": "it no longer waits: the room of receipt {id} goes to others",
    "lapsed": "the room of receipt {id} did not come free in time",
}


def job_history(job: Job, attempts: Sequence[Attempt], receipts: Sequence[Receipt] = ()) -> list[Document]:
    """What happened to a job, in order. Wall clocks may be set back: no step is shown before the one it followed."""
    user = f"submitted by {job.user} with {job.total} task{'' if job.total == 1 else 's'}"
    lines = [(0, 0, _line("job_submitted", job.id, user, job.submitted_at_ms))]
    for attempt in attempts:
        name = task_id(job.id, job.spelled(attempt.index))
        lines += _attempt_lines(attempt, name)
        lines += [
            _victim_line(receipt, attempt, victim, name)
            for receipt in receipts
            for victim in receipt.victims
            if victim.uid == attempt.uid
        ]
    for receipt in receipts:
        if receipt.job_id == job.id and not receipt.is_move:
            lines += _preemptor_lines(receipt, task_id(job.id, job.spelled(receipt.index)))
    lines.sort(key=lambda line: line[:2])
    if job.ended_at_ms:
        text = f"{job.state.value}{': ' + job.error if job.error else ''}"
        lines.append((0, 0, _line("job_ended", job.id, text, job.ended_at_ms)))
    return [line for _, _, line in lines]


def _attempt_lines(attempt: Attempt, name: str) -> list[tuple[int, int, Document]]:
    detail = (
        f" ({attempt.exit_class}{': ' + attempt.error if attempt.error else ''})"
        if attempt.exit_class
        else ""
    )
    lines, latest_ms = [], 1
    for place, (field, kind, words) in enumerate(_STEPS):
        at_ms = getattr(attempt, field)
        if at_ms:
            latest_ms = max(latest_ms, at_ms)
            text = words.format(worker=attempt.worker, phase=attempt.phase.value, detail=detail)
            line = _line(kind, name, text, at_ms) | {"attempt": attempt.no, "worker": attempt.worker}
            lines.append((latest_ms, attempt.fence * _PLACES + 2 * place, line))
    return lines


def _victim_line(receipt: Receipt, attempt: Attempt, victim: Victim, name: str) -> tuple[int, int, Document]:
    why = f"for a job of {receipt.user} with priority {receipt.priority}"
    if receipt.is_move:
        return _move_line(receipt, attempt, victim, name)
    if victim.to:
        why = f"and move to {victim.to} to make room {why}"
    text = f"asked to stop within {format_seconds(victim.grace_s)} {why} (by {receipt.rule}, receipt {receipt.id})"
    line = _line("task_preempting", name, text, receipt.at_ms)
    before_its_end = attempt.fence * _PLACES + _PLACES - 3
    return receipt.at_ms, before_its_end, line | {"attempt": attempt.no, "worker": attempt.worker}


def _move_line(receipt: Receipt, attempt: Attempt, victim: Victim, name: str) -> tuple[int, int, Document]:
    who = f" by {receipt.by}" if receipt.by else ""
    text = f"to be moved to {victim.to}{who} ({receipt.cause}, move {receipt.id}): {receipt.status.replace('_', ' ')}"
    note = f", {victim.note}" if victim.note else ""
    line = _line("task_moving", name, text + note, receipt.at_ms)
    before_its_end = attempt.fence * _PLACES + _PLACES - 3
    return receipt.at_ms, before_its_end, line | {"attempt": attempt.no, "worker": attempt.worker}


def _preemptor_lines(receipt: Receipt, name: str) -> list[tuple[int, int, Document]]:
    count, where = sum(victim.members for victim in receipt.victims), ", ".join(receipt.workers)
    asked = "1 task" if count == 1 else f"{count} tasks"
    text = (
        f"{asked} on {where} {'is' if count == 1 else 'are'} asked to stop for it"
        f" (by {receipt.rule}, receipt {receipt.id})"
    )
    lines = [(receipt.at_ms, 0, _line("preemption_decided", name, text, receipt.at_ms))]
    if receipt.status in _ENDS:
        at_ms = max(receipt.at_ms, receipt.ended_at_ms)
        text = _ENDS[receipt.status].format(id=receipt.id)
        lines.append((at_ms, 0, _line(f"preemption_{receipt.status}", name, text, at_ms)))
    return lines


def _line(kind: str, name: str, message: str, at_ms: int) -> Document:
    return {
        "at": moment(at_ms),
        "type": kind,
        "task_id": name,
        "attempt": None,
        "worker": "",
        "message": message,
    }
