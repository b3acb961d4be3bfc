"""When waiting tasks will start: the same core run forward in time on a state of its own.

What runs ends after a run time drawn from its job's history, else after what was told or its time limit; every pass in
between is the real one. Several draws give a spread. The state is used up: run it on a copy.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import (
    AttemptAccepted,
    AttemptEnded,
    AttemptStarted,
    CallsEnded,
    CallsFed,
    Clock,
    Event,
    Feed,
    LanesClosed,
    Outcome,
    Preemption,
)
from dray.core.lifecycle.state.experience import Spans, kind_of_work
from dray.core.lifecycle.state.pass_events import LanesSeen, TurnBegan
from dray.core.lifecycle.state.state import NEVER, State
from dray.core.lifecycle.timers import due, next_due_ms
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.scheduling.claims.reservations import end_ms
from dray.core.scheduling.passes.lane_feeding import Supply, may_feed
from dray.core.scheduling.passes.turn import answer_polls, take_pass

HORIZON_MS = 30 * 86_400_000
MOST_STEPS = 20_000
PARTS = 8
LONGER = (1.25, 1.5, 2.0, 3.0, 5.0)
MOST_PLACED = 4_000
TaskKey = tuple[str, int]


class Placed(NamedTuple):
    """Where a task was placed in one run, and from when to when it ran there, counted from its beginning; `end_ms` is
    NEVER where nothing says how long it takes.
    """

    job_id: str
    task: int
    worker: str
    devices: tuple[int, ...]
    begin_ms: int
    end_ms: int


class Forecast:
    """One run into the future. `number` chooses the draw; 0 takes everybody's middle run time. `placed` are those that
    started in it, and `ends` says when what runs already comes to its end, by its uid.
    """

    def __init__(self, state: State, clock: Clock, number: int, go_on: Callable[[], bool]) -> None:
        self._state, self._began, self._number, self._go_on = state, clock, number, go_on
        self._now_ms = clock.now_ms
        # What is only imagined must not be learnt from.
        self._spans = state.experience.spans.copy()
        self._means = dict(state.experience.calls)
        self._ends: list[tuple[int, str, str]] = []
        self.starts: dict[TaskKey, int] = {}
        self.placed: list[Placed] = []
        self.ends: dict[str, int] = {}

    def run(self, wanted: Sequence[TaskKey]) -> dict[TaskKey, int]:
        """Go on until all these tasks have started, nothing moves any more, or it is far enough; gives the waits."""
        left = dict.fromkeys(wanted)
        for attempt in [attempt for attempt in self._state.attempts.values() if attempt.phase.live]:
            at_ms = self._await_end(attempt)
            if at_ms < NEVER and not attempt.lane:
                self.ends[attempt.uid] = at_ms - self._began.now_ms
        for _ in range(MOST_STEPS):
            self._take_turn()
            for key in [key for key in self.starts if key in left]:
                del left[key]
            if not left or not self._go_on() or self._stands_still() or not self._move_on():
                break
        return {key: self.starts[key] for key in wanted if key in self.starts}

    @property
    def _clock(self) -> Clock:
        began = self._began
        return Clock(self._now_ms, began.at_ms + self._now_ms - began.now_ms)

    def _fold(self, event: Event) -> None:
        apply(self._state, event, self._clock)

    def _take_turn(self) -> None:
        """Timers and passes at this moment; whoever was placed starts at once."""
        state, clock = self._state, self._clock
        self._fold(TurnBegan())
        for event in due(state, clock, lambda job_id: ""):
            self._fold(event)
        cut = True
        while cut and (passed := take_pass(state, self._fold)) is not None:
            decided = passed.plan
            self._begin([placement.uid for placement in decided.placements])
            self._stop(decided.preemptions)
            cut = decided.cut
        answer_polls(state, self._fold)

    def _begin(self, uids: list[str]) -> None:
        state, clock = self._state, self._clock
        placed = [state.attempts[uid] for uid in uids if uid in state.attempts]
        for attempt in placed:
            self._note_start(attempt)
            apply(
                state,
                AttemptAccepted(attempt.worker, attempt.job_id, self._spell(attempt), attempt.uid),
                clock,
            )
        # After all are accepted: the members of a gang start together.
        for attempt in placed:
            apply(
                state,
                AttemptStarted(attempt.worker, attempt.job_id, self._spell(attempt), attempt.uid),
                clock,
            )
            at_ms = self._await_end(attempt)
            if not attempt.lane and len(self.placed) < MOST_PLACED:
                began_ms = self._began.now_ms
                span = (clock.now_ms - began_ms, at_ms - began_ms if at_ms < NEVER else NEVER)
                self.placed.append(
                    Placed(attempt.job_id, attempt.index, attempt.worker, attempt.devices, *span)
                )

    def _note_start(self, attempt: Attempt) -> None:
        """From when on a task runs; the calls of a lane follow each other."""
        since_ms = self._now_ms - self._began.now_ms
        if attempt.calls is None:
            self.starts.setdefault((attempt.job_id, attempt.index), since_ms)
            return
        each_ms = self._span_ms(attempt) / max(1, len(attempt.calls))
        for place, index in enumerate(attempt.calls):
            self.starts.setdefault((attempt.job_id, index), since_ms + round(place * each_ms))

    def _span_ms(self, attempt: Attempt) -> int:
        """How long an attempt will run on, or a lane for the calls that it has."""
        job = self._state.jobs[attempt.job_id]
        began_ms = attempt.started_ms or attempt.assigned_ms
        if attempt.calls is None:
            return draw_span(self._spans, job, attempt, self._now_ms - began_ms, self._number)
        mean_us = self._means.get(job.id)
        if mean_us is not None:
            return max(1, round(len(attempt.calls) * mean_us / 1000))
        return len(attempt.calls) * draw_span(self._spans, job, attempt, 0, self._number)

    def _stop(self, preemptions: Sequence[Preemption]) -> None:
        for uid in [uid for preemption in preemptions for uid in preemption.victims]:
            attempt = self._state.attempts.get(uid)
            if attempt is not None and attempt.phase is Phase.STOPPING:
                heapq.heappush(self._ends, (end_ms(self._state, attempt), uid, "preempted"))

    def _await_end(self, attempt: Attempt) -> int:
        """Note when an attempt ends, and give that; NEVER where nothing says so."""
        if attempt.phase is Phase.STOPPING:
            at_ms = end_ms(self._state, attempt)
            heapq.heappush(self._ends, (at_ms, attempt.uid, "preempted"))
            return at_ms
        began_ms = self._now_ms if attempt.lane else attempt.started_ms or attempt.assigned_ms
        span_ms = self._span_ms(attempt)
        if span_ms >= NEVER:
            return NEVER
        at_ms = max(began_ms + span_ms, self._now_ms + 1)
        heapq.heappush(self._ends, (at_ms, attempt.uid, "succeeded"))
        return at_ms

    def _stands_still(self) -> bool:
        """Nothing that runs will end, and all that is timed is another look at a task that nobody can make room for."""
        return not self._ends and all(kind == "protect" for _, kind, _ in self._state.timers)

    def _move_on(self) -> bool:
        """To the next end or timer; False where there is none, or none within reach."""
        times = [self._ends[0][0]] if self._ends else []
        timer_ms = next_due_ms(self._state)
        if timer_ms is not None:
            times.append(timer_ms)
        if not times or min(times) > self._began.now_ms + HORIZON_MS:
            return False
        self._now_ms = max(self._now_ms, min(times))
        self._fold(TurnBegan())
        while self._ends and self._ends[0][0] <= self._now_ms:
            _, uid, said = heapq.heappop(self._ends)
            attempt = self._state.attempts.get(uid)
            if attempt is not None and attempt.phase.live:
                self._end(attempt, said)
        return True

    def _end(self, attempt: Attempt, said: str) -> None:
        state = self._state
        stopped = attempt.phase is Phase.STOPPING
        if said == "preempted" and attempt.cancel != "preempted":
            said = "killed"
        elif stopped and said == "succeeded":
            return  # it was stopped meanwhile and ends by that
        if attempt.calls is not None and said == "succeeded":
            self._go_through(attempt, attempt.calls)
            return
        code = 0 if said == "succeeded" else None
        outcome = Outcome(attempt.job_id, self._spell(attempt), attempt.uid, said, code)
        apply(state, AttemptEnded(attempt.worker, outcome), self._clock)

    def _go_through(self, lane: Attempt, calls: dict[int, int]) -> None:
        """A lane has gone through its calls and takes the next: many at a time, or a large map would take for ever."""
        state, clock, job = self._state, self._clock, self._state.jobs[lane.job_id]
        if calls:
            apply(state, CallsEnded(lane.worker, lane.uid, tuple(calls), "succeeded"), clock)
        if may_feed(state, job, lane):
            share = max(1, job.waiting // (PARTS * max(1, job.live)))
            if ranges := Supply(state, job).take(share):
                apply(state, CallsFed((Feed(lane.uid, tuple(ranges)),)), clock)
        self._fold(LanesSeen((lane.uid,)))
        if not calls:
            apply(state, LanesClosed((lane.uid,)), clock)
            return
        self._note_start(lane)
        self._await_end(lane)

    def _spell(self, attempt: Attempt) -> int:
        return self._state.jobs[attempt.job_id].spelled(attempt.index)


def draw_span(spans: Spans, job: Job, attempt: Attempt, elapsed_ms: int, number: int) -> int:
    """How long an attempt runs in one draw: one of the run times that are likely for it and not over yet."""
    limit_ms = attempt.limit_ms or NEVER
    known = spans.likely(kind_of_work(job), job.limit_ms)
    if not known:
        told_ms = job.expected_ms if job.expected_ms > elapsed_ms else 0
        return min(told_ms or limit_ms, limit_ms)
    # One that runs longer than any before goes on for about as long again.
    likely = sorted(span for span in known if span > elapsed_ms) or [
        round(elapsed_ms * more) for more in LONGER
    ]
    if number == 0:
        return min(likely[len(likely) // 2], limit_ms)
    chance = zlib.crc32(f"{job.id}/{attempt.index}/{number}".encode())
    return min(likely[chance % len(likely)], limit_ms)
