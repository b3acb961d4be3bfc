"""What attempts asked for, held and used since a moment, summed up by whose they were: the question and its answers.

One sum per principal and shape, so that a million attempts come back as a few rows; how many cards a shape means is
told by its name. What still runs comes back one by one: the newest of its use is in memory. Surprising rule: of an
attempt that ran across the edge of the window its use counts by the part of its run time that lies inside.
"""

from __future__ import annotations

from collections.abc import Iterable

from dray.core.model.ids import attempt_number
from dray.core.model.records.records import LONGEST_S
from dray.hub.store.base import AttemptRow, UseQuery, UseRow

# By what use is summed up, and the column that says it.
BY = {
    "user": "user",
    "queue": "queue",
    "plugin": "plugin",
    "template": "template",
    "name": "name",
    "job": "job_id",
}
# Of jobs there may be a million: those that held cards, then those that held anything for longest.
MOST_ROWS = 5_000


_SPANS = """SELECT number, {key} AS key, user, shape, phase, cpu_s, gpu_s, gpu_seen_s, rate, started_at_ms AS began,
    CASE WHEN ended_at_ms = 0 THEN max(0, :until - started_at_ms)
         WHEN wall_s > 0 AND wall_s < :longest THEN CAST(wall_s * 1000 AS INTEGER)
         ELSE max(0, ended_at_ms - started_at_ms) END AS span,
    CASE WHEN idx < 0 THEN 0 ELSE limit_ms END AS allowed, ended_at_ms AS ended
    FROM attempts WHERE started_at_ms > 0 AND (ended_at_ms >= :since OR ended_at_ms = 0)
    AND (:user = '' OR user = :user)"""
_CLIPPED = """SELECT *, max(0, began + span - max(began, :since)) AS held,
    max(0, began + max(span, allowed) - max(began, :since)) AS asked FROM (SPANS)"""
_SUMS = """SELECT key, shape, count(*), sum(asked), sum(held), sum(cpu_s * held / max(span, 1)),
    sum(gpu_s * held / max(span, 1)), sum(gpu_seen_s * held / max(span, 1)), CASE WHEN ended = 0 THEN number ELSE 0 END,
    max(held * 1.0 / max(span, 1)), sum(rate * 1.0 * held) / 3600000
    FROM (CLIPPED) WHERE held > 0 OR asked > 0 GROUP BY key, shape, CASE WHEN ended = 0 THEN number ELSE 0 END
    ORDER BY instr(' ' || shape, ' gpus=') > 0 DESC, sum(held) DESC LIMIT :most"""


# $1 user, $2 since, $3 until, $4 the longest wall time that is believed, $5 most rows.
_PG_SPANS = """SELECT number, {key} AS key, shape, cpu_s, gpu_s, gpu_seen_s, rate, started_at_ms AS began,
    CASE WHEN ended_at_ms = 0 THEN greatest(0, $3::bigint - started_at_ms)
         WHEN wall_s > 0 AND wall_s < $4::double precision THEN trunc(wall_s * 1000)::bigint
         ELSE greatest(0, ended_at_ms - started_at_ms) END AS span,
    CASE WHEN idx < 0 THEN 0 ELSE limit_ms END AS allowed, ended_at_ms AS ended
    FROM dray.attempts WHERE started_at_ms > 0 AND (ended_at_ms >= $2::bigint OR ended_at_ms = 0)
    AND ($1::text = '' OR usr = $1::text)"""
_PG_CLIPPED = """SELECT *, greatest(0, began + span - greatest(began, $2::bigint)) AS held,
    greatest(0, began + greatest(span, allowed) - greatest(began, $2::bigint)) AS asked FROM (SPANS) AS spans"""
_PG_SUMS = """SELECT key, shape, count(*), sum(asked)::double precision, sum(held)::double precision,
    sum(cpu_s * held / greatest(span, 1)), sum(gpu_s * held / greatest(span, 1)),
    sum(gpu_seen_s * held / greatest(span, 1)), live, max(held::double precision / greatest(span, 1)),
    sum(rate::double precision * held) / 3600000
    FROM (SELECT *, CASE WHEN ended = 0 THEN number ELSE 0 END AS live FROM (CLIPPED) AS clipped) AS told
    WHERE held > 0 OR asked > 0 GROUP BY key, shape, live
    ORDER BY position(' gpus=' IN ' ' || shape) > 0 DESC, sum(held) DESC LIMIT $5"""


def spell_query(by: str) -> str:
    """The question as SQL. Rows of before there was a column for the queue ask the job for it."""
    key = BY[by]
    if by == "queue":
        key = "CASE WHEN queue <> '' THEN queue ELSE coalesce((SELECT queue FROM jobs WHERE id = job_id), '') END"
    return _SUMS.replace("CLIPPED", _CLIPPED.replace("SPANS", _SPANS.replace("{key}", key)))


def spell_values(asked: UseQuery) -> dict[str, object]:
    """What stands for its names."""
    named = {"user": asked.user, "since": asked.since_ms, "until": asked.until_ms}
    return {**named, "longest": LONGEST_S, "most": MOST_ROWS}


def spell_postgres(by: str) -> str:
    """The question as PostgreSQL wants it: `user` has another name there, and no row is older than its columns."""
    key = "usr" if by == "user" else BY[by]
    return _PG_SUMS.replace("CLIPPED", _PG_CLIPPED.replace("SPANS", _PG_SPANS.replace("{key}", key)))


def sum_up(rows: Iterable[AttemptRow], asked: UseQuery) -> list[UseRow]:
    """The same in Python, for a store that has no SQL."""
    sums: dict[tuple[str, str, int], UseRow] = {}
    for row in rows:
        one = _measure(row, asked)
        if one is None:
            continue
        place = (one.key, one.shape, one.number)
        before = sums.get(place)
        if before is not None:
            one = UseRow(
                *place[:2],
                before.attempts + 1,
                before.asked_ms + one.asked_ms,
                before.held_ms + one.held_ms,
                before.cpu_s + one.cpu_s,
                before.gpu_s + one.gpu_s,
                before.gpu_seen_s + one.gpu_seen_s,
                money=before.money + one.money,
            )
        sums[place] = one
    ranked = sorted(sums.values(), key=lambda one: (" gpus=" not in " " + one.shape, -one.held_ms))
    return ranked[:MOST_ROWS]


def _measure(row: AttemptRow, asked: UseQuery) -> UseRow | None:
    attempt = row.attempt
    began_ms, ended_ms = attempt.started_at_ms, attempt.ended_at_ms
    if not began_ms or 0 < ended_ms < asked.since_ms or (asked.user and asked.user != row.user):
        return None
    span_ms = max(0, attempt.span_ms if ended_ms else asked.until_ms - began_ms)
    first_ms = max(began_ms, asked.since_ms)
    held_ms = max(0, began_ms + span_ms - first_ms)
    asked_ms = max(0, began_ms + max(span_ms, 0 if attempt.lane else attempt.limit_ms) - first_ms)
    if not held_ms and not asked_ms:
        return None
    key = attempt.job_id if asked.by == "job" else getattr(row, asked.by)
    part = held_ms / max(span_ms, 1)
    used = (attempt.cpu_s * part, attempt.gpu_s * part, attempt.gpu_seen_s * part)
    number = 0 if ended_ms else attempt_number(attempt.uid)
    money = attempt.rate * held_ms / 3_600_000
    return UseRow(key, row.shape, 1, asked_ms, held_ms, *used, number, part, money)
