"""What a pass, or a dry run of one, has given out so far: claims, keepers, gates and victims over a state left alone.

The one way from a job to its places: the pass goes it with everybody in turn, `plan` and `why` with a single job, and
throw the overlay away.
"""

from __future__ import annotations

from dray.core.lifecycle.providers.endings import needs_ms
from dray.core.lifecycle.state.events import Preemption
from dray.core.lifecycle.state.parties import GateKey
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.claims.moving_aside import Aside
from dray.core.scheduling.claims.moving_room import claim_moves
from dray.core.scheduling.claims.reservations import Watch, Window, placed_until_ms
from dray.core.scheduling.claims.victims import Search
from dray.core.scheduling.placement.candidates import Spot
from dray.core.scheduling.placement.placer import Distributed, Hints, Placer, make_placer
from dray.core.scheduling.placement.spreading import lies_somehow
from dray.core.scheduling.turns.gates import Gates


class Overlay:
    """Made anew for each pass and each dry run."""

    def __init__(
        self,
        state: State,
        rooms: Rooms,
        window: Window,
        watch: Watch,
        hints: Hints | None = None,
    ) -> None:
        self.state, self.rooms = state, rooms
        self.window, self.watch = window, watch
        self.placer = make_placer(state, rooms, hints)
        self._distributed: dict[str, Distributed] = {}
        self.gates = Gates(state)
        self.search = Search(state, rooms, watch, Aside(state, rooms, self.placer, self.gates))

    def look_for(self, job: Job) -> None:
        """Say for whom room is looked for: keepers ask until when it would run."""
        self.window.until_ms = placed_until_ms(self.state, job)
        if self.state.ending:
            self.window.needed_ms = needs_ms(job)

    def placer_for(self, job: Job) -> Placer:
        """The placer of the policy, or that of a workload which says how its tasks are to lie."""
        tally = lies_somehow(self.state, job) if job.workload else None
        if tally is None:
            return self.placer
        found = self._distributed.get(job.workload)
        if found is None:
            found = self._distributed[job.workload] = Distributed(self.state, self.rooms, tally)
        return found

    def kept_apart(self, job: Job) -> str:
        """The gate of a job that found room only where more of its workload would be too much; else nothing."""
        placer = self._distributed.get(job.workload) if job.workload else None
        return (
            str(GateKey("skew", "workload", job.workload)) if placer is not None and placer.held_apart else ""
        )

    def forget_walks(self) -> None:
        """The pass is over."""
        for placer in (self.placer, *self._distributed.values()):
            placer.forget_walks()

    def find(self, job: Job, count: int) -> list[Spot]:
        """Claim room for some tasks of a job, or for whole groups of a gang; fewer means that there is no more."""
        self.look_for(job)
        placer = self.placer_for(job)
        if job.gang:
            return self._find_groups(placer, job, count)
        if not self.watch.of_row:
            return placer.place(job.shape, count, job.id, job.blamed)
        # One by one: what a keeper lets in changes what it lets in next.
        spots: list[Spot] = []
        while len(spots) < count and (found := placer.place(job.shape, 1, job.id, job.blamed)):
            spots += found
            self.tell_keeper(job, found[0])
        return spots

    def _find_groups(self, placer: Placer, job: Job, count: int) -> list[Spot]:
        spots: list[Spot] = []
        while len(spots) < count:
            found = placer.place_gang(job.shape, job.id, (job.blamed,))
            if not found:
                break
            for spot in found:
                self.tell_keeper(job, spot)
            spots += found
        return spots

    def keep(self, job: Job, preemption: Preemption) -> None:
        """Keep what victims leave for whom they leave it, and where those who are moved will go."""
        state = self.state
        for move in preemption.moves:
            ask = state.asks(state.attempts[move.uid].shape)[move.variant]
            self.rooms.claim(state.columns.row_of[move.worker], ask, move.devices)
        self.watch.preempt(job, preemption)

    def tell_keeper(self, job: Job, spot: Spot) -> None:
        """A spot was claimed: whoever stands before its worker counts it, and nobody stands for its job any longer."""
        keepers = self.watch.of_row.get(spot.row)
        if keepers is not None:
            keepers.took(self.state.asks(job.shape)[spot.variant], spot.devices, job.id)
        self.watch.served(job.id)


def look_through(state: State) -> Overlay:
    """The overlay of a dry run: what is reserved is respected, nothing is renewed or woken."""
    rooms, window = Rooms(state), Window()
    claim_moves(state, rooms)
    watch = Watch(state, rooms, window)
    watch.stand_guard(state.reservations.values())
    return Overlay(state, rooms, window, watch)
