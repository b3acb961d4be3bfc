"""Where tasks lie: how many of a job each worker, or each value of a worker label, has already; and of a workload,
against how many it should have: together, apart, by what each could hold, by fixed shares.
"""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.state.parties import Tally
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job
from dray.core.model.records.workload import CAPACITY, PACK, SHARES, SITE
from dray.core.model.specs.resources import WHOLE
from dray.core.scheduling.capacity.memory import Floats
from dray.core.scheduling.placement.scorers import Sight


class Spreading:
    """The tasks of one job by place. Workers without the label are places of their own."""

    def __init__(self, state: State, job_id: str, label: str) -> None:
        self._columns = state.columns
        self._label, self.by_label = label, bool(label)
        self._count: dict[str, int] = {}
        for uid in state.live_of.get(job_id, ()):
            if not (attempt := state.attempts[uid]).behind:
                self.add(state.columns.row_of[attempt.worker])

    def add(self, row: int) -> None:
        """One more task of the job on a worker."""
        place = self._place(row)
        self._count[place] = self._count.get(place, 0) + 1

    def score(self, sight: Sight) -> Floats:
        """1 where the job has nothing yet, less with each of its tasks."""
        rows = range(self._columns.count) if sight.rows is None else sight.rows.tolist()
        if not self._count:
            return np.ones(len(rows), dtype=np.float64)
        counts = [self._count.get(self._place(row), 0) for row in rows]
        shares: Floats = 1.0 / (1.0 + np.array(counts, dtype=np.float64))
        return shares

    def _place(self, row: int) -> str:
        columns = self._columns
        if self._label:
            for key, value in columns.offers[columns.get("offer", row)].labels:
                if key == self._label:
                    return f"{key}={value}"
        return columns.worker_of[row]


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

    def add(self, row: int, more: int = 1) -> None:
        """One more of its tasks on a worker, or one less."""
        place = self.place(row)
        self.counts[place] = self.counts.get(place, 0) + more

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
