"""The tables of the SQLite store and the steps that bring an older file up to date.

Steps go forward only and are never edited once released: `PRAGMA user_version` counts those a file has been
through. Every index costs on the path of each task, so each one says which question needs it. The conditions of the
partial indexes are repeated word for word by the queries, because SQLite uses such an index only for a condition it
recognises.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from dray.errors import StoreError

APPLICATION_ID = 0x64726179
"""Marks the file as dray's ("dray" in ASCII), so that another program's database is never taken for ours."""

LIVE_JOB = "state IN ('pending', 'running')"
RUNNING_JOB = "state = 'running'"
FINAL_JOB = "state NOT IN ('pending', 'running')"
ODD_TASK = "state NOT IN ('pending', 'running', 'succeeded')"

_FIRST = (
    # One row. The epoch lives here so that each writing transaction can check it with a single lookup.
    """CREATE TABLE meta (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        epoch INTEGER NOT NULL DEFAULT 0,
        clean INTEGER NOT NULL DEFAULT 1,
        applied_seq INTEGER NOT NULL DEFAULT 0,
        now_ms INTEGER NOT NULL DEFAULT 0,
        at_ms INTEGER NOT NULL DEFAULT 0,
        clock_base BLOB NOT NULL DEFAULT x'',
        counters BLOB NOT NULL DEFAULT x''
    )""",
    "INSERT INTO meta (id) VALUES (1)",
    """CREATE TABLE log (
        seq INTEGER PRIMARY KEY,
        now_ms INTEGER NOT NULL,
        at_ms INTEGER NOT NULL,
        facts BLOB NOT NULL,
        notes BLOB NOT NULL
    )""",
    # Rows in order of arrival, so that old keys are found at the front; a key that is used anew moves to the back.
    """CREATE TABLE keys (
        id INTEGER PRIMARY KEY,
        user TEXT NOT NULL,
        key TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        job_ids BLOB NOT NULL,
        UNIQUE (user, key)
    )""",
    """CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        user TEXT NOT NULL,
        name TEXT NOT NULL,
        queue TEXT NOT NULL,
        state TEXT NOT NULL,
        labels TEXT NOT NULL,
        submitted_at_ms INTEGER NOT NULL,
        ended_at_ms INTEGER NOT NULL,
        record BLOB NOT NULL
    )""",
    # What a starting hub reads; with the id inside, finding the tasks of live jobs needs no look at their rows.
    "CREATE INDEX jobs_live ON jobs (seq, id) WHERE state IN ('pending', 'running')",
    # "My running jobs", newest first, beside a million of somebody else's.
    "CREATE INDEX jobs_by_user ON jobs (user, state)",
    # "The failed ones", newest first, among a million that succeeded: written once, when a job ends.
    "CREATE INDEX jobs_final ON jobs (state) WHERE state NOT IN ('pending', 'running')",
    # Retention takes the oldest endings first and must not walk over everything that stays.
    "CREATE INDEX jobs_ended ON jobs (ended_at_ms) WHERE state NOT IN ('pending', 'running')",
    """CREATE TABLE tasks (
        job_id TEXT NOT NULL,
        idx INTEGER NOT NULL,
        state TEXT NOT NULL,
        record BLOB NOT NULL,
        PRIMARY KEY (job_id, idx)
    ) WITHOUT ROWID""",
    # The few failed tasks of a large array; a task that succeeds never touches it.
    "CREATE INDEX tasks_odd ON tasks (job_id, state, idx) WHERE state NOT IN ('pending', 'running', 'succeeded')",
    # The number is the uid folded into one integer: it grows, so new rows go to the end of the table.
    """CREATE TABLE attempts (
        number INTEGER PRIMARY KEY,
        job_id TEXT NOT NULL,
        idx INTEGER NOT NULL,
        no INTEGER NOT NULL,
        worker TEXT NOT NULL,
        name TEXT NOT NULL,
        user TEXT NOT NULL,
        shape TEXT NOT NULL,
        gpu_type TEXT NOT NULL,
        phase TEXT NOT NULL,
        exit_class TEXT NOT NULL,
        exit_code INTEGER,
        assigned_at_ms INTEGER NOT NULL,
        started_at_ms INTEGER NOT NULL,
        ended_at_ms INTEGER NOT NULL,
        wall_s REAL NOT NULL,
        record BLOB NOT NULL
    )""",
    # The attempts of a task, and of a job that retention removes.
    "CREATE INDEX attempts_by_task ON attempts (job_id, idx)",
    # What a starting hub reads; an attempt that ended before its row was written never touches it.
    """CREATE INDEX attempts_live ON attempts (number)
        WHERE phase IN ('assigned', 'accepted', 'running', 'stopping', 'unknown')""",
    "CREATE TABLE workers (id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE tokens (id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID",
    """CREATE TABLE audit (
        id INTEGER PRIMARY KEY,
        at_ms INTEGER NOT NULL,
        user TEXT NOT NULL,
        token_id TEXT NOT NULL,
        action TEXT NOT NULL,
        target TEXT NOT NULL,
        detail TEXT NOT NULL
    )""",
)

_LEDGER = (
    """CREATE TABLE ledger (
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        record BLOB NOT NULL,
        PRIMARY KEY (kind, key)
    ) WITHOUT ROWID""",
)

_CALLS = (
    # Arguments as they came, read back when their calls are given out: the last chunk at or below an index.
    """CREATE TABLE call_args (
        job_id TEXT NOT NULL,
        first INTEGER NOT NULL,
        calls INTEGER NOT NULL,
        blob BLOB NOT NULL,
        PRIMARY KEY (job_id, first)
    ) WITHOUT ROWID""",
    # Results as they came, one row for what one message brought. Rows lie in order of arrival.
    """CREATE TABLE call_results (
        id INTEGER PRIMARY KEY,
        job_id TEXT NOT NULL,
        lo INTEGER NOT NULL,
        hi INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        worker TEXT NOT NULL,
        lane TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        blob BLOB NOT NULL
    )""",
    # "Those of the calls 5000 to 5999 that have ended": with both ends inside, no other row is looked at.
    "CREATE INDEX results_by_call ON call_results (job_id, hi, lo)",
    # A client that fell behind reads on in order of arrival.
    "CREATE INDEX results_by_turn ON call_results (job_id, seq)",
    "CREATE TABLE blobs (digest TEXT PRIMARY KEY, size INTEGER NOT NULL, at_ms INTEGER NOT NULL) WITHOUT ROWID",
    # Retention asks for the oldest, and looks whether anybody needs them.
    "CREATE INDEX blobs_by_age ON blobs (at_ms)",
    """CREATE TABLE blob_refs (
        digest TEXT NOT NULL,
        job_id TEXT NOT NULL,
        PRIMARY KEY (digest, job_id)
    ) WITHOUT ROWID""",
    "CREATE INDEX blob_refs_by_job ON blob_refs (job_id)",
)

# What usage is summed up from, so that nobody has to open a million records for it.
_USES = (
    "ALTER TABLE attempts ADD COLUMN queue TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE attempts ADD COLUMN plugin TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE attempts ADD COLUMN limit_ms INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE attempts ADD COLUMN cpu_s REAL NOT NULL DEFAULT 0",
    "ALTER TABLE attempts ADD COLUMN gpu_s REAL NOT NULL DEFAULT 0",
    "ALTER TABLE attempts ADD COLUMN gpu_seen_s REAL NOT NULL DEFAULT 0",
)

# The few that run, newest first, among 100,000 that wait; a job that ends before its row is written never touches it.
_RUNNING = ("CREATE INDEX jobs_running ON jobs (seq) WHERE state = 'running'",)

# Use by template, as by queue and plugin.
_TEMPLATES = ("ALTER TABLE attempts ADD COLUMN template TEXT NOT NULL DEFAULT ''",)

# What an hour of an attempt costs, in millionths: money is summed up like any other use.
_RATES = ("ALTER TABLE attempts ADD COLUMN rate INTEGER NOT NULL DEFAULT 0",)

_PAST = (
    # How the cluster stood, a row for each minute; the id is its moment.
    "CREATE TABLE samples (id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, record BLOB NOT NULL)",
    # What ran on a worker within a while, and what failed: the latter is written only where something did.
    "CREATE INDEX attempts_by_worker ON attempts (worker, ended_at_ms)",
    """CREATE INDEX attempts_bad ON attempts (ended_at_ms)
        WHERE phase IN ('failed', 'killed', 'preempted', 'lost')""",
)

# The jobs of one workload among all that there ever were; a job of none never touches the index.
_WORKLOADS = (
    "ALTER TABLE jobs ADD COLUMN workload TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX jobs_by_workload ON jobs (workload, seq) WHERE workload <> ''",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    _FIRST,
    _LEDGER,
    _CALLS,
    _USES,
    _RUNNING,
    _TEMPLATES,
    _RATES,
    _PAST,
    _WORKLOADS,
)
SCHEMA_VERSION = len(MIGRATIONS)


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Give the file's schema version; refuse another program's database and one from a newer dray."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    mark = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if mark != APPLICATION_ID and (mark or version or tables):
        raise StoreError(
            f"{path} is a SQLite database of another program ({tables} tables and indexes, application id {mark:#x}): "
            f"give the hub a home of its own"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {version}, this dray knows versions up to {SCHEMA_VERSION}: upgrade dray, "
            f"or restore a backup from before the newer dray opened it"
        )
    return version


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to the present schema in one transaction: a crash leaves the old version whole."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for version in range(check_version(connection, path), SCHEMA_VERSION):
            for statement in MIGRATIONS[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
