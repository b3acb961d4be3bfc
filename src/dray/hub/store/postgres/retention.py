"""Removing what is old, in statements that each take a share of the leader's row for themselves.

A job's children go before its own row, so that a step which ends in the middle of a large array is taken up again by
the next one. Jobs that live are out of reach: every statement here asks for final states.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from dray.errors import EpochLost
from dray.hub.store.base import Retention
from dray.hub.store.postgres.election import OWN

Ask = Callable[..., Awaitable[list[Any]]]
CHILDREN_PER_JOB = 20
CALL_ROWS = 200
_FINAL = "state NOT IN ('pending', 'running')"
_COUNT_FINAL = f"SELECT count(*) FROM dray.jobs WHERE {_FINAL}"
_OLDEST_FINAL = f"""SELECT seq, id, ended_at_ms FROM dray.jobs WHERE {_FINAL}
    ORDER BY ended_at_ms, seq LIMIT $1"""


def _fenced(delete: str) -> str:
    """A removal that tells how many rows went, and whether this hub led."""
    return " ".join(
        (
            f"{OWN}, gone AS ({delete} RETURNING 1)",
            "SELECT (SELECT count(*) FROM gone) AS gone, EXISTS (SELECT 1 FROM own) AS led",
        )
    )


def _some(table: str, which: str) -> str:
    """At most so many of these rows."""
    found = f"SELECT ctid FROM dray.{table} WHERE {which} LIMIT $3"
    return _fenced(
        f"DELETE FROM dray.{table} WHERE EXISTS (SELECT 1 FROM own) AND ctid = ANY (ARRAY({found}))"
    )


_OF_JOBS = "job_id = ANY($2::text[])"
_ATTEMPTS, _TASKS = _some("attempts", _OF_JOBS), _some("tasks", _OF_JOBS)
_CALLS = tuple(_some(table, _OF_JOBS) for table in ("call_results", "call_args", "blob_refs"))
_JOBS = _fenced("DELETE FROM dray.jobs USING own WHERE seq = ANY($2::bigint[])")
# A job that has ended needs its arguments no more; its results stay as long as it does.
_SPENT = f"""SELECT job_id FROM (SELECT DISTINCT job_id FROM dray.call_args) AS spent
    JOIN dray.jobs ON jobs.id = job_id WHERE {_FINAL} LIMIT $1"""
_LOG_FRONT = "SELECT seq, at_ms FROM dray.log WHERE seq <= $1 ORDER BY seq LIMIT $2"
_CUT_LOG = _fenced("DELETE FROM dray.log USING own WHERE seq <= $2")
_FRONTS = {
    table: (
        f"SELECT id, at_ms FROM dray.{table} ORDER BY id LIMIT $1",
        _fenced(f"DELETE FROM dray.{table} USING own WHERE id <= $2"),
    )
    for table in ("keys", "audit", "samples")
}
SWEEP_BLOBS = f"""{OWN}, idle AS (SELECT digest FROM dray.blobs WHERE at_ms < $2
        AND NOT EXISTS (SELECT 1 FROM dray.blob_refs WHERE blob_refs.digest = blobs.digest)
        ORDER BY at_ms LIMIT $3),
    gone AS (DELETE FROM dray.blobs USING own, idle WHERE blobs.digest = idle.digest AND blobs.at_ms < $2
        RETURNING blobs.digest)
    SELECT ARRAY(SELECT digest FROM gone) AS gone, EXISTS (SELECT 1 FROM own) AS led"""

DROP_HOLDS = f"""{OWN}, gone AS (DELETE FROM dray.blob_refs USING own WHERE job_id = ANY($2::text[]) RETURNING 1)
    SELECT EXISTS (SELECT 1 FROM own) AS led"""


class Swept(NamedTuple):
    """What one step did; `more` says that it ended at its bound."""

    job_ids: list[str]
    more: bool


class Sweeper:
    """One bounded portion of everything that may go."""

    def __init__(self, ask: Ask, epoch: int, lose: Callable[[], EpochLost]) -> None:
        self._ask, self._epoch, self._lose = ask, epoch, lose

    async def _remove(self, statement: str, *values: Any) -> int:
        (row,) = await self._ask("remove old records", statement, self._epoch, *values)
        if not row["led"]:
            raise self._lose()
        return int(row["gone"])

    async def step(self, retention: Retention, applied_seq: int) -> Swept:
        """Remove one portion."""
        # With nothing due a hub that was taken over is to hear of it all the same.
        await self._remove(_JOBS, [])
        jobs = await self._jobs(retention)
        args = await self._spent_args()
        log = await self._log(retention, applied_seq)
        keys = await self._front("keys", retention.keys_before_ms, retention.batch)
        audit = await self._front("audit", retention.audit_before_ms, retention.batch)
        samples = await self._front("samples", retention.samples_before_ms, retention.batch)
        return Swept(jobs.job_ids, jobs.more or args or log or keys or audit or samples)

    async def _jobs(self, retention: Retention) -> Swept:
        counted = await self._ask("count jobs", _COUNT_FINAL)
        surplus = max(0, counted[0][0] - retention.finished_max)
        found = await self._ask("find old jobs", _OLDEST_FINAL, retention.batch + 1)
        due: list[tuple[int, str]] = []
        for position, (seq, job_id, ended_at_ms) in enumerate(found):
            if position >= surplus and ended_at_ms >= retention.finished_before_ms:
                break
            due.append((seq, job_id))
        going = due[: retention.batch]
        if not going:
            return Swept([], more=False)
        ids = [job_id for _, job_id in going]
        left = retention.batch * CHILDREN_PER_JOB
        for statement in (_ATTEMPTS, _TASKS):
            left -= await self._remove(statement, ids, left)
            if left <= 0:
                return Swept([], more=True)
        for statement in _CALLS:
            if await self._remove(statement, ids, CALL_ROWS) == CALL_ROWS:
                return Swept([], more=True)
        await self._remove(_JOBS, [seq for seq, _ in going])
        return Swept(ids, more=len(due) > retention.batch)

    async def _spent_args(self) -> bool:
        spent = [row[0] for row in await self._ask("find spent arguments", _SPENT, CALL_ROWS)]
        if not spent:
            return False
        return await self._remove(_CALLS[1], spent, CALL_ROWS) == CALL_ROWS

    async def _log(self, retention: Retention, applied_seq: int) -> bool:
        """Cut the front of the log: a turn that the rows lack, or one behind a younger turn, stays."""
        rows = await self._ask("read the log", _LOG_FRONT, applied_seq, retention.batch)
        return await self._cut(rows, _CUT_LOG, retention.log_before_ms, retention.batch)

    async def _front(self, table: str, before_ms: int, batch: int) -> bool:
        """Cut the front of a table whose rows lie in order of arrival."""
        oldest, remove = _FRONTS[table]
        return await self._cut(await self._ask("find old records", oldest, batch), remove, before_ms, batch)

    async def _cut(self, rows: list[Any], remove: str, before_ms: int, batch: int) -> bool:
        last: int | None = None
        for number, at_ms in rows:
            if at_ms >= before_ms:
                break
            last = number
        if last is not None:
            await self._remove(remove, last)
        return len(rows) == batch and last == rows[-1][0]
