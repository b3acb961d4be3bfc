"""Jobs and their tasks: queued, placed, queued again, ended.

What the end of an attempt means for its task is concluded in `results`, for a gang in `gangs`, for calls in `calls`;
they end tasks and queue them again by what is here. A task's result is recorded once and never changes. Failures,
losses and preemptions are counted apart: only a failure uses up `retries`, only a loss after user code may have run
uses up `losses`.
"""

from __future__ import annotations

from collections import deque

from dray.core.lifecycle.counts import counting
from dray.core.lifecycle.holding import attempts, dependencies, lanes, lessons, receipts, rollouts, using
from dray.core.lifecycle.holding.attempts import ADOPT, STOP
from dray.core.lifecycle.state.effects import Assign, Cancel, Effect, FeedCalls, Note
from dray.core.lifecycle.state.events import (
    ArrayExtended,
    Clock,
    JobsSubmitted,
    NewJob,
    Placement,
    PlanDecided,
    WaitTimedOut,
)
from dray.core.lifecycle.state.state import State
from dray.core.model.ids import LAST_ATTEMPT, attempt_number, task_id
from dray.core.model.records.records import LANE, OPEN_STATES, Attempt, Job, JobState, Phase, Task
from dray.core.model.records.worker import Worker
from dray.core.model.specs.larger import ask_beyond, learns
from dray.core.model.specs.resources import asks_of_packed
from dray.core.model.specs.spec import TIERS, JobSpec, unpack_spec

_FINAL_ORDER = (
    (JobState.FAILED, "failed"),
    (JobState.WORKER_FAILED, "worker_failed"),
    (JobState.UNSCHEDULABLE, "unschedulable"),
    (JobState.KILLED, "killed"),
)


def submitted(state: State, event: JobsSubmitted, clock: Clock) -> list[Effect]:
    """Queue new jobs. An id that is there already is left alone: the shell has compared the two."""
    notes: list[Effect] = []
    broken: list[tuple[Job, str]] = []
    for new in event.jobs:
        if new.id in state.jobs:
            continue
        job = make_job(state, new, clock)
        state.join_party(job)
        state.jobs[job.id] = job
        using.register(state, job, job.uses)
        counting.join(state, job)
        if job.service:
            state.services[job.id] = None
        state.touched.jobs[job.id] = None
        if job.total:
            state.backlog.count(job.queue, job.total)
        if new.broken:
            broken.append((job, new.broken))
        elif job.barred:
            dependencies.register(state, job)
        elif job.total:
            state.queue_up(job)
        arm_wait(state, job)
        arm_idle(state, job)
        data = {"name": job.name, "user": job.user, "tasks": job.total, "queue": job.queue}
        notes.append(Note("job_submitted", job.id, data=data))
    # Last, when all of the batch are known: one of them may wait for another that ends here.
    for job, why in broken:
        notes += end_waiting(state, job, JobState.KILLED, clock, "dependency", why)
        notes += settle(state, job, clock)
    return notes


def make_job(state: State, new: NewJob, clock: Clock) -> Job:
    """Build the record of a new job; its place in every queue is its number."""
    job = draft_job(state, new, clock)
    job.shape = state.shapes.take(asks_of_packed(job.spec))
    state.counters.next_job += 1
    return job


def draft_job(state: State, new: NewJob, clock: Clock) -> Job:
    """The record that a job would get if it were submitted now; it has no shape yet and changes nothing."""
    spec = unpack_spec(new.spec)
    array = spec.array
    lesson = lessons.find(state, new.user, spec.name, new.spec) if learns(spec) else None
    return Job(
        id=new.id,
        seq=state.counters.next_job,
        user=new.user,
        name=spec.name,
        queue=spec.queue,
        priority=spec.priority,
        tier=spec.job_tier,
        spec=new.spec if lesson is None else ask_beyond(new.spec, lesson.vram_bytes),
        numbered=spec.numbered,
        total=spec.task_count,
        limit=array.limit if array else 0,
        open=bool(array and array.open) or spec.goes_on,
        retries=spec.rules.code,
        losses_allowed=spec.losses,
        timeout_ms=round(spec.scheduling_timeout_s * 1000),
        limit_ms=round(spec.limit_s * 1000),
        lost_after_ms=round(spec.lost_after_s * 1000) or default_lost_after_ms(state, spec),
        waiting_since_ms=clock.now_ms,
        submitted_at_ms=clock.at_ms,
        gang=spec.node_count > 1,
        nodes=spec.node_count if spec.node_count > 1 else 0,
        plugin=spec.plugin,
        template=spec.template_name,
        ranked=spec.priority != TIERS[spec.job_tier].priority,
        expected_ms=round(spec.expected_runtime_s * 1000),
        deadline_ms=spec.deadline_ms,
        held=spec.hold,
        held_by=new.user if spec.hold else "",
        after=new.after,
        calls=bool(spec.function),
        original=b"" if lesson is None else new.spec,
        outgrown_bytes=0 if lesson is None else lesson.vram_bytes,
        outgrown_by="" if lesson is None else lesson.job_id,
        service=spec.goes_on,
        uses=tuple(spec.uses),
        workload=spec.workload,
        objective=spec.packed_objective,
    )


def extended(state: State, event: ArrayExtended, clock: Clock) -> list[Effect]:
    """Give an open array further members, or close it."""
    job = state.jobs.get(event.job_id)
    if job is None or not job.open or job.state.final:
        return []
    was_waiting = job.untouched
    job.total += event.count
    state.backlog.count(job.queue, event.count)
    job.open = not event.close
    state.touched.jobs[job.id] = None
    if job.calls and event.count:
        job.waiting_since_ms = clock.now_ms
    if event.count and not was_waiting:
        job.waiting_since_ms = clock.now_ms
        state.queue_up(job)
        arm_wait(state, job)
        if job.calls:
            lanes.wake_idle(state, job)
    return settle(state, job, clock)


def arm_idle(state: State, job: Job) -> None:
    """Look at an open array of calls when it may have been left: whoever forgets to close one must not keep it."""
    if job.calls and job.open:
        state.set_timer(job.waiting_since_ms + state.rules.open_idle_ms, "idle", job.id)


def join_all(state: State, job: Job, clock: Clock) -> None:
    """Put all that waits of a job in line, which was barred or stood elsewhere; its scheduling timeout starts anew."""
    job.waiting_since_ms = clock.now_ms
    state.queue_all(job)
    arm_wait(state, job)
    if job.calls:
        lanes.wake_idle(state, job)
    state.touched.jobs[job.id] = None


def arm_wait(state: State, job: Job) -> None:
    """Look at the job when its scheduling timeout may have run out; while it is barred the timeout does not run.

    Nor once a service has begun: what is placed again is not given up.
    """
    if job.timeout_ms and job.waiting and not job.barred and not (job.service and job.started_at_ms):
        state.set_timer(job.waiting_since_ms + job.timeout_ms, "wait", job.id)


def planned(state: State, event: PlanDecided, clock: Clock) -> list[Effect]:
    """Fold a plan in. A plan is advice: a placement that no longer holds is dropped."""
    effects: list[Effect] = []
    placed: dict[int, int] = {}
    last, job, whole, until = "", None, True, -1
    for at, placement in enumerate(event.placements):
        if placement.job_id != last or at == until:
            last, until = placement.job_id, -1
            job = state.jobs.get(last)
            whole = job is not None
            if job is not None and job.gang:
                until = at + job.group_size
                whole = _is_whole(state, job, event.placements[at:until])
                job.generation += whole
        if whole and job is not None and (done := place(state, job, placement, clock)):
            effects += done
            placed[job.shape] = placed.get(job.shape, 0) + 1
    for shape, count in placed.items():
        state.experience.learn_placed(state.asks(shape), count)
    return effects


def _is_whole(state: State, job: Job, placements: tuple[Placement, ...]) -> bool:
    """Whether every member of a group can still be taken, each on a worker of its own: if one cannot, none is."""
    workers, group = {placement.worker for placement in placements}, job.group_of(placements[0].index)
    return (
        [placement.index for placement in placements if placement.job_id == job.id] == list(group)
        and _waits(state, job, group)
        and len(workers) == len(group)
        and all("gang" in state.workers[name].features for name in workers if name in state.workers)
        and all(name in state.workers for name in workers)
        and not any(placement.uid in state.attempts for placement in placements)
    )


def _waits(state: State, job: Job, group: range) -> bool:
    """Whether a whole group waits: queued again, or the next one never placed."""
    tasks = [state.tasks.get((job.id, index)) for index in group]
    if any(tasks):
        return all(task is not None and task.queued for task in tasks)
    return job.rest in OPEN_STATES and group[0] == next_index(state, job) and group[-1] < job.total


def place(state: State, job: Job, placement: Placement, clock: Clock) -> list[Effect]:
    """Give one waiting task a new attempt on one worker."""
    uid, index, name, behind = placement.uid, placement.index, placement.worker, placement.behind
    worker = state.workers.get(name)
    if job.barred or worker is None or uid in state.attempts:
        return []
    if behind and not attempts.may_follow(state, job, state.attempts.get(behind), name):
        return []
    if job.calls:
        return _open_lane(state, job, worker, placement, clock)
    task = take_waiting(state, job, index)
    if task is None:
        return []
    attempt = Attempt(
        uid=uid,
        job_id=job.id,
        index=index,
        no=task.attempts + 1,
        fence=attempt_number(uid),
        worker=name,
        shape=job.shape,
        generation=job.generation,
        devices=placement.devices,
        variant=placement.variant,
        assigned_ms=clock.now_ms,
        assigned_at_ms=clock.at_ms,
        limit_ms=max(1000, job.limit_ms - task.used_ms) if job.limit_ms else 0,
        lost_after_ms=job.lost_after_ms,
    )
    if behind:
        # Not above: a call with more than 15 names takes three times as long, and one is made for every task.
        attempt.behind, attempt.fed_ms = behind, clock.now_ms
    attempt.revision = task.revision
    counters, number = state.counters, (attempt.fence & LAST_ATTEMPT) + 1
    counters.next_attempt = max(counters.next_attempt, number)
    task.attempts, task.current, task.last_uid = attempt.no, uid, uid
    task.ahead = False
    served = receipts.close(state, job, "served", clock) if job.id in state.receipts else []
    job.waiting_since_ms = clock.now_ms
    state.attempts[uid] = attempt
    state.newest[name, job.id, index] = uid
    attempts.hold(state, attempt, 1, start=True)
    if not behind and job.id in state.experience.tasks:
        state.leads[uid] = None
    if state.reservations and attempt.limit_ms < job.limit_ms:
        # The pass that placed it reckoned with the whole limit: it leaves more beside a reservation than was seen.
        state.columns.roomier[state.columns.row_of[name]] = None
    _spend_credit(state, worker, uid)
    state.touched.attempts[uid] = None
    arm_accept(state, attempt, worker, clock)
    note = Note("task_assigned", job.id, _spell(job, index), name, {"attempt": attempt.no})
    return [Assign(name, uid), note, *served]


def _open_lane(state: State, job: Job, worker: Worker, placement: Placement, clock: Clock) -> list[Effect]:
    """Hold a place on one worker for the calls of a job; the one it was found for is the first to go through it."""
    index, uid = placement.index, placement.uid
    if index >= job.cursor:
        number = 1 if lanes.take_range(state, job, index, 1) else 0
    else:
        task = take_waiting(state, job, index)
        number = 0 if task is None else task.attempts + 1
        if task is not None:
            task.attempts, task.current, task.last_uid, task.ahead = number, uid, uid, False
            state.touched.tasks[job.id, index] = None
    if not number:
        return []
    lane = Attempt(
        uid=uid,
        job_id=job.id,
        index=LANE,
        no=1,
        fence=attempt_number(uid),
        worker=placement.worker,
        shape=job.shape,
        devices=placement.devices,
        variant=placement.variant,
        assigned_ms=clock.now_ms,
        assigned_at_ms=clock.at_ms,
        limit_ms=job.limit_ms,
        lost_after_ms=job.lost_after_ms,
        calls={index: number},
        fed_ms=clock.now_ms,
    )
    counters = state.counters
    counters.next_attempt = max(counters.next_attempt, (lane.fence & LAST_ATTEMPT) + 1)
    served = receipts.close(state, job, "served", clock) if job.id in state.receipts else []
    job.waiting_since_ms = clock.now_ms
    state.attempts[uid] = lane
    state.hungry[uid] = None
    attempts.hold(state, lane, 1, start=True)
    _spend_credit(state, worker, uid)
    state.spent_on[uid] = state.presence[placement.worker].session
    state.touched.attempts[uid] = None
    arm_accept(state, lane, worker, clock)
    note = Note("lane_opened", job.id, "", placement.worker, {"call": index})
    return [FeedCalls(placement.worker, uid, (index,)), note, *served]


def arm_accept(state: State, attempt: Attempt, worker: Worker, clock: Clock) -> None:
    """Look at a new assignment when it is to be sent again, else when its time to be accepted is over.

    One timer at a time: a look that finds it unanswered asks for the next one.
    """
    waited_ms, rules = clock.now_ms - attempt.assigned_ms, state.rules
    if "resend" in worker.features:
        for delay_ms in rules.resend_ms:
            due_ms = max(delay_ms, waited_ms + attempts.patience_ms(state, clock.now_ms))
            if waited_ms < delay_ms and due_ms < rules.accept_ms:
                state.set_timer(attempt.assigned_ms + due_ms, "resend", attempt.uid)
                return
    state.set_timer(attempt.assigned_ms + rules.accept_ms, "accept", attempt.uid)


def take_waiting(state: State, job: Job, index: int) -> Task | None:
    """Take a task out of the queue: one queued again, or the next one never placed. None where it does not wait."""
    key = (job.id, index)
    task = state.tasks.get(key)
    if task is not None:
        if not task.queued:
            return None
        task.queued = False
        job.requeued -= 1
        state.backlog.count(job.queue, -1)
        if task.last_uid in state.attempts:
            # It was kept in memory in case its worker came back with it; from here on it may be let go.
            state.touched.attempts[task.last_uid] = None
        state.stir(job)
        queued = state.requeued_of[job.id]
        del queued[index]
        if not queued:
            del state.requeued_of[job.id]
        return task
    if job.rest not in OPEN_STATES or index != (next_index(state, job) if job.holes else job.cursor):
        return None
    if job.holes:
        for hole in range(job.cursor, index):
            # Ended by itself and kept to be passed over: now its row is all that is needed.
            state.touched.tasks[job.id, hole] = None
        job.holes -= index - job.cursor
    job.cursor = index + 1
    state.leave(job, 1)
    task = state.tasks[key] = Task(job_id=job.id, index=index, revision=job.revision)
    return task


def next_index(state: State, job: Job) -> int:
    """The first task never placed; tasks that ended by themselves leave holes that are passed over."""
    index = job.cursor
    if job.holes:
        while (job.id, index) in state.tasks:
            index += 1
    return index


def requeue(state: State, job: Job, task: Task, clock: Clock, why: str, afresh: bool = False) -> list[Effect]:
    """Put a task back in its old place in the line; `afresh`: with the whole time limit, whatever was saved so far."""
    if job.cancelled:
        return end_task(state, job, task, JobState.KILLED, clock, "cancelled", "cancelled")
    if job.service and rollouts.is_over(state, job, task):
        return end_task(state, job, task, JobState.KILLED, clock, "cancelled", why)
    if task.state is JobState.RUNNING:
        job.running -= 1
    if (attempt := state.attempts.get(task.last_uid)) is not None:
        # The next attempt goes on from what this one saved, and has that much less of the time limit left.
        task.used_ms += attempt.saved_ms
    if afresh:
        task.used_ms = 0
    task.state, task.current, task.queued = JobState.PENDING, "", True
    job.requeued += 1
    state.backlog.count(job.queue, 1)
    job.waiting_since_ms = clock.now_ms
    state.requeued_of.setdefault(job.id, {})[task.index] = None
    state.queue_up(job, task.index)
    arm_wait(state, job)
    state.touched.jobs[job.id] = state.touched.tasks[job.id, task.index] = None
    note = Note(
        "task_requeued", job.id, _spell(job, task.index), data={"reason": why, "attempt": task.attempts}
    )
    return [note, *settle(state, job, clock)]


def started(state: State, job: Job, task: Task, attempt: Attempt, clock: Clock) -> None:
    """A task counts as running from its acceptance on."""
    if task.current == attempt.uid and task.state is JobState.PENDING:
        task.state = JobState.RUNNING
        task.started_at_ms = clock.at_ms
        job.running += 1
        job.state = JobState.RUNNING
        job.started_at_ms = job.started_at_ms or clock.at_ms
        state.touched.jobs[job.id] = state.touched.tasks[job.id, task.index] = None
        counting.recount(state, job)


def end_task(
    state: State, job: Job, task: Task, final: JobState, clock: Clock, exit_class: str, error: str
) -> list[Effect]:
    """Record a task's one result."""
    effects: list[Effect] = [_mark_ended(state, job, task, final, clock, exit_class, error)]
    if job.id in state.task_waiters:
        effects += tell_task_waiters(state, job, task.index, final, clock)
    return effects + settle(state, job, clock)


def tell_task_waiters(state: State, job: Job, index: int, final: JobState, clock: Clock) -> list[Effect]:
    """See to the jobs that waited for one task of a job, which has ended so."""
    effects: list[Effect] = []
    for waiting, broken in list(dependencies.task_followers(state, job, index, final)):
        if broken:
            effects += end_waiting(state, waiting, JobState.KILLED, clock, "dependency", broken)
            effects += settle(state, waiting, clock)
        elif not waiting.barred:
            join_all(state, waiting, clock)
    return effects


def _mark_ended(
    state: State, job: Job, task: Task, final: JobState, clock: Clock, exit_class: str, error: str
) -> Note:
    if task.state is JobState.RUNNING:
        job.running -= 1
    if task.queued:
        take_waiting(state, job, task.index)
    if task.again_ms:
        job.resting -= 1
        task.again_ms = 0
    task.state, task.current = final, ""
    task.exit_class, task.error, task.ended_at_ms = exit_class, error, clock.at_ms
    setattr(job, final.value, getattr(job, final.value) + 1)
    state.touched.jobs[job.id] = state.touched.tasks[job.id, task.index] = None
    data = {"state": final.value, "exit_code": task.exit_code, "exit_class": exit_class, "error": error}
    return Note("task_ended", job.id, _spell(job, task.index), data=data)


def end_waiting(
    state: State, job: Job, final: JobState, clock: Clock, exit_class: str, why: str
) -> list[Effect]:
    """End all that waits of a job, without looking at the job as a whole: what runs goes on."""
    effects: list[Effect] = [
        _mark_ended(state, job, state.tasks[job.id, index], final, clock, exit_class, why)
        for index in list(state.requeued_of.get(job.id, ()))
    ]
    if job.untouched or (job.open and final is JobState.KILLED):
        setattr(job, final.value, getattr(job, final.value) + job.untouched)
        state.backlog.count(job.queue, -job.untouched)
        job.rest, job.rest_class, job.error = final, exit_class, why
        job.open = False
        state.stir(job)
    state.touched.jobs[job.id] = None
    counting.recount(state, job)
    return effects


def settle(state: State, job: Job, clock: Clock) -> list[Effect]:
    """Derive the job's state from its tasks', and see to the jobs that waited for its end.

    Those that can never start end here too, and others wait for them: a loop, since a chain may be thousands long.
    """
    if job.state.final:
        return []
    if job.aim >= 0:
        rollouts.watch(state, job.id, clock.now_ms)
    if not _derive(state, job, clock):
        counting.recount(state, job)
        return [] if job.waiting else receipts.close(state, job, "rolled_back", clock)
    effects = _ended(state, job, clock)
    ended = deque([job])
    while ended:
        for waiting, broken in dependencies.followers(state, ended.popleft()):
            if not broken:
                if not waiting.barred:
                    join_all(state, waiting, clock)
                continue
            effects += end_waiting(state, waiting, JobState.KILLED, clock, "dependency", broken)
            if _derive(state, waiting, clock):
                effects += _ended(state, waiting, clock)
                ended.append(waiting)
    return effects


def _ended(state: State, job: Job, clock: Clock) -> list[Effect]:
    data = {"state": job.state.value, "name": job.name, "user": job.user}
    if job.id in state.watched:
        # Whoever is next in its line may be in for protection too, and is found by a look at the shape.
        state.rouse(job)
    if job.id not in state.live_of:
        rollouts.forget(state, job)
    ended = [*receipts.close(state, job, "rolled_back", clock), Note("job_ended", job.id, data=data)]
    return ended + counting.settle(state, job, clock) if job.workload else ended


def _derive(state: State, job: Job, clock: Clock) -> bool:
    """Derive the job's state from its tasks'; True when it has ended: all of them have and no more may come."""
    if job.ended < job.total or job.open:
        lasts = job.service or (job.numbered and not job.gang)
        going = job.running > 0 or (lasts and job.started_at_ms > 0)
        job.state = JobState.RUNNING if going else JobState.PENDING
        return False
    job.state = next((final for final, count in _FINAL_ORDER if getattr(job, count)), JobState.SUCCEEDED)
    if (job.cancelled and (job.killed or not job.total)) or (not job.total and job.rest is JobState.KILLED):
        job.state = JobState.KILLED
    job.ended_at_ms = clock.at_ms
    dependencies.withdraw(state, job)
    using.withdraw(state, job)
    return True


def stop_attempt(state: State, attempt: Attempt, reason: str, grace_s: float, clock: Clock) -> list[Effect]:
    """Ask a worker to stop an attempt; what it holds stays held until it is confirmed gone."""
    if not attempts.move(state, attempt, STOP):
        return []
    attempt.cancel, attempt.grace_s, attempt.cancel_ms = reason, grace_s, clock.now_ms
    if state.jobs[attempt.job_id].aim >= 0:
        rollouts.watch(state, attempt.job_id, clock.now_ms)
    if state.reservations:
        # It will be gone sooner than was reckoned with: a reservation may start earlier, or leave more beside it.
        state.columns.roomier[state.columns.row_of[attempt.worker]] = None
    state.set_timer(clock.now_ms + round(grace_s * 1000) + state.rules.stop_again_ms, "stop", attempt.uid)
    return [Cancel(attempt.worker, state.spell(attempt), attempt.uid, reason, grace_s)]


def timed_out(state: State, event: WaitTimedOut, clock: Clock) -> list[Effect]:
    """End what has waited longer than its scheduling timeout."""
    job = state.jobs.get(event.job_id)
    if job is None or job.state.final or not job.waiting or job.barred:
        return []
    if job.service:
        # It never began: no more may come.
        job.open = False
    effects = end_waiting(state, job, JobState.UNSCHEDULABLE, clock, "unschedulable", event.reason)
    return effects + settle(state, job, clock)


def adopt(state: State, job: Job, task: Task, attempt: Attempt, clock: Clock) -> bool:
    """Make a lost attempt current again: its task still waits and no other attempt was made meanwhile.

    Never a member of a gang: its generation broke with it.
    """
    if job.gang:
        return False
    if task.last_uid != attempt.uid or not task.queued or attempt.phase is not Phase.LOST:
        return False
    # What it used before it was given up is in the meters: it counts from here on, or that would count twice.
    attempt.assigned_ms = state.now_ms
    attempts.refund(state, attempt)
    attempts.move(state, attempt, ADOPT)
    take_waiting(state, job, task.index)
    if not job.waiting:
        receipts.close(state, job, "rolled_back", clock)
    if attempt.started and not job.service:
        task.losses -= 1
    if not job.service:
        task.used_ms -= attempt.saved_ms
    attempt.ended_at_ms, attempt.exit_class, attempt.error = 0, "", ""
    task.current, task.state = attempt.uid, JobState.RUNNING
    job.running += 1
    job.state = JobState.RUNNING
    state.touched.jobs[job.id] = state.touched.tasks[job.id, task.index] = None
    counting.recount(state, job)
    return True


def default_lost_after_ms(state: State, spec: JobSpec) -> int:
    """How long a silent worker keeps a job that does not say so itself."""
    return state.rules.lost_service_ms if spec.type == "service" else state.rules.lost_ms


def _spend_credit(state: State, worker: Worker, uid: str) -> None:
    presence = state.presence[worker.id]
    if presence.credit > 0:
        presence.credit -= 1
        columns = state.columns
        columns.put_credit(columns.row_of[worker.id], presence.credit)
    if worker.faults and not worker.trial:
        worker.trial = uid
        state.touched.workers[worker.id] = None
        state.touch_worker(worker.id)


def _spell(job: Job, index: int) -> str:
    return task_id(job.id, job.spelled(index))
