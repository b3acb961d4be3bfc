"""One request that changes 100,000 waiting jobs: how long it takes, and how soon heartbeats are answered meanwhile."""

from __future__ import annotations

import asyncio
import time

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.figures import Bar, Figure
from benchmarks.fleet import running_fleet
from benchmarks.progress import tell
from benchmarks.specs import waiting_spec
from dray.client.faces.async_hub import AsyncHub
from dray.client.reach.discovery import settle_config

BATCH = 500
ACTIONS = ("hold", "release", "cancel")


def measure(quick: bool) -> dict[str, Figure]:
    workers, jobs, beat_s = (10, 2_000, 0.1) if quick else (100, 100_000, 0.2)
    figures: dict[str, Figure] = {}
    with running_cluster() as cluster, running_fleet(cluster, workers, beat_s=beat_s) as fleet:
        fleet.ask("connect")
        asyncio.run(_fill(cluster, jobs))
        fleet.ask("reset")
        time.sleep(10 * beat_s)
        quiet = fleet.ask("report")
        for action in ACTIONS:
            fleet.ask("reset")
            began = time.perf_counter()
            answer = cluster.request("POST", "/jobs:act", {"action": action, "all": True})
            took_s = time.perf_counter() - began
            while not (seen := fleet.ask("report"))["beats"]:
                time.sleep(beat_s)  # a quick change may be over between two heartbeats
            if answer["count"] != jobs:
                raise RuntimeError(
                    f"{action} of {jobs} jobs changed {answer['count']}: {answer['unchanged']}"
                )
            tell(f"{action}: {took_s:.2f} s, heartbeats p99 {seen['beat_p99_ms']:.1f} ms")
            bars = {"time": [Bar(at_most=3.0)], "beats": [Bar(at_most=100.0)]}
            figures[f"{action}_s"] = Figure(
                f"{action} of {jobs:,} waiting jobs by one request", "s", took_s, bars=bars["time"]
            )
            figures[f"{action}_beats"] = Figure(
                f"heartbeat answered, p99, while {jobs:,} jobs are changed by one {action}",
                "ms",
                seen["beat_p99_ms"],
                floors={"quiet hub": quiet["beat_p99_ms"]},
                bars=bars["beats"],
                note=f"{seen['beats']:,} heartbeats, p50 {seen['beat_p50_ms']:.1f} ms",
            )
    return figures


async def _fill(cluster: Cluster, jobs: int) -> None:
    specs = [waiting_spec() for _ in range(BATCH)]
    async with AsyncHub(settle_config(cluster.home, hub=cluster.url, token=cluster.token)) as hub:
        for _ in range(jobs // BATCH):
            await hub.submit_specs(specs)
