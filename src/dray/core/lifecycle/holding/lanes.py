"""Lanes: held places through which the calls of one job go, one at a time, in the order given.

A lane is an attempt without a task. It is opened by a plan like any attempt, fed without one, and closed when it has no
calls and gets none. Here is what a lane holds and which of its worker's words count; what the end of a call means for
its job is decided in `calls`. The surprising rule: a call that was cancelled by itself stays in its lane, under the
negative of its number, until its worker confirms that it is gone: until then the lane's place is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dray.core.lifecycle.counts import counting
from dray.core.lifecycle.holding import retries
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, JobState, Phase

# A lane that is stopped for these reasons gives its calls back, whatever they made of the signal.
SENT_BACK = ("preempted", "requeued", "revoked")


class Outstanding(NamedTuple):
    """Which of a frame's calls count: `places` in its columns; `gone`: indices of calls cancelled before, now over."""

    places: Sequence[int]
    gone: tuple[int, ...]


NOTHING = Outstanding((), ())


def find_lane(state: State, worker: str, uid: str) -> Attempt | None:
    """The live lane of a worker; None where there is none under this uid."""
    lane = state.attempts.get(uid)
    if lane is None or lane.worker != worker or lane.calls is None or not lane.phase.live:
        return None
    return lane


def calls_of(lane: Attempt) -> dict[int, int]:
    """What is outstanding in a lane."""
    assert lane.calls is not None, f"attempt {lane.uid} is no lane"
    return lane.calls


def outstanding(state: State, worker: str, uid: str, index: Sequence[int], no: Sequence[int]) -> Outstanding:
    """Sift a frame of ended calls: only those that the lane was given, by the same number, and that did not end."""
    lane = find_lane(state, worker, uid)
    if lane is None or len(index) != len(no):
        return NOTHING
    calls = calls_of(lane)
    places: list[int] = []
    gone: list[int] = []
    seen: set[int] = set()
    for place, one in enumerate(index):
        known = calls.get(one)
        if known is None or one in seen:
            continue
        if known == no[place]:
            seen.add(one)
            places.append(place)
        elif known < 0 and no[place] >= -known:
            # An end of an earlier try proves nothing of this one; a worker that has none of them names the last.
            seen.add(one)
            gone.append(one)
    return Outstanding(places, tuple(gone))


def finals(state: State, uid: str, index: Sequence[int], words: Sequence[str] | str) -> Sequence[int]:
    """Which of these ends are the calls' recorded results, as places: those are kept and told to clients.

    The others are queued again, or end otherwise (`CallsDone`).
    """
    if words == "succeeded":
        return range(len(index))
    lane = state.attempts[uid]
    said = [words] * len(index) if isinstance(words, str) else words
    return [place for place, one in enumerate(index) if is_final(state, lane, one, said[place])]


def is_final(state: State, lane: Attempt, index: int, word: str) -> bool:
    """Whether a call that ends so now has its result."""
    if word == "succeeded":
        return True
    if word not in ("failed", "killed") or lane.cancel in SENT_BACK:
        return False
    if word == "killed":
        return True
    job, task = state.jobs[lane.job_id], state.tasks.get((lane.job_id, index))
    return retries.is_last_failure(job, (task.failures if task is not None else 0) + 1)


def missing(state: State, worker: str, active: Iterable[str]) -> list[str]:
    """Lanes of a worker that hold calls here of which its heartbeat says nothing: what was sent did not get there."""
    known = set(active)
    return [
        uid
        for uid in state.held.get(worker, ())
        if uid not in known
        and (lane := state.attempts[uid]).calls
        and lane.phase in (Phase.ACCEPTED, Phase.RUNNING)
        and state.now_ms - lane.assigned_ms >= state.rules.resend_ms[0]
    ]


# --- what a lane is given, and what it counts for ---------------------------------------------------------------------


def take_range(state: State, job: Job, first: int, count: int) -> bool:
    """Take a run of calls never given to anybody out of the queue; False where it is not the next one."""
    if job.rest.final or count <= 0 or first + count > job.total:
        return False
    if first != job.cursor:
        if not job.holes or any((job.id, hole) not in state.tasks for hole in range(job.cursor, first)):
            return False
        for hole in range(job.cursor, first):
            # Ended by itself and kept to be passed over: now its row is all that is needed.
            state.touched.tasks[job.id, hole] = None
        job.holes -= first - job.cursor
    if job.holes and any((job.id, index) in state.tasks for index in range(first, first + count)):
        return False
    job.cursor = first + count
    state.leave(job, count)
    return True


def begin(state: State, job: Job, lane: Attempt, at_ms: int) -> None:
    """A lane was accepted: while it has calls it counts as one that runs."""
    if lane.accepted_at_ms:
        return
    lane.accepted_at_ms = at_ms
    state.touched.attempts[lane.uid] = None
    if lane.calls:
        count_running(state, job, 1)
    if lane.calls and not job.state.final:
        job.state = JobState.RUNNING
        job.started_at_ms = job.started_at_ms or at_ms
        state.touched.jobs[job.id] = None


def put_in(state: State, job: Job, lane: Attempt, calls: dict[int, int]) -> None:
    """Give a lane calls that were taken out of the queue."""
    held = calls_of(lane)
    if not held and lane.accepted_at_ms and calls:
        count_running(state, job, 1)
    held.update(calls)


def emptied(state: State, job: Job, lane: Attempt) -> None:
    """The last call of a lane is gone."""
    if lane.accepted_at_ms:
        count_running(state, job, -1)


def drop_calls(state: State, job: Job, lane: Attempt) -> dict[int, int]:
    """Take everything out of a lane; gives what had not ended."""
    held = calls_of(lane)
    left = {index: number for index, number in held.items() if number > 0}
    if held:
        held.clear()
        emptied(state, job, lane)
    state.touched.attempts[lane.uid] = None
    return left


def count_running(state: State, job: Job, more: int) -> None:
    """Keep the number of a job's lanes that have calls and were accepted."""
    job.running += more
    state.touched.jobs[job.id] = None
    counting.recount(state, job)


# --- which lanes are looked at ----------------------------------------------------------------------------------------


def wake_worker(state: State, worker: str) -> None:
    """Look at the lanes of a worker that may be given work again."""
    for uid in state.held.get(worker, ()):
        if state.attempts[uid].lane:
            state.hungry[uid] = None


def wake_idle(state: State, job: Job) -> None:
    """Look at the lanes of a job that wait for calls: it has some to give. Those that run any come by themselves."""
    for uid in state.lingering:
        if state.attempts[uid].job_id == job.id:
            state.hungry[uid] = None


def lane_at(state: State, job: Job, index: int) -> Attempt | None:
    """The lane in which a call is outstanding; rare questions only, since it looks into all of them."""
    for uid in state.live_of.get(job.id, ()):
        lane = state.attempts[uid]
        if lane.calls and lane.calls.get(index, 0) > 0:
            return lane
    return None
