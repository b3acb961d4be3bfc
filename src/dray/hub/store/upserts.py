"""Rows of a projection, written many to a statement.

One statement with 128 rows costs a fraction of 128 statements, so rows go in steps of 128, 32, 8 and 1, each step a
text that the connection keeps compiled. Knows how a record becomes columns; knows nothing of transactions or
epochs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from dray.core.model.ids import attempt_number
from dray.core.model.records import Task
from dray.core.model.worker import Worker
from dray.errors import BrokenInvariant
from dray.hub.store.base import AttemptRow, JobRow, Projection

Row = TypeVar("Row")
STEPS = (128, 32, 8, 1)
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
    ),
    ("phase", "exit_class", "exit_code", "started_at_ms", "ended_at_ms", "wall_s", "record"),
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
