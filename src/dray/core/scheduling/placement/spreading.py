"""Keeping a job's tasks apart: how many of them each worker, or each value of a worker label, has already."""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.state.state import State
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
