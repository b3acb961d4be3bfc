"""A job's own story, told from its record and its attempts: no second log to keep in step."""

from __future__ import annotations

from collections.abc import Sequence

from dray.core.model.ids import task_id
from dray.core.model.records import Attempt, Job
from dray.hub.documents import Document, moment

_STEPS = (
    ("assigned_at_ms", "task_assigned", "given to {worker}"),
    ("accepted_at_ms", "task_accepted", "accepted by {worker}"),
    ("started_at_ms", "task_started", "started on {worker}"),
    ("ended_at_ms", "attempt_ended", "{phase}{detail}"),
)


def job_history(job: Job, attempts: Sequence[Attempt]) -> list[Document]:
    """What happened to a job, in order. Wall clocks may be set back: no step is shown before the one it followed."""
    user = f"submitted by {job.user} with {job.total} task{'' if job.total == 1 else 's'}"
    lines = [(0, 0, _line("job_submitted", job.id, user, job.submitted_at_ms))]
    for attempt in attempts:
        name = task_id(job.id, attempt.index if job.numbered else -1)
        lines += _attempt_lines(attempt, name)
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
            lines.append((latest_ms, attempt.fence * 8 + place, line))
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
