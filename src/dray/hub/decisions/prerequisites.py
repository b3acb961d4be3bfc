"""What new and edited jobs wait for, looked up before the fact is made: the fact carries only what is still open.

Whoever ended before is known to the rows alone, which no rule of the core can read. Knows nothing of what an end means
for those who wait: `core.lifecycle` does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dray.core.lifecycle.holding.dependencies import reaches
from dray.core.model.records.records import Job, JobState
from dray.core.model.specs.dependency import broken_words, is_met, read_need
from dray.core.model.specs.spec import JobSpec
from dray.errors import InvalidSpec, Problem
from dray.hub.access.caller import Caller
from dray.hub.calls.reading import CallReader


class Open(NamedTuple):
    """Those conditions of a job that are still open, and why one can never be met ("" where all may be)."""

    after: tuple[str, ...] = ()
    broken: str = ""


NOTHING = Open()


def resolve(reader: CallReader, caller: Caller, specs: Sequence[JobSpec]) -> list[Open]:
    """Look up what each job of a submit waits for; unknown jobs and circles are refused, all at once."""
    if not any(spec.after for spec in specs):
        return [NOTHING] * len(specs)
    batch = {spec.id: spec for spec in specs if spec.id}
    problems: list[Problem] = []
    found = []
    for place, spec in enumerate(specs):
        prefix = f"[{place}]." if len(specs) > 1 else ""
        found.append(_look_up(reader, caller, spec.after, batch, prefix, problems))
    if not problems and (circle := _find_circle(batch)):
        problems = [Problem("after", f"these jobs wait for each other in a circle: {' -> '.join(circle)}")]
    _refuse(problems)
    return found


def resolve_edit(reader: CallReader, caller: Caller, job: Job, after: Sequence[str]) -> tuple[str, ...]:
    """Look up what an edited job shall wait for; what can never be met, or would close a circle, is refused."""
    problems: list[Problem] = []
    found = _look_up(reader, caller, after, {}, "", problems)
    if found.broken:
        problems.append(Problem("after", f"can never be met: {found.broken}"))
    for text in found.after:
        other = read_need(text).job_id
        if other == job.id:
            problems.append(Problem("after", f"job {job.id} would wait for itself"))
        elif reaches(reader.records.state, other, job.id):
            problems.append(Problem("after", f"job {other} waits for job {job.id} already: a circle"))
    _refuse(problems)
    return found.after


def _look_up(
    reader: CallReader,
    caller: Caller,
    after: Sequence[str],
    batch: Mapping[str, JobSpec],
    prefix: str,
    problems: list[Problem],
) -> Open:
    still_open, broken = [], ""
    for number, text in enumerate(after):
        need = read_need(text)
        if need.job_id in batch:
            still_open.append(text)
            continue
        job = reader.records.job(need.job_id)
        if job is None or not caller.sees(job.user):
            what = f"there is no job {need.job_id!r} to wait for, or it is not yours"
            problems.append(Problem(f"{prefix}after[{number}]", what))
            continue
        if need.task >= job.total:
            what = f"job {job.id} has no task {need.task} to wait for: it has {job.total}"
            problems.append(Problem(f"{prefix}after[{number}]", what))
            continue
        ended = job.state if need.task < 0 else _task_state(reader, job, need.task)
        if not ended.final:
            still_open.append(text)
        elif not is_met(need, ended):
            broken = broken or broken_words(need, ended)
    return Open(tuple(still_open), broken)


def _task_state(reader: CallReader, job: Job, index: int) -> JobState:
    """How one task stands; a call that ended is known to its chunk alone."""
    if job.calls:
        return reader.call(job, index).task.state
    task = reader.records.task(job.id, index)
    return job.rest if task is None else task.state


def _find_circle(batch: Mapping[str, JobSpec]) -> list[str]:
    """Walk who waits for whom inside a batch, without recursion; give the first circle, its first job repeated."""
    done: dict[str, None] = {}
    for start in batch:
        path: list[str] = []
        on_path: dict[str, None] = {}
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            job_id, leaving = stack.pop()
            if leaving:
                path.pop()
                del on_path[job_id]
                done[job_id] = None
                continue
            if job_id in on_path:
                return [*path[path.index(job_id) :], job_id]
            if job_id in done:
                continue
            path.append(job_id)
            on_path[job_id] = None
            stack.append((job_id, True))
            others = [read_need(text).job_id for text in batch[job_id].after]
            stack += [(other, False) for other in others if other in batch]
    return []


def _refuse(problems: list[Problem]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}{more}", problems)
