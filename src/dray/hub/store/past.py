"""What ran and what failed within a while: the question for attempts that have ended, and its SQL.

Each is found by an index: those of a worker by when they ended, those that failed by when they did, those of a job by
their task. Answers are bounded, the newest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from dray.core.model.records.records import Attempt, Phase
from dray.hub.store.base import AttemptRow, JobFilter, JobRow, PastQuery

BAD_PHASES = tuple(phase.value for phase in (Phase.FAILED, Phase.KILLED, Phase.PREEMPTED, Phase.LOST))
# As the partial index of both databases has it.
BAD = f"phase IN ({', '.join(repr(phase) for phase in BAD_PHASES)})"


def spell_past(asked: PastQuery, mark: str, user: str) -> tuple[str, list[object]]:
    """The question as SQL with its values; `mark` is what stands for a value (`?`, or `$` before its number)."""
    terms: list[str] = []
    values: list[object] = []

    def term(text: str, value: object) -> None:
        values.append(value)
        terms.append(text.replace("?", mark if mark == "?" else f"{mark}{len(values)}"))

    if asked.worker:
        term("worker = ?", asked.worker)
    elif asked.job_id:
        term("job_id = ?", asked.job_id)
    else:
        terms.append(BAD)
    if asked.user:
        term(f"{user} = ?", asked.user)
    term("ended_at_ms >= ?", asked.since_ms)
    terms.append("ended_at_ms > 0")
    term("assigned_at_ms < ?", asked.until_ms)
    values.append(asked.limit)
    last = mark if mark == "?" else f"{mark}{len(values)}"
    return f"WHERE {' AND '.join(terms)} ORDER BY ended_at_ms DESC LIMIT {last}", values


def find_past(rows: Iterable[AttemptRow], asked: PastQuery) -> list[AttemptRow]:
    """The same in Python, for a store that has no SQL."""

    def meant() -> Iterator[AttemptRow]:
        for row in rows:
            attempt = row.attempt
            if not attempt.ended_at_ms or attempt.ended_at_ms < asked.since_ms:
                continue
            if attempt.assigned_at_ms >= asked.until_ms or asked.user not in ("", row.user):
                continue
            if asked.worker or asked.job_id:
                if asked.worker in ("", attempt.worker) and asked.job_id in ("", attempt.job_id):
                    yield row
            elif attempt.phase.value in BAD_PHASES:
                yield row

    return sorted(meant(), key=lambda row: -row.attempt.ended_at_ms)[: asked.limit]


_UNTRIED: Mapping[str, Sequence[Attempt]] = MappingProxyType({})


# What jobs are counted of, beside their states.
NAMED = ("user", "queue", "name", "workload")


def grouping(columns: Sequence[str]) -> tuple[str, str]:
    """What a count of jobs by columns selects, and how it ends but for its limit."""
    named = ", ".join(columns)
    return (
        (f"count(*), {named}", f"GROUP BY {named} ORDER BY 1 DESC, {named}") if columns else ("count(*)", "")
    )


def group_query(by: Sequence[str], wanted: JobFilter, spelled: Mapping[str, str]) -> tuple[str, list[str]]:
    """A count of jobs on a server, where columns are `spelled` so, and what it is given behind a limit and states."""
    given = [(spelled.get(name, name), text) for name in NAMED if (text := getattr(wanted, name))]
    terms = [f"{column} = ${place}" for place, (column, _) in enumerate(given, 3)]
    chosen, end = grouping([spelled.get(name, name) for name in by])
    met = " AND ".join(["($2::text[] = '{}' OR state = ANY($2))", *terms])
    words = ("SELECT", chosen, "FROM dray.jobs WHERE", met, end, "LIMIT $1")
    return " ".join(words), [text for _, text in given]


def is_meant(row: JobRow, wanted: JobFilter, tried: Mapping[str, Sequence[Attempt]] = _UNTRIED) -> bool:
    """Whether a list wants a job, for a store that has no SQL; `tried` are the attempts of jobs."""
    job = row.job
    moments = {"submitted_at_ms": job.submitted_at_ms, "ended_at_ms": job.ended_at_ms}
    for term, value in wanted.spans:
        moment = moments[term.split()[0]]
        if (moment < value) if ">=" in term else (moment >= value):
            return False
    attempts = tried.get(job.id, ())
    if wanted.worker and all(attempt.worker != wanted.worker for attempt in attempts):
        return False
    if wanted.exit_class and all(attempt.exit_class != wanted.exit_class for attempt in attempts):
        return False
    ended_ms = job.ended_at_ms if wanted.before_ended_ms else 0
    return (
        (not wanted.states or job.state in wanted.states)
        and (job.state.final or not wanted.ended_only)
        and wanted.user in ("", job.user)
        and wanted.queue in ("", job.queue)
        and wanted.name in ("", job.name)
        and wanted.workload in ("", job.workload)
        and (wanted.q in job.name or wanted.q in job.id)
        and (not wanted.before_seq or (ended_ms, job.seq) < (wanted.before_ended_ms, wanted.before_seq))
        and all(row.labels.get(key) == value for key, value in wanted.labels)
    )
