"""What must hold of services: replicas go on, rest as long as they must and no longer, only those count as ready that
are well by the word of their own worker, and where some are replaced by others enough stay ready. A replica of several
nodes is a group: looked at as one, by the first of its tasks, and ready only with all its members.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from dray.core.lifecycle.holding import groups, rollouts
from dray.core.lifecycle.services.steps import decide
from dray.core.lifecycle.state.events import (
    AttemptEnded,
    AttemptRevoked,
    AttemptsLost,
    CancelRequested,
    Fact,
    HoldChanged,
    LimitPassed,
    PlanDecided,
    RequeueRequested,
    WorkerRegistered,
    WorkerSilent,
)
from dray.core.lifecycle.state.service_events import (
    HealthChanged,
    RolloutStepped,
    ServiceScaled,
    ServiceUpdated,
    UpdateAbandoned,
)
from dray.core.lifecycle.state.state import NEVER, State, TaskKey
from dray.core.lifecycle.tasks.replicas import ready_replicas, ready_since_ms, wanted
from dray.core.model.records.records import Attempt, Job, JobState, Phase, Task
from dray.core.model.specs.health import member_health
from dray.core.model.specs.spec import unpack_spec
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runs import Runs
from dray.sim.faults.world.network import Message
from dray.sim.faults.world.world import World

# Hub time gains a moment at each restart.
SLACK_MS = 2000
GOING = (Phase.ACCEPTED, Phase.RUNNING)
# What may take a replica's readiness away, whatever a step does.
DISTURBING = (
    HealthChanged,
    AttemptEnded,
    AttemptsLost,
    AttemptRevoked,
    WorkerSilent,
    WorkerRegistered,
    CancelRequested,
    RequeueRequested,
    LimitPassed,
)
STEPS = (ServiceUpdated, UpdateAbandoned, ServiceScaled, HoldChanged)
# A replica is over for good by a stop, or because it never found a place.
STOPPED = (JobState.KILLED, JobState.UNSCHEDULABLE)


class Rest(NamedTuple):
    """For how long a replica rested, until when, after how many ends and by which attempt."""

    pause_ms: int
    again_ms: int
    restarts: int
    uid: str


class ServiceWatch:
    """Watches the services of one site through all its hubs. `said_well`: of what a worker said that it is well."""

    def __init__(self, world: World, runs: Runs) -> None:
        self._world, self._runs = world, runs
        self.said_well: dict[tuple[str, str], None] = {}
        self._rests: dict[TaskKey, Rest] = {}
        self._ills: dict[str, int] = {}
        self._doomed: dict[str, None] = {}
        self._seen: dict[str, None] = {}
        self._excused: dict[str, None] = {}
        self._updated: dict[str, None] = {}
        self._commands: dict[tuple[str, int], list[str]] = {}
        self._stepped_ms: dict[str, int] = {}
        self._ready: dict[tuple[int, str], dict[str, None]] = {}
        self._stable: dict[tuple[int, str], int] = {}
        self._sizes: dict[tuple[int, str], int] = {}
        self._revision: dict[str, int] = {}
        self._drains: dict[str, float] = {}
        self._well_ms: dict[tuple[int, str], int] = {}
        self._lost: dict[str, None] = {}
        self._stopped: dict[str, None] = {}
        self._staying_ms: dict[str, int] = {}

    def rewind(self) -> None:
        """The hub was restored: what it counted since is forgotten there, and so it is here."""
        self._rests.clear()
        self._commands.clear()
        self._stepped_ms.clear()
        self._revision.clear()
        self._staying_ms.clear()
        self._excused |= self._seen

    # --- facts --------------------------------------------------------------------------------------------------------

    def logged(self, life: HubLife, facts: list[Fact]) -> None:
        """A change that is recorded has happened."""
        state = life.state
        sizing = (ServiceScaled, CancelRequested, ServiceUpdated)
        touched = [fact.job_id for fact in facts if isinstance(fact, sizing)]
        self._check_rollouts(life, facts)
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
        if job.aim >= 0:
            if job.aim != fact.replicas:
                self._world.fail(f"service {job.id} was scaled to {fact.replicas}, and is to have {job.aim}")
            return
        now = _open_replicas(life.state, job)
        if len(now) != fact.replicas:
            self._world.fail(f"service {job.id} was scaled to {fact.replicas} and has replicas {sorted(now)}")

    # --- replacements -------------------------------------------------------------------------------------------------

    def sent(self, state: State, attempt: Attempt, spec: Message) -> None:
        """A worker gets the spec of the revision that its replica is of, as it was when that began."""
        command = self._commands.setdefault((attempt.job_id, attempt.revision), spec["command"])
        if attempt.job_id in self._updated and command != spec["command"]:
            self._world.fail(f"{attempt} was sent {spec['command']}, others of its revision {command}")

    def _check_rollouts(self, life: HubLife, facts: list[Fact]) -> None:
        """Who was ready before a turn in which a step was taken, and who is after it."""
        state, disturbed = life.state, any(isinstance(fact, DISTURBING) for fact in facts)
        disturbed |= any(isinstance(fact, PlanDecided) and bool(fact.preemptions) for fact in facts)
        for fact in facts:
            if isinstance(fact, AttemptsLost):
                self._lost |= dict.fromkeys(fact.uids)
            if isinstance(fact, ServiceUpdated):
                self._updated[fact.job_id] = None
            if isinstance(fact, UpdateAbandoned):
                self._world.counts["service: update given up"] += 1
                self._check_abandoned(state, fact)
            if isinstance(fact, STEPS):
                self._stepped_ms[fact.job_id] = state.now_ms
        for job_id in {fact.job_id for fact in facts if isinstance(fact, RolloutStepped)}:
            job = state.jobs.get(job_id)
            if job is not None and not job.state.final:
                size = _size(state, job)
                if size != self._sizes.get((life.number, job_id), size):
                    self._stepped_ms[job_id] = state.now_ms
                self._check_whole(life, job)
                if not disturbed:
                    self._check_step(life, job)

    def _check_step(self, life: HubLife, job: Job) -> None:
        state, rules = life.state, unpack_spec(job.spec).replacing
        ready, known = self._ready_now(state, job), self._ready.get((life.number, job.id), {})
        self._check_scaled_away(state, job, known, ready)
        before = [uid for uid in known if not _is_scaled_away(state, state.attempts[uid])]
        least, most = wanted(job) - rules.max_unavailable, wanted(job) + rules.max_surge
        gone = [uid for uid in before if uid not in ready]
        settled = [uid for uid in ready if self._is_settled(life, job, uid, rules.settle_s * 1000)]
        old = [uid for uid in ready if self._is_old(state, job, state.attempts[uid])]
        old_gone = [uid for uid in gone if self._is_old(state, job, state.attempts[uid])]
        few = len(ready) < min(least, len(before))
        self._world.counts["service: replica leaves"] += len(old_gone)
        # Of what happened before a hub began the records know, and whoever watches it does not.
        knows = self._world.now_ms - life.began_ms > rules.settle_s * 1000
        if gone and (few or (knows and old_gone and len(settled) + len(old) < least)):
            self._world.fail(
                f"of service {job.id} {gone} went; ready are {list(ready)}, {len(settled)} settled and {len(old)} old "
                f"ones, of {least}: {job}"
            )
        size = _size(state, job)
        if size > max(most, self._sizes.get((life.number, job.id), most)):
            self._world.fail(f"service {job.id} has {size} replicas, {most} are the most: {job}")

    def _check_scaled_away(self, state: State, job: Job, known: Iterable[str], ready: Container[str]) -> None:
        """Of those that are one too many nobody goes who serves while another stays that does not."""
        gone = [uid for uid in known if uid not in ready and _is_scaled_away(state, state.attempts[uid])]
        if not gone:
            return
        self._world.counts["service: ready replica scaled away"] += len(gone)
        idle = [
            task
            for task in _standing(state, job)
            if task.revision == job.revision
            and not task.leaving_ms
            and ready_since_ms(state, job, task.index) < 0
        ]
        if idle:
            self._world.fail(f"of service {job.id} {gone} went, which were ready, and {idle} stay: {job}")

    def _check_whole(self, life: HubLife, job: Job) -> None:
        """A revision is said to be whole when there are no others, and as many as there shall be are ready."""
        state = life.state
        if job.stable == self._stable.get((life.number, job.id), job.stable):
            return
        self._world.counts["service: update whole"] += 1
        standing = _standing(state, job)
        others = [task for task in standing if task.revision != job.revision and not task.leaving_ms]
        # Once it is whole, the same step may let one go whose worker is drained.
        going = [
            task
            for task in standing
            if task.revision == job.revision
            and task.leaving_ms == state.now_ms
            and any(_is_drained(state, one) for one in groups.members(state, job, task.index))
        ]
        if others or len(ready_replicas(state, job)) + len(going) < wanted(job):
            self._world.fail(f"service {job.id} is said to be whole, beside {others}: {job}")

    def _is_settled(self, life: HubLife, job: Job, uid: str, settle_ms: float) -> bool:
        state, attempt = life.state, life.state.attempts[uid]
        since_ms = max(self._well_ms.get((life.number, uid), state.now_ms), attempt.started_ms)
        return not self._is_old(state, job, attempt) and state.now_ms - since_ms >= settle_ms - SLACK_MS // 2

    def _is_old(self, state: State, job: Job, attempt: Attempt) -> bool:
        group = groups.members(state, job, attempt.index) or [attempt]
        # The attempt goes by the number of a restart once that is whole, its replica does not.
        revision = state.tasks[job.id, attempt.index].revision
        return revision != job.revision or any(_is_drained(state, one) for one in group)

    def _check_abandoned(self, state: State, fact: UpdateAbandoned) -> None:
        """Only what keeps ending, or has come no further for long, is given up by itself; and that says why."""
        job = state.jobs.get(fact.job_id)
        known = self._revision.get(fact.job_id)
        if job is None or known is None or fact.user:
            return
        rules = unpack_spec(rollouts.spec_of(state, job, known)).replacing
        late = state.now_ms - self._stepped_ms.get(job.id, 0) >= rules.ready_timeout_s * 1000 - SLACK_MS
        looping = any(task.looping for task in _standing(state, job) if task.revision == known)
        ended = "keeps ending" in fact.why
        if not fact.why or not (late or looping or ended):
            self._world.fail(f"service {job.id} was rolled back for no reason: {fact}, {job}")
        if job.revision == known and not job.state.final:
            self._world.fail(f"service {job.id} was to go back, and stays at revision {known}: {job}")

    def _check_leaving(self, life: HubLife, attempt: Attempt) -> None:
        """Who is replaced gets no more requests first, for a while, and does not start again."""
        state, uid = life.state, attempt.uid
        job, task = state.jobs[attempt.job_id], state.tasks.get((attempt.job_id, attempt.index))
        if task is None or task.last_uid != uid or job.cancelled:
            return
        if task.leaving_ms and attempt.assigned_ms > task.leaving_ms:
            self._world.fail(f"{attempt} was placed though its replica leaves: {task}")
        if attempt.cancel != "user" or uid in self._stopped:
            return
        self._stopped[uid] = None
        drain_ms = min(unpack_spec(job.spec).replacing.drain_s * 1000, self._drains.get(job.id, 0))
        served = uid in self._ready.get((life.number, job.id), ()) and _goes_on(state, job, attempt)
        served = served or task.leaving_ms > 0
        since_ms = task.leaving_ms or attempt.cancel_ms
        if (
            served
            and task.error.startswith(("another replica", "scaled down"))
            and attempt.cancel_ms - since_ms < drain_ms
        ):
            self._world.fail(f"{attempt} was asked to stop while it had requests: {task}")

    def _note_rollout(self, life: HubLife, job: Job) -> None:
        """Remember how a service stands after a turn."""
        state, key = life.state, (life.number, job.id)
        step = decide(state, job, state.now_ms)
        if (step.due or step.next_ms < NEVER) and job.id not in state.rollouts:
            self._world.fail(
                f"lost wake-up: nobody looks at service {job.id} for its next step, {step}: {job}"
            )
        ready = self._ready_now(state, job)
        for uid in ready:
            self._well_ms.setdefault((life.number, uid), state.now_ms)
            for member in groups.members(state, job, state.attempts[uid].index):
                self._check_move(state, job, member)
        for attempt in (state.attempts[uid] for uid in state.live_of.get(job.id, ())):
            if attempt.uid not in ready:
                self._well_ms.pop((life.number, attempt.uid), None)
        size = _size(state, job)
        self._ready[key], self._stable[key], self._sizes[key] = ready, job.stable, size
        self._revision[job.id] = job.revision
        self._drains[job.id] = unpack_spec(job.spec).replacing.drain_s * 1000

    def _check_move(self, state: State, job: Job, attempt: Attempt) -> None:
        """A replica on a worker that is drained is being replaced, where another may be started beside it."""
        worker = state.workers[attempt.worker]
        if not unpack_spec(job.spec).replacing.max_surge:
            return
        if not worker.draining or worker.faults or job.aim >= 0 or job.state.final:
            self._staying_ms.pop(attempt.uid, None)
        elif state.now_ms - self._staying_ms.setdefault(attempt.uid, state.now_ms) > SLACK_MS:
            self._world.fail(f"{attempt} stays on a worker that is drained, and nobody replaces it: {job}")

    def _ready_now(self, state: State, job: Job) -> dict[str, None]:
        return dict.fromkeys(attempt.uid for attempt in ready_replicas(state, job))

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
                self._check_leaving(life, attempt)
        for job_id in state.services:
            job = state.jobs[job_id]
            self._note_rollout(life, job)
            if job_id not in state.touched.jobs:
                continue
            for index in range(job.cursor):
                task = state.tasks.get((job_id, index))
                if task is not None:
                    self._check_task(state, task)
            self._check_ready(state, job)

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
        rules = state.rules
        rest = Rest(task.again_ms - task.ends_ms[-1], task.again_ms, task.restarts, task.last_uid)
        self._rests[key] = rest
        if before is not None and (before.uid == rest.uid or rest.restarts not in (1, before.restarts + 1)):
            self._world.fail(f"{name} counts one end as several, after {before}: {task}")
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
        ready = ready_replicas(state, job)
        for first in ready:
            self._check_together(state, job, first)
        for attempt in (one for first in ready for one in groups.members(state, job, first.index)):
            health = unpack_spec(rollouts.spec_of(state, job, attempt.revision)).health_check
            checked = member_health(health, attempt.index % job.group_size) is not None
            task = state.tasks[job.id, attempt.index]
            going = attempt.phase in GOING and attempt.started and not (attempt.cancel or task.leaving_ms)
            if task.current != attempt.uid or not going:
                self._world.fail(f"{attempt} counts as ready, its task is {task}")
            names = ((attempt.worker, attempt.uid), (attempt.worker, state.spell(attempt)))
            if checked and not any(name in self.said_well for name in names):
                self._world.fail(f"{attempt} counts as ready, and its worker never said so")

    def _check_together(self, state: State, job: Job, first: Attempt) -> None:
        """Whoever is sent requests is the first of a group that runs whole, in one generation."""
        group = groups.members(state, job, first.index)
        tries = {(member.generation, member.revision, member.go) for member in group}
        if group[0] is not first or len(group) != job.group_size or len(tries) != 1:
            self._world.fail(f"{first} is sent requests, and its group is {group}")
        if job.gang and not first.go:
            self._world.fail(f"{first} is sent requests, and its group was never told to start")

    def settle(self, life: HubLife, job: Job) -> None:
        """A stopped service has no process left, but for what a machine has that nobody hears of any more: also one
        whose name another has taken.
        """
        if job.state not in STOPPED:
            self._world.fail(f"service {job.id} ended as {job.state}")
        for index in range(job.total):
            name = f"{job.id}/{index}" if job.spelled(index) >= 0 else job.id
            going = (run for run in self._runs.of_task.get(name, ()) if run.ended_ms < 0 and not run.stranger)
            left = [run for run in going if run.uid not in self._lost and life.hears(run.worker, run.machine)]
            if left:
                self._world.fail(f"service {job.id} was stopped, and {left} go on")


def _goes_on(state: State, job: Job, attempt: Attempt) -> bool:
    """Whether a replica that was ready is so but for being asked to stop: one of its group may not be well any more."""
    known = (state.attempts[uid] for uid in state.live_of.get(job.id, ()))
    group = [one for one in known if job.gang and one.generation == attempt.generation] or [attempt]
    well = all(one.health != "unhealthy" and not state.workers[one.worker].silent for one in group)
    return well and len(group) == job.group_size


def _is_drained(state: State, attempt: Attempt | None) -> bool:
    """Whether a replica is to go because its worker is drained."""
    if attempt is None:
        return False
    worker = state.workers[attempt.worker]
    return worker.draining and not worker.faults


def _is_scaled_away(state: State, attempt: Attempt) -> bool:
    """Whether a replica is one too many since somebody said how many there shall be."""
    return state.tasks[attempt.job_id, attempt.index].error.startswith("scaled down")


def _standing(state: State, job: Job) -> list[Task]:
    """Replicas that were placed and have not ended."""
    found = (state.tasks.get((job.id, index)) for index in range(0, job.cursor, job.group_size))
    return [task for task in found if task is not None and not task.state.final]


def _size(state: State, job: Job) -> int:
    """How many replicas there are, without those that leave."""
    return job.untouched // job.group_size + sum(1 for task in _standing(state, job) if not task.leaving_ms)


def _open_replicas(state: State, job: Job) -> set[int]:
    """The replicas that a service is to have."""
    found = set()
    for index in range(0, job.total, job.group_size):
        task = state.tasks.get((job.id, index))
        untouched = task is None and index >= job.cursor and not job.rest.final
        if untouched or (task is not None and not task.state.final):
            found.add(index)
    return found
