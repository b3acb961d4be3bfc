"""The retry rule: whether what did not come to its own end is tried again; one for tasks, gangs and calls.

A failure uses up one of `retries`, a loss after user code may have run one of `losses`; what was given back is free,
unless it had started and may start once only. A job may have rules for failures that are not its program's own, by
verdict: they stand in `RULES`. Knows nothing of how a task is queued again or ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dray.core.lifecycle.state.columns import offer_of, pick_cards
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, JobState, Task
from dray.core.model.records.worker import Worker, card_table
from dray.core.model.specs.larger import ask_beyond, asks_beyond, least_beyond
from dray.core.model.specs.resources import Ask, asks_of_packed
from dray.core.model.specs.spec import unpack_spec
from dray.core.model.units import format_vram
from dray.core.model.verdicts import judge_attempt


class End(NamedTuple):
    """How a task ends that is not tried again."""

    state: JobState
    exit_class: str
    error: str


class Again(NamedTuple):
    """It is tried again, and why; `outgrown_bytes`: its job asks for cards with more memory than that from now on."""

    why: str
    outgrown_bytes: int = 0


def after_failure(
    state: State, job: Job, task: Task, attempt: Attempt, together: Sequence[Task]
) -> Again | End:
    """What follows the failure of an attempt, charged to all who failed together: by the rule for it, if it has one."""
    rules = unpack_spec(job.spec).rules
    verdict = judge_attempt(attempt) if rules.oom or rules.node else None
    if verdict is not None and verdict.kind in RULES:
        given, follow = RULES[verdict.kind]
        if getattr(rules, given) and (decided := follow(state, job, task, attempt, together)) is not None:
            return decided
    said = attempt.exit_class or "code"
    if charge_failure(job, task, together):
        return Again(f"failed ({said}), retry {task.failures}")
    return End(JobState.FAILED, said, attempt.error)


def _take_larger(
    state: State, job: Job, task: Task, attempt: Attempt, together: Sequence[Task]
) -> Again | End | None:
    """The memory of its cards was too small: the next ones are larger than the largest of them, where there are any."""
    worker = state.workers[attempt.worker]
    cards = card_table(worker.capability, worker.devices)
    tried = max((card.vram_bytes for card in cards if card.index in attempt.devices), default=0)
    if not tried:
        return None  # what nobody knows the size of, nothing can be said to be larger than
    beyond = asks_beyond(job.spec, tried)
    if not beyond and not _is_known(state, ask_beyond(job.spec, tried), least_beyond(tried)):
        charge_failure(job, task, together)
        lacks = "no worker known here that suits it has a larger card"
        error = f"ran out of GPU memory on {worker.id} (a card of {format_vram(tried)}), and {lacks}"
        return End(JobState.FAILED, attempt.exit_class or "code", error)
    for one in together:
        one.outgrown += 1
    why = f"out of GPU memory on a card of {format_vram(tried)}, tried again on a larger one"
    return Again(why, outgrown_bytes=0 if beyond else tried)


def _is_known(state: State, packed: bytes, least: int) -> bool:
    """Whether some worker, here now or not, has the cards that a job would ask for."""
    if int(state.columns.device_vram.max(initial=0)) < least:
        return False
    asks = asks_of_packed(packed)
    return any(_has_cards(worker, ask) for worker in state.workers.values() for ask in asks)


def _has_cards(worker: Worker, ask: Ask) -> bool:
    cards = card_table(worker.capability, worker.devices)
    if pick_cards(ask, cards, {}) is None:
        return False
    return not ask.gpu_type or ask.gpu_type in offer_of(worker, cards).gpu_words


def _go_elsewhere(
    state: State, job: Job, task: Task, attempt: Attempt, together: Sequence[Task]
) -> Again | End | None:
    """The machine was at fault: that is a loss, and the next attempt avoids it."""
    end = charge_loss(job, task, together, "a fault of its machine ended it")
    job.blamed = attempt.worker
    why = f"a fault of {attempt.worker} ended it (loss {task.losses}), tried again elsewhere"
    return end or Again(why)


Rule = Callable[[State, Job, Task, Attempt, Sequence[Task]], Again | End | None]
# By verdict: the name of a job's rule for it, and what is done where the job has that. All else is its own code's.
RULES: dict[str, tuple[str, Rule]] = {"gpu_memory": ("oom", _take_larger), "node": ("node", _go_elsewhere)}


def is_last_failure(job: Job, failures: int) -> bool:
    """Whether a task of a job that has failed so often is not tried again."""
    return failures > job.retries


def charge_failure(job: Job, task: Task, together: Sequence[Task]) -> bool:
    """Count a failure for all who failed together; gives whether the task, and they with it, may try again."""
    for one in together:
        one.failures += 1
    return not is_last_failure(job, task.failures)


def charge_loss(
    job: Job, task: Task, together: Sequence[Task], what: str = "its worker was lost"
) -> End | None:
    """Count a loss for all who were lost together; None where the task, and they with it, may try again."""
    for one in together:
        one.losses += 1
    if task.losses <= job.losses_allowed:
        return None
    error = f"{what} {task.losses} times, {job.losses_allowed} allowed"
    return End(JobState.WORKER_FAILED, "lost", error)


def blame(job: Job, attempt: Attempt) -> None:
    """Let the next attempt avoid a worker with which one was lost, where the job says so."""
    if unpack_spec(job.spec).rules.node:
        job.blamed = attempt.worker


def hand_back(job: Job, started: bool, why: str, exit_class: str = "preempted") -> End | None:
    """What a worker gave back is queued again (None), unless it had started and may start once only."""
    if not (started and unpack_spec(job.spec).at_most_once):
        return None
    error = f"handed back by its worker after it had started ({why}), and it may start once only"
    return End(JobState.WORKER_FAILED, exit_class, error)
