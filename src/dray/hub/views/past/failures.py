"""What failed within a while, in groups: how many, of what, whose fault by the verdict, and one example of each.

One group has one verdict, one way to end and one error, where numbers, ids and paths in the error do not count. Rows
come from the index of those that failed, newest first and bounded. Of others' failures users hear by `visibility`: how
many, or whose, and never what they said.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from dray.core.model.ids import task_id
from dray.core.model.records.records import Job, Phase
from dray.core.model.verdicts import KINDS, Verdict, judge_attempt
from dray.hub.access.caller import Caller
from dray.hub.documents.records import Document, moment, verdict_document
from dray.hub.engine.engine import Engine
from dray.hub.store.base import PastQuery, PastRow, Store
from dray.hub.views.sight import sight_of
from dray.hub.views.spans import Span

MOST_ROWS = 5_000
MOST_GROUPS = 200
BINS = 48
KEYS = ("error", "class", "job", "worker", "user", "queue")
# Whose fault it is, in a word.
FAULTS = {
    "code": "program", "host_memory": "limit", "gpu_memory": "limit", "time_limit": "limit", "person": "person",
    "node": "machine", "environment": "machine", "idle": "policy", "dependency": "program", "preempted": "policy",
    "gang": "program", "unplaced": "policy",
}  # fmt: skip
# So many tasks of one job that fail on one machine alone, while others of it succeed elsewhere, speak against that.
SUSPICIOUS = 3
MOST_TRIES = 1_000
_LAST_LINES = 20
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")
_PATHS = re.compile(r"(?:/[\w.@+-]+){2,}")


class ListFailures(NamedTuple):
    """From when to when, by what they are grouped, how many groups at most."""

    since: str = ""
    until: str = ""
    by: tuple[str, ...] = ()
    limit: int = 50


class _Group:
    def __init__(self, row: PastRow, verdict: Verdict) -> None:
        self.first, self.verdict = row, verdict
        self.count = 0
        self.bins = [0] * BINS
        self.jobs, self.workers, self.users = Counter[str](), Counter[str](), Counter[str]()
        self.names = Counter[str]()
        self.fault = FAULTS[verdict.kind]

    def add(self, row: PastRow, place: int) -> None:
        self.count += 1
        self.bins[place] += 1
        self.jobs[row.attempt.job_id] += 1
        self.workers[row.attempt.worker] += 1
        self.users[row.user] += 1
        self.names[row.name] += 1


class FailuresView:
    """One hub's failures."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine, self._store = engine, store

    async def show(self, caller: Caller, ask: ListFailures, span: Span) -> Document:
        """What failed, the most frequent first."""
        await self._engine.settle()
        sight = await self._engine.ask(lambda state: sight_of(state, caller))
        whose = "" if caller.may("admin") or sight.visibility != "own" else caller.user

        def work() -> Document:
            asked = PastQuery(span.since_ms, span.until_ms, user=whose, limit=MOST_ROWS + 1)
            rows = [
                row for row in self._store.past_attempts(asked) if row.attempt.ended_at_ms < span.until_ms
            ]
            own = [row for row in rows[:MOST_ROWS] if caller.sees(row.user)]
            strange = [row.user for row in rows[:MOST_ROWS] if not caller.sees(row.user)]
            groups = group_rows(own, ask.by or ("error", "job"), span)
            examples = [self._store.find_job(group.first.attempt.job_id) for group in groups[: ask.limit]]
            for group in groups[: ask.limit]:
                self._look_at_machine(group)
            return {
                "from": moment(span.since_ms),
                "to": moment(span.until_ms),
                "headline": say_failures(groups, span),
                "count": len(own),
                "cut": len(rows) > MOST_ROWS,
                "groups": [spell_group(*one) for one in zip(groups[: ask.limit], examples, strict=True)],
                "left_out": max(0, len(groups) - ask.limit),
                "others": dict(Counter(filter(None, map(sight.name, strange)))),
            }

        # Off the loop: some thousand records are read.
        return await asyncio.to_thread(work)

    def _look_at_machine(self, group: _Group) -> None:
        """A job whose failures lie on one machine, while others of it went well and none did there, was no cause."""
        if group.fault != "program" or len(group.workers) != 1 or group.count < SUSPICIOUS:
            return
        for job_id in list(group.jobs)[:8]:
            job: Job | None = self._store.find_job(job_id)
            if job is None or job.succeeded < SUSPICIOUS:
                continue
            tries = self._store.find_attempts(job_id, None, MOST_TRIES)
            well = Counter(one.worker for one in tries if one.phase is Phase.SUCCEEDED)
            if well.total() >= SUSPICIOUS and not well.keys() & group.workers.keys():
                group.fault = "machine"
                return


def group_rows(rows: Sequence[PastRow], by: Sequence[str], span: Span) -> list[_Group]:
    """Put together what has one verdict and is the same by `by`."""
    groups: dict[tuple[Any, ...], _Group] = {}
    for row in rows:
        verdict = judge_attempt(row.attempt)
        if verdict is None:
            continue
        key = (verdict.kind, *(_key(name, row, verdict) for name in by))
        group = groups.get(key) or groups.setdefault(key, _Group(row, verdict))
        share = (row.attempt.ended_at_ms - span.since_ms) / max(1, span.length_ms)
        group.add(row, min(BINS - 1, max(0, int(share * BINS))))
    return sorted(groups.values(), key=lambda group: -group.count)


def _key(name: str, row: PastRow, verdict: Verdict) -> str:
    if name == "error":
        return normalise(verdict.evidence[0] if verdict.evidence else "")
    if name == "job":
        return row.name or row.attempt.job_id
    plain = {
        "class": row.attempt.exit_class,
        "worker": row.attempt.worker,
        "user": row.user,
        "queue": row.queue,
    }
    return plain[name]


def normalise(error: str) -> str:
    """An error without what makes each of its kind different: numbers, ids, folders."""
    return _DIGITS.sub("#", _PATHS.sub("/…", error.split(" (on ", maxsplit=1)[0]))[:200]


def spell_group(group: _Group, job: Job | None) -> Document:
    """One group as it is shown; `job` is that of its example."""
    attempt = group.first.attempt
    return {
        "count": group.count,
        "fault": group.fault,
        "verdict": {"kind": group.verdict.kind, "title": KINDS[group.verdict.kind].title},
        "exit_class": attempt.exit_class,
        "error": normalise(group.verdict.evidence[0] if group.verdict.evidence else ""),
        "bins": group.bins,
        "jobs": len(group.jobs),
        "names": [name for name, _ in group.names.most_common(5) if name],
        "workers": dict(group.workers.most_common(8)),
        "more_workers": max(0, len(group.workers) - 8),
        "users": dict(group.users.most_common(8)),
        "example": _spell_example(group, job),
    }


def _spell_example(group: _Group, job: Job | None) -> Document | None:
    """The newest one; None where its job was removed meanwhile."""
    if job is None:
        return None
    attempt = group.first.attempt
    return {
        "job_id": job.id,
        "task_id": task_id(job.id, job.spelled(attempt.index)),
        "attempt": attempt.no,
        "name": job.name,
        "worker": attempt.worker,
        "ended_at": moment(attempt.ended_at_ms),
        "exit_code": attempt.exit_code,
        "verdict": verdict_document(group.verdict, job, attempt),
        "last": attempt.last.splitlines()[-_LAST_LINES:],
    }


_SAID = {
    "program": "by their own program", "limit": "at a limit of theirs", "machine": "by a machine",
    "policy": "by the policy", "person": "stopped by a person",
}  # fmt: skip


def say_failures(groups: Sequence[_Group], span: Span) -> str:
    """What failed, whose fault?"""
    count = sum(group.count for group in groups)
    since = (moment(span.since_ms) or "")[11:16]
    if not count:
        return f"Nothing failed since {since} UTC."
    said = []
    for group in groups[:3]:
        name = next((name for name, _ in group.names.most_common(1) if name), "")
        if group.fault == "machine" and len(group.workers) == 1:
            said.append(f"{group.count:,} with {next(iter(group.workers))}")
        elif len(group.names) == 1 and name:
            said.append(f"{group.count:,} of {name} ({KINDS[group.verdict.kind].title})")
        else:
            said.append(f"{group.count:,} {_SAID[group.fault]}")
    rest = count - sum(group.count for group in groups[:3])
    more = f", {rest:,} otherwise" if rest else ""
    return f"{count:,} {'try' if count == 1 else 'tries'} failed since {since} UTC: {', '.join(said)}{more}."
