"""Which service a name means: the id of its job, or the name that its owner gave it, where no two of his share it."""

from __future__ import annotations

from collections.abc import Sequence

from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.errors import Conflict, NotFound
from dray.hub.access.caller import Caller


def living_services(state: State, caller: Caller) -> list[Job]:
    """The services that the caller may see and that have not been stopped, the oldest first."""
    found = (state.jobs[job_id] for job_id in state.services)
    seen = [job for job in found if not job.state.final and caller.sees(job.user)]
    return sorted(seen, key=lambda job: job.seq)


def find_service(state: State, caller: Caller, name: str) -> Job:
    """The one service that is meant; one's own goes before others' of the same name."""
    services = living_services(state, caller)
    named = [job for job in services if job.id == name] or [job for job in services if job.name == name]
    own = [job for job in named if job.user == caller.user]
    if len(own or named) > 1:
        owners = ", ".join(f"{job.id} of {job.user}" for job in named)
        raise Conflict(f"several services are named {name!r}: say which by its id ({owners})")
    if not named:
        known = _list_names(services)
        raise NotFound(f"no service {name!r} runs, or it is not yours; {known}")
    return (own or named)[0]


def _list_names(services: Sequence[Job]) -> str:
    names = [job.name or job.id for job in services]
    if not names:
        return "no service runs: dray serve starts one"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"there is {', '.join(names[:5])}{more}"
