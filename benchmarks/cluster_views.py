"""What it costs to show a cluster of 10,000 mixed workers: the board, its columns, and a tab that is told what changed.

On a state of the core alone, by processor time: what the loop pays for the views themselves, without HTTP and turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from benchmarks.core_cluster import CLOCK
from benchmarks.figures import Bar, Figure
from benchmarks.mixed_cluster import MixedCluster
from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import CreditSet
from dray.core.lifecycle.state.state import State
from dray.hub.access.caller import Caller
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.views.board import Board
from dray.hub.views.cluster import ClusterView

POLICY: dict[str, Any] = {}
ADMIN = Caller("bench", "bench", ("admin",))
BEAT_S = 10.0
T = TypeVar("T")


class _Turns:
    """Turns without anything but a look at the state; keeps how long the longest took."""

    def __init__(self, state: State) -> None:
        self.state, self.seq, self.longest_s = state, 1, 0.0

    async def read(self, look: Callable[[State], T]) -> T:
        began = time.process_time()
        found = look(self.state)
        self.longest_s = max(self.longest_s, time.process_time() - began)
        return found

    def clock_ms(self) -> int:
        return CLOCK.at_ms


class _Clock:
    def read(self) -> Any:
        return CLOCK


def _timed(work: Any) -> tuple[float, Any]:
    began = time.process_time()
    found = asyncio.run(work)
    return time.process_time() - began, found


def measure(quick: bool) -> dict[str, Figure]:
    workers = 100 if quick else 10_000
    cluster = MixedCluster(workers, POLICY)
    for number in range(workers // 2):
        cluster.submit_as(f"j{number}", command=["true"], cpu_milli=2000, max_runtime_s=3600)
    while cluster.run_pass():
        cluster.start_all()
    turns = _Turns(cluster.state)
    board = Board(cast(Engine, turns))
    view = ClusterView(cast(Engine, turns), cast(HubClock, _Clock()), board)
    first_s, _ = _timed(board.refresh())
    turns.longest_s = 0.0
    columns_s, answer = _timed(view.show(ADMIN))
    began = time.process_time()
    size = len(msgspec.json.encode(answer))
    columns_s += time.process_time() - began
    # Every worker has beaten once: what a board that somebody looks at pays for within one interval of beats.
    for number in range(workers):
        apply(
            cluster.state,
            CreditSet(f"w{number:05d}", 1, cluster.state.presence[f"w{number:05d}"].slots),
            CLOCK,
        )
    beats_s, _ = _timed(board.refresh())
    what = f"{workers:,} workers"
    note = f"{size / 1000:.0f} KB; the board's first look {first_s * 1000:.0f} ms"
    return {
        "columns": Figure(f"{what}: all of them in columns, processor time", "ms", columns_s * 1000,
                          bars=[Bar(at_most=20.0)], note=note),
        "step": Figure(f"{what}: the longest step of that", "ms", turns.longest_s * 1000, bars=[Bar(at_most=5.0)]),
        "rest": Figure(f"{what}, a heartbeat every {BEAT_S:g} s: a tab at rest", "% of a core",
                       100 * beats_s / BEAT_S, bars=[Bar(at_most=1.0)]),
    }  # fmt: skip
