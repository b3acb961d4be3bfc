"""How a record becomes the columns of a row, whatever database keeps them; and what is done about odd values.

Every table has its columns in one order, which the values here keep too. Knows nothing of statements, transactions or
epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import msgspec

from dray.core.model.ids import attempt_number
from dray.core.model.records.records import Task
from dray.core.model.records.worker import Worker
from dray.errors import BrokenInvariant
from dray.hub.store.base import AttemptRow, JobRow, Projection

Row = TypeVar("Row")
LARGEST = (1 << 63) - 1
ODD_VALUES = (OverflowError, ValueError, TypeError)
"""What encoding a record, or handing its columns to a database, raises over a value out of range."""
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


class Table:
    """The columns of a table: its key, and those that change over a row's life (`updated`)."""

    def __init__(self, name: str, key: str, columns: Sequence[str], updated: Sequence[str]) -> None:
        self.name, self.key, self.columns, self.updated = name, key, tuple(columns), tuple(updated)


JOBS = Table(
    "jobs",
    "seq",
    (
        "seq",
        "id",
        "user",
        "name",
        "queue",
        "state",
        "labels",
        "submitted_at_ms",
        "ended_at_ms",
        "record",
        "workload",
    ),
    ("state", "labels", "ended_at_ms", "record", "workload"),
)
TASKS = Table("tasks", "job_id, idx", ("job_id", "idx", "state", "record"), ("state", "record"))
ATTEMPTS = Table(
    "attempts",
    "number",
    (
        *("number", "job_id", "idx", "no", "worker", "name", "user", "shape", "gpu_type"),
        *(
            "phase",
            "exit_class",
            "exit_code",
            "assigned_at_ms",
            "started_at_ms",
            "ended_at_ms",
            "wall_s",
            "record",
        ),
        *("queue", "plugin", "template", "limit_ms", "cpu_s", "gpu_s", "gpu_seen_s"),
        "rate",
    ),
    (
        *("phase", "exit_class", "exit_code", "started_at_ms", "ended_at_ms", "wall_s", "record"),
        *("limit_ms", "cpu_s", "gpu_s", "gpu_seen_s"),
    ),
)
WORKERS = Table("workers", "id", ("id", "record"), ("record",))
LEDGER = Table("ledger", "kind, key", ("kind", "key", "record"), ("record",))


def job_values(row: JobRow) -> tuple[Any, ...]:
    """A job as its columns, in the order of `JOBS`."""
    job = row.job
    labels = _encode_json(row.labels).decode() if row.labels else "{}"
    return (
        *(job.seq, job.id, job.user, job.name, job.queue, job.state.value, labels),
        *(job.submitted_at_ms, job.ended_at_ms, _encode(job), job.workload),
    )


def task_values(task: Task) -> tuple[Any, ...]:
    """A task as those of `TASKS`."""
    return task.job_id, task.index, task.state.value, _encode(task)


def attempt_values(row: AttemptRow) -> tuple[Any, ...]:
    """An attempt as those of `ATTEMPTS`; one whose uid gives no number is refused."""
    attempt = row.attempt
    number = attempt_number(attempt.uid)
    if number < 0:
        raise BrokenInvariant(
            f"attempt {attempt.uid!r} of job {attempt.job_id} has no uid of the form epoch-seq"
        )
    return (
        *(number, attempt.job_id, attempt.index, attempt.no, attempt.worker),
        *(row.name, row.user, row.shape, row.gpu_type),
        *(attempt.phase.value, attempt.exit_class, attempt.exit_code),
        *(
            attempt.assigned_at_ms,
            attempt.started_at_ms,
            attempt.ended_at_ms,
            attempt.wall_s,
            _encode(attempt),
        ),
        *(
            row.queue,
            row.plugin,
            row.template,
            attempt.limit_ms,
            attempt.cpu_s,
            attempt.gpu_s,
            attempt.gpu_seen_s,
        ),
        attempt.rate,
    )


def worker_values(worker: Worker) -> tuple[Any, ...]:
    """A worker as those of `WORKERS`."""
    return worker.id, _encode(worker)


def mend_rows(projection: Projection, told: list[str]) -> Projection:
    """Bring values that no column or record can hold within bounds; a row that cannot be mended is left out."""
    keep = partial(_mend_each, told)
    return projection._replace(
        jobs=keep("jobs", projection.jobs, job_values),
        tasks=keep("tasks", projection.tasks, task_values),
        attempts=keep("attempts", projection.attempts, attempt_values),
        workers=keep("workers", projection.workers, worker_values),
    )


def _mend_each(
    told: list[str], table: str, rows: Sequence[Row], values_of: Callable[[Row], tuple[Any, ...]]
) -> list[Row]:
    kept = []
    for row in rows:
        if not _fits(values_of, row):
            mended = _mend(row)
            fits = _fits(values_of, mended)
            what = "brought within bounds" if fits else "left out"
            told.append(f"a row of {table} holds a value that cannot be written: it was {what}")
            if not fits:
                continue
            row = mended
        kept.append(row)
    return kept


def _fits(values_of: Callable[[Row], tuple[Any, ...]], row: Row) -> bool:
    try:
        values = values_of(row)
        [value.encode() for value in values if isinstance(value, str)]
    except ODD_VALUES:
        return False
    return all(-LARGEST - 1 <= value <= LARGEST for value in values if isinstance(value, int))


def _mend(value: Any) -> Any:
    """Clamp integers, drop what is no number, replace what is no text; through records and their parts."""
    if isinstance(value, bool | bytes | Enum) or value is None:
        return value
    if isinstance(value, int):
        return max(-LARGEST - 1, min(LARGEST, value))
    if isinstance(value, float):
        return value if math.isfinite(value) else 0.0
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, msgspec.Struct):
        fields = {name: _mend(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, tuple):
        parts = [_mend(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [_mend(part) for part in value]
    if isinstance(value, dict):
        return {_mend(key): _mend(part) for key, part in value.items()}
    return value


def clean(text: str) -> str:
    """Text that PostgreSQL can hold, which knows no NUL and no half of a pair: one worker's word must not stop a hub.

    Only columns are changed, which lists filter by; the packed record keeps the text as it came.
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def clean_values(values: tuple[Any, ...]) -> list[Any]:
    """The same for all columns of a row, and 0 for what is no number."""
    return [_clean(value) for value in values]


def _clean(value: Any) -> Any:
    if type(value) is str:
        return clean(value)
    return 0.0 if type(value) is float and not math.isfinite(value) else value
