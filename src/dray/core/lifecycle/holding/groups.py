"""Groups: tasks that start together or not at all, and end together.

A gang of batch work is one group, a service with several nodes has one for each replica, and any other task is a group
by itself. Reads records and changes nothing. What is known of a group as a whole stands with the first of its tasks.
"""

from __future__ import annotations

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, Task


def tasks_of(state: State, job: Job, index: int) -> list[Task]:
    """The tasks that start and end with one, by rank, as far as they were placed."""
    found = (state.tasks.get((job.id, each)) for each in job.group_of(index))
    return [task for task in found if task is not None]


def first_of(state: State, job: Job, index: int) -> Task:
    """The task that stands for the group of one that was placed."""
    return state.tasks[job.id, job.group_of(index)[0]]


def members(state: State, job: Job, index: int) -> list[Attempt]:
    """The current attempts of a group by rank; none while it waits or has ended."""
    return [state.attempts[task.current] for task in tasks_of(state, job, index) if task.current]


def is_member(state: State, attempt: Attempt) -> bool:
    """Whether an attempt is current: of a group that is not concluded it is kept, also once it has ended."""
    task = state.tasks.get((attempt.job_id, attempt.index))
    return task is not None and task.current == attempt.uid
