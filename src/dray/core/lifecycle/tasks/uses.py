"""Jobs that use services: in no line until each of those has a ready replica, and again when one has none.

A name means a service of the job's own user, `NAME@OWNER` or an id also one that is shared with him. Looked at before
each pass, and not when something happens to a service: readiness depends on much, and whatever is forgotten would be a
wake-up that is lost. The cost is in the groups of jobs that use something, and in services; without such jobs there is
none. The surprising rule: what runs goes on when a service goes away; only starts wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dray.core.lifecycle.holding import receipts
from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.service_events import UseChanged
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks import jobs
from dray.core.lifecycle.tasks.replicas import ready_replicas
from dray.core.model.records.records import Job
from dray.core.model.specs.spec import unpack_spec

# In place of a note, of jobs that were served until now.
RAN = "it ran"


def find_used(state: State, user: str, name: str) -> list[Job]:
    """The services that a name means to a user: one, none, or several of which nobody can say which is meant."""
    named = state.jobs.get(name)
    if named is not None and named.id in state.services and _may_use(named, user):
        return [named]
    bare, _, owner = name.rpartition("@") if "@" in name else (name, "", user)
    found = (state.jobs[job_id] for job_id in state.services)
    return [
        job
        for job in found
        if job.name == bare and job.user == owner and not job.state.final and _may_use(job, user)
    ]


def _may_use(job: Job, user: str) -> bool:
    shared = job.user == user or unpack_spec(job.spec).is_shared_with(user)
    return shared and not job.state.final


def is_served(state: State, user: str, uses: Iterable[str]) -> bool:
    """Whether each of these services has a ready replica."""
    return not any(True for _ in missing(state, user, uses))


def missing(state: State, user: str, uses: Iterable[str]) -> Iterator[tuple[str, list[Job]]]:
    """Those services that have no ready replica, by their names, with the jobs that each could mean."""
    for name in uses:
        found = find_used(state, user, name)
        if len(found) != 1 or not ready_replicas(state, found[0]):
            yield name, found


def find_changes(state: State) -> Iterator[UseChanged]:
    """What has changed for jobs that use services since they were last looked at."""
    for (user, uses), group in list(state.using.items()):
        unserved = state.jobs[next(iter(group))].unserved
        lacking = next(missing(state, user, uses), None)
        if lacking is None:
            if unserved:
                yield UseChanged(user, uses, True)
            continue
        before = state.use_notes.get((user, uses), "") if unserved else RAN
        note = _tell(*lacking, before)
        if not unserved or note != before:
            yield UseChanged(user, uses, False, note)


def _tell(name: str, found: list[Job], before: str) -> str:
    """Why a service is not ready; one that was there and is no longer was stopped."""
    not_ready, stopped = f"service {name} is not ready", f"service {name} was stopped"
    if found:
        return not_ready
    return stopped if before in (RAN, not_ready, stopped) else f"service {name} does not run"


def use_changed(state: State, event: UseChanged, clock: Clock) -> list[Effect]:
    """Let all jobs that use these services join their lines, or take them out of every line."""
    key, effects = (event.user, event.uses), list[Effect]()
    if event.served:
        state.use_notes.pop(key, None)
    else:
        state.use_notes[key] = event.note
    for job_id in state.using.get(key, ()):
        job = state.jobs[job_id]
        job.unserved = not event.served
        state.touched.jobs[job_id] = None
        if not event.served:
            effects += receipts.close(state, job, "rolled_back", clock)
            state.stir(job)
            if job_id in state.watched:
                state.rouse(job)
        elif not job.barred:
            jobs.join_all(state, job, clock)
        data = {"uses": list(event.uses), "note": event.note}
        effects.append(Note("job_served" if event.served else "job_unserved", job_id, data=data))
    return effects
