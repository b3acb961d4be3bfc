"""Who waits for whom: the index from a job to those that wait for its end, kept beside `Job.after`.

A cache: `after` names what is still open, and an ended job is in nobody's `after`. What an end means for the jobs that
waited is carried out in `jobs`, one after the other and never by recursion: a chain may be thousands long.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job, JobState
from dray.core.model.specs.dependency import Need, broken_words, is_met, read_need


def register(state: State, job: Job) -> None:
    """Have a job looked at when one that it waits for ends, or the one task of it that it waits for."""
    for need in map(read_need, job.after):
        state.dependents.setdefault(need.job_id, {})[job.id] = None
        if need.task >= 0:
            waiters = state.task_waiters.setdefault(need.job_id, {})
            waiters.setdefault(need.task, {})[job.id] = None
    state.note_wait(job)


def withdraw(state: State, job: Job) -> None:
    """Let a job wait for nobody any more: it ended, or was told so."""
    for need in map(read_need, job.after):
        _strike(state.dependents, need.job_id, job.id)
        if need.task >= 0 and need.job_id in state.task_waiters:
            _forget_task(state, need.job_id, need.task, job.id)
    if job.after:
        job.after = ()
        state.touched.jobs[job.id] = None


def _strike(index: dict[str, dict[str, None]], waited_for: str, job_id: str) -> None:
    waiting = index.get(waited_for, {})
    waiting.pop(job_id, None)
    if not waiting:
        index.pop(waited_for, None)


def _forget_task(state: State, waited_for: str, index: int, job_id: str) -> None:
    waiters = state.task_waiters[waited_for]
    waiters.get(index, {}).pop(job_id, None)
    if not waiters.get(index):
        waiters.pop(index, None)
    if not waiters:
        del state.task_waiters[waited_for]


def followers(state: State, ended: Job) -> Iterator[tuple[Job, str]]:
    """The jobs that waited for one that has ended, each with why it can never start, or nothing.

    In order of submission, however the index came about: a restart rebuilds it.
    """
    waiting = [state.jobs[job_id] for job_id in state.dependents.pop(ended.id, ())]
    state.task_waiters.pop(ended.id, None)
    for job in sorted(waiting, key=lambda job: job.seq):
        needs = [read_need(text) for text in job.after]
        judged = [(need, _end_of(state, ended, need)) for need in needs if need.job_id == ended.id]
        job.after = tuple(str(need) for need in needs if need.job_id != ended.id)
        state.touched.jobs[job.id] = None
        yield job, next((broken_words(*pair) for pair in judged if not is_met(*pair)), "")


def _end_of(state: State, ended: Job, need: Need) -> JobState:
    """How a job ended, or one of its tasks that nobody was told of by itself: it went with the rest."""
    if need.task < 0:
        return ended.state
    task = state.tasks.get((ended.id, need.task))
    if task is not None and task.state.final:
        return task.state
    return ended.rest if ended.rest.final else ended.state


def task_followers(state: State, ended: Job, index: int, final: JobState) -> Iterator[tuple[Job, str]]:
    """The jobs that waited for one task that has ended so, as `followers` gives them."""
    waiting = [state.jobs[job_id] for job_id in state.task_waiters.get(ended.id, {}).get(index, ())]
    for job in sorted(waiting, key=lambda job: job.seq):
        needs = [read_need(text) for text in job.after]
        judged = [need for need in needs if (need.job_id, need.task) == (ended.id, index)]
        left = [need for need in needs if need not in judged]
        _forget_task(state, ended.id, index, job.id)
        if all(need.job_id != ended.id for need in left):
            _strike(state.dependents, ended.id, job.id)
        job.after = tuple(map(str, left))
        state.touched.jobs[job.id] = None
        yield job, next((broken_words(need, final) for need in judged if not is_met(need, final)), "")


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
