"""How the tasks of a workload lie over workers, or over the values of a worker label: together, apart, by what each
could hold, by fixed shares.

A placer of its own for each workload that says so, over the rooms of the pass: only such workloads pay for it. Where it
must be so, a place with too many tasks is no place for another one. The surprising rule: that says nothing of the room
there, so that whoever is refused is not taken for one who found none.
"""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.state.columns import Numbers
from dray.core.lifecycle.state.parties import Tally
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.model.records.workload import CAPACITY, PACK, SHARES, SITE
from dray.core.model.specs.resources import WHOLE, Ask
from dray.core.scheduling.capacity.memory import Floats, Stamp
from dray.core.scheduling.capacity.remaining import Devices, Rooms
from dray.core.scheduling.placement.candidates import Spot
from dray.core.scheduling.placement.placer import Greedy
from dray.core.scheduling.placement.scorers import Sight, Wish, hear, to_integers, weigh

# Where tasks lie goes before all that the site weighs.
FIRST = 500.0


def lies_somehow(state: State, job: Job) -> Tally | None:
    """The tally of a job's workload, where that says how its tasks are to lie."""
    tally = state.workloads.get(job.workload) if job.workload else None
    return tally if tally is not None and tally.record.terms.distribution.mode != SITE else None


class Lies:
    """The tasks of one workload by place, as they are and as the pass adds to them."""

    def __init__(self, state: State, tally: Tally, by: str = "") -> None:
        self._columns = columns = state.columns
        self.terms = tally.record.terms.distribution
        self.by = by or self.terms.by
        self.counts: dict[str, int] = {}
        self.units: dict[str, int] = {}
        held = [uid for job_id in tally.jobs for uid in state.live_of.get(job_id, ())]
        for row in range(columns.count):
            if columns.get("open", row):
                place = self.place(row)
                unit = columns.get("total_gpu", row) * WHOLE or columns.get("total_cpu", row)
                self.counts.setdefault(place, 0)
                self.units[place] = self.units.get(place, 0) + max(1, unit)
        for uid in held:
            if not (attempt := state.attempts[uid]).behind:
                self.add(columns.row_of[attempt.worker])

    def place(self, row: int) -> str:
        """The place of a worker: the value of the label, or itself."""
        columns = self._columns
        if self.by:
            labels = columns.offers[columns.get("offer", row)].labels
            return next((value for name, value in labels if name == self.by), "")
        return columns.worker_of[row]

    def add(self, row: int) -> None:
        """One more of its tasks on a worker."""
        place = self.place(row)
        self.counts[place] = self.counts.get(place, 0) + 1

    def wanted(self, place: str) -> float:
        """Which part of its tasks a place is to have."""
        if self.terms.mode == SHARES:
            return self.terms.shares.get(place, 0.0) / sum(self.terms.shares.values())
        if self.terms.mode == CAPACITY:
            return self.units.get(place, 0) / max(1, sum(self.units.values()))
        return 1 / max(1, len(self.counts))

    def surplus(self, place: str) -> float:
        """By how many tasks a place would be ahead of its part with one more."""
        count = self.counts.get(place, 0) + 1
        if self.terms.mode in (SHARES, CAPACITY):
            return count - self.wanted(place) * (sum(self.counts.values()) + 1)
        return count - min(self.counts.values(), default=0)

    def forbids(self, row: int) -> bool:
        """Whether one more there would be too many."""
        return self.terms.required and self.surplus(self.place(row)) > self.terms.max_skew

    def score(self, sight: Sight) -> Floats:
        """1 at the best place, less the more it is ahead of its part."""
        rows = range(self._columns.count) if sight.rows is None else sight.rows.tolist()
        known: dict[str, float] = {}
        words = []
        for row in rows:
            place = self.place(row)
            if place not in known:
                count = self.counts.get(place, 0)
                ahead = self.surplus(place)
                known[place] = (
                    count / (1 + count) if self.terms.mode == PACK else 0.5 - ahead / (2 + 2 * abs(ahead))
                )
            words.append(known[place])
        return np.array(words, dtype=np.float64)


class Distributed(Greedy):
    """The default strategy with one more word, that goes before all others."""

    def __init__(self, state: State, rooms: Rooms, tally: Tally) -> None:
        super().__init__(state, rooms)
        self.sticky, self.personal = False, True
        self._workload = tally.record.id
        self.lies = Lies(state, tally)
        # Somewhere there was room, and one more would have been too many.
        self.held_apart = False

    def score(self, sight: Sight, wish: Wish) -> Numbers:
        heard = hear(sight, wish, self._weights, self._scorers)
        return to_integers(weigh(sight, heard) + self.lies.score(sight) * FIRST, self._unit)

    def stamp(self, flavour: str) -> Stamp | None:
        return None

    def flavour(self, job: Job | None) -> str:
        return self._workload

    def fit(self, row: int, ask: Ask, owner: str) -> Devices | None:
        devices = super().fit(row, ask, owner)
        if devices is not None and self.lies.forbids(row):
            self.held_apart = True
            return None
        return devices

    def claim(self, spot: Spot, ask: Ask, owner: str, times: int = 1) -> None:
        self.rooms.claim(spot.row, ask, spot.devices, times)
        for _ in range(times):
            self.lies.add(spot.row)
        if (job := self.state.jobs.get(owner)) is not None:
            self.walk(job.shape, owner).rebuild()
