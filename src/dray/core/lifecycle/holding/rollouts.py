"""By which revision of a service's spec each replica runs, and which services are looked at for the next step.

A replica runs by one revision for all its life. What those asked for that are not the newest is held by the numbers of
their shapes for as long as the job is in memory. The surprising rule: whoever waits stands in the line of the newest
revision, so a replica of another one that asks for something else cannot wait, and ends where it would.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.records.ledger import Revision, RevisionsRecord
from dray.core.model.records.records import Attempt, Job, Task
from dray.core.model.specs.resources import asks_of_packed

KIND = "revisions"
# How many revisions can be gone back to; what still runs by an older one is kept beside them.
KEPT = 10


def revisions_of(state: State, job: Job) -> dict[int, Revision]:
    """What is known of a service's revisions, by number; nothing before its first update."""
    record = state.ledger.get((KIND, job.id))
    return {one.number: one for one in record.revisions} if isinstance(record, RevisionsRecord) else {}


def write(state: State, job: Job, revision: Revision) -> None:
    """Note a revision, in place of what was known of it; the oldest that nobody needs any more are dropped."""
    known = revisions_of(state, job) | {revision.number: revision}
    used = {job.revision, job.stable, revision.number} | {task.revision for task in standing(state, job)}
    used |= {state.attempts[uid].revision for uid in state.live_of.get(job.id, ())}
    spare = sorted(number for number in known if number not in used)
    for number in spare[: max(0, len(known) - KEPT)]:
        del known[number]
    state.enter(KIND, job.id, RevisionsRecord(tuple(known[number] for number in sorted(known))))
    _take_shape(state, job.id, revision)


def merge(state: State, job: Job, number: int) -> None:
    """Forget a revision whose spec is that of the present one. What is still there of it goes by that one from here on:
    what it holds is to be known also when the next one asks for something else.
    """
    known = revisions_of(state, job)
    if known.pop(number, None) is not None:
        state.enter(KIND, job.id, RevisionsRecord(tuple(known.values())))
    for uid in state.live_of.get(job.id, ()):
        attempt = state.attempts[uid]
        if attempt.revision == number:
            attempt.revision = job.revision
            state.touched.attempts[uid] = None


def forget(state: State, job: Job) -> None:
    """A service has ended and nothing of it runs any more."""
    if (KIND, job.id) in state.ledger:
        state.enter(KIND, job.id, None)


def recall(state: State) -> None:
    """Take the shapes of all revisions again, after a load."""
    for (kind, job_id), record in list(state.ledger.items()):
        if kind == KIND and isinstance(record, RevisionsRecord) and job_id in state.jobs:
            for revision in record.revisions:
                _take_shape(state, job_id, revision)


def _take_shape(state: State, job_id: str, revision: Revision) -> None:
    shapes, asks = state.revised.setdefault(job_id, {}), asks_of_packed(revision.spec)
    taken = state.shapes.take(asks)
    before = shapes.get(revision.number)
    shapes[revision.number] = taken
    if before is not None:
        state.release_shape(before)


def release(state: State, job: Job) -> None:
    """Give the shapes back: the job leaves memory."""
    for shape in state.revised.pop(job.id, {}).values():
        state.release_shape(shape)


def spec_of(state: State, job: Job, revision: int) -> bytes:
    """The spec by which replicas of a revision run."""
    if revision == job.revision:
        return job.spec
    known = revisions_of(state, job).get(revision)
    return job.spec if known is None else known.spec


def shape_of(state: State, job: Job, revision: int) -> int:
    """The shape of what replicas of a revision hold."""
    shapes = state.revised.get(job.id)
    return job.shape if revision == job.revision or shapes is None else shapes.get(revision, job.shape)


def standing(state: State, job: Job) -> Iterator[Task]:
    """The replicas of a service that were placed and have not ended, the newest first; ended ones are passed by.

    A group is told of by the first of its tasks.
    """
    left, index = job.total - job.ended - job.untouched, job.cursor
    while left > 0 and index:
        index -= 1
        task = state.tasks.get((job.id, index))
        if task is not None and not task.state.final:
            left -= 1
            if index % job.group_size == 0:
                yield task


def is_over(state: State, job: Job, task: Task) -> bool:
    """Whether a replica that does not run shall not run again: it is leaving, or could not stand in its job's line."""
    return job.service and (task.leaving_ms > 0 or shape_of(state, job, task.revision) != job.shape)


def is_moving(state: State, attempt: Attempt) -> bool:
    """Whether a replica is to go elsewhere: a person drains its worker. A quarantine passes by itself."""
    worker = state.workers.get(attempt.worker)
    return worker is not None and worker.draining and not worker.faults


def watch(state: State, job_id: str, at_ms: int) -> None:
    """Look at a service for the next step, then at the latest."""
    if at_ms < state.rollouts.get(job_id, NEVER):
        state.rollouts[job_id] = at_ms
        state.set_timer(at_ms, "rollout", job_id)


def watch_worker(state: State, worker_id: str) -> None:
    """Look at the services that have replicas on a worker about which something has changed."""
    for uid in state.held.get(worker_id, ()):
        attempt = state.attempts[uid]
        job = state.jobs[attempt.job_id]
        if job.service and (job.aim >= 0 or is_moving(state, attempt)):
            watch(state, job.id, state.now_ms)
