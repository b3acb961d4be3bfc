"""Whether anybody was overlooked: after a pass, fitting work and free credit never coexist; and of jobs that use
services none starts without, and none waits once those are ready.

Plans anew for all who wait, whether or not anybody would look at them, and throws the plan away: a look that mended
what it found would hide it from those who wait. Who is served is found out here by looks of its own at every service. A
pass may itself stop a replica, which is seen before the next one: so a service counts as missing where it was ready
neither at the last commit nor is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dray.core.lifecycle.holding.rollouts import spec_of
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.health import member_health
from dray.core.model.specs.spec import unpack_spec
from dray.core.scheduling.passes.planning import plan
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.world.world import World


def find_overlooked(life: HubLife) -> list[str]:
    """Name work that would start now if anybody looked at it."""
    if life.conductor.cut:
        return []
    state = life.state
    decided = plan(state, tuple(state.backlog.buckets))
    return [
        f"lost wake-up: {placement.job_id}/{placement.index} fits {placement.worker} and was left waiting"
        for placement in decided.placements
        if not _is_looked_at_later(state, state.jobs[placement.job_id])
    ]


def _is_looked_at_later(state: State, job: Job) -> bool:
    """Whoever would be too many at every place is looked at now and then, not whenever some place has fewer."""
    tally = state.workloads.get(job.workload)
    return tally is not None and tally.record.terms.distribution.required


class Sign(NamedTuple):
    """A service as others see it."""

    id: str
    names: tuple[str, str]
    user: str
    share: tuple[str, ...]
    ready: bool

    def is_for(self, user: str) -> bool:
        return user == self.user or user in self.share or "*" in self.share


class UseWatch:
    """Watches the jobs of one site through all its hubs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before: tuple[int, list[Sign]] = (-1, [])

    def rewind(self) -> None:
        """The hub was restored: what was seen is of another history."""
        self._before = (-1, [])

    def committed(self, life: HubLife, fresh: Sequence[Attempt]) -> None:
        """Looks at what a turn has placed, and at who waits after it."""
        state, (number, before) = life.state, self._before
        now = [
            _look(state, state.jobs[job_id])
            for job_id in state.services
            if not state.jobs[job_id].state.final
        ]
        self._before = life.number, now
        if number != life.number:
            return
        ready = {sign.id for sign in before if sign.ready}
        either = [sign._replace(ready=sign.ready or sign.id in ready) for sign in now]
        for attempt in fresh:
            job = state.jobs[attempt.job_id]
            uses = unpack_spec(job.spec).uses
            if uses and not _is_served(either, job.user, uses):
                self._world.fail(f"{attempt} was placed, and job {job.id} uses {uses}, which are not ready")
        for job in state.jobs.values():
            uses = unpack_spec(job.spec).uses
            if not uses or job.state.final:
                continue
            steadily = _is_served(now, job.user, uses) and _is_served(before, job.user, uses)
            if steadily and job.unserved:
                self._world.fail(
                    f"lost wake-up: job {job.id} uses {uses}, which are ready, and waits for them"
                )
            if not _is_served(either, job.user, uses) and not job.unserved and job.waiting:
                self._world.fail(f"job {job.id} uses {uses}, which are not ready, and stands in line")


def _look(state: State, job: Job) -> Sign:
    spec = unpack_spec(job.spec)
    live = [state.attempts[uid] for uid in state.live_of.get(job.id, ())]
    ready = Counter(
        one.index // job.group_size
        for one in live
        if one.started
        and one.phase in (Phase.ACCEPTED, Phase.RUNNING)
        and not one.cancel
        and state.tasks[job.id, one.index].current == one.uid
        and not state.tasks[job.id, one.index].leaving_ms
        and (one.health or _unsaid(state, job, one)) == "ready"
    )
    # Of a service with several nodes all members of a group have to be.
    whole = job.group_size in ready.values()
    return Sign(job.id, (job.name, f"{job.name}@{job.user}"), job.user, tuple(spec.share), whole)


def _unsaid(state: State, job: Job, attempt: Attempt) -> str:
    """What a replica is of which nothing was said: by its own revision it may have checks."""
    health = unpack_spec(spec_of(state, job, attempt.revision)).health_check
    return "ready" if member_health(health, attempt.index % job.group_size) is None else ""


def _is_served(signs: Iterable[Sign], user: str, uses: Iterable[str]) -> bool:
    return all(_is_ready([sign for sign in signs if sign.is_for(user)], user, name) for name in uses)


def _is_ready(signs: Sequence[Sign], user: str, name: str) -> bool:
    named = [sign for sign in signs if sign.id == name] or [
        sign for sign in signs if name == sign.names[1] or (name == sign.names[0] and sign.user == user)
    ]
    return len(named) == 1 and named[0].ready
