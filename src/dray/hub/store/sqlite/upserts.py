"""Rows of a projection, written many to a statement.

One statement with 128 rows costs a fraction of 128 statements, so rows go in steps of 128, 32, 8 and 1, each step a
text that the connection keeps compiled. Knows nothing of transactions or epochs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dray.hub.store import columns
from dray.hub.store.base import Projection
from dray.hub.store.columns import Table

Row = TypeVar("Row")
STEPS = (128, 32, 8, 1)


class Upsert:
    """One table's insert-or-update, compiled for each step."""

    def __init__(self, table: Table) -> None:
        self.width = len(table.columns)
        head = " ".join(("INSERT INTO", table.name, "(" + ", ".join(table.columns) + ")", "VALUES "))
        changes = ", ".join(f"{column} = excluded.{column}" for column in table.updated)
        tail = " ".join((" ON CONFLICT", "(" + table.key + ")", "DO UPDATE SET", changes))
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


_JOBS = Upsert(columns.JOBS)
_TASKS = Upsert(columns.TASKS)
_ATTEMPTS = Upsert(columns.ATTEMPTS)
_WORKERS = Upsert(columns.WORKERS)
_LEDGER = Upsert(columns.LEDGER)


def write_rows(connection: sqlite3.Connection, projection: Projection) -> None:
    """Write all rows of a projection inside the caller's transaction."""
    _write(connection, _JOBS, projection.jobs, columns.job_values)
    _write(connection, _TASKS, projection.tasks, columns.task_values)
    _write(connection, _ATTEMPTS, projection.attempts, columns.attempt_values)
    _write(connection, _WORKERS, projection.workers, columns.worker_values)
    for worker_id in projection.gone_workers:
        connection.execute("DELETE FROM workers WHERE id = ?", (worker_id,))
    _write(connection, _LEDGER, [row for row in projection.ledger if row.record is not None], tuple)
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
