"""State rebuilt from rows, and entities let go once their rows are written.

Recovery = rows + fold of the log's tail through the same `apply`; here are the caches around it. Nothing a worker
said lives through a restart: every presence starts empty and counts as heard at the start.
"""

from __future__ import annotations

from collections.abc import Iterable

from dray.core.lifecycle.counts import counting
from dray.core.lifecycle.happenings.workers import watch_drain, watch_emptying
from dray.core.lifecycle.holding import attempts, dependencies, groups, moves, receipts, rollouts, using
from dray.core.lifecycle.moving import rules as moving
from dray.core.lifecycle.providers import endings, launches
from dray.core.lifecycle.providers import health as provider_health
from dray.core.lifecycle.providers import records as providers
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.parties import Tally
from dray.core.lifecycle.state.state import Counters, State, Touched
from dray.core.lifecycle.tasks import calls, deadlines, gangs, jobs, replicas, speeds
from dray.core.lifecycle.timers import unanswered
from dray.core.model.policies.policy import unpack_policy
from dray.core.model.records.ledger import PolicyRecord, unpack_record
from dray.core.model.records.records import Attempt, Job, Phase, Task
from dray.core.model.records.worker import Presence, Worker
from dray.core.model.records.workload import WorkloadRecord
from dray.core.model.specs.resources import asks_of_packed

Faults = list[tuple[str, Exception]]
"""What could not be taken in, and why: one odd value must not keep all the others from being loaded. Who gives no list
wants the error itself."""


def _set_aside(faults: Faults | None, what: str, error: Exception) -> None:
    if faults is None:
        raise error
    faults.append((what, error))


def read_ledger(
    state: State, rows: Iterable[tuple[str, str, bytes | None]], faults: Faults | None = None
) -> None:
    """Fill an empty state's ledger, before the jobs that the policy has a say in."""
    for kind, key, packed in rows:
        try:
            if packed is not None:
                record = state.ledger[kind, key] = unpack_record(kind, packed)
                if isinstance(record, WorkloadRecord):
                    state.workloads[key] = Tally(record)
        except Exception as error:  # noqa: BLE001 - whatever is odd about a stored value, it is set aside
            _set_aside(faults, f"the {kind} {key} of the ledger", error)
    in_force = state.ledger.get(("policy", ""))
    try:
        if isinstance(in_force, PolicyRecord):
            state.policy = unpack_policy(in_force.policy)
    except Exception as error:  # noqa: BLE001 - as above
        _set_aside(faults, "the policy, in place of which the default holds", error)
    state.parties.begin(state.policy)
    state.backlog.eager = state.policy.preempts


def load(
    state: State,
    counters: Counters,
    rows: tuple[Iterable[Job], Iterable[Task], Iterable[Attempt], Iterable[Worker]],
    faults: Faults | None = None,
) -> None:
    """Fill an empty state from rows. A job that cannot be taken in stays in its row, and nothing of it is touched."""
    job_rows, task_rows, attempt_rows, worker_rows = rows
    state.counters = counters
    for worker in worker_rows:
        state.workers[worker.id] = worker
        state.own(worker)
        state.presence[worker.id] = Presence()
        state.touch_worker(worker.id)
    for job in job_rows:
        job.live = 0
        try:
            asks = asks_of_packed(job.spec)
        except Exception as error:  # noqa: BLE001 - as above
            _set_aside(faults, f"job {job.id}", error)
            continue
        job.shape = state.shapes.take(asks)
        state.jobs[job.id] = job
        counting.recall(state, job)
        if job.service:
            state.services[job.id] = None
        state.join_party(job)
        dependencies.register(state, job)
        using.recall(state, job)
        if job.untouched:
            state.queue_up(job)
        state.backlog.count(job.queue, job.waiting)
    providers.recall(state)
    rollouts.recall(state)
    live = [attempt for attempt in attempt_rows if attempt.job_id in state.jobs]
    wanted = {(attempt.job_id, attempt.index) for attempt in live}
    for task in task_rows:
        if task.job_id in state.jobs:
            _load_task(state, task, wanted)
    _move_breaks(state)
    for attempt in live:
        recall(state, attempt)
    receipts.recall(state)
    moves.recall(state)


def _move_breaks(state: State) -> None:
    """In older rows it is the job that knows how a generation broke, now the first task of a group."""
    for job in state.jobs.values():
        if job.broken and (first := state.tasks.get((job.id, 0))) is not None:
            first.broken, first.breaker = job.broken, job.breaker
            job.broken = job.breaker = ""
            state.touched.jobs[job.id] = state.touched.tasks[job.id, 0] = None


def _load_task(state: State, task: Task, wanted: set[tuple[str, int]]) -> None:
    job = state.jobs[task.job_id]
    if task.state.final and task.index < job.cursor and (task.job_id, task.index) not in wanted:
        return
    state.tasks[task.job_id, task.index] = task
    if task.queued:
        state.requeued_of.setdefault(job.id, {})[task.index] = None
        state.queue_up(job, task.index)


def recall(state: State, attempt: Attempt) -> None:
    """Take an attempt back into memory: a live one, or a lost one that may still be adopted."""
    if attempt.lane and not attempt.phase.live:
        return
    attempt.shape = rollouts.shape_of(state, state.jobs[attempt.job_id], attempt.revision)
    state.attempts[attempt.uid] = attempt
    if not attempt.lane:
        state.newest[attempt.worker, attempt.job_id, attempt.index] = attempt.uid
    if attempt.phase.live:
        attempts.hold(state, attempt, 1)


def wake_up(
    state: State, clock: Clock, uid_key: bytes = b"", runs: Iterable[tuple[str, int, int]] = ()
) -> None:
    """Start the clocks after a load: nobody is connected, everybody was heard just now.

    `uid_key` goes into the uids that are drawn from here on; `runs` are what rows tell of earlier run times.
    """
    state.started_ms, state.uid_key = clock.now_ms, uid_key
    for name, span_ms, limit_ms in runs:
        state.experience.spans.learn(name, span_ms, limit_ms)
    state.polls.clear()
    state.timers.clear()
    for worker_id in state.workers:
        state.presence[worker_id] = Presence(seen_ms=clock.now_ms)
        state.touch_worker(worker_id)
        presence = state.presence[worker_id]
        presence.loss_timer_ms = clock.now_ms + state.rules.suspect_ms
        state.set_timer(presence.loss_timer_ms, "silence", worker_id)
        watch_drain(state, state.workers[worker_id], clock)
        watch_emptying(state, state.workers[worker_id])
        if state.workers[worker_id].trial:
            state.set_timer(clock.now_ms, "trial", worker_id)
    provider_health.recall(state)
    state.launch_look_ms, state.launch_due = 0, False
    launches.recall(state)
    endings.recall(state, clock)
    moving.recall_timers(state, state.moving.values(), clock.now_ms)
    for job in state.jobs.values():
        state.waits.awake(job, clock.now_ms)
        jobs.arm_wait(state, job)
        jobs.arm_idle(state, job)
    deadlines.recall(state, clock)
    speeds.recall(state)
    state.rollouts.clear()
    for job_id in state.services:
        replicas.arm_rests(state, state.jobs[job_id])
        rollouts.watch(state, job_id, clock.now_ms)
    for tally in state.workloads.values():
        tally.look_ms = 0
        counting.watch_purse(state, tally)
    for attempt in state.attempts.values():
        if attempt.lane and attempt.phase.live:
            state.hungry[attempt.uid] = None
            for index in calls.cuts_of(attempt):
                state.set_timer(clock.now_ms + state.rules.stop_again_ms, "cut", f"{attempt.uid} {index}")
        gangs.arm_go(state, attempt, clock.now_ms + state.rules.resend_ms[0])
        if unanswered(attempt):
            state.set_timer(clock.now_ms + state.rules.accept_ms, "accept", attempt.uid)
        elif attempt.phase is Phase.STOPPING:
            # Asked once when its worker registers; that request may be lost like any other.
            gone_ms = max(clock.now_ms, attempt.cancel_ms + round(attempt.grace_s * 1000))
            state.set_timer(gone_ms + state.rules.stop_again_ms, "stop", attempt.uid)
        elif (
            attempt.phase.live and attempt.started and attempt.limit_ms and state.workers[attempt.worker].base
        ):
            due_ms = attempt.started_ms + attempt.limit_ms + state.rules.limit_margin_ms
            state.set_timer(due_ms, "limit", attempt.uid)


def take_touched(state: State) -> Touched:
    """Hand over what changed since the rows were last written; from here on it is gathered anew."""
    touched, state.touched = state.touched, Touched()
    return touched


def release(
    state: State, job_ids: Iterable[str], task_keys: Iterable[tuple[str, int]], uids: Iterable[str]
) -> None:
    """Let ended entities go whose rows are written. Live ones stay, and so does what they hang on."""
    for uid in uids:
        attempt = state.attempts.get(uid)
        if attempt is None or groups.is_member(state, attempt):
            continue
        if not attempt.phase.live and not attempts.adoptable(state, attempt):
            del state.attempts[uid]
            place = (attempt.worker, attempt.job_id, attempt.index)
            if state.newest.get(place) == uid:
                del state.newest[place]
    for key in task_keys:
        task = state.tasks.get(key)
        job = state.jobs.get(key[0])
        if (
            task is not None
            and task.state.final
            and (job is None or key[1] < job.cursor)
            and not _stopping(state, task)
        ):
            del state.tasks[key]
    for job_id in job_ids:
        job = state.jobs.get(job_id)
        if job is not None and job.state.final and job_id not in state.live_of:
            _release_job(state, job)


def _stopping(state: State, task: Task) -> bool:
    last = state.attempts.get(task.last_uid)
    return last is not None and last.phase.live and not last.lane


def _release_job(state: State, job: Job) -> None:
    for key in list(_holes(state, job)):
        del state.tasks[key]
    del state.jobs[job.id]
    state.waits.forget(job.id)
    counting.forget(state, job)
    state.services.pop(job.id, None)
    state.experience.forget_job(job.id)
    state.release_shape(job.shape)
    rollouts.release(state, job)


def _holes(state: State, job: Job) -> Iterable[tuple[str, int]]:
    if job.holes:
        for index in range(job.cursor, job.total):
            if (job.id, index) in state.tasks:
                yield job.id, index
