"""Who waits for whom: the index from a job to those that wait for its end, kept beside `Job.after`.

A cache: `after` names what is still open, and an ended job is in nobody's `after`. What an end means for the jobs that
waited is carried out in `jobs`, one after the other and never by recursion: a chain may be thousands long.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state import State
from dray.core.model.dependency import broken_words, is_met, read_need
from dray.core.model.records import Job


def register(state: State, job: Job) -> None:
    """Have a job looked at when one that it waits for ends."""
    for text in job.after:
        state.dependents.setdefault(read_need(text).job_id, {})[job.id] = None


def withdraw(state: State, job: Job) -> None:
    """Let a job wait for nobody any more: it ended, or was told so."""
    for text in job.after:
        waited_for = read_need(text).job_id
        waiting = state.dependents.get(waited_for, {})
        waiting.pop(job.id, None)
        if not waiting:
            state.dependents.pop(waited_for, None)
    if job.after:
        job.after = ()
        state.touched.jobs[job.id] = None


def followers(state: State, ended: Job) -> Iterator[tuple[Job, str]]:
    """The jobs that waited for one that has ended, each with why it can never start, or nothing.

    In order of submission, however the index came about: a restart rebuilds it.
    """
    waiting = [state.jobs[job_id] for job_id in state.dependents.pop(ended.id, ())]
    for job in sorted(waiting, key=lambda job: job.seq):
        needs = [read_need(text) for text in job.after]
        judged = [need for need in needs if need.job_id == ended.id]
        broken = next((need for need in judged if not is_met(need, ended.state)), None)
        job.after = tuple(str(need) for need in needs if need.job_id != ended.id)
        state.touched.jobs[job.id] = None
        yield job, "" if broken is None else broken_words(broken, ended.state)


def reaches(state: State, first: str, last: str) -> bool:
    """Whether `first` waits for `last`, directly or through others."""
    seen, left = {first: None}, [first]
    while left:
        job = state.jobs.get(left.pop())
        for text in job.after if job is not None else ():
            other = read_need(text).job_id
            if other == last:
                return True
            if other not in seen:
                seen[other] = None
                left.append(other)
    return False
