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
    """What happened to a job, oldest first."""
    user = f"submitted by {job.user} with {job.total} task{'' if job.total == 1 else 's'}"
    lines = [(job.submitted_at_ms, 0, _line("job_submitted", job.id, user, job.submitted_at_ms))]
    for attempt in attempts:
        name = task_id(job.id, attempt.index if job.numbered else -1)
        detail = (
            f" ({attempt.exit_class}{': ' + attempt.error if attempt.error else ''})"
            if attempt.exit_class
            else ""
        )
        for place, (field, kind, words) in enumerate(_STEPS, 1):
            at_ms = getattr(attempt, field)
            if at_ms:
                text = words.format(worker=attempt.worker, phase=attempt.phase.value, detail=detail)
                line = _line(kind, name, text, at_ms) | {"attempt": attempt.no, "worker": attempt.worker}
                lines.append((at_ms, attempt.no * 10 + place, line))
    if job.ended_at_ms:
        text = f"{job.state.value}{': ' + job.error if job.error else ''}"
        lines.append((job.ended_at_ms, 1 << 40, _line("job_ended", job.id, text, job.ended_at_ms)))
    return [line for _, _, line in sorted(lines, key=lambda item: item[:2])]


def _line(kind: str, name: str, message: str, at_ms: int) -> Document:
    return {
        "at": moment(at_ms),
        "type": kind,
        "task_id": name,
        "attempt": None,
        "worker": "",
        "message": message,
    }
