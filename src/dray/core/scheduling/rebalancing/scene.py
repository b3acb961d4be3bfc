"""What strategies look at: who may be moved, how long each will still run, what a move costs it, where it could go.

One look at the state between two changes of it, thrown away afterwards. Places that are proposed are taken for the rest
of the look, so no two proposals want the same room. Surprising rule: an attempt of which nobody knows how long it runs
is never moved for a gain: nothing could be said of what that wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from dray.core.lifecycle.holding.receipts import lost_ms, ran_ms
from dray.core.lifecycle.state.columns import kind_of
from dray.core.lifecycle.state.experience import kind_of_work
from dray.core.lifecycle.state.parties import gpus_of
from dray.core.lifecycle.state.service_events import Move
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.resources import WHOLE
from dray.core.model.specs.spec import TIERS, unpack_spec
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.claims.moving_room import claim_moves
from dray.core.scheduling.claims.reservations import Spare, Watch, Window
from dray.core.scheduling.placement.placer import make_placer
from dray.core.scheduling.turns.victim_rules import RESTART_MS

# Beyond these a look would take too long: those that have run longest are looked at.
MOST_MOVERS = 2_000
MOST_PLACES = 32
# A hub that was away may never have heard of a start beyond what its worker says it runs.
RUNS = (Phase.ACCEPTED, Phase.RUNNING)


class Scene:
    """One look."""

    def __init__(self, state: State) -> None:
        self.state, self.rooms = state, Rooms(state)
        claim_moves(state, self.rooms)
        watch = Watch(state, self.rooms, Window())
        watch.stand_guard(state.reservations.values())
        self.placer = make_placer(state, self.rooms)
        self._spares: dict[int, Spare] = {}
        self._once: dict[str, bool] = {}

    @cached_property
    def movers(self) -> tuple[Attempt, ...]:
        """All that run and may be moved for a gain, those that have run longest first."""
        state = self.state
        running = [
            state.attempts[uid]
            for uids in state.held.values()
            for uid in uids
            if state.attempts[uid].phase in RUNS
        ]
        running.sort(key=lambda attempt: (attempt.started_ms, attempt.fence))
        return tuple(attempt for attempt in running[:MOST_MOVERS] if not self.why_not(attempt))

    def why_not(self, attempt: Attempt) -> str:
        """Why an attempt cannot be moved by itself at all; nothing where it can."""
        job = self.state.jobs[attempt.job_id]
        if attempt.lane or job.calls:
            return "calls go through lanes, which open where there is room anyway"
        runs = attempt.started and attempt.phase in RUNS
        if not runs or attempt.cancel or attempt.uid in self.state.followers:
            return "it does not run, or ends just now"
        if (attempt.job_id, attempt.index) in self.state.moves:
            return "it is being moved already"
        if job.gang:
            return "it is one of a gang"
        if job.service:
            return "it is a replica of a service"
        if job.barred:
            return "its job is held"
        if attempt.shape != job.shape:
            return "it runs by an earlier spec"
        return "it may start once only" if self.starts_once(job) else ""

    def starts_once(self, job: Job) -> bool:
        """Whether the tasks of a job may never be started again."""
        found = self._once.get(job.id)
        if found is None:
            found = self._once[job.id] = unpack_spec(job.spec).at_most_once
        return found

    def cards(self, attempt: Attempt) -> float:
        """How many cards it holds, a shared one as the part it holds of it."""
        return gpus_of(self.state.ask(attempt)) / WHOLE

    def left_ms(self, attempt: Attempt) -> int:
        """How long it will still run where it is, by the lower quartile; 0 where nobody knows."""
        state, job = self.state, self.state.jobs[attempt.job_id]
        ran = ran_ms(state, attempt)
        said = state.progress.get(attempt.uid)
        done = (said.fraction or 0) if said is not None else 0
        if said is not None and 0 < done < 1 and ran:
            rate = state.experience.speeds.rate_of(job.name, self.kind_at(attempt))
            if rate and said.step:
                # It may have gone on from steps that were made elsewhere, at another speed.
                whole_ms = said.step * (1 - done) / done / rate * 1000
                return max(0, round(whole_ms) - (state.at_ms - said.at_ms))
            return round(ran * (1 - done) / done)
        task = state.tasks[attempt.job_id, attempt.index]
        known = sorted(state.experience.spans.likely(kind_of_work(job), job.limit_ms))
        over = [span - ran for span in known if span > ran]
        if over:
            return over[len(over) // 4]
        told_ms = job.expected_ms - task.used_ms - ran
        return max(0, told_ms) if job.expected_ms and not known else 0

    def kind_at(self, attempt: Attempt) -> str:
        """The kind of card that it runs on."""
        columns = self.state.columns
        return kind_of(columns.offers[columns.get("offer", columns.row_of[attempt.worker])])

    def restart_ms(self, attempt: Attempt) -> int:
        """How long it takes from its end here to where it goes on elsewhere."""
        return RESTART_MS

    def down_ms(self, attempt: Attempt) -> int:
        """How much of its run a move costs: what is not saved, half its grace, stop and start."""
        grace_ms = TIERS[self.state.jobs[attempt.job_id].tier].grace_s * 1000
        return lost_ms(self.state, attempt) + round(grace_ms / 2) + self.restart_ms(attempt)

    def price_ms(self, attempts: Sequence[Attempt]) -> int:
        """What moving all of these costs, in milliseconds of one card."""
        return round(sum(self.cards(attempt) * self.down_ms(attempt) for attempt in attempts))

    # --- places -------------------------------------------------------------------------------------------------------

    def find_place(
        self, attempt: Attempt, suits: Callable[[int], bool], most: int = MOST_PLACES
    ) -> Move | None:
        """The best idle place for it, as the policy places, on a worker that suits; nothing is taken yet."""
        state, job = self.state, self.state.jobs[attempt.job_id]
        home = state.columns.row_of.get(attempt.worker)
        for candidate in self.placer.ranking(job.shape, job.id, most):
            row, ask = candidate.row, state.asks(job.shape)[candidate.variant]
            if row == home or row in self.rooms.guards or not suits(row):
                continue
            spare = self._spare(row, ask.pool)
            devices = candidate.devices if spare.holds(ask, candidate.devices) else spare.cards_for(ask)
            if spare.pool == ask.pool and devices is not None:
                return Move(attempt.uid, state.columns.worker_of[row], devices, candidate.variant)
        return None

    def find_exchange(self, one: Attempt, other: Attempt) -> tuple[Move, Move] | None:
        """Both moves where each of two has room in the place of the other; nothing is taken."""
        state, moves = self.state, []
        for mover, goes in ((one, other), (other, one)):
            ask, row = state.ask(mover), state.columns.row_of[goes.worker]
            offer = state.columns.get("offer", row)
            if row in self.rooms.guards or row in self._spares or not state.columns.get("open", row):
                return None
            if not self.rooms.class_mask(ask)[offer]:
                return None
            spare = Spare(
                state, self.rooms.room(row, ask.pool), ask.pool, (goes,), self.rooms.owed.get(row, ())
            )
            devices = spare.cards_for(ask)
            if devices is None:
                return None
            moves.append(Move(mover.uid, goes.worker, devices, mover.variant))
        return moves[0], moves[1]

    def take(self, moves: Sequence[Move]) -> None:
        """These places are spoken for: no later proposal of this look wants them."""
        for move in moves:
            attempt, row = self.state.attempts[move.uid], self.state.columns.row_of[move.worker]
            ask = self.state.asks(attempt.shape)[move.variant]
            self._spare(row, ask.pool).take(ask, move.devices)

    def _spare(self, row: int, pool: str) -> Spare:
        found = self._spares.get(row)
        if found is None:
            room = self.rooms.room(row, pool)
            found = self._spares[row] = Spare(self.state, room, pool, (), self.rooms.owed.get(row, ()))
            found.slots = min(found.slots, self.rooms.left(row).credit)
        return found
