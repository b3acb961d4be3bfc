"""The loop: virtual time from event to event, each folded in by `apply`, each decision made by `plan`.

Owns the cluster's side of the story: when an attempt ends, what a stopped one has saved, which worker fails when. It
decides nothing about scheduling. Events of one moment are folded in together before a pass, as in a hub's turn. The
surprising rule: a job that is preempted saves its work, one whose worker fails does not.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.recovery import release, take_touched
from dray.core.lifecycle.state.effects import Cancel, Effect, GetReady
from dray.core.lifecycle.state.events import (
    AttemptAccepted,
    AttemptEnded,
    AttemptSaved,
    AttemptsLost,
    AttemptStarted,
    CancelRequested,
    Clock,
    CreditSet,
    EpochStarted,
    Event,
    JobsSubmitted,
    NewJob,
    Outcome,
    Placement,
    PolicyChanged,
    Progressed,
    SessionClosed,
    SessionOpened,
)
from dray.core.lifecycle.state.pass_events import WarmSeen
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.core.lifecycle.timers import due
from dray.core.model.policies.policy import Policy, pack_policy
from dray.core.scheduling.passes.foreseeing import foresee
from dray.core.scheduling.passes.turn import answer_polls, take_pass
from dray.sim.traces.failures import Failure
from dray.sim.traces.ledger import Ledger, Shot
from dray.sim.traces.warmth import Warmth
from dray.sim.traces.workload import (
    CREDIT,
    EPOCH_MS,
    Node,
    Shares,
    TraceJob,
    cut,
    make_spec,
    register,
)

START_MS = 1_000
NEVER_MS = 1 << 55
# Workers here never fall silent: failures are told outright, and a look at each of them every few seconds is not.
RULES = Rules(suspect_ms=NEVER_MS, unknown_ms=NEVER_MS, lost_ms=NEVER_MS, lost_service_ms=NEVER_MS)
END, DOWN, UP, TELL = 0, 1, 2, 3
# When a run tells of its steps, after it began to work: often enough to say how fast it is.
TELLS_MS = (60_000, 360_000, 660_000)
LOOK_MS = 60_000
LET_GO = 256
IDLE_TURNS = 10_000


class Run(NamedTuple):
    """A job that holds its place: which attempts where, since when, from when on it does new work and how fast, and by
    which number its end is known.
    """

    number: int
    began_ms: int
    placements: tuple[Placement, ...]
    works_ms: int
    speed: float


class World:
    """One replay. `keep` False: what finds no room at its arrival is turned away, and the last arrival ends it.

    `turn_ms`: what happens within so long is folded in together, at its end, as by a busy hub. `watch` is called
    after each arrival with its place in the trace, `look` after each turn. `rebalance` is asked what of that which runs
    is to go elsewhere, at most once in `look_ms`. `warmth`: what starts wait for what is to be brought; with `foresees`
    workers are told of it ahead of time.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        policy: Policy,
        *,
        failures: Sequence[Failure] = (),
        keep: bool = True,
        turn_ms: int = 0,
        progress: Callable[[int, int], None] | None = None,
        watch: Callable[[World, int], None] | None = None,
        look: Callable[[World], None] | None = None,
        rebalance: Callable[[State], Sequence[Event]] | None = None,
        look_ms: int = LOOK_MS,
        warmth: Warmth | None = None,
        foresees: bool = True,
    ) -> None:
        self.state = State(RULES)
        self.nodes = {node.name: node for node in nodes}
        self._most_gpus = max((node.gpus for node in nodes), default=0)
        self._keep, self._progress = keep, progress
        self._watch, self._look, self._rebalance = watch, look, rebalance
        self._looked_ms, self._look_ms = -look_ms, look_ms
        self._warmth, self._foresees = warmth, foresees
        self._turn_ms = max(1, turn_ms)
        self._heap: list[tuple[int, int, int, str]] = []
        self._sessions = 0
        self._numbers = 0
        self.turns = self.moved = 0
        self.runs: dict[str, Run] = {}
        self._left_ms: dict[str, int] = {}
        self._jobs: dict[str, int] = {}
        self._down: set[str] = set()
        clock = self._clock(START_MS)
        apply(self.state, EpochStarted(1), clock)
        apply(self.state, PolicyChanged(pack_policy(policy), "trace"), clock)
        for node in nodes:
            self._join(node, clock)
        for failure in failures:
            heapq.heappush(self._heap, (START_MS + failure.at_ms, DOWN, 0, failure.node))
            if failure.back_ms:
                heapq.heappush(self._heap, (START_MS + failure.back_ms, UP, 0, failure.node))

    def run(self, jobs: Sequence[TraceJob]) -> Ledger:
        """Replay jobs, which are sorted by arrival, to the end of the last one that can run."""
        self._trace = jobs
        self.ledger = Ledger(jobs, list(self.nodes.values()))
        place, idle, step = 0, 0, max(1, len(jobs) // 200)
        while True:
            now_ms = self._next_ms(place)
            if now_ms is None or idle > IDLE_TURNS or (place == len(jobs) and not self._keep):
                break
            clock = self._clock(now_ms)
            changed = self._happen(clock)
            if place < len(jobs) and jobs[place].arrival_ms + START_MS <= now_ms:
                place, changed = self._arrive(place, clock), True
            timers = self.state.timers
            if timers and timers[0][0] <= now_ms:
                for event in due(self.state, clock, _no_reason):
                    self._react(apply(self.state, event, clock), clock)
                    changed = True
            changed = self._warm_up(clock) or changed
            placed = self._decide(clock) if changed or self._rebalance is not None else 0
            if self._rebalance is not None and changed and now_ms - self._looked_ms >= self._look_ms:
                self._move(self._rebalance, clock)
            self._look_ahead(clock)
            idle = 0 if placed or self.runs or place < len(jobs) else idle + 1
            self._take_stock(now_ms)
            if self._progress is not None and changed and (self.ledger.ended % step == 0):
                self._progress(self.ledger.ended, len(jobs))
        self._let_go()
        self.ledger.close(self.state.now_ms - START_MS)
        return self.ledger

    def _clock(self, now_ms: int) -> Clock:
        return Clock(now_ms, EPOCH_MS + now_ms - START_MS)

    def _next_ms(self, place: int) -> int | None:
        state, next_ms = self.state, NEVER_MS
        if place < len(self._trace):
            next_ms = self._trace[place].arrival_ms + START_MS
        if self._heap and (next_ms < NEVER_MS or self.runs or state.backlog.buckets):
            next_ms = min(next_ms, self._heap[0][0])
        if next_ms == NEVER_MS and not state.backlog.buckets:
            return None
        if state.timers:
            next_ms = min(next_ms, state.timers[0][0])
        if self._warmth is not None and (ready_ms := self._warmth.next_ms()) is not None:
            next_ms = min(next_ms, ready_ms)
        if next_ms == NEVER_MS:
            return None
        return max(-(-next_ms // self._turn_ms) * self._turn_ms, state.now_ms)

    # --- what happens -------------------------------------------------------------------------------------------------

    def _happen(self, clock: Clock) -> bool:
        changed, heap = False, self._heap
        while heap and heap[0][0] <= clock.now_ms:
            at_ms, kind, number, name = heapq.heappop(heap)
            if kind == END:
                run = self.runs.get(name)
                if run is None or run.number != number:
                    continue
                self._end(name, run, at_ms, clock)
            elif kind == TELL:
                run = self.runs.get(name)
                if run is None or run.number != number:
                    continue
                self._tell(name, run, clock)
            elif kind == DOWN:
                self._fail(name, clock)
            elif name in self._down:
                self._down.discard(name)
                self._join(self.nodes[name], clock)
            changed = True
        return changed

    def _arrive(self, place: int, clock: Clock) -> int:
        jobs, new = self._trace, []
        latest_ms = clock.now_ms - START_MS
        while place < len(jobs) and jobs[place].arrival_ms <= latest_ms:
            job = jobs[place]
            shares = cut(job, self._most_gpus)
            new.append(NewJob(job.id, job.user, make_spec(job, shares)))
            self._jobs[job.id] = place
            place += 1
            if not self._keep:
                break
        apply(self.state, JobsSubmitted(tuple(new)), clock)
        self.ledger.waiting += len(new)
        if not self._keep:
            self._decide(clock)
            job = self._trace[place - 1]
            if job.id not in self.runs:
                apply(self.state, CancelRequested(job.id), clock)
                self.ledger.waiting -= 1
                del self._jobs[job.id]
        if self._watch is not None:
            self._watch(self, place - 1)
        return place

    def _end(self, job_id: str, run: Run, at_ms: int, clock: Clock) -> None:
        wall_s = (at_ms - run.began_ms) / 1000
        many = len(run.placements) > 1
        for one in run.placements:
            outcome = Outcome(job_id, one.index if many else -1, one.uid, "succeeded", 0, wall_s=wall_s)
            apply(self.state, AttemptEnded(one.worker, outcome), clock)
        del self.runs[job_id]
        self._left_ms.pop(job_id, None)
        self.ledger.end(self._jobs.pop(job_id), at_ms - START_MS)

    def _fail(self, name: str, clock: Clock) -> None:
        """A worker dies with all that runs on it, and is known to."""
        state = self.state
        if name in self._down:
            return
        self._down.add(name)
        held = tuple(state.held.get(name, ()))
        for uid in held:
            job_id = state.attempts[uid].job_id
            if job_id in self.runs:
                self._interrupt(job_id, clock, saved=False)
        apply(state, SessionClosed(name, state.presence[name].session), clock)
        self._react(apply(state, AttemptsLost(name, held, "its worker failed"), clock), clock)

    def _join(self, node: Node, clock: Clock) -> None:
        self._sessions += 1
        apply(self.state, SessionOpened(node.name, self._sessions, ""), clock)
        apply(self.state, register(node, self._sessions), clock)
        apply(self.state, CreditSet(node.name, CREDIT, node.slots), clock)
        answer_polls(self.state, lambda event: apply(self.state, event, clock))

    # --- what is decided ----------------------------------------------------------------------------------------------

    def _decide(self, clock: Clock) -> int:
        """Passes until the core says that none is due."""
        state, placed = self.state, 0
        if not state.backlog.buckets and self._rebalance is None:
            return 0  # nobody waits
        effects: list[Effect] = []
        while True:
            effects.clear()
            passed = take_pass(state, lambda event: effects.extend(apply(state, event, clock)))
            again = stopped = False
            if passed is not None:
                decided, again = passed
                self.moved += sum(len(one.moves) for one in decided.preemptions)
                self._begin(decided.placements, clock)
                placed += len(decided.placements)
                stopped = bool(decided.preemptions)
            if stopped or self._rebalance is not None:
                stopped = self._react(effects, clock)
            if not again and not stopped:
                return placed

    def _begin(self, placements: Sequence[Placement], clock: Clock) -> None:
        place, count = 0, len(placements)
        while place < count:
            first = placements[place]
            nodes = self._shares(first.job_id).nodes
            members = tuple(placements[place : place + nodes])
            place += nodes
            for one in members:
                index = one.index if nodes > 1 else -1
                apply(self.state, AttemptAccepted(one.worker, one.job_id, index, one.uid), clock)
            number = self._jobs[first.job_id]
            job = self._trace[number]
            if nodes > 1 or job.steps or self._rebalance is not None:
                for one in members:
                    index = one.index if nodes > 1 else -1
                    apply(self.state, AttemptStarted(one.worker, one.job_id, index, one.uid), clock)
            self._numbers += 1
            left_ms = self._left_ms.get(first.job_id, job.duration_ms)
            again = self.ledger.first_ms[number] >= 0
            works_ms = (
                clock.now_ms
                + self._wait_for_tree(job, members, clock)
                + job.restart_ms
                + (job.again_ms if again else 0)
            )
            speed = min(job.speeds.get(self.nodes[one.worker].model, 1.0) for one in members)
            self.runs[first.job_id] = Run(self._numbers, clock.now_ms, members, works_ms, speed)
            ends_ms = works_ms + round(left_ms / speed)
            heapq.heappush(self._heap, (ends_ms, END, self._numbers, first.job_id))
            for wait_ms in TELLS_MS if job.steps and nodes == 1 else ():
                if works_ms + wait_ms < ends_ms:
                    heapq.heappush(self._heap, (works_ms + wait_ms, TELL, self._numbers, first.job_id))
            self.ledger.begin(number, clock.now_ms - START_MS)

    def _tell(self, job_id: str, run: Run, clock: Clock) -> None:
        """A run says how many steps it has made, and which part of all that is."""
        job = self._trace[self._jobs[job_id]]
        done_ms = job.duration_ms - self._left_ms.get(job_id, job.duration_ms) + _worked_ms(run, clock.now_ms)
        fraction, (one,) = done_ms / job.duration_ms, run.placements
        apply(self.state, Progressed(one.worker, one.uid, round(fraction * job.steps), fraction), clock)

    def _move(self, rebalance: Callable[[State], Sequence[Event]], clock: Clock) -> None:
        """What is decided about work that runs is carried out by the steps that a hub takes."""
        self._looked_ms = clock.now_ms
        self._save_all(clock)
        decided = rebalance(self.state)
        for event in decided:
            self._react(apply(self.state, event, clock), clock)
        if decided:
            self._decide(clock)

    def _save_all(self, clock: Clock) -> None:
        """All that runs has just saved: whoever is stopped has lost nothing, and that is what a move is reckoned by."""
        for job_id, run in self.runs.items():
            if clock.now_ms > run.works_ms:
                for one in run.placements:
                    index = one.index if len(run.placements) > 1 else -1
                    saved = AttemptSaved(one.worker, job_id, index, one.uid, clock.now_ms)
                    apply(self.state, saved, clock)

    def _wait_for_tree(self, job: TraceJob, members: Sequence[Placement], clock: Clock) -> int:
        """Until the last of its workers has what a job needs."""
        if self._warmth is None or not job.snapshot:
            return 0
        return max(self._warmth.begin(one.worker, one.uid, job.snapshot, clock.now_ms) for one in members)

    def _warm_up(self, clock: Clock) -> bool:
        """Workers say what they have got ready."""
        told = {} if self._warmth is None else self._warmth.pass_time(clock.now_ms)
        for worker, tokens in told.items():
            apply(self.state, WarmSeen(worker, tokens), clock)
        return bool(told)

    def _look_ahead(self, clock: Clock) -> None:
        """Tell workers what is likely to be theirs."""
        if self._warmth is None or not self._foresees:
            return
        for event in foresee(self.state):
            for effect in apply(self.state, event, clock):
                if isinstance(effect, GetReady):
                    self._warmth.hinted(effect, clock.now_ms)

    def _shares(self, job_id: str) -> Shares:
        return cut(self._trace[self._jobs[job_id]], self._most_gpus)

    def _react(self, effects: Sequence[Effect], clock: Clock) -> bool:
        """Workers do as they are told: stop, having saved their work."""
        stopped = False
        for effect in effects:
            if isinstance(effect, Cancel):
                stopped = self._stop(effect, clock) or stopped
        return stopped

    def _stop(self, asked: Cancel, clock: Clock) -> bool:
        attempt = self.state.attempts.get(asked.uid)
        if attempt is None or not attempt.phase.live:
            return False
        job_id, state = attempt.job_id, self.state
        run = self.runs.get(job_id)
        if run is not None:
            self._interrupt(job_id, clock, saved=True)
        members = run.placements if run is not None else ()
        many = self._shares(job_id).nodes > 1
        for uid, index, worker in [(one.uid, one.index, one.worker) for one in members] or [
            (asked.uid, attempt.index, attempt.worker)
        ]:
            spelled = index if many else -1
            if run is not None and clock.now_ms > run.works_ms:
                idle_ms = run.works_ms - run.began_ms
                apply(state, AttemptSaved(worker, job_id, spelled, uid, 1, idle_ms), clock)
            ran_s = (clock.now_ms - (run.began_ms if run else clock.now_ms)) / 1000
            outcome = Outcome(job_id, spelled, uid, "preempted", wall_s=ran_s)
            apply(state, AttemptEnded(worker, outcome), clock)
        return True

    def _interrupt(self, job_id: str, clock: Clock, saved: bool) -> None:
        run, number = self.runs.pop(job_id), self._jobs[job_id]
        if saved:
            whole_ms = self._trace[number].duration_ms
            self._left_ms[job_id] = self._left_ms.get(job_id, whole_ms) - _worked_ms(run, clock.now_ms)
        self.ledger.interrupt(number, clock.now_ms - START_MS, preempted=saved)

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _take_stock(self, now_ms: int) -> None:
        self.turns += 1
        if self._look is not None:
            self._look(self)
        if self.turns % LET_GO == 0 or len(self.state.touched) > 4 * LET_GO:
            self._let_go()
        if self.ledger.is_due(now_ms - START_MS):
            self.ledger.sample(Shot.take(self.state, now_ms - START_MS, self.ledger))

    def _let_go(self) -> None:
        """Ended work leaves memory, as it does once a hub has written its rows."""
        state = self.state
        touched = take_touched(state)
        release(state, touched.jobs, touched.tasks, touched.attempts)


def _worked_ms(run: Run, now_ms: int) -> int:
    """How much a run has done, as long as that takes at a speed of 1."""
    return round(max(0, now_ms - run.works_ms) * run.speed)


def _no_reason(job_id: str) -> str:
    return "no room"
