"""Workers that end at a known time: an allocation that runs out, a machine that is taken back, a life that was limited.

What runs there is stopped in time: each task as long before the end as its tier gives it to save, and it is queued
again at nobody's cost. Shortly before the end the worker is drained, so that services move. Pure; the moments are wall
time, since it is a site's clock that ends a machine. The surprising rule: nothing is looked at until the first such
moment.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock, Event, RequeueRequested, WorkerDrained
from dray.core.lifecycle.state.service_events import WorkerEnding
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job
from dray.core.model.records.worker import Worker
from dray.core.model.specs.spec import TIERS, unpack_spec
from dray.core.model.units import DEFAULT_RUNTIME_S

KIND = "ending"
# A task has its whole grace, and its last words so long to arrive.
MARGIN_MS = 15_000
DRAIN_MS = 120_000
# Whoever does not say how long it takes is given a worker that lasts so much longer than its grace.
OPEN_MS = 600_000
DEFAULT_MS = DEFAULT_RUNTIME_S * 1000
# What the limit of a shape says of a job that gave none.
OPEN_BUCKET = DEFAULT_RUNTIME_S.bit_length()


def follow(state: State, worker: Worker, clock: Clock) -> None:
    """A worker says, or is told, when it ends; or that it does not."""
    if worker.ends_at_ms:
        state.ending[worker.id] = worker.ends_at_ms
        _look_at(state, worker.id, worker.ends_at_ms - DRAIN_MS, clock)
        for uid in state.held.get(worker.id, ()):
            began(state, state.attempts[uid], clock)
    else:
        state.ending.pop(worker.id, None)


def recall(state: State, clock: Clock) -> None:
    """Find out who ends, after a load."""
    state.ending.clear()
    for worker in state.workers.values():
        if worker.ends_at_ms:
            follow(state, worker, clock)


def began(state: State, attempt: Attempt, clock: Clock) -> None:
    """Somebody was given a worker that ends: it is stopped in time, if it is still there then."""
    _look_at(state, attempt.worker, stop_ms(state, attempt), clock)


def stop_ms(state: State, attempt: Attempt) -> int:
    """When an attempt must be asked to stop, by the wall clock."""
    grace_ms = round(TIERS[state.jobs[attempt.job_id].tier].grace_s * 1000)
    return state.ending[attempt.worker] - grace_ms - MARGIN_MS


def ends_ms(state: State, worker_id: str) -> int:
    """When a worker ends, in hub time."""
    return state.now_ms + state.ending[worker_id] - state.at_ms


def _look_at(state: State, worker_id: str, at_ms: int, clock: Clock) -> None:
    wait_ms = max(0, at_ms - clock.at_ms)
    state.set_timer(clock.now_ms + wait_ms, KIND, worker_id)


def look(state: State, worker_id: str, clock: Clock) -> Iterator[Event]:
    """What is due on a worker that ends."""
    worker = state.workers.get(worker_id)
    if worker is None or worker_id not in state.ending:
        return
    if clock.at_ms >= state.ending[worker_id] - DRAIN_MS and not worker.draining:
        yield WorkerDrained(worker_id, True, "", "its time is nearly over")
    asked: set[tuple[str, int]] = set()
    for uid in list(state.held.get(worker_id, ())):
        attempt = state.attempts[uid]
        job = state.jobs[attempt.job_id]
        place = (job.id, -1 if job.gang else attempt.index)
        if attempt.cancel or job.service or job.calls or place in asked or unpack_spec(job.spec).at_most_once:
            continue
        if clock.at_ms >= stop_ms(state, attempt):
            asked.add(place)
            yield RequeueRequested(*place, "")


def ending(state: State, event: WorkerEnding, clock: Clock) -> list[Effect]:
    """Somebody says when a worker ends; 0: it does not, as far as people know."""
    worker = state.workers[event.worker]
    worker.ends_given_ms = event.at_ms
    worker.ends_at_ms = soonest(worker.ends_said_ms, event.at_ms)
    state.touched.workers[event.worker] = None
    follow(state, worker, clock)
    state.touch_worker(event.worker)
    return [Note("worker_ending", worker=event.worker, data={"user": event.user, "why": event.why})]


def soonest(*moments: int) -> int:
    """The first of some moments, of which 0 is none."""
    return min((moment for moment in moments if moment), default=0)


def span_of(job: Job) -> int:
    """How long a task of a job takes at most, by its own word; 0 where nobody said more than the limit of all."""
    said_ms = job.limit_ms if job.limit_ms != DEFAULT_MS else 0
    return said_ms or job.expected_ms


def needs_ms(job: Job) -> int:
    """How long a worker must be there for a task of a job; for one that does not say, a good while and its grace."""
    return span_of(job) or OPEN_MS + round(TIERS[job.tier].grace_s * 1000)


def lasts(state: State, worker_id: str, needed_ms: int) -> bool:
    """Whether a worker is there for so long."""
    return ends_ms(state, worker_id) - state.now_ms >= needed_ms
