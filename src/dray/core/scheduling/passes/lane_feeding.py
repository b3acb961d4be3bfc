"""Calls are given into lanes that are there already: no pass, one decision per lane that has room for more.

Before a pass (`prepare`) whoever yielded goes on where it may, and a lane without calls gets one or is closed, so that
the pass sees what is left; after it (`feed`) lanes are topped up. How far ahead depends on how long the job's calls
take: about 5 ms of work wait at a worker. The surprising rule: a lane that has had its time is not fed while others
wait. It runs empty and closes, and the pass decides whose turn it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.happenings.yields import has_room
from dray.core.lifecycle.state.events import AttemptResumed, CallsFed, Event, Feed, LanesClosed
from dray.core.lifecycle.state.lines import BucketKey
from dray.core.lifecycle.state.parties import QuotaGate
from dray.core.lifecycle.state.pass_events import HeadsStale, LanesHungry, LanesKept, LanesSeen
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.calls import OVER
from dray.core.lifecycle.tasks.jobs import next_index
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.spec import unpack_spec
from dray.core.scheduling.passes.planning import stale_heads

AHEAD_US = 5_000
LONG_US = 100_000
MOST_AHEAD = 128
_FED = (Phase.ASSIGNED, Phase.ACCEPTED, Phase.RUNNING)


class Supply:
    """What waits of one job and was not given out in this round; of no use once any of it was folded in."""

    def __init__(self, state: State, job: Job) -> None:
        self._state, self._job = state, job
        self.left = 0 if job.barred else job.waiting
        if job.workload and is_shut(state, job):
            self.left = 0
        self._again = iter(state.requeued_of.get(job.id, ()))
        self._next = next_index(state, job)

    def take(self, count: int) -> list[int]:
        """The next calls as a flat list of ranges; those queued again go before those that never ran."""
        ranges: list[int] = []
        count = min(count, self.left)
        self.left -= count
        while count > 0 and (index := next(self._again, -1)) >= 0:
            _add(ranges, index, 1)
            count -= 1
        if count > 0:
            self._take_range(ranges, count)
        return ranges

    def _take_range(self, ranges: list[int], count: int) -> None:
        job, tasks = self._job, self._state.tasks
        if not job.holes:
            ranges += (self._next, count)
            self._next += count
            return
        own: list[int] = []
        while count > 0:
            if (job.id, self._next) not in tasks:
                _add(own, self._next, 1)
                count -= 1
            self._next += 1
        ranges += own


def _add(ranges: list[int], first: int, count: int) -> None:
    if ranges and ranges[-2] + ranges[-1] == first:
        ranges[-1] += count
    else:
        ranges += (first, count)


def prepare(state: State) -> Iterator[Event]:
    """What comes before a pass; each step is to be folded in before the next is asked for."""
    yield from _resume(state)
    if state.lingering and (
        outstayed := tuple(
            uid for uid in state.lingering if others_wait(state, state.jobs[state.attempts[uid].job_id])
        )
    ):
        yield LanesHungry(outstayed)
    if not state.hungry:
        return
    supplies: dict[str, Supply] = {}
    feeds: list[Feed] = []
    over: list[str] = []
    kept: list[tuple[str, int]] = []
    for uid in state.hungry:
        lane = state.attempts.get(uid)
        if lane is None or lane.calls or lane.cancel or not lane.phase.live:
            continue
        job = state.jobs[lane.job_id]
        # One that gave everything back cannot do with what it was given: another lane will.
        fit = uid not in state.busy and may_feed(state, job, lane)
        ranges = _supply(state, supplies, job).take(1) if fit else []
        if ranges:
            feeds.append(Feed(uid, tuple(ranges)))
        elif not _may_linger(state, job, lane):
            over.append(uid)
        elif uid not in state.lingering:
            kept.append((uid, state.now_ms + state.rules.linger_ms))
    if kept:
        yield LanesKept(tuple(kept))
    if feeds:
        yield CallsFed(tuple(feeds))
        if stale := tuple(stale_heads(state, _empty_lines(state, supplies))):
            yield HeadsStale(stale)
    if over:
        yield LanesClosed(tuple(over))
        yield from _resume(state)


def _empty_lines(state: State, supplies: dict[str, Supply]) -> dict[BucketKey, None]:
    """The lines of jobs of which nothing waits any more: they leave them, and no pass is made to find that out."""
    jobs = [job for job_id in supplies if not (job := state.jobs[job_id]).waiting]
    return {line: None for job in jobs if (line := state.line_of(job)) in state.backlog.buckets}


def _resume(state: State) -> Iterator[Event]:
    for uid in list(state.resuming):
        if has_room(state, state.attempts[uid]):
            yield AttemptResumed(uid)


def feed(state: State) -> Iterator[Event]:
    """Top up the lanes that had results, or were opened just now."""
    supplies: dict[str, Supply] = {}
    feeds: list[Feed] = []
    for uid in state.hungry:
        lane = state.attempts.get(uid)
        if lane is None or not lane.calls or uid in state.busy:
            continue
        job = state.jobs[lane.job_id]
        supply = _supply(state, supplies, job)
        if not supply.left or not may_feed(state, job, lane):
            continue
        # Towards the end each lane gets its part, or the last calls would wait behind each other in one of them.
        share = -(-supply.left // max(1, job.live))
        ranges = supply.take(min(target(state, job) - len(lane.calls), share))
        if ranges:
            feeds.append(Feed(uid, tuple(ranges)))
    if state.hungry:
        yield LanesSeen(tuple(state.hungry))
    if feeds:
        yield CallsFed(tuple(feeds))


def _supply(state: State, supplies: dict[str, Supply], job: Job) -> Supply:
    supply = supplies.get(job.id)
    if supply is None:
        supply = supplies[job.id] = Supply(state, job)
    return supply


def target(state: State, job: Job) -> int:
    """How many calls a lane of a job may hold: the one that runs, and some ms of work behind it."""
    mean_us = state.experience.calls.get(job.id)
    if mean_us is None or mean_us >= LONG_US or unpack_spec(job.spec).at_most_once:
        return 1
    return min(MOST_AHEAD, 1 + int(-(-AHEAD_US // max(1.0, mean_us))))


def may_feed(state: State, job: Job, lane: Attempt) -> bool:
    """Whether a lane may be given more: its worker is there, it does not wait itself, and its time is not over."""
    if lane.cancel or lane.yielded or lane.phase not in _FED or job.barred:
        return False
    presence = state.presence[lane.worker]
    if presence.resuming or not state.columns.get("open", state.columns.row_of[lane.worker]):
        return False
    if state.now_ms - lane.assigned_ms < state.rules.slice_ms:
        return True
    return not (others_wait(state, job) or is_spent(state, job))


def others_wait(state: State, job: Job) -> bool:
    """Whether anybody waits whom a lane of this job might make room for; a guess, made without a search."""
    backlog, own = state.backlog, state.line_of(job)
    bucket = backlog.buckets.get(own)
    if backlog.open_lines > (bucket is not None and not backlog.is_gated(own)):
        return True
    if bucket is None or bucket.head >= len(bucket.entries):
        return False
    return bucket.entries[bucket.head].job_id != job.id


def is_shut(state: State, job: Job) -> bool:
    """Whether its workload lets nothing start: calls go into lanes that are there already without asking its gates."""
    tally = state.workloads.get(job.workload)
    return tally is not None and tally.is_shut(state.now_ms)


def is_spent(state: State, job: Job) -> bool:
    """Whether a budget that its work is charged to is used up."""
    return any(
        isinstance(gate, QuotaGate) and gate.hard_ms and gate.used_ms(state.now_ms) >= gate.hard_ms
        for gate in state.parties.all[job.party].gates
    )


def _may_linger(state: State, job: Job, lane: Attempt) -> bool:
    """Keep a lane for a moment where more calls are likely to come and nobody else waits for its place."""
    if not job.open or lane.uid in state.busy or others_wait(state, job):
        return False
    return may_feed(state, job, lane) and state.lingering.get(lane.uid) != OVER
