"""Which service a name means: the id of its job, or the name that its owner gave it, where no two of his share it.

A service that is shared goes by `NAME@OWNER`, or by its id: by a bare name nobody is ever led to somebody else's, who
could have called his so. The surprising rule: whom a service is shared with may reach it and see that it runs, and no
more; all that changes it is the owner's, and an admin's.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.uses import find_used
from dray.core.model.records.records import Job
from dray.core.model.specs.spec import unpack_spec
from dray.errors import Conflict, Forbidden, NotFound
from dray.hub.access.caller import Caller
from dray.hub.access.task_tokens import used_by


def may_reach(state: State, caller: Caller, job: Job) -> bool:
    """Whether a caller may send requests to what runs of a job."""
    if using := used_by(caller.token_id):
        return any(one.id == job.id for one in _used(state, using))
    return caller.sees(job.user) or (job.service and unpack_spec(job.spec).is_shared_with(caller.user))


def _used(state: State, job_id: str) -> list[Job]:
    """The services that a job uses, each under the one name that it has there."""
    job = state.jobs.get(job_id)
    found = [find_used(state, job.user, name) for name in job.uses] if job is not None else []
    return [services[0] for services in found if len(services) == 1]


def living_services(state: State, caller: Caller) -> list[Job]:
    """The services that the caller may reach and that have not been stopped, the oldest first."""
    if using := used_by(caller.token_id):
        return _used(state, using)
    found = (state.jobs[job_id] for job_id in state.services)
    seen = [job for job in found if not job.state.final and may_reach(state, caller, job)]
    return sorted(seen, key=lambda job: job.seq)


def find_reachable(state: State, caller: Caller, name: str) -> Job:
    """The one service that is meant, of those that the caller may reach; one's own goes before others'."""
    services = living_services(state, caller)
    if used_by(caller.token_id):
        # As its job names them, so that a task gets where the job waited for.
        meant = {job.id for job in find_used(state, caller.user, name)}
        services = [job for job in services if job.id in meant]
        name = services[0].id if services else name
    named = [job for job in services if job.id == name] or [
        job for job in services if _is_called(job, name, caller)
    ]
    own = [job for job in named if job.user == caller.user]
    if len(own or named) > 1:
        owners = ", ".join(f"{job.id} of {job.user}" for job in named)
        raise Conflict(f"several services are named {name!r}: say which by its id ({owners})")
    if not named:
        known = _list_names(services, caller)
        raise NotFound(f"no service {name!r} runs, or it is not yours; {known}")
    return (own or named)[0]


def find_service(state: State, caller: Caller, name: str) -> Job:
    """The one service that is meant, to be shown whole or changed."""
    job = find_reachable(state, caller, name)
    if not caller.sees(job.user):
        raise Forbidden(
            f"service {name!r} is {job.user}'s and shared with you: you may reach it (`dray forward`, "
            "`dray service open`, /proxy/), and nothing else"
        )
    return job


def _is_called(job: Job, name: str, caller: Caller) -> bool:
    if job.name == name:
        return caller.sees(job.user)
    return f"{job.name}@{job.user}" == name


def _list_names(services: Sequence[Job], caller: Caller) -> str:
    names = [tell_name(job, caller.user) for job in services]
    if not names:
        return "no service runs: dray serve starts one"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"there is {', '.join(names[:5])}{more}"


def tell_name(job: Job, user: str) -> str:
    """By which name a user finds a service."""
    return job.id if not job.name else job.name if job.user == user else f"{job.name}@{job.user}"
