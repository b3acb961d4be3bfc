"""Reads of the PostgreSQL store. Each is one statement that finds its rows by an index.

A server that does not answer is asked again for a while: nothing else of the hub could go on meanwhile anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from dray.core.model.ids import attempt_number
from dray.core.model.records.records import LONGEST_S, Attempt, Job, JobState, Task
from dray.errors import StoreError
from dray.hub.loop_thread import LoopThread
from dray.hub.store.base import (
    ArgsChunk,
    AuditRecord,
    BlobRow,
    Followed,
    JobFilter,
    KeyRow,
    LogEntry,
    PastQuery,
    PastRow,
    ReadGuard,
    ResultsChunk,
    TokenRow,
    UseQuery,
    UseRow,
)
from dray.hub.store.columns import clean
from dray.hub.store.leading import Found, WentBack, check_found
from dray.hub.store.past import group_query, spell_past
from dray.hub.store.postgres.connection import Connection, Target
from dray.hub.store.postgres.election import RETRY_S
from dray.hub.store.postgres.errors import Unanswered
from dray.hub.store.records import ATTEMPT, IDS, JOB, TASK, TOKEN, Records
from dray.hub.store.uses import MOST_ROWS, spell_postgres

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")
PATIENCE_S = 10.0
LIST_S = 60.0
# By what lists of jobs are sorted; none is longer than $2.
_ORDERS = {
    "submitted": "ORDER BY seq DESC LIMIT $2",
    "ended": "ORDER BY ended_at_ms DESC, seq DESC LIMIT $2",
}
_END = 1 << 62
_FINAL = "state NOT IN ('pending', 'running')"
_STATE_TERMS = {"pending": "state IN ('pending', 'running')", "running": "state = 'running'"}
_RESULT = "SELECT job_id, lo, hi, worker, lane, blob, seq, at_ms FROM dray.call_results"
_TAIL = "SELECT seq, now_ms, at_ms, facts, notes, epoch FROM dray.log WHERE seq > $1 ORDER BY seq LIMIT $2"
_FOLLOW = """SELECT applied_seq, greatest(applied_seq, (SELECT max(seq) FROM dray.log)),
    coalesce((SELECT epoch FROM dray.log WHERE seq = $1), 0), greatest(meta.now_ms, leader.now_ms), clock_base,
    coalesce((SELECT at_ms FROM dray.log WHERE seq = $1), 0)
    FROM dray.meta, dray.leader WHERE meta.id = 1 AND leader.id = 1"""
_POSITIONS = """SELECT applied_seq, greatest(applied_seq, (SELECT max(seq) FROM dray.log))
    FROM dray.meta WHERE id = 1"""
# With the turn that was reached last, so that what follows it is known to be of the same history.
_TAIL_FROM = """SELECT seq, now_ms, at_ms, CASE WHEN seq > $1 THEN facts END, CASE WHEN seq > $1 THEN notes END, epoch
    FROM dray.log WHERE seq >= $1 ORDER BY seq LIMIT $2 + 1"""
_encode_json = msgspec.json.Encoder().encode
Find = Callable[[Sequence[tuple[Any, ...]]], Awaitable[list[Any]]]


class Reader:
    """The questions that the hub asks of the rows."""

    def __init__(
        self,
        target: Target,
        set_aside: list[str],
        known: Callable[[], Found],
        lose: Callable[[WentBack], StoreError],
    ) -> None:
        self._known, self._lose = known, lose
        # Lists may have to walk over many rows: short reads do not wait for them.
        self._short, self._long = Connection(target), Connection(target)
        self._records = Records(set_aside)
        self._closed = False
        self._many: dict[str, Find] = {
            "find_job": self._find_jobs,
            "find_task": self._find_some_tasks,
            "find_attempt": self._find_some_attempts,
            "find_key": self._find_keys,
        }

    async def _all(self, asked: str, query: str, *values: Any, patience_s: float = PATIENCE_S) -> list[Any]:
        return await self._ask(self._short, 0.0, patience_s, asked, query, values)

    async def _list(self, asked: str, query: str, *values: Any) -> list[Any]:
        return await self._ask(self._long, LIST_S, PATIENCE_S, asked, query, values)

    async def _ask(
        self,
        connection: Connection,
        timeout_s: float,
        patience_s: float,
        asked: str,
        query: str,
        values: tuple[Any, ...],
    ) -> list[Any]:
        until = time.monotonic() + patience_s
        while True:
            try:
                fresh, known = not connection.is_open, self._known()
                rows = await connection.ask(asked, query, *values, timeout_s=timeout_s)
                if fresh:
                    (found,) = await connection.ask("read the log", _POSITIONS)
                    check_found(Found(None, found[1], found[0]), known)
                return rows
            except WentBack as gone:
                raise self._lose(gone) from gone
            except Unanswered:
                if self._closed or time.monotonic() > until:
                    raise
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Let the connections go."""
        self._closed = True
        await self._short.close()
        await self._long.close()

    # --- many at once, for a turn -----------------------------------------------------------------------------------

    async def find_many(self, keys: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Answer many questions, those of one kind in one statement where that can be."""
        found: dict[int, Any] = {}
        kinds: dict[str, list[int]] = {}
        for place, (find, _) in enumerate(keys):
            kinds.setdefault(find, []).append(place)
        for find, places in kinds.items():
            if find in self._many:
                answers = await self._many[find]([keys[place][1] for place in places])
            else:
                answers = [await getattr(self, find)(*keys[place][1]) for place in places]
            found.update(zip(places, answers, strict=True))
        return [found[place] for place in range(len(keys))]

    async def _find_jobs(self, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        ids = [clean(job_id) for (job_id,) in asked]
        rows = await self._all(
            "find jobs", "SELECT id, record FROM dray.jobs WHERE id = ANY($1::text[])", ids
        )
        found = {row[0]: self._records.read("jobs", JOB, row[1]) for row in rows}
        return [found.get(job_id) for job_id in ids]

    async def _find_some_tasks(self, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        query = """SELECT tasks.job_id, tasks.idx, record FROM unnest($1::text[], $2::bigint[]) AS x (job_id, idx)
            JOIN dray.tasks ON tasks.job_id = x.job_id AND tasks.idx = x.idx"""
        places = [(clean(job_id), index) for job_id, index in asked]
        rows = await self._all("find tasks", query, [one[0] for one in places], [one[1] for one in places])
        found = {(row[0], row[1]): self._records.read("tasks", TASK, row[2]) for row in rows}
        return [found.get(place) for place in places]

    async def _find_some_attempts(self, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        numbers = [attempt_number(uid) for (uid,) in asked]
        query = "SELECT number, record FROM dray.attempts WHERE number = ANY($1::bigint[])"
        rows = await self._all("find attempts", query, numbers)
        found = {row[0]: self._records.read("attempts", ATTEMPT, row[1]) for row in rows}
        attempts = [found.get(number) for number in numbers]
        # The number is the part of a uid that can be guessed.
        return [
            attempt if attempt is not None and attempt.uid == uid else None
            for attempt, (uid,) in zip(attempts, asked, strict=True)
        ]

    async def _find_keys(self, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        query = """SELECT keys.usr, keys.key, at_ms, job_ids FROM unnest($1::text[], $2::text[]) AS x (usr, key)
            JOIN dray.keys ON keys.usr = x.usr AND keys.key = x.key"""
        places = [(clean(user), clean(key)) for user, key in asked]
        rows = await self._all("find keys", query, [one[0] for one in places], [one[1] for one in places])
        found = {(row[0], row[1]): (row[2], IDS.decode(row[3])) for row in rows}
        return [
            KeyRow(user, key, *found[place]) if place in found else None
            for place, (user, key) in zip(places, asked, strict=True)
        ]

    # --- one question at a time -------------------------------------------------------------------------------------

    async def find_job(self, job_id: str) -> Job | None:
        """Find a job by its id."""
        (found,) = await self._find_jobs([(job_id,)])
        job: Job | None = found
        return job

    async def find_task(self, job_id: str, index: int) -> Task | None:
        """Find one task."""
        (found,) = await self._find_some_tasks([(job_id, index)])
        task: Task | None = found
        return task

    async def find_attempt(self, uid: str) -> Attempt | None:
        """Find an attempt by its uid."""
        (found,) = await self._find_some_attempts([(uid,)])
        attempt: Attempt | None = found
        return attempt

    async def find_key(self, user: str, key: str) -> KeyRow | None:
        """Find what the first request under a key made."""
        (found,) = await self._find_keys([(user, key)])
        row: KeyRow | None = found
        return row

    async def tail(self, after_seq: int, limit: int) -> list[LogEntry]:
        """Give turns after `after_seq`, oldest first."""
        rows = await self._list("read the log", _TAIL, after_seq, limit)
        return [LogEntry(*row) for row in rows]

    async def follow(self, after_seq: int, limit: int) -> Followed:
        """Give what one who follows needs; turns are asked for only where there are some."""
        (row,) = await self._all("follow the log", _FOLLOW, after_seq)
        applied_seq, last_seq, epoch, now_ms, clock_base, at_ms = row
        found = Followed(applied_seq, last_seq, epoch, now_ms, clock_base, [], at_ms)
        if found.last_seq <= after_seq:
            return found
        rows = await self._list("read the log", _TAIL_FROM, after_seq, limit)
        entries = [LogEntry(*row) for row in rows]
        if entries and entries[0].seq == after_seq:
            return found._replace(epoch=entries[0].epoch, at_ms=entries[0].at_ms, entries=entries[1:])
        return found._replace(epoch=0, at_ms=0, entries=entries[:limit])

    async def positions(self) -> tuple[int, int]:
        """Give the turn that the rows have reached and the newest turn; the rows know both where the log was swept."""
        (row,) = await self._all("read the log", _POSITIONS)
        return int(row[0]), int(row[1])

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """List jobs newest first. Each state is asked for by itself, in order, and the answers are merged."""
        found: list[tuple[tuple[int, int], bytes]] = []
        # Of one workload they are few, and found by it whatever else is asked.
        each = () if wanted.workload else tuple(JobState) if wanted.user else ()
        for state in wanted.states or each or ("",):
            found.extend(await self._jobs_of_state(wanted, str(state)))
        found.sort(reverse=True)
        return self._records.read_all("jobs", JOB, (record for _seq, record in found[: wanted.limit]))

    async def _jobs_of_state(self, wanted: JobFilter, state: str) -> list[tuple[tuple[int, int], bytes]]:
        values: list[Any] = [wanted.before_seq or _END, wanted.limit]
        terms = ["seq < $1"]

        def term(text: str, value: Any) -> None:
            values.append(value)
            terms.append(text.replace("?", f"${len(values)}"))

        if wanted.workload:
            term("workload = ? AND workload <> ''", clean(wanted.workload))
        if state:
            term("state = ?", state)
        if wanted.user:
            term("usr = ?", clean(wanted.user))
        elif state:
            terms.append(_STATE_TERMS.get(state, _FINAL))
        if wanted.queue:
            term("queue = ?", clean(wanted.queue))
        if wanted.name:
            term("name = ?", clean(wanted.name))
        for text, moment in wanted.spans:
            term(text, moment)
        if wanted.ended_only:
            terms.append(_FINAL)
        if wanted.before_ended_ms:
            # The first condition is that of a list by number: here the moment goes before it.
            values.append(wanted.before_ended_ms)
            terms[0] = f"(ended_at_ms, seq) < (${len(values)}, $1)"
        for column, value in (("worker", wanted.worker), ("exit_class", wanted.exit_class)):
            if value:
                of_job = "SELECT 1 FROM dray.attempts WHERE job_id = jobs.id"
                term(f"EXISTS ({of_job} AND {column} = ?)", clean(value))
        if wanted.q:
            term("(strpos(name, ?) > 0 OR strpos(id, ?) > 0)", clean(wanted.q))
        if wanted.labels:
            labels = {clean(key): clean(value) for key, value in wanted.labels}
            term("labels @> ?::jsonb", _encode_json(labels).decode())
        query = " ".join(
            (
                "SELECT ended_at_ms, seq, record FROM dray.jobs WHERE",
                " AND ".join(terms),
                _ORDERS[wanted.sort],
            )
        )
        by_end = wanted.sort == "ended"
        rows = await self._list("list jobs", query, *values)
        return [((row[0] if by_end else 0, row[1]), row[2]) for row in rows]

    async def count_ended(self, user: str, states: tuple[str, ...], most: int) -> int:
        """Count jobs in final states, no further than to `most`."""
        counted = 0
        for state in states:
            term, values = (
                ("usr = $3", (state, most - counted, clean(user)))
                if user
                else (_FINAL, (state, most - counted))
            )
            query = f"SELECT count(*) FROM (SELECT 1 FROM dray.jobs WHERE state = $1 AND {term} LIMIT $2) AS found"
            (row,) = await self._list("count jobs", query, *values)
            counted += int(row[0])
        return counted

    async def find_tasks(
        self, job_id: str, after_index: int, limit: int, states: tuple[str, ...] = ()
    ) -> list[Task]:
        """Give a job's tasks after an index, in order; each state is asked for by itself, as with jobs."""
        found: list[tuple[int, bytes]] = []
        for state in states or ("",):
            values = [clean(job_id), after_index, limit, *([state] if state else [])]
            query = " ".join(
                (
                    "SELECT idx, record FROM dray.tasks WHERE job_id = $1 AND idx > $2",
                    "AND state = $4" if state else "",
                    "ORDER BY idx LIMIT $3",
                )
            )
            found.extend((row[0], row[1]) for row in await self._list("find tasks", query, *values))
        found.sort()
        return self._records.read_all("tasks", TASK, (record for _index, record in found[:limit]))

    async def find_attempts(self, job_id: str, index: int | None = None, limit: int = 1000) -> list[Attempt]:
        """Give the attempts of one task, or of a whole job, in order of task and age."""
        values: list[Any] = [clean(job_id), limit]
        query = "SELECT record FROM dray.attempts WHERE job_id = $1 ORDER BY idx, number LIMIT $2"
        if index is not None:
            query = "SELECT record FROM dray.attempts WHERE job_id = $1 AND idx = $3 ORDER BY number LIMIT $2"
            values.append(index)
        rows = await self._all("find attempts", query, *values)
        return self._records.read_all("attempts", ATTEMPT, (row[0] for row in rows))

    async def newest_attempt(self, worker: str, job_id: str, index: int) -> Attempt | None:
        """Find the last attempt of a task on one worker."""
        query = """SELECT record FROM dray.attempts WHERE job_id = $1 AND idx = $2 AND worker = $3
            ORDER BY number DESC LIMIT 1"""
        rows = await self._all("find an attempt", query, clean(job_id), index, clean(worker))
        return self._records.read("attempts", ATTEMPT, rows[0][0]) if rows else None

    async def recent_runs(self, limit: int) -> list[tuple[str, int, int]]:
        """Name, run time and limit of the last attempts of named jobs that came to their own end, oldest first."""
        query = "SELECT name, phase, record FROM dray.attempts ORDER BY number DESC LIMIT $1"
        found = []
        for name, phase, record in await self._list("recent runs", query, limit):
            if phase in ("succeeded", "failed"):
                attempt = self._records.read("attempts", ATTEMPT, record)
                if attempt is not None and attempt.started and name:
                    found.append((name, max(1, attempt.span_ms), attempt.limit_ms))
        return found[::-1]

    async def sum_uses(self, asked: UseQuery) -> list[UseRow]:
        """What was asked for, held and used; walks over all attempts."""
        values = (clean(asked.user), asked.since_ms, asked.until_ms, LONGEST_S, MOST_ROWS)
        rows = await self._list("sum up usage", spell_postgres(asked.by), *values)
        return [UseRow(*row) for row in rows]

    async def past_attempts(self, asked: PastQuery) -> list[PastRow]:
        """Attempts that ended within a while, newest first."""
        asked = asked._replace(worker=clean(asked.worker), job_id=clean(asked.job_id), user=clean(asked.user))
        where, values = spell_past(asked, "$", "usr")
        query = f"SELECT record, name, usr, gpu_type, queue FROM dray.attempts {where}"
        rows = await self._list("read what ran", query, *values)
        found = ((self._records.read("attempts", ATTEMPT, row[0]), tuple(row)[1:]) for row in rows)
        return [PastRow(attempt, *rest) for attempt, rest in found if attempt is not None]

    async def group_jobs(self, by: Sequence[str], wanted: JobFilter) -> list[tuple[tuple[str, ...], int]]:
        """Count jobs that are all of what is wanted, by columns: the largest groups first."""
        query, texts = group_query(by, wanted, {"user": "usr"})
        values = (wanted.limit, [*wanted.states], *map(clean, texts))
        rows = await self._list("count jobs", query, *values)
        return [(tuple(row[1:]), int(row[0])) for row in rows if row[0]]

    async def count_jobs(self, user: str, ended_since_ms: int, most: int) -> dict[str, int]:
        """How many jobs ended in each state since a moment; no further than to `most` of them."""
        terms = f"{_FINAL} AND ended_at_ms >= $1 AND ($3::text = '' OR usr = $3::text)"
        chosen = f"SELECT state FROM dray.jobs WHERE {terms} ORDER BY ended_at_ms DESC LIMIT $2"
        query = f"SELECT state, count(*) FROM ({chosen}) AS chosen GROUP BY state"
        rows = await self._list("count jobs", query, ended_since_ms, most, clean(user))
        return {row[0]: int(row[1]) for row in rows}

    async def samples(self, since_ms: int, until_ms: int, limit: int) -> list[tuple[int, bytes]]:
        """Samples of a while, oldest first."""
        query = "SELECT at_ms, record FROM dray.samples WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3"
        rows = await self._list("read samples", query, since_ms, until_ms, limit)
        return [(row[0], row[1]) for row in rows]

    async def find_args(self, job_id: str, index: int) -> ArgsChunk | None:
        """Find the chunk that holds a call's arguments."""
        query = """SELECT job_id, first, calls, blob FROM dray.call_args
            WHERE job_id = $1 AND first <= $2 ORDER BY first DESC LIMIT 1"""
        rows = await self._all("find arguments", query, job_id, index)
        chunk = ArgsChunk(*rows[0]) if rows else None
        return chunk if chunk is not None and index < chunk.first + chunk.calls else None

    async def find_results(self, job_id: str, first: int, end: int) -> list[ResultsChunk]:
        """Give the chunks whose range of calls meets this one, oldest first."""
        query = f"{_RESULT} WHERE job_id = $1 AND hi >= $2 AND lo < $3 ORDER BY id"
        return [ResultsChunk(*row) for row in await self._all("find results", query, job_id, first, end)]

    async def results_from(self, job_id: str, seq: int, limit: int) -> list[ResultsChunk]:
        """Give chunks of results from a turn on, in order of arrival."""
        query = f"{_RESULT} WHERE job_id = $1 AND seq >= $2 ORDER BY seq, id LIMIT $3"
        return [ResultsChunk(*row) for row in await self._all("read results", query, job_id, seq, limit)]

    async def find_blobs(self, digests: Sequence[str]) -> dict[str, BlobRow]:
        """Find those of the blobs that are filed."""
        query = "SELECT digest, size, at_ms FROM dray.blobs WHERE digest = ANY($1::text[])"
        rows = await self._all("find blobs", query, list(map(clean, digests)))
        return {row[0]: BlobRow(row[1], row[2]) for row in rows}

    async def is_referred(self, digest: str) -> bool:
        """Whether any job uses a blob."""
        return bool(await self._referred([digest]))

    async def _referred(self, digests: Sequence[str]) -> set[str]:
        query = "SELECT DISTINCT digest FROM dray.blob_refs WHERE digest = ANY($1::text[])"
        return {row[0] for row in await self._all("find a blob", query, list(map(clean, digests)))}

    async def count_user_blobs(self, user: str, digests: Sequence[str]) -> tuple[int, list[str]]:
        """How many bytes of blobs the jobs of a user use; and which of these blobs any job uses."""
        query = """WITH used AS (SELECT DISTINCT digest FROM dray.blob_refs
                WHERE job_id IN (SELECT id FROM dray.jobs WHERE usr = $1))
            SELECT coalesce(sum(size), 0)::bigint FROM dray.blobs WHERE digest IN (SELECT digest FROM used UNION
                SELECT held.digest FROM used JOIN dray.blob_refs AS held ON held.job_id = 'holds:' || used.digest)"""
        (row,) = await self._list("count blobs", query, clean(user))
        referred = await self._referred(digests)
        return int(row[0]), [digest for digest in digests if digest in referred]

    async def job_refers(self, digest: str, job_ids: Sequence[str]) -> bool:
        """Whether one of these jobs uses a blob."""
        query = "SELECT 1 FROM dray.blob_refs WHERE digest = $1 AND job_id = ANY($2::text[]) LIMIT 1"
        return bool(await self._all("find a blob", query, clean(digest), list(job_ids)))

    async def user_refers(self, digest: str, user: str) -> bool:
        """Whether a job of this user, of those that have a row, uses a blob."""
        query = """SELECT 1 FROM dray.blob_refs JOIN dray.jobs ON jobs.id = blob_refs.job_id
            WHERE blob_refs.digest = $1 AND jobs.usr = $2 LIMIT 1"""
        return bool(await self._all("find a blob", query, clean(digest), clean(user)))

    async def fresh_refs(self, digest: str) -> list[str]:
        """Jobs that use a blob and have no row yet."""
        query = """SELECT job_id FROM dray.blob_refs WHERE digest = $1
            AND NOT EXISTS (SELECT 1 FROM dray.jobs WHERE jobs.id = blob_refs.job_id) LIMIT 1000"""
        return [row[0] for row in await self._all("find a blob", query, clean(digest))]

    async def tokens(self) -> list[TokenRow]:
        """Give all tokens, revoked ones too."""
        rows = await self._all("read tokens", "SELECT record FROM dray.tokens ORDER BY id")
        return self._records.read_all("tokens", TOKEN, (row[0] for row in rows))

    async def audit(self, limit: int, before_ms: int) -> list[AuditRecord]:
        """Give audit records, newest first."""
        query = """SELECT at_ms, usr, token_id, action, target, detail FROM dray.audit
            WHERE at_ms < $1 ORDER BY id DESC LIMIT $2"""
        return [
            AuditRecord(*row)
            for row in await self._list("read the audit record", query, before_ms or _END, limit)
        ]

    async def size(self) -> int:
        """Give the bytes of all tables with their indexes."""
        query = """SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0)::bigint FROM pg_class
            JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = 'dray' AND relkind = 'r'"""
        (row,) = await self._list("measure the store", query)
        return int(row[0])


class WaitedReads:
    """The reads of a store, for whoever waits for their answers on a thread; never while a turn is decided."""

    guard: ReadGuard
    _loop: LoopThread
    _reader: Reader

    def _read(
        self,
        find: Callable[Concatenate[Asked], Coroutine[Any, Any, Answer]],
        *args: Asked.args,
        **kwargs: Asked.kwargs,
    ) -> Answer:
        self.guard.check()
        return self._loop.call(find(*args, **kwargs))

    def tail(self, after_seq: int, limit: int = 1000) -> list[LogEntry]:
        """Give the turns after `after_seq`, oldest first."""
        return self._read(self._reader.tail, after_seq, limit)

    def follow(self, after_seq: int, limit: int = 1000) -> Followed:
        """Give what one who follows needs, with the turns after `after_seq`."""
        return self._read(self._reader.follow, after_seq, limit)

    def find_job(self, job_id: str) -> Job | None:
        """Find a job by its id."""
        return self._read(self._reader.find_job, job_id)

    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """List jobs newest first."""
        return self._read(self._reader.list_jobs, wanted)

    def group_jobs(self, by: Sequence[str], wanted: JobFilter) -> list[tuple[tuple[str, ...], int]]:
        """Count jobs by columns."""
        return self._read(self._reader.group_jobs, by, wanted)

    def count_ended(self, user: str, states: tuple[str, ...], most: int) -> int:
        """Count jobs in these states, of one user or of all; no further than to `most`."""
        return self._read(self._reader.count_ended, user, states, most)

    def find_tasks(
        self, job_id: str, after_index: int, limit: int, states: tuple[str, ...] = ()
    ) -> list[Task]:
        """Give a job's tasks after an index, in order."""
        return self._read(self._reader.find_tasks, job_id, after_index, limit, states)

    def find_task(self, job_id: str, index: int) -> Task | None:
        """Find one task."""
        return self._read(self._reader.find_task, job_id, index)

    def find_attempts(self, job_id: str, index: int | None = None, limit: int = 1000) -> list[Attempt]:
        """Give the attempts of a task, or of a whole job, in order of task and age."""
        return self._read(self._reader.find_attempts, job_id, index, limit)

    def sum_uses(self, asked: UseQuery) -> list[UseRow]:
        """Sum up what attempts asked for, held and used."""
        return self._read(self._reader.sum_uses, asked)

    def past_attempts(self, asked: PastQuery) -> list[PastRow]:
        """Give attempts that ended within a while, newest first."""
        return self._read(self._reader.past_attempts, asked)

    def count_jobs(self, user: str, ended_since_ms: int, most: int) -> dict[str, int]:
        """Count jobs by the state in which they ended since a moment."""
        return self._read(self._reader.count_jobs, user, ended_since_ms, most)

    def samples(self, since_ms: int, until_ms: int, limit: int) -> list[tuple[int, bytes]]:
        """Give samples of a while, oldest first."""
        return self._read(self._reader.samples, since_ms, until_ms, limit)

    def find_attempt(self, uid: str) -> Attempt | None:
        """Find an attempt by its uid."""
        return self._read(self._reader.find_attempt, uid)

    def newest_attempt(self, worker: str, job_id: str, index: int) -> Attempt | None:
        """Find the last attempt of a task on one worker."""
        return self._read(self._reader.newest_attempt, worker, job_id, index)

    def recent_runs(self, limit: int) -> list[tuple[str, int, int]]:
        """Give name, run time and limit of the last attempts of named jobs that came to their own end, oldest first."""
        return self._read(self._reader.recent_runs, limit)

    def find_key(self, user: str, key: str) -> KeyRow | None:
        """Find what the first request under a key made."""
        return self._read(self._reader.find_key, user, key)

    def tokens(self) -> list[TokenRow]:
        """Give all tokens, revoked ones too."""
        return self._read(self._reader.tokens)

    def audit(self, limit: int, before_ms: int = 0) -> list[AuditRecord]:
        """Give audit records, newest first."""
        return self._read(self._reader.audit, limit, before_ms)

    def find_args(self, job_id: str, index: int) -> ArgsChunk | None:
        """Find the chunk that holds a call's arguments."""
        return self._read(self._reader.find_args, job_id, index)

    def find_results(self, job_id: str, first: int, end: int) -> list[ResultsChunk]:
        """Give the chunks that may hold results of the calls `first` to `end - 1`, oldest first."""
        return self._read(self._reader.find_results, job_id, first, end)

    def results_from(self, job_id: str, seq: int, limit: int) -> list[ResultsChunk]:
        """Give chunks of results from a turn on, in order of arrival."""
        return self._read(self._reader.results_from, job_id, seq, limit)

    def find_blobs(self, digests: Sequence[str]) -> dict[str, BlobRow]:
        """Find those of the blobs that are filed."""
        return self._read(self._reader.find_blobs, digests)

    def is_referred(self, digest: str) -> bool:
        """Whether any job uses a blob."""
        return self._read(self._reader.is_referred, digest)

    def count_user_blobs(self, user: str, digests: Sequence[str]) -> tuple[int, list[str]]:
        """How many bytes of blobs the jobs of a user use, and which of these any job uses."""
        return self._read(self._reader.count_user_blobs, user, digests)

    def job_refers(self, digest: str, job_ids: Sequence[str]) -> bool:
        """Whether one of these jobs uses a blob."""
        return self._read(self._reader.job_refers, digest, job_ids)

    def user_refers(self, digest: str, user: str) -> bool:
        """Whether a job of this user, of those that have a row, uses a blob."""
        return self._read(self._reader.user_refers, digest, user)

    def fresh_refs(self, digest: str) -> list[str]:
        """Jobs that use a blob and have no row yet."""
        return self._read(self._reader.fresh_refs, digest)
