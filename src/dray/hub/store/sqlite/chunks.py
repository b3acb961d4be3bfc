"""Chunks of calls and the list of blobs in the SQLite store: how they are written, read and removed.

Arguments and results stay packed as they came: nothing here opens them. Runs inside the caller's transaction or on the
caller's connection, and knows nothing of epochs. The surprising rule: a blob goes only when no job refers to it and
nobody asked for it lately, because a client uploads first and submits what refers to it afterwards.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from dray.hub.store.base import HOLDS, ArgsChunk, BlobRow, ResultsChunk, Turn

_STEP = 500
_SAVE_ARGS = "INSERT OR REPLACE INTO call_args (job_id, first, calls, blob) VALUES (?, ?, ?, ?)"
_SAVE_RESULTS = """INSERT INTO call_results (job_id, lo, hi, worker, lane, blob, seq, at_ms)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_SAVE_REF = "INSERT OR IGNORE INTO blob_refs (digest, job_id) VALUES (?, ?)"
_SAVE_BLOB = """INSERT INTO blobs (digest, size, at_ms) VALUES (?, ?, ?)
    ON CONFLICT (digest) DO UPDATE SET at_ms = max(at_ms, excluded.at_ms)"""
_CHILDREN = (
    "DELETE FROM call_results WHERE id IN (SELECT id FROM call_results WHERE job_id = ? LIMIT ?)",
    """DELETE FROM call_args WHERE job_id = ?1 AND first IN
        (SELECT first FROM call_args WHERE job_id = ?1 LIMIT ?2)""",
    """DELETE FROM blob_refs WHERE job_id = ?1 AND digest IN
        (SELECT digest FROM blob_refs WHERE job_id = ?1 LIMIT ?2)""",
)
# A job that has ended needs its arguments no more; its results stay as long as it does.
_SPENT_ARGS = """SELECT job_id FROM (SELECT DISTINCT job_id FROM call_args) JOIN jobs ON jobs.id = job_id
    WHERE state NOT IN ('pending', 'running') LIMIT 1"""
_IDLE_BLOBS = """SELECT digest FROM blobs WHERE at_ms < ?
    AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.digest = blobs.digest) ORDER BY at_ms LIMIT ?"""
# Most blobs are one user's: the first of its jobs decides.
USER_BYTES = """WITH used AS (SELECT DISTINCT digest FROM blob_refs
        WHERE job_id IN (SELECT id FROM jobs INDEXED BY jobs_by_user WHERE user = ?))
    SELECT COALESCE(SUM(size), 0) FROM blobs WHERE digest IN (SELECT digest FROM used UNION
        SELECT held.digest FROM used CROSS JOIN blob_refs AS held ON held.job_id = 'holds:' || used.digest)"""
USER_REFERS = """SELECT 1 FROM blob_refs JOIN jobs ON jobs.id = blob_refs.job_id
    WHERE blob_refs.digest = ? AND jobs.user = ? LIMIT 1"""
FRESH_REFS = """SELECT job_id FROM blob_refs WHERE digest = ?
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = blob_refs.job_id) LIMIT 1000"""
FIND_ARGS = """SELECT job_id, first, calls, blob FROM call_args
    WHERE job_id = ? AND first <= ? ORDER BY first DESC LIMIT 1"""
_RESULT = "SELECT job_id, lo, hi, worker, lane, blob, seq, at_ms FROM call_results"
FIND_RESULTS = f"{_RESULT} INDEXED BY results_by_call WHERE job_id = ? AND hi >= ? AND lo < ? ORDER BY id"
RESULTS_FROM = f"{_RESULT} INDEXED BY results_by_turn WHERE job_id = ? AND seq >= ? ORDER BY seq, id LIMIT ?"


def write_chunks(connection: sqlite3.Connection, turn: Turn) -> None:
    """Write what a turn brought."""
    for chunk in turn.chunks:
        if type(chunk) is ResultsChunk:
            connection.execute(_SAVE_RESULTS, (*chunk[:6], turn.seq, turn.at_ms))
        elif type(chunk) is ArgsChunk:
            connection.execute(_SAVE_ARGS, chunk)
        else:
            connection.execute(_SAVE_REF, chunk)


def save_blobs(connection: sqlite3.Connection, rows: Mapping[str, BlobRow]) -> None:
    """List blobs, or note that they are wanted."""
    connection.executemany(_SAVE_BLOB, [(digest, *row) for digest, row in rows.items()])


def delete_calls(connection: sqlite3.Connection, job_id: str, limit: int) -> int:
    """Delete at most `limit` rows of a job that is to go; gives how many went."""
    gone = 0
    for statement in _CHILDREN:
        if gone < limit:
            gone += connection.execute(statement, (job_id, limit - gone)).rowcount
    return gone


def sweep_args(connection: sqlite3.Connection, limit: int) -> bool:
    """Delete at most `limit` chunks of arguments that no call needs any more; True where there may be others."""
    while limit > 0:
        found = connection.execute(_SPENT_ARGS).fetchone()
        if found is None:
            return False
        limit -= connection.execute(_CHILDREN[1], (found[0], limit)).rowcount
    return True


def sweep_blobs(connection: sqlite3.Connection, before_ms: int, limit: int) -> list[str]:
    """Strike blobs off that nobody refers to and nobody wanted since; their files are the caller's to remove."""
    gone = [digest for (digest,) in connection.execute(_IDLE_BLOBS, (before_ms, limit)).fetchall()]
    connection.executemany("DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in gone])
    return gone


def drop_holds(connection: sqlite3.Connection, digests: Sequence[str]) -> None:
    """Forget what blobs held that are gone."""
    gone = [(HOLDS + digest,) for digest in digests]
    connection.executemany("DELETE FROM blob_refs WHERE job_id = ?", gone)


def blob_queries(digests: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
    """Spell the look-up of many blobs as a few statements."""
    for start in range(0, len(digests), _STEP):
        part = digests[start : start + _STEP]
        marks = ", ".join("?" * len(part))
        yield f"SELECT digest, size, at_ms FROM blobs WHERE digest IN ({marks})", part  # noqa: S608 - marks alone


def ref_queries(digest: str, job_ids: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
    """Spell the question whether one of many jobs uses a blob as a few statements."""
    for start in range(0, len(job_ids), _STEP):
        part = [digest, *job_ids[start : start + _STEP]]
        marks = ",".join("?" * (len(part) - 1))
        query = f"SELECT 1 FROM blob_refs WHERE digest = ? AND job_id IN ({marks}) LIMIT 1"  # noqa: S608 - marks alone
        yield query, part
