"""The hub is killed (-9) under thousands of workers that hold tasks: how soon all are back, and whether any work moved.

A task that was given out a second time, or one that a worker was told to stop, counts as requeued; there must be none.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.cluster import Cluster, running_cluster, wait_until
from benchmarks.figures import Bar, Figure
from benchmarks.fleet import FleetProcesses, running_fleet
from benchmarks.progress import tell
from benchmarks.specs import array_spec

LIMIT_S = 180.0
SETTLE_S = 3.0


def measure(quick: bool) -> dict[str, Figure]:
    workers, slots, beat_s = (50, 4, 0.2) if quick else (10_000, 4, 10.0)
    tasks = workers * slots
    with running_cluster() as cluster, running_fleet(cluster, workers, slots, beat_s) as fleet:
        fleet.ask("connect")
        job = cluster.request("POST", "/jobs", array_spec(tasks))["id"]
        began = time.perf_counter()
        _wait_for(fleet, lambda seen: seen["held"] == tasks, "all tasks held")
        _wait_running(cluster, job, tasks)
        placed_s = time.perf_counter() - began
        tell(f"{tasks:,} tasks held by {workers:,} workers after {placed_s:.1f} s")
        fleet.ask("reset")
        killed_at = time.time()
        cluster.kill_hub()
        ready_s = cluster.start_hub()
        _wait_for(fleet, lambda seen: seen["registered"] == workers, "all workers back")
        back_s = fleet.ask("report")["complete_at_s"] - killed_at
        tell(f"all {workers:,} workers back {back_s:.1f} s after the kill")
        time.sleep(0.2 if quick else SETTLE_S)  # a hub that would move work does so in its first passes
        seen = fleet.ask("report")
        counts = cluster.request("GET", f"/jobs/{job}")["tasks"]
    moved = seen["new_attempts"] + seen["cancels"] + seen["stops"] + tasks - counts["running"]
    note = (
        f"ready again {ready_s:.1f} s after the start, {seen['breaks']:,} connections broken, tasks {counts}"
    )
    what = f"{workers:,} workers reconnect after a kill -9 of the hub, {tasks:,} attempts held"
    return {
        "back": Figure(f"{what}: all back", "s", back_s, bars=[Bar(at_most=60.0)], note=note),
        "moved": Figure(f"{what}: requeued", "tasks", float(moved), bars=[Bar(at_most=0.0)]),
        "placed": Figure(
            f"array of {tasks:,} placed on {workers:,} workers and started", "tasks/s", tasks / placed_s
        ),
    }


def _wait_for(fleet: FleetProcesses, holds: Any, what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds(seen := fleet.ask("report")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {LIMIT_S:g} s; the workers say {seen}")
        time.sleep(0.1)


def _wait_running(cluster: Cluster, job: str, tasks: int) -> None:
    def all_run() -> bool:
        time.sleep(0.1)
        return bool(cluster.request("GET", f"/jobs/{job}")["tasks"]["running"] == tasks)

    wait_until(all_run, LIMIT_S, "every task recorded as running")
