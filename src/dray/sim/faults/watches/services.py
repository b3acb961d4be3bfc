"""What must hold of services: replicas go on, rest as long as they must and no longer, and only those count as ready
that are well by the word of their own worker.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.state.events import CancelRequested, Fact, RequeueRequested
from dray.core.lifecycle.state.service_events import HealthChanged, ServiceScaled
from dray.core.lifecycle.state.state import State, TaskKey
from dray.core.lifecycle.tasks.replicas import ready_replicas
from dray.core.model.records.records import Attempt, Job, JobState, Phase, Task
from dray.core.model.specs.spec import unpack_spec
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runs import Runs
from dray.sim.faults.world.world import World

# Hub time gains a moment at each restart.
SLACK_MS = 2000
GOING = (Phase.ACCEPTED, Phase.RUNNING)
# A replica is over for good by a stop, or because it never found a place.
STOPPED = (JobState.KILLED, JobState.UNSCHEDULABLE)


class Rest(NamedTuple):
    """For how long a replica rested, and until when."""

    pause_ms: int
    again_ms: int


class ServiceWatch:
    """Watches the services of one site through all its hubs. `said_well`: of what a worker said that it is well."""

    def __init__(self, world: World, runs: Runs) -> None:
        self._world, self._runs = world, runs
        self.said_well: dict[tuple[str, str], None] = {}
        self._rests: dict[TaskKey, Rest] = {}
        self._open: dict[tuple[int, str], set[int]] = {}
        self._ills: dict[str, int] = {}
        self._doomed: dict[str, None] = {}
        self._seen: dict[str, None] = {}
        self._excused: dict[str, None] = {}

    def rewind(self) -> None:
        """The hub was restored: what it counted since is forgotten there, and so it is here."""
        self._rests.clear()
        self._open.clear()
        self._excused |= self._seen

    # --- facts --------------------------------------------------------------------------------------------------------

    def logged(self, life: HubLife, facts: list[Fact]) -> None:
        """A change that is recorded has happened."""
        state = life.state
        touched = [fact.job_id for fact in facts if isinstance(fact, (ServiceScaled, CancelRequested))]
        for fact in facts:
            if isinstance(fact, RequeueRequested):
                for key in [key for key in self._rests if key[0] == fact.job_id]:
                    del self._rests[key]
            elif isinstance(fact, ServiceScaled) and touched.count(fact.job_id) == 1:
                self._check_scale(life, fact)
            elif isinstance(fact, CancelRequested) and fact.index < 0:
                job = state.jobs.get(fact.job_id)
                if job is not None and job.service and not job.state.final:
                    self._world.fail(f"service {job.id} was stopped, and goes on: {job}")
            elif isinstance(fact, HealthChanged):
                self._check_health(state, fact)

    def _check_scale(self, life: HubLife, fact: ServiceScaled) -> None:
        job = life.state.jobs.get(fact.job_id)
        if job is None or job.state.final:
            return
        now = _open_replicas(life.state, job)
        if len(now) != fact.replicas:
            self._world.fail(f"service {job.id} was scaled to {fact.replicas} and has replicas {sorted(now)}")
        before = self._open.get((life.number, job.id), now)
        gone, kept = before - now, before & now
        if gone and kept and min(gone) < max(kept):
            self._world.fail(f"of service {job.id} replicas {sorted(gone)} went, and {sorted(kept)} stayed")

    def _check_health(self, state: State, fact: HealthChanged) -> None:
        """What is not well for good is stopped, and nothing else is: of a worker that knows no more, the third time."""
        attempt, uid = state.attempts.get(fact.uid), fact.uid
        self._ills[uid] = 0 if fact.healthy else self._ills.get(uid, 0) + 1
        worker = state.workers.get(fact.worker)
        ill = worker is not None and worker.base and self._ills[uid] >= state.rules.most_ills
        if not fact.live or ill:
            self._doomed[uid] = None
            lives = attempt is not None and attempt.phase.live and not attempt.cancel
            if lives and uid not in self._excused:
                self._world.fail(f"replica {attempt} is not well for good, and was not asked to stop")

    # --- what is committed --------------------------------------------------------------------------------------------

    def committed(self, life: HubLife, touched: list[Attempt]) -> None:
        """Looks at what a turn has touched of services."""
        state = life.state
        for attempt in touched:
            if state.jobs[attempt.job_id].service:
                self._look_at(state, attempt)
        for job_id in state.services:
            if job_id not in state.touched.jobs:
                continue
            job = state.jobs[job_id]
            for index in range(job.cursor):
                task = state.tasks.get((job_id, index))
                if task is not None:
                    self._check_task(state, task)
            self._check_ready(state, job)
            self._open[life.number, job_id] = _open_replicas(state, job)

    def _look_at(self, state: State, attempt: Attempt) -> None:
        task, rules = state.tasks.get((attempt.job_id, attempt.index)), state.rules
        fresh = attempt.uid not in self._seen
        self._seen[attempt.uid] = None
        if fresh and task is not None and task.current == attempt.uid and task.restarts:
            pause_ms = min(rules.restart_ms << (task.restarts - 1), rules.longest_restart_ms)
            if attempt.assigned_ms < task.ends_ms[-1] + pause_ms:
                self._world.fail(f"replica {attempt} was placed before it had rested: {task}")
        unfounded = attempt.cancel == "unhealthy" and attempt.uid not in self._doomed
        if unfounded and attempt.uid not in self._excused:
            self._world.fail(f"replica {attempt} is stopped as not well, which nobody said")

    def _check_task(self, state: State, task: Task) -> None:
        name = f"replica {task.job_id}/{task.index}"
        if task.state.final and task.state not in STOPPED:
            self._world.fail(f"{name} of a service has ended: {task}")
        if task.failures or task.losses:
            self._world.fail(f"{name} is charged for its ends: {task}")
        key = (task.job_id, task.index)
        before = self._rests.get(key)
        if not task.again_ms or (before is not None and before.again_ms == task.again_ms):
            return
        rules, rest = state.rules, Rest(task.again_ms - task.ends_ms[-1], task.again_ms)
        self._rests[key] = rest
        steps = [rules.restart_ms << step for step in range(9)]
        allowed = [min(2 * before.pause_ms, rules.longest_restart_ms)] if before is not None else steps
        if before is None:
            allowed.append(rules.longest_restart_ms)
        if self._ran_long(state, task):
            allowed.append(rules.restart_ms)
        if rest.pause_ms not in allowed:
            self._world.fail(f"{name} rests for {rest.pause_ms} ms after {before}: {task}")
        spread_ms = task.ends_ms[-1] - task.ends_ms[0]
        often = len(task.ends_ms) == rules.loop_ends and spread_ms <= rules.loop_window_ms
        if often and not task.looping:
            self._world.fail(f"{name} keeps ending, and is not said to: {task}")

    def _ran_long(self, state: State, task: Task) -> bool:
        attempt = state.attempts.get(task.last_uid)
        return attempt is not None and task.ends_ms[-1] - attempt.started_ms >= state.rules.well_ms - SLACK_MS

    def _check_ready(self, state: State, job: Job) -> None:
        """Only current attempts that run, that nobody stops, and whose worker says that they are well."""
        checked = unpack_spec(job.spec).health_check is not None
        for attempt in ready_replicas(state, job):
            task = state.tasks[job.id, attempt.index]
            going = attempt.phase in GOING and attempt.started and not attempt.cancel
            if task.current != attempt.uid or not going:
                self._world.fail(f"{attempt} counts as ready, its task is {task}")
            names = ((attempt.worker, attempt.uid), (attempt.worker, state.spell(attempt)))
            if checked and not any(name in self.said_well for name in names):
                self._world.fail(f"{attempt} counts as ready, and its worker never said so")

    def settle(self, job: Job) -> None:
        """A stopped service has no process left."""
        if job.state not in STOPPED:
            self._world.fail(f"service {job.id} ended as {job.state}")
        for index in range(job.total):
            name = f"{job.id}/{index}" if job.spelled(index) >= 0 else job.id
            left = [run for run in self._runs.of_task.get(name, ()) if run.ended_ms < 0 and not run.stranger]
            if left:
                self._world.fail(f"service {job.id} was stopped, and {left} go on")


def _open_replicas(state: State, job: Job) -> set[int]:
    """The replicas that a service is to have."""
    found = set()
    for index in range(job.total):
        task = state.tasks.get((job.id, index))
        untouched = task is None and index >= job.cursor and not job.rest.final
        if untouched or (task is not None and not task.state.final):
            found.add(index)
    return found
