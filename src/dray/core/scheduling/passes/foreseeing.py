"""Who is likely to start where soon, so that what they need can be brought there before: looked at now and then.

First what is as good as promised: reservations, the victims' place of a preemptor, room for a task that moves, workers
whose replicas are replaced. Then the first of each line, as what runs comes to its expected end: a small run forward in
which nobody new arrives. Costs a bounded number of lines, attempts and comparisons per look, and nothing where nobody
waits for anything to be brought. Surprising rule: a hint that proves wrong is not replaced while anybody waits for what
it brought. Guesses sway, and replacing them would have every worker fetch everything for a few seconds saved.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from dray.core.lifecycle.state.events import Event
from dray.core.lifecycle.state.experience import Needs, kind_of_work, needs_of
from dray.core.lifecycle.state.lines import BucketKey, Entry
from dray.core.lifecycle.state.pass_events import Foreseen
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.resources import Ask
from dray.core.scheduling.capacity.remaining import Devices, Rooms
from dray.core.scheduling.claims.reservations import Spare, end_ms
from dray.core.scheduling.turns.ranks import rank_of, stands

FEATURE = "prewarm"
EVERY_MS = 1_000
# Nobody gets ready for what is further away: guesses are poor by then, and what is warm may go cold.
AHEAD_MS = 200_000
# One look at most: lines, entries and tasks of a line, attempts, and ends of them that are gone through.
LINES, ENTRIES, TASKS, ATTEMPTS, ENDS = 32, 48, 48, 4_096, 512
MOST_WAITING = 64
MOST_TOLD, MOST_OF_WORKER = 256, 8
STALE_MS = 900_000
# What workers read of a name; a longer one is nobody's that this hub has made.
MOST_CHARS = 1_024


class Waiting(NamedTuple):
    """The first of a line: so many of its tasks are looked at."""

    rank: tuple[int, int, Entry]
    job: Job
    tasks: int


def foresee(state: State) -> Iterator[Event]:
    """Look ahead where it is time to, and anybody waits for something to be brought."""
    if (state.eyed or state.prewarms) and state.now_ms >= state.foresee_ms:
        yield _Look(state).run()


class _Run:
    """What each worker has left as one after another ends."""

    def __init__(self, state: State, ends: list[tuple[int, Attempt]]) -> None:
        self._state, self._rooms = state, Rooms(state)
        self._heap: list[tuple[int, int, int, Attempt | tuple[Ask, Devices]]] = [
            (at_ms, place, state.columns.row_of[attempt.worker], attempt)
            for place, (at_ms, attempt) in enumerate(ends)
        ]
        self._spares: dict[int, dict[str, Spare]] = {}
        self._ended: dict[int, list[Attempt]] = {}
        self._count, self._now_ms = len(ends), state.now_ms

    def next_end(self) -> str:
        """The worker on which something ends next; empty where nothing does before long."""
        if not self._heap or self._count > 2 * ENDS:
            return ""
        self._now_ms, _, row, ended = heapq.heappop(self._heap)
        spares = self._spares.setdefault(row, {})
        if isinstance(ended, Attempt):
            self._ended.setdefault(row, []).append(ended)
            for spare in spares.values():
                spare.give_back(ended)
        else:
            spares[ended[0].pool].take(*ended, -1)
        return self._state.columns.worker_of[row]

    def takes(self, worker: str, job: Job) -> bool:
        """Take what a task needs of a worker, if that is left there by now, until it has ended in its turn."""
        state, row = self._state, self._state.columns.row_of[worker]
        offer, spares = state.columns.get("offer", row), self._spares[row]
        for ask in state.asks(job.shape):
            if not self._rooms.class_mask(ask)[offer]:
                continue
            spare = spares.get(ask.pool)
            if spare is None:
                room, ended = self._rooms.room(row, ask.pool), self._ended.get(row, ())
                spare = spares[ask.pool] = Spare(state, room, ask.pool, ended)
            devices = spare.cards_for(ask)
            if devices is None:
                continue
            spare.take(ask, devices)
            self._count += 1
            span_ms = span_of(state, job)
            if span_ms and self._now_ms + span_ms < state.now_ms + AHEAD_MS:
                heapq.heappush(self._heap, (self._now_ms + span_ms, self._count, row, (ask, devices)))
            return True
        return False


class _Look:
    def __init__(self, state: State) -> None:
        self._state = state
        self._likely: dict[Needs, dict[str, str]] = {}
        self._still: set[Needs] = set()

    def run(self) -> Foreseen:
        looked, heads = self._look_at_lines()
        self._promised()
        self._run_forward(sorted(heads, key=lambda head: head.rank)[:MOST_WAITING])
        wanted, dropped = self._settle()
        return Foreseen(wanted, dropped, looked, self._state.now_ms + EVERY_MS)

    def _expect(self, job: Job, worker: str) -> None:
        needs = needs_of(job)
        if needs is not None:
            self._likely.setdefault(needs, {}).setdefault(worker, job.id)

    # --- who waits ----------------------------------------------------------------------------------------------------

    def _look_at_lines(self) -> tuple[tuple[tuple[BucketKey, bool], ...], list[Waiting]]:
        state, looked, heads = self._state, list[tuple[BucketKey, bool]](), list[Waiting]()
        for line in islice(state.eyed, LINES):
            bucket = state.backlog.buckets.get(line)
            if bucket is None:
                looked.append((line, False))
                continue
            found = [
                Waiting(rank_of(state, line, job, entry), job, _count(job))
                for entry in islice(bucket.entries, bucket.head, bucket.head + ENTRIES)
                if stands(state, line, entry)
                for job in [state.jobs[entry.job_id]]
            ]
            needy = {needs for head in found if (needs := needs_of(head.job)) is not None}
            looked.append((line, bool(needy) or bucket.waiting > ENTRIES))
            self._still |= needy
            if not state.backlog.is_gated(line):
                heads += [head for head in found[:TASKS] if head.tasks > 0]
        return tuple(looked), heads

    def _promised(self) -> None:
        state = self._state
        worker_of = state.columns.worker_of
        for kept in state.reservations.values():
            if (job := state.jobs.get(kept.job_id)) is not None:
                for spot in kept.spots:
                    self._expect(job, worker_of[spot[1]])
        for receipt in state.receipts.values():
            if (job := state.jobs.get(receipt.job_id)) is not None:
                for worker in receipt.workers:
                    self._expect(job, worker)
        for (job_id, _), moving in state.moves.items():
            if (job := state.jobs.get(job_id)) is not None:
                self._expect(job, moving.worker)
        for job_id in state.rollouts:
            job = state.jobs.get(job_id)
            if job is None or needs_of(job) is None:
                continue
            replicas = (state.attempts[uid] for uid in islice(state.live_of.get(job_id, ()), TASKS * LINES))
            for worker in [one.worker for one in replicas if one.revision != job.revision]:
                self._expect(job, worker)

    # --- what ends when -----------------------------------------------------------------------------------------------

    def _run_forward(self, heads: list[Waiting]) -> None:
        """Let what runs end as expected, and those who wait take what that leaves, in turn, and end in their time."""
        if not any(needs_of(head.job) is not None for head in heads):
            return
        run = _Run(self._state, self._ends())
        left = {place: head.tasks for place, head in enumerate(heads)}
        groups: dict[int, list[str]] = {}
        while left and (worker := run.next_end()):
            full: set[int] = set()
            for place in [*left]:
                job = heads[place].job
                while job.shape not in full and left[place] > 0:
                    if not run.takes(worker, job):
                        full.add(job.shape)
                        break
                    group = groups.setdefault(place, [])
                    group.append(worker)
                    if len(group) == self._state.asks(job.shape)[0].nodes:
                        left[place] -= 1
                        for member in groups.pop(place):
                            self._expect(job, member)
                if not left[place]:
                    del left[place]

    def _ends(self) -> list[tuple[int, Attempt]]:
        """What will have ended before long, the first of them first."""
        state = self._state
        until_ms, get, row_of = state.now_ms + AHEAD_MS, state.columns.get, state.columns.row_of
        found = []
        for attempt in islice(state.attempts.values(), ATTEMPTS):
            row = row_of.get(attempt.worker)
            if row is None or not attempt.phase.live or not get("open", row):
                continue
            at_ms = expected_end_ms(state, attempt)
            if at_ms <= until_ms:
                found.append((at_ms, attempt.fence, attempt))
        return [(at_ms, attempt) for at_ms, _, attempt in sorted(found, key=lambda one: one[:2])[:ENDS]]

    # --- what follows -------------------------------------------------------------------------------------------------

    def _settle(
        self,
    ) -> tuple[tuple[tuple[str, str, Needs], ...], tuple[tuple[str, Needs], ...]]:
        state = self._state
        told: dict[Needs, dict[str, int]] = {}
        for worker, prewarms in state.prewarms.items():
            for needs, prewarm in prewarms.items():
                told.setdefault(needs, {})[worker] = state.now_ms - prewarm.at_ms
        dropped = [
            (worker, needs)
            for needs, workers in told.items()
            for worker, age_ms in workers.items()
            if age_ms > STALE_MS or not self._is_wanted(needs, state.prewarms[worker][needs].job_id)
        ]
        gone = {*dropped}
        wanted: list[tuple[str, str, Needs]] = []
        room = MOST_TOLD - sum(map(len, state.prewarms.values())) + len(dropped)
        load = {worker: len(prewarms) for worker, prewarms in state.prewarms.items()}
        for needs, likely in self._likely.items():
            standing = {
                worker: age for worker, age in told.get(needs, {}).items() if (worker, needs) not in gone
            }
            for worker, job_id in likely.items():
                if (
                    worker in standing
                    or not self._can_tell(worker, needs)
                    or load.get(worker, 0) >= MOST_OF_WORKER
                ):
                    continue
                if len(standing) >= len(likely) or len(wanted) >= room:
                    break
                standing[worker] = 0
                load[worker] = load.get(worker, 0) + 1
                wanted.append((worker, job_id, needs))
        return tuple(wanted), tuple(dropped)

    def _is_wanted(self, needs: Needs, job_id: str) -> bool:
        """Whether anybody may still come for it."""
        if needs in self._still or needs in self._likely:
            return True
        job = self._state.jobs.get(job_id)
        return job is not None and job.waiting > 0 and needs_of(job) == needs

    def _can_tell(self, worker: str, needs: Needs) -> bool:
        """Whether a worker is there, understands a hint, and lacks what it would be told of."""
        state = self._state
        known, presence = state.workers.get(worker), state.presence.get(worker)
        if known is None or presence is None or not presence.session or FEATURE not in known.features:
            return False
        if any(len(text) > MOST_CHARS for text in needs):
            return False
        return not state.experience.is_warm(worker, needs)


def _count(job: Job) -> int:
    """How many of its tasks are looked at; of a gang one group."""
    if job.gang:
        return 1 if job.waiting > 0 else 0
    capped = job.limit - job.live if job.limit else TASKS
    return min(TASKS, job.waiting, capped)


def expected_end_ms(state: State, attempt: Attempt) -> int:
    """When an attempt is likely to end, by what it says, by what others of its kind took, or by its limit."""
    latest_ms, job = end_ms(state, attempt), state.jobs.get(attempt.job_id)
    if job is None or attempt.phase is Phase.STOPPING or attempt.lane or job.service:
        return latest_ms if attempt.phase is Phase.STOPPING else NEVER
    span_ms = span_of(state, job)
    if not span_ms:
        return latest_ms
    began_ms = attempt.started_ms or attempt.assigned_ms
    at_ms = began_ms + span_ms
    if at_ms <= state.now_ms:
        # It takes longer than was thought: the longer it does, the less is known.
        at_ms = state.now_ms + (state.now_ms - began_ms) // 4
    return min(at_ms, latest_ms)


def span_of(state: State, job: Job) -> int:
    """How long a task of a job is likely to run; 0 where nobody can say."""
    if job.expected_ms:
        return job.expected_ms
    known = state.experience.spans.by_name.get(kind_of_work(job), ())
    return sorted(known)[len(known) // 2] if known else 0
