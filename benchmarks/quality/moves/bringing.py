"""Two more uses of moves: holes closed on demand, and hired work brought home.

The former on a trace of rigid training jobs, placed so that holes are many: what stays idle while somebody waits.
The latter on as many cards of one's own as hired ones, which have a price:
what is paid for, and whether anybody waits longer for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.quality.moves.gavel import advise_by
from dray.core.model.policies.check import check_policy
from dray.core.scheduling.rebalancing.proposals import COST
from dray.sim.traces.figures import measure
from dray.sim.traces.readers import parse_cluster, read_jobs
from dray.sim.traces.world import World

T1, T3 = "jobs/philly_t1.csv", "jobs/philly_t3.csv"
GPUS = 8
PLACEMENTS = ("greedy", "spread")
# Nodes of one's own, and hired ones; the trace.
MIXES = (("64 + 64", 8, 8, T3), ("96 + 64", 12, 8, T3), ("128 + 128", 16, 16, T1), ("192 + 128", 24, 16, T1))
MOST_MOVES, RESTART_S, PRICE = 1_000_000, 300.0, 2.0


class Idle:
    """The part of all card-time that idled while somebody waited."""

    def __init__(self, cards: int) -> None:
        self._cards, self._since_ms, self._idle, self.sum, self.begun_ms = cards, 0, 0, 0, -1

    def look(self, world: World) -> None:
        """Take stock after a turn."""
        now_ms, columns = world.state.now_ms, world.state.columns
        self.begun_ms = now_ms if self.begun_ms < 0 else self.begun_ms
        self.sum += self._idle * (now_ms - self._since_ms)
        free = int(columns.view["free_gpu"][: columns.count].sum())
        self._since_ms, self._idle = now_ms, free if world.ledger.waiting else 0

    def share(self, world: World) -> float:
        """Of all cards from the first arrival to the last end."""
        return self.sum / (self._cards * (world.state.now_ms - self.begun_ms))


def close_holes(traces: Path, placement: str, moves: bool) -> dict[str, Any]:
    """Eight machines of eight cards, first come first served."""
    policy = check_policy(
        {
            "queues": {"default": {"protect_after_s": 0}},
            "placement": {"strategy": placement},
            "preemption": {
                "strategy": "none",
                "min_run_s": 0,
                "moves": MOST_MOVES if moves else 0,
                "limits": {"per_job": MOST_MOVES, "per_user": MOST_MOVES, "cluster": MOST_MOVES},
            },
        }
    )
    idle = Idle(8 * GPUS)
    world = World(parse_cluster(f"8x{GPUS}"), policy, look=idle.look)
    began = time.process_time()
    figures = measure(world.run(read_jobs(traces / T1)))
    return {
        "part": "x2",
        "placement": placement,
        "rule": "moved" if moves else "unmoved",
        "idle": idle.share(world),
        "jct_s": figures["jct_s"]["mean"],
        "moved": world.moved,
        "cpu_s": time.process_time() - began,
    }


def bring_home(traces: Path, mix: str, moves: bool) -> dict[str, Any]:
    """Cards of one's own, and as many hired ones as are needed."""
    _, own, hired, trace = next(one for one in MIXES if one[0] == mix)
    nodes = [
        msgspec.structs.replace(node, labels={"provider": "lab" if place < own else "cloud"})
        for place, node in enumerate(parse_cluster(f"{own + hired}x{GPUS}"))
    ]
    policy = check_policy(
        {
            "queues": {"default": {"protect_after_s": 0}},
            "preemption": {"strategy": "none"},
            "placement": {"weights": {"cost": 20}},
            "providers": {"lab": {}, "cloud": {"price_per_hour": PRICE * GPUS}},
        }
    )
    jobs = [
        msgspec.structs.replace(job, again_ms=round(RESTART_S * 1000), name=job.id, restart_ms=0)
        for job in read_jobs(traces / trace)
    ]
    clouds = {node.name for node in nodes if node.labels["provider"] == "cloud"}
    paid = Paid(clouds)
    world = World(nodes, policy, look=paid.look, rebalance=advise_by(COST) if moves else None)
    began = time.process_time()
    figures = measure(world.run(jobs))
    return {
        "part": "x3",
        "mix": mix,
        "trace": Path(trace).stem,
        "rule": "moved" if moves else "unmoved",
        "hired_gpu_h": paid.sum / 3.6e6,
        "jct_s": figures["jct_s"]["mean"],
        "moved": sum(world.ledger.preempted),
        "cpu_s": time.process_time() - began,
    }


class Paid:
    """Card-time that was held on hired machines."""

    def __init__(self, workers: set[str]) -> None:
        self._workers, self._since_ms, self._held, self.sum = workers, 0, 0, 0

    def look(self, world: World) -> None:
        """Take stock after a turn."""
        now_ms, columns = world.state.now_ms, world.state.columns
        self.sum += self._held * (now_ms - self._since_ms)
        total, free, row_of = columns.cells["total_gpu"], columns.cells["free_gpu"], columns.row_of
        self._since_ms = now_ms
        self._held = sum(total[row_of[one]] - free[row_of[one]] for one in self._workers)


RUNS: tuple[tuple[Callable[..., dict[str, Any]], str, bool], ...] = (
    *((close_holes, placement, moves) for placement in PLACEMENTS for moves in (False, True)),
    *((bring_home, mix[0], moves) for mix in MIXES for moves in (False, True)),
)


def key_of(run: dict[str, Any]) -> tuple[str, str, bool]:
    """Which of them a run was."""
    call = close_holes if run["part"] == "x2" else bring_home
    return call.__name__, run.get("placement") or run["mix"], run["rule"] == "moved"
