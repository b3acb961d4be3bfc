"""Rows of a projection, written many to a statement.

One statement with 128 rows costs a fraction of 128 statements, so rows go in steps of 128, 32, 8 and 1, each step a
text that the connection keeps compiled. Knows how a record becomes columns; knows nothing of transactions or
epochs.
"""

from __future__ import annotations

import math
import sqlite3
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
STEPS = (128, 32, 8, 1)
LARGEST = (1 << 63) - 1
ODD_VALUES = (OverflowError, ValueError, TypeError)
"""What encoding a record, or handing its columns to SQLite, raises over a value out of range."""
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


class Upsert:
    """One table's insert-or-update, compiled for each step; `updated` are the columns that change over a row's life."""

    def __init__(self, table: str, key: str, columns: Sequence[str], updated: Sequence[str]) -> None:
        self.width = len(columns)
        head = " ".join(("INSERT INTO", table, "(" + ", ".join(columns) + ")", "VALUES "))
        changes = ", ".join(f"{column} = excluded.{column}" for column in updated)
        tail = " ".join((" ON CONFLICT", "(" + key + ")", "DO UPDATE SET", changes))
        row = "(" + ", ".join("?" * self.width) + ")"
        self._statements = tuple((count, head + ", ".join([row] * count) + tail) for count in STEPS)

    def write(self, connection: sqlite3.Connection, values: list[Any]) -> None:
        """Write rows given as one flat list of values."""
        at, width = 0, self.width
        left = len(values) // width
        for count, statement in self._statements:
            while left >= count:
                end = at + count * width
                connection.execute(statement, values[at:end])
                at = end
                left -= count


JOBS = Upsert(
    "jobs",
    "seq",
    ("seq", "id", "user", "name", "queue", "state", "labels", "submitted_at_ms", "ended_at_ms", "record"),
    ("state", "labels", "ended_at_ms", "record"),
)
TASKS = Upsert("tasks", "job_id, idx", ("job_id", "idx", "state", "record"), ("state", "record"))
ATTEMPTS = Upsert(
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
    ),
    (
        *("phase", "exit_class", "exit_code", "started_at_ms", "ended_at_ms", "wall_s", "record"),
        *("limit_ms", "cpu_s", "gpu_s", "gpu_seen_s"),
    ),
)
WORKERS = Upsert("workers", "id", ("id", "record"), ("record",))
LEDGER = Upsert("ledger", "kind, key", ("kind", "key", "record"), ("record",))


def _job_values(row: JobRow) -> tuple[Any, ...]:
    job = row.job
    labels = _encode_json(row.labels).decode() if row.labels else "{}"
    return (
        *(job.seq, job.id, job.user, job.name, job.queue, job.state.value, labels),
        *(job.submitted_at_ms, job.ended_at_ms, _encode(job)),
    )


def _task_values(task: Task) -> tuple[Any, ...]:
    return task.job_id, task.index, task.state.value, _encode(task)


def _attempt_values(row: AttemptRow) -> tuple[Any, ...]:
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
    )


def _worker_values(worker: Worker) -> tuple[Any, ...]:
    return worker.id, _encode(worker)


def write_rows(connection: sqlite3.Connection, projection: Projection) -> None:
    """Write all rows of a projection inside the caller's transaction."""
    _write(connection, JOBS, projection.jobs, _job_values)
    _write(connection, TASKS, projection.tasks, _task_values)
    _write(connection, ATTEMPTS, projection.attempts, _attempt_values)
    _write(connection, WORKERS, projection.workers, _worker_values)
    for worker_id in projection.gone_workers:
        connection.execute("DELETE FROM workers WHERE id = ?", (worker_id,))
    _write(connection, LEDGER, [row for row in projection.ledger if row.record is not None], tuple)
    for row in projection.ledger:
        if row.record is None:
            connection.execute("DELETE FROM ledger WHERE kind = ? AND key = ?", (row.kind, row.key))


def mend_rows(projection: Projection, told: list[str]) -> Projection:
    """Bring values that no column or record can hold within bounds; a row that cannot be mended is left out."""
    keep = partial(_mend_each, told)
    return projection._replace(
        jobs=keep("jobs", projection.jobs, _job_values),
        tasks=keep("tasks", projection.tasks, _task_values),
        attempts=keep("attempts", projection.attempts, _attempt_values),
        workers=keep("workers", projection.workers, _worker_values),
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


def _write(
    connection: sqlite3.Connection,
    upsert: Upsert,
    rows: Sequence[Row],
    values_of: Callable[[Row], tuple[Any, ...]],
) -> None:
    if rows:
        values: list[Any] = []
        for row in rows:
            values.extend(values_of(row))
        upsert.write(connection, values)
