"""What is to be known of a service's replicas: how many are ready, and of each other one why it is not.

Reads what is recorded; what keeps a replica from being placed is told by the rules that a pass uses, in `explain`.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.holding import groups, rollouts
from dray.core.lifecycle.services.steps import Rollout, survey
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.replicas import (
    LEAVING,
    READY,
    SILENT,
    STOPPING,
    UNHEALTHY,
    furthest,
    health_of,
    tell_name,
    wanted,
)
from dray.core.lifecycle.tasks.uses import missing
from dray.core.model.records.records import Attempt, Job, Task
from dray.core.scheduling.explain.reason import Blocker, span

QUEUED, RESTING, LOOPING = "queued", "restarting", "crash_looping"


class Standing(NamedTuple):
    """How a replica stands, or one member of a group, in a word and in a line; `task` and `attempt` if it has any."""

    task_index: int
    health: str
    message: str
    task: Task | None = None
    attempt: Attempt | None = None


def replicas_of(state: State, job: Job) -> list[Standing]:
    """Every replica that a service is to have, by index: a group as that of its members is which is furthest from
    ready, under the index of its first.
    """
    found: list[Standing] = []
    for one in _standings(state, job, job.group_size):
        if job.gang and one.task is not None and (group := groups.members(state, job, one.task_index)):
            member = furthest(state, job, group)
            told = _stand(state, job, state.tasks[job.id, member.index])
            found.append(
                told._replace(task_index=one.task_index, message=f"{state.spell(member)} {told.message}")
            )
        else:
            found.append(one)
    return found


def tasks_of(state: State, job: Job) -> list[Standing]:
    """Every task of a service by index: its replicas, or each member of its groups."""
    return _standings(state, job, 1)


def _standings(state: State, job: Job, step: int) -> list[Standing]:
    found: list[Standing] = []
    for index in range(0, job.total, step):
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
    health = health_of(state, job, attempt)
    where, since_ms = f"on {attempt.worker}", attempt.health_ms or attempt.started_ms
    words = {
        READY: f"ready {where}",
        UNHEALTHY: f"not well {where} for {span(state.now_ms - since_ms)}: {attempt.health_note or 'no reason given'}",
        LEAVING: f"gets no new requests {where}, and is stopped in a moment: another took its place",
        STOPPING: _tell_stop(attempt, where),
        SILENT: f"its worker {attempt.worker} is silent",
    }
    began = f"for {span(state.now_ms - attempt.started_ms)}" if attempt.started else "and has not begun"
    message = words.get(health, f"starting {where} {began}")
    if task.looping and health != READY:
        return Standing(task.index, LOOPING, f"{message}; {_tell_loop(task)}", task, attempt)
    return Standing(task.index, health, message, task, attempt)


def _tell_stop(attempt: Attempt, where: str) -> str:
    if not attempt.phase.live:
        return f"ended {where}, waits for the others of its group to do so"
    why = "with its group" if attempt.cancel == "gang" else f"({attempt.cancel or 'cancelled'})"
    return f"asked to stop {where} {why}"


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
    rest = [f"{tell_name(job, one.task_index)}: {one.message}" for one in found if one.health != READY]
    more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
    told = filter(None, (tell_rollout(state, job), tell_rolled_back(state, job)))
    what = f"groups of {job.group_size} nodes" if job.gang else "replicas"
    return "; ".join([f"{ready} of {wanted(job)} {what} ready", *told, *rest[:3]]) + more


def tell_rollout(state: State, job: Job) -> str:
    """What is being replaced by what, how far that has come and what it waits for; empty where nothing is."""
    found = survey(state, job)
    if found is None:
        return ""
    settled = sum(1 for one in found.fresh if found.is_settled(one, state.now_ms))
    done = f"{settled} of {found.aim} {'groups' if job.gang else 'replicas'} are settled"
    moving = sorted(_drained(state, job, found))
    if found.forward:
        what = f"update from revision {job.stable} to {job.revision}"
    elif moving and all(one.task.revision == job.revision for one in found.old):
        what = f"moving off {', '.join(moving)}, which {'is' if len(moving) == 1 else 'are'} drained"
    else:
        what = f"going back to revision {job.revision}"
    left = f", {len(found.old)} of before {'is' if len(found.old) == 1 else 'are'} left" if found.old else ""
    return f"{what}: {done}{left}, waits for {_tell_next(state, job, found)}"


def _drained(state: State, job: Job, found: Rollout) -> set[str]:
    """The workers that old replicas are to leave."""
    held = (one for old in found.old for one in groups.members(state, job, old.task.index))
    return {one.worker for one in held if rollouts.is_moving(state, one)}


def _tell_next(state: State, job: Job, found: Rollout) -> str:
    waiting = found.waiting or any(one.task.queued for one in found.fresh)
    starting = [one.task.index for one in found.fresh if not one.ready and one.task.current]
    settling = [
        one.task.index for one in found.fresh if one.ready and not found.is_settled(one, state.now_ms)
    ]
    resting = [one.task.index for one in found.fresh if one.task.again_ms]
    if starting:
        return f"{tell_name(job, min(starting))} to be ready"
    if resting:
        return f"{tell_name(job, min(resting))}, which has ended, to start again"
    if settling:
        return f"{tell_name(job, min(settling))} to be ready for {found.rules.settle_s:g} s"
    if waiting:
        return f"room for another {'group' if job.gang else 'replica'}"
    if found.leaving:
        return f"{tell_name(job, min(task.index for task in found.leaving))} to get no more requests"
    return "the next step"


def tell_rolled_back(state: State, job: Job) -> str:
    """Why the last update was taken back, if it was; a later one that is whole makes it history."""
    known = rollouts.revisions_of(state, job)
    last = known.get(job.newest)
    if last is None or last.outcome != "rolled_back" or job.revision != job.stable:
        return ""
    return f"revision {last.number} was rolled back: {last.why}"


def replica_blockers(state: State, job: Job) -> list[Blocker]:
    """That replicas are replaced by others, and those that are placed, or rest, and are not ready."""
    if not job.service:
        return []
    told = tell_rollout(state, job)
    replaced = [Blocker("replica", "settled", "replaced", message=told)] if told else []
    return replaced + [
        Blocker("replica", "ready", one.health, message=f"{tell_name(job, one.task_index)}: {one.message}")
        for one in replicas_of(state, job)
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
