"""Removing what is old: finished jobs with their tasks, attempts and calls, log rows, keys, audit records.

One step is one bounded amount of work inside the caller's transaction, because commits wait behind it. A job's
children go before its own row, so that a step which ends in the middle of a large array is taken up again by the
next one. Jobs that live are out of reach: every query here asks for final states.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from dray.hub.store.base import Retention
from dray.hub.store.sqlite.chunks import delete_calls, sweep_args

CHILDREN_PER_JOB = 20
"""Rows of tasks, attempts and calls that one step may remove, per job that it may remove."""

CALL_ROWS = 200
"""Chunks of calls that one step may remove: each may hold megabytes."""

_COUNT_FINAL = "SELECT count(*) FROM jobs INDEXED BY jobs_ended WHERE state NOT IN ('pending', 'running')"
_OLDEST_FINAL = """SELECT seq, id, ended_at_ms FROM jobs INDEXED BY jobs_ended
    WHERE state NOT IN ('pending', 'running') ORDER BY ended_at_ms, seq LIMIT ?"""
# Per table: its oldest rows, and the removal of all up to one of them.
_FRONTS = {
    "keys": ("SELECT id, at_ms FROM keys ORDER BY id LIMIT ?", "DELETE FROM keys WHERE id <= ?"),
    "audit": ("SELECT id, at_ms FROM audit ORDER BY id LIMIT ?", "DELETE FROM audit WHERE id <= ?"),
    "samples": ("SELECT id, at_ms FROM samples ORDER BY id LIMIT ?", "DELETE FROM samples WHERE id <= ?"),
}


class Swept(NamedTuple):
    """What one step did; `more` says that it ended at its bound."""

    job_ids: list[str]
    more: bool


def sweep_step(connection: sqlite3.Connection, retention: Retention, applied_seq: int) -> Swept:
    """Remove one bounded portion of everything that may go."""
    jobs = _sweep_jobs(connection, retention)
    args = sweep_args(connection, CALL_ROWS)
    log = _sweep_log(connection, retention, applied_seq)
    keys = _sweep_front(connection, "keys", retention.keys_before_ms, retention.batch)
    audit = _sweep_front(connection, "audit", retention.audit_before_ms, retention.batch)
    samples = _sweep_front(connection, "samples", retention.samples_before_ms, retention.batch)
    return Swept(jobs.job_ids, jobs.more or args or log or keys or audit or samples)


def _due_jobs(connection: sqlite3.Connection, retention: Retention) -> list[tuple[int, str]]:
    """Find finished jobs to remove, those that ended first at the front; one more than a step takes."""
    surplus = max(0, connection.execute(_COUNT_FINAL).fetchone()[0] - retention.finished_max)
    due: list[tuple[int, str]] = []
    for position, (seq, job_id, ended_at_ms) in enumerate(
        connection.execute(_OLDEST_FINAL, (retention.batch + 1,))
    ):
        if position >= surplus and ended_at_ms >= retention.finished_before_ms:
            break
        due.append((seq, job_id))
    return due


def _sweep_jobs(connection: sqlite3.Connection, retention: Retention) -> Swept:
    due = _due_jobs(connection, retention)
    left = retention.batch * CHILDREN_PER_JOB
    gone: list[str] = []
    for seq, job_id in due[: retention.batch]:
        left -= _delete_children(connection, job_id, left)
        if left <= 0 or delete_calls(connection, job_id, CALL_ROWS) == CALL_ROWS:
            return Swept(gone, more=True)
        connection.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
        gone.append(job_id)
    return Swept(gone, more=len(due) > retention.batch)


def _delete_children(connection: sqlite3.Connection, job_id: str, limit: int) -> int:
    """Delete at most `limit` attempts and tasks of a job; gives how many went."""
    attempts = connection.execute(
        "DELETE FROM attempts WHERE number IN (SELECT number FROM attempts WHERE job_id = ? LIMIT ?)",
        (job_id, limit),
    ).rowcount
    left = limit - attempts
    if left <= 0:
        return attempts
    # The key of this table cannot be selected as one value, so the bound is the index of the last task to go.
    last = connection.execute(
        "SELECT idx FROM tasks WHERE job_id = ? ORDER BY idx LIMIT 1 OFFSET ?", (job_id, left - 1)
    ).fetchone()
    if last is None:
        return attempts + connection.execute("DELETE FROM tasks WHERE job_id = ?", (job_id,)).rowcount
    deleted = connection.execute(
        "DELETE FROM tasks WHERE job_id = ? AND idx <= ?", (job_id, last[0])
    ).rowcount
    return attempts + deleted


def _sweep_log(connection: sqlite3.Connection, retention: Retention, applied_seq: int) -> bool:
    """Cut the front of the log: a turn that the rows lack, or one behind a younger turn, stays."""
    rows = connection.execute(
        "SELECT seq, at_ms FROM log WHERE seq <= ? ORDER BY seq LIMIT ?", (applied_seq, retention.batch)
    ).fetchall()
    last = _last_before(rows, retention.log_before_ms)
    if last is not None:
        connection.execute("DELETE FROM log WHERE seq <= ?", (last,))
    return len(rows) == retention.batch and last == rows[-1][0]


def _sweep_front(connection: sqlite3.Connection, table: str, before_ms: int, batch: int) -> bool:
    """Cut the front of a table whose rows lie in order of arrival."""
    oldest, remove = _FRONTS[table]
    rows = connection.execute(oldest, (batch,)).fetchall()
    last = _last_before(rows, before_ms)
    if last is not None:
        connection.execute(remove, (last,))
    return len(rows) == batch and last == rows[-1][0]


def _last_before(rows: list[tuple[int, int]], before_ms: int) -> int | None:
    """Give the last of the leading rows that are older than `before_ms`."""
    last: int | None = None
    for number, at_ms in rows:
        if at_ms >= before_ms:
            break
        last = number
    return last
