"""Who answers for a name: ready replicas of a service, one of them (`NAME/INDEX`), or a task that runs and has ports.

Reads the state and changes nothing. The owner is let through, an admin, and to a service whoever it is shared with; for
everybody else there is no such name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dray.core.lifecycle.holding.groups import members
from dray.core.lifecycle.holding.rollouts import spec_of
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.replicas import ready_replicas
from dray.core.model.ids import split_task_id
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.ports import name_ports
from dray.core.model.specs.spec import unpack_spec
from dray.core.scheduling.explain.services import replicas_of, tasks_of
from dray.errors import Conflict, InvalidInput, NotFound, Unreachable
from dray.hub.access.caller import Caller
from dray.hub.serving.finding import find_reachable

LISTED = 5


class Place(NamedTuple):
    """A port of an attempt that may be asked; `rank`: which of its group it is."""

    task: str
    worker: str
    attempt: str
    port: int
    job_id: str
    rank: int = 0


class Meant(NamedTuple):
    """What a name means: a job, and the index of one of its tasks where it says so. `called`: the job as the caller
    calls it, `own`: whether he may look into it, and not only reach it.
    """

    job: Job
    task: int | None
    called: str
    own: bool


class Places(NamedTuple):
    """All that answer for a name, and what it means."""

    meant: Meant
    places: list[Place]


def find_places(state: State, caller: Caller, name: str, port: str) -> Places:
    """Whoever answers for a name now; raises where there is no such name, no such port, or nobody is ready."""
    meant = _find(state, caller, name)
    job, index = meant.job, meant.task
    attempts = ready_replicas(state, job) if job.service else _running(state, job)
    if index is not None:
        # A member of a group that nobody is sent to by the service's name is reached by its own.
        together = (
            (one for each in attempts for one in members(state, job, each.index)) if job.service else attempts
        )
        attempts = [attempt for attempt in together if attempt.index == index]
    if not attempts:
        raise Unreachable(_tell_absent(state, meant, name, ready=True))
    if not job.service:
        _choose_one(state, job, name, attempts)
    found = [
        (attempt, _choose(port_names(state, job, attempt) if port else [], attempt.ports, port))
        for attempt in attempts
    ]
    places = [
        Place(
            state.spell(attempt),
            attempt.worker,
            attempt.uid,
            number,
            job.id,
            attempt.index % job.group_size,
        )
        for attempt, number in found
        if number
    ]
    if not places:
        raise InvalidInput(_no_port(name, port, port_names(state, job, attempts[0]), attempts))
    return Places(meant, places)


def port_names(state: State, job: Job, attempt: Attempt) -> list[str]:
    """What an attempt's ports are called: by the revision of the spec that it runs by."""
    return unpack_spec(spec_of(state, job, attempt.revision)).ports


def find_running(state: State, caller: Caller, name: str) -> tuple[Job, Attempt]:
    """The one attempt that runs and is meant, for whoever may look into it; raises where there is none, or several."""
    meant = _find(state, caller, name)
    job, index = meant.job, meant.task
    if not meant.own:
        raise NotFound(f"{name} is {job.user}'s, and shared to be reached: nobody else looks into it")
    attempts = [each for each in _running(state, job) if index in (None, each.index)]
    if not attempts:
        raise Unreachable(_tell_absent(state, meant, name, ready=False))
    return job, _choose_one(state, job, name, attempts)


def _choose_one(state: State, job: Job, name: str, attempts: list[Attempt]) -> Attempt:
    if len(attempts) > 1:
        known = [
            f"{state.spell(one)}{f' of rank {one.index % job.group_size} on {one.worker}' if job.gang else ''}"
            for one in attempts
        ]
        more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
        listed = f"{', '.join(known[:LISTED])}{more}"
        raise Conflict(f"{name} has {len(attempts)} tasks that run: say which by its id ({listed})")
    return attempts[0]


def _tell_absent(state: State, meant: Meant, name: str, ready: bool) -> str:
    """What to say where nothing that a name means runs, or is `ready`; why that is so its owner alone is told."""
    job, index, look = meant.job, meant.task, f"`dray service show {meant.called}`"
    if not job.service:
        return f"{name} does not run now: `dray show {name}` tells how it stands"
    if index is None:
        return f"no replica of {name} {'is ready' if ready else 'runs now'}: {look} tells why"
    how, at, known = "does not run now", index, tasks_of
    if ready:
        # A group is as that of its members which is furthest from ready, and goes by its first.
        how = "is of a group that is not ready" if job.gang else "is not ready"
        at, known = index - index % job.group_size, replicas_of
    one = next((one for one in known(state, job) if one.task_index == at), None)
    if one is None:
        return f"{meant.called} has no replica {index} now: {look} lists those that it has"
    return f"{name} {how}{f' ({one.message})' if meant.own else ''}: {look} tells more"


def _find(state: State, caller: Caller, name: str) -> Meant:
    service, slash, rest = name.rpartition("/")
    index = int(rest) if slash and rest.isdecimal() and len(rest) < 10 else None
    called = service if index is not None else name
    try:
        job = find_reachable(state, caller, called)
        return Meant(job, index, called, caller.sees(job.user))
    except NotFound as fault:
        job_id, task = split_task_id(name) or ("", -1)
        found = state.jobs.get(job_id)
        if found is None or found.state.final or not caller.sees(found.user):
            raise NotFound(f"{fault.message}; nor is {name!r} a task of yours that runs") from None
        return Meant(found, None if task < 0 else task, called, True)


def _running(state: State, job: Job) -> list[Attempt]:
    live = (state.attempts[uid] for uid in state.live_of.get(job.id, ()))
    running = [attempt for attempt in live if attempt.phase is Phase.RUNNING and not attempt.cancel]
    return sorted(running, key=lambda attempt: attempt.index)


def _choose(names: list[str], numbers: tuple[int, ...], port: str) -> int:
    """The port that is meant: the first, or by its name or number; 0 where there is none."""
    if not port:
        return numbers[0] if numbers else 0
    known = name_ports(names, numbers)
    return known.get(port, int(port) if port.isdecimal() and int(port) in numbers else 0)


def _no_port(name: str, port: str, names: list[str], attempts: Iterable[Attempt]) -> str:
    known = name_ports(names, next(iter(attempts)).ports)
    if not known:
        return f"{name} has no ports: start it with --port NAME, and have it listen on $DRAY_PORT"
    listed = ", ".join(f"{each}={number}" for each, number in known.items())
    return f"{name} has no port {port!r}: it has {listed}"
