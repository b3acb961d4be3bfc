"""What became of every job, and how the cluster stood along the way. Written by the loop, read by the report.

Columns of integers instead of a record per job: a million of them must fit. Moments count from the trace's start; -1
means that it never happened.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dray.core.lifecycle.state.state import State
from dray.core.model.specs.resources import WHOLE
from dray.core.scheduling.placement.fragmentation import fragments_of
from dray.sim.traces.workload import Node, TraceJob

MOST_SHOTS = 512


class Shot(NamedTuple):
    """The cluster at one moment: shares of all GPUs held and lost to fragmentation; what waits."""

    at_ms: int
    gpu_share: float
    lost_share: float
    running: int
    waiting: int

    @staticmethod
    def take(state: State, at_ms: int, ledger: Ledger) -> Shot:
        """Look at the state now."""
        columns = state.columns
        view, count = columns.view, columns.count
        idle = int(view["free_milli"][:count].sum())
        total = int(view["total_gpu"][:count].sum()) * WHOLE
        lost = 0.0
        if total and idle:
            fragments = fragments_of(state)
            free = view["total_cpu"][:count] - view["used_cpu"][:count]
            measured = fragments.measure(free, columns.device_free[:count], view["offer"][:count])
            lost = float(measured.sum()) / fragments.covered / total
        gpu_share = 1 - idle / total if total else 0.0
        return Shot(at_ms, gpu_share, lost, ledger.running, ledger.waiting)


def _column(count: int) -> array[int]:
    return array("q", [-1]) * count


class Ledger:
    """The columns, and sums that need no second look: GPU-milliseconds held, and since when."""

    def __init__(self, jobs: Sequence[TraceJob], nodes: Sequence[Node]) -> None:
        self.jobs, self.nodes = jobs, nodes
        count = len(jobs)
        self.first_ms, self.last_ms, self.ended_ms = _column(count), _column(count), _column(count)
        self.holds = bytearray(count)
        self.preempted, self.lost = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        self.running = self.waiting = self.ended = 0
        self.held_ms = self.cpu_held_ms = self.wasted_ms = 0
        self.makespan_ms = 0
        self.shots: list[Shot] = []
        self._gap_ms = self._next_ms = 0

    def begin(self, number: int, at_ms: int) -> None:
        """A job holds all it asked for."""
        if self.first_ms[number] < 0:
            self.first_ms[number] = at_ms
        self.last_ms[number] = at_ms
        self.holds[number] = 1
        self.running += 1
        self.waiting -= 1

    def end(self, number: int, at_ms: int) -> None:
        """A job is done."""
        self._give_back(number, at_ms)
        self.ended_ms[number] = at_ms
        self.ended += 1
        self.makespan_ms = max(self.makespan_ms, at_ms)

    def interrupt(self, number: int, at_ms: int, preempted: bool) -> None:
        """A job lost its place and waits again."""
        self._give_back(number, at_ms)
        self.waiting += 1
        if preempted:
            self.preempted[number] += 1
        else:
            self.lost[number] += 1
            self.wasted_ms += (at_ms - self.last_ms[number]) * self.jobs[number].gpus

    def _give_back(self, number: int, at_ms: int) -> None:
        job, ran_ms = self.jobs[number], at_ms - self.last_ms[number]
        self.held_ms += ran_ms * job.gpus * job.gpu_milli // WHOLE
        self.cpu_held_ms += ran_ms * job.cpu_milli // 1000
        self.holds[number] = 0
        self.running -= 1

    def close(self, at_ms: int) -> None:
        """The replay is over: what still runs has held its place until now."""
        if self.running:
            self.makespan_ms = max(self.makespan_ms, at_ms)
        for number, begun_ms in enumerate(self.last_ms):
            if begun_ms >= 0 and self.ended_ms[number] < 0 and self.holds[number]:
                self._give_back(number, at_ms)

    # --- pictures taken along the way ---------------------------------------------------------------------------------

    def is_due(self, at_ms: int) -> bool:
        """Whether the next picture is to be taken."""
        return at_ms >= self._next_ms

    def sample(self, shot: Shot) -> None:
        """Keep a picture; when there are too many every other one goes, and the rest come half as often."""
        self.shots.append(shot)
        if len(self.shots) >= MOST_SHOTS:
            self.shots = self.shots[::2]
            self._gap_ms = max(1, (self.shots[-1].at_ms - self.shots[0].at_ms) // len(self.shots))
        self._next_ms = shot.at_ms + self._gap_ms

    def columns(self) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Arrivals, first starts, ends, run times and counts as arrays for the report."""
        jobs = self.jobs
        return {
            "arrival": np.array([job.arrival_ms for job in jobs], dtype=np.int64),
            "duration": np.array([job.duration_ms + job.restart_ms for job in jobs], dtype=np.int64),
            "first": np.frombuffer(self.first_ms, dtype=np.int64),
            "ended": np.frombuffer(self.ended_ms, dtype=np.int64),
            "preempted": np.frombuffer(self.preempted, dtype=np.int64),
            "lost": np.frombuffer(self.lost, dtype=np.int64),
            "deadline": np.array([job.deadline_ms for job in jobs], dtype=np.int64),
        }
