"""Rows of a projection in one statement, under a share of the leader's row.

Columns travel as one JSON document per table, records beside it as they are: one statement whatever the number of
rows, with nothing that a pooler or a lost connection could leave half done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dray.hub.store import columns
from dray.hub.store.base import JobRow, Projection
from dray.hub.store.columns import Table, clean, clean_values
from dray.hub.store.postgres.election import OWN

_encode_json = msgspec.json.Encoder().encode
NAMES = {"user": "usr"}
"""Columns that cannot be called here what they are called elsewhere."""
_NUMBERS = frozenset(
    "seq idx no number exit_code submitted_at_ms assigned_at_ms started_at_ms ended_at_ms limit_ms rate".split()
)
_REALS = frozenset("wall_s cpu_s gpu_s gpu_seen_s".split())


def column_type(column: str) -> str:
    """What a column holds."""
    if column in _NUMBERS:
        return "bigint"
    if column in _REALS:
        return "double precision"
    if column == "record":
        return "bytea"
    return "jsonb" if column == "labels" else "text"


def _spell(table: Table, first: int) -> str:
    """One table's part of the statement; its JSON is value `first`, its records are the next one."""
    names = [NAMES.get(column, column) for column in table.columns]
    plain = [
        f"{NAMES.get(column, column)} {column_type(column)}" for column in table.columns if column != "record"
    ]
    picked = ", ".join("x.record" if name == "record" else f"x.{name}" for name in names)
    named = ", ".join([*(text.partition(" ")[0] for text in plain), "record"])
    changes = ", ".join(f"{column} = excluded.{column}" for column in table.updated)
    return " ".join(
        (
            f"{table.name}_rows AS (INSERT INTO dray.{table.name} ({', '.join(names)})",
            f"SELECT {picked} FROM own,",
            f"ROWS FROM (json_to_recordset(${first}::json) AS ({', '.join(plain)}),",
            f"unnest(${first + 1}::bytea[])) AS x ({named})",
            f"ON CONFLICT ({table.key}) DO UPDATE SET {changes})",
        )
    )


_TABLES = (columns.JOBS, columns.TASKS, columns.ATTEMPTS, columns.WORKERS, columns.LEDGER)
_FIRST = 5
_LAST = _FIRST + 2 * len(_TABLES)
# Not ahead of the log, and after all rows that were written before: a failover may have lost turns or rows, which these
# would hide from whoever looks.
_OWN = OWN.replace(
    " FOR SHARE",
    f""" AND (SELECT $2 <= greatest(applied_seq, (SELECT max(seq) FROM dray.log)) AND applied_seq >= ${_LAST + 3}
        FROM dray.meta WHERE meta.id = 1) FOR SHARE""",
)
PROJECT = f"""{_OWN}, {", ".join(_spell(table, _FIRST + 2 * at) for at, table in enumerate(_TABLES))},
    gone AS (DELETE FROM dray.workers USING own WHERE id = ANY(${_LAST}::text[])),
    struck AS (DELETE FROM dray.ledger USING own, unnest(${_LAST + 1}::text[], ${_LAST + 2}::text[]) AS x (kind, key)
        WHERE ledger.kind = x.kind AND ledger.key = x.key)
    UPDATE dray.meta SET applied_seq = $2, now_ms = greatest(now_ms, $3), counters = $4
        FROM own WHERE id = 1 RETURNING 1"""


def spell_projection(projection: Projection, written_seq: int) -> list[Any]:
    """Give the values of `PROJECT`, after the epoch; `written_seq` is the turn of the rows that were written last."""
    kept = [row for row in projection.ledger if row.record is not None]
    struck = [row for row in projection.ledger if row.record is None]
    rows: tuple[Iterable[tuple[Any, ...]], ...] = (
        map(_job_values, projection.jobs),
        map(columns.task_values, projection.tasks),
        map(columns.attempt_values, projection.attempts),
        map(columns.worker_values, projection.workers),
        kept,
    )
    values: list[Any] = [projection.applied_seq, projection.now_ms, projection.counters]
    for table, each in zip(_TABLES, rows, strict=True):
        values += pack_rows(table, each)
    values.append([clean(worker_id) for worker_id in projection.gone_workers])
    values += [[clean(row.kind) for row in struck], [clean(row.key) for row in struck], written_seq]
    return values


def pack_rows(table: Table, rows: Iterable[tuple[Any, ...]]) -> tuple[str, list[bytes]]:
    """Rows as one JSON document of their columns and a list of their records."""
    at = table.columns.index("record")
    names = [NAMES.get(column, column) for column in (*table.columns[:at], *table.columns[at + 1 :])]
    documents, records = [], []
    for row in rows:
        documents.append(dict(zip(names, clean_values((*row[:at], *row[at + 1 :])), strict=True)))
        records.append(row[at])
    return _encode_json(documents).decode(), records


def _job_values(row: JobRow) -> tuple[Any, ...]:
    """With labels as a document within the document, and without what it could not hold."""
    values = list(columns.job_values(row))
    at = columns.JOBS.columns.index("labels")
    values[at] = {clean(key): clean(value) for key, value in row.labels.items()}
    return tuple(values)
