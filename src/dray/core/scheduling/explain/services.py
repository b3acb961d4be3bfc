"""What is to be known of a service's replicas: how many are ready, and of each other one why it is not.

Reads what is recorded; what keeps a replica from being placed is told by the rules that a pass uses, in `explain`.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.replicas import READY, SILENT, STOPPING, UNHEALTHY, health_of, wanted
from dray.core.lifecycle.tasks.uses import missing
from dray.core.model.records.records import Attempt, Job, Task
from dray.core.scheduling.explain.reason import Blocker, span

QUEUED, RESTING, LOOPING = "queued", "restarting", "crash_looping"


class Standing(NamedTuple):
    """How one replica stands, in a word and in a line; `task` and `attempt` where it has any."""

    replica: int
    health: str
    message: str
    task: Task | None = None
    attempt: Attempt | None = None


def replicas_of(state: State, job: Job) -> list[Standing]:
    """Every replica that a service is to have, by index; those never placed share one line of their own."""
    found: list[Standing] = []
    for index in range(job.total):
        task = state.tasks.get((job.id, index))
        if task is None and index >= job.cursor and not job.rest.final:
            found.append(Standing(index, QUEUED, "waits for a place"))
        elif task is not None and not task.state.final:
            found.append(_stand(state, job, task))
    return found


def _stand(state: State, job: Job, task: Task) -> Standing:
    attempt = state.attempts.get(task.current)
    if attempt is None:
        return _rest(state, task)
    health = health_of(job, attempt)
    where, since_ms = f"on {attempt.worker}", attempt.health_ms or attempt.started_ms
    words = {
        READY: f"ready {where}",
        UNHEALTHY: f"not well {where} for {span(state.now_ms - since_ms)}: {attempt.health_note or 'no reason given'}",
        STOPPING: f"asked to stop {where} ({attempt.cancel or 'cancelled'})",
        SILENT: f"its worker {attempt.worker} is silent",
    }
    began = f"for {span(state.now_ms - attempt.started_ms)}" if attempt.started else "and has not begun"
    message = words.get(health, f"starting {where} {began}")
    if task.looping and health != READY:
        return Standing(task.index, LOOPING, f"{message}; {_tell_loop(task)}", task, attempt)
    return Standing(task.index, health, message, task, attempt)


def _rest(state: State, task: Task) -> Standing:
    if task.queued:
        why = f" ({task.error})" if task.error else ""
        return Standing(task.index, QUEUED, f"waits for a place again{why}", task)
    message = f"{task.error or 'ended'}; tried again in {span(max(0, task.again_ms - state.now_ms))}"
    if task.looping:
        return Standing(task.index, LOOPING, f"{_tell_loop(task)}: {message}", task)
    return Standing(task.index, RESTING, message, task)


def _tell_loop(task: Task) -> str:
    return f"it keeps ending, {task.restarts} times by now"


def tell_service(state: State, job: Job) -> str:
    """A service in one line."""
    found = replicas_of(state, job)
    ready = sum(1 for one in found if one.health == READY)
    rest = [f"replica {one.replica}: {one.message}" for one in found if one.health != READY]
    more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
    return "; ".join([f"{ready} of {wanted(job)} replicas ready", *rest[:3]]) + more


def replica_blockers(state: State, job: Job) -> list[Blocker]:
    """Replicas that are placed, or rest, and are not ready."""
    return [
        Blocker("replica", "ready", one.health, message=f"replica {one.replica}: {one.message}")
        for one in (replicas_of(state, job) if job.service else ())
        if one.health not in (READY, QUEUED)
    ]


def use_blockers(state: State, job: Job) -> list[Blocker]:
    """The services that a job uses and that are not ready, each with how it stands."""
    return [
        Blocker("service", name, *_tell_use(state, job, name, found))
        for name, found in missing(state, job.user, job.uses)
    ]


def _tell_use(state: State, job: Job, name: str, found: list[Job]) -> tuple[str, int, bool, str]:
    """What there is in place of a ready service, in few words and as a sentence."""
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        return (
            "several",
            0,
            False,
            f"uses service {name}, and several are named so: name one by its id ({ids})",
        )
    if found:
        return "not ready", 0, False, f"waits for service {name}: {tell_service(state, found[0])}"
    if state.use_notes.get((job.user, job.uses), "") == f"service {name} was stopped":
        return "stopped", 0, False, f"waits for service {name}, which was stopped: dray serve starts it again"
    whose = f"that is shared with {job.user}" if "@" in name else f"of {job.user}"
    return "none", 0, False, f"waits for service {name}: none {whose} runs, dray serve starts one"
