"""Thousands of workers that have nothing to do but beat: what they cost the hub."""

from __future__ import annotations

import time

from benchmarks.cluster import cpu_seconds, resident_mib, running_cluster
from benchmarks.figures import Bar, Figure
from benchmarks.fleet import running_fleet
from benchmarks.progress import tell

BEAT_S = 10.0


def measure(quick: bool) -> dict[str, Figure]:
    workers, window_s, beat_s = (50, 1.0, 0.5) if quick else (10_000, 3 * BEAT_S, BEAT_S)
    with running_cluster() as cluster, running_fleet(cluster, workers, slots=4, beat_s=beat_s) as fleet:
        empty = resident_mib(cluster.hub_pid)
        began = time.perf_counter()
        fleet.ask("connect")
        joined_s = time.perf_counter() - began
        tell(f"{workers:,} workers registered in {joined_s:.1f} s")
        time.sleep(min(beat_s, 5.0))  # what registering left behind is not what idling costs
        fleet.ask("reset")
        before, began = cpu_seconds(cluster.hub_pid), time.perf_counter()
        time.sleep(window_s)
        share = 100 * (cpu_seconds(cluster.hub_pid) - before) / (time.perf_counter() - began)
        memory = resident_mib(cluster.hub_pid)
        seen = fleet.ask("report")
    note = (
        f"{seen['beats']:,} heartbeats answered in {window_s:g} s, p99 {seen['beat_p99_ms']:.1f} ms, "
        f"{seen['breaks']} connections broke"
    )
    what = f"{workers:,} idle workers, a heartbeat every {beat_s:g} s"
    return {
        "cpu": Figure(f"{what}: hub", "% of a core", share, bars=[Bar(at_most=20.0)], note=note),
        "memory": Figure(
            f"{what}: hub memory, RSS",
            "MiB",
            memory,
            bars=[Bar(at_most=600.0)],
            note=f"{(memory - empty) * 1024 / workers:.1f} KiB per worker",
        ),
        "join": Figure(f"{workers:,} workers connect and register", "s", joined_s),
    }
