"""Whether what did not come to its own end is tried again: one rule for tasks, gangs and calls, and its sentences.

A failure uses up one of `retries`, a loss after user code may have run one of `losses`; what was given back is free,
unless it had started and may start once only. Knows nothing of how a task is queued again or ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dray.core.model.records.records import Job, JobState, Task
from dray.core.model.specs.spec import unpack_spec


class End(NamedTuple):
    """How a task ends that is not tried again."""

    state: JobState
    exit_class: str
    error: str


def is_last_failure(job: Job, failures: int) -> bool:
    """Whether a task of a job that has failed so often is not tried again."""
    return failures > job.retries


def charge_failure(job: Job, task: Task, together: Iterable[Task]) -> bool:
    """Count a failure for all who failed together; gives whether the task, and they with it, may try again."""
    for one in together:
        one.failures += 1
    return not is_last_failure(job, task.failures)


def charge_loss(job: Job, task: Task, together: Iterable[Task]) -> End | None:
    """Count a loss for all who were lost together; None where the task, and they with it, may try again."""
    for one in together:
        one.losses += 1
    if task.losses <= job.losses_allowed:
        return None
    error = f"its worker was lost {task.losses} times, {job.losses_allowed} allowed"
    return End(JobState.WORKER_FAILED, "lost", error)


def hand_back(job: Job, started: bool, why: str, exit_class: str = "preempted") -> End | None:
    """What a worker gave back is queued again (None), unless it had started and may start once only."""
    if not (started and unpack_spec(job.spec).at_most_once):
        return None
    error = f"handed back by its worker after it had started ({why}), and it may start once only"
    return End(JobState.WORKER_FAILED, exit_class, error)
