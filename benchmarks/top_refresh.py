"""What a look of `dray top` costs, hub and command together, with 10,000 workers."""

from __future__ import annotations

import time

from benchmarks.cluster import cpu_seconds, running_cluster
from benchmarks.figures import Bar, Figure
from benchmarks.fleet import running_fleet
from benchmarks.progress import tell
from dray.cli.base.hub import Hub
from dray.cli.machines.top import Look, draw
from dray.config import ClientConfig

INTERVAL_S = 2.0
COLUMNS, LINES = 200, 60


def measure(quick: bool) -> dict[str, Figure]:
    workers, looks = (50, 3) if quick else (10_000, 25)
    with running_cluster() as cluster, running_fleet(cluster, workers, beat_s=10.0) as fleet:
        fleet.ask("connect")
        look = Look(Hub(ClientConfig(home=cluster.home, hub=cluster.url, token=cluster.token)), "use", "")
        draw(look, look.ask(LINES), COLUMNS, LINES)
        time.sleep(0 if quick else 3.0)
        # What the hub does for its workers' heartbeats anyway.
        before, began = cpu_seconds(cluster.hub_pid), time.perf_counter()
        time.sleep(1.0 if quick else 10.0)
        idle = (cpu_seconds(cluster.hub_pid) - before) / (time.perf_counter() - began)
        before, began, own = cpu_seconds(cluster.hub_pid), time.perf_counter(), time.process_time()
        for _ in range(looks):
            draw(look, look.ask(LINES), COLUMNS, LINES)
        took_s, own = time.perf_counter() - began, time.process_time() - own
        hub = cpu_seconds(cluster.hub_pid) - before - idle * took_s
    shares = {name: 100 * used / looks / INTERVAL_S for name, used in (("hub", hub), ("command", own))}
    tell(
        f"{took_s / looks * 1000:.0f} ms a look; hub {shares['hub']:.2f} %, command {shares['command']:.2f} %"
    )
    return {
        "share": Figure(
            f"`dray top` every {INTERVAL_S:g} s, {workers:,} workers: hub and command together",
            "% of a core",
            sum(shares.values()),
            bars=[Bar(at_most=5.0)],
            note=f"hub {shares['hub']:.2f} %, command {shares['command']:.2f} %; {took_s / looks * 1000:.0f} ms a look",
        )
    }
