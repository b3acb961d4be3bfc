"""How soon a heartbeat is answered while batches of specs arrive as fast as they should be able to.

The flood is paced at 20,000 specs/s, so that the hub is asked for its bar and no more; what it really took is in the
note, and a hub that fell behind was at its limit all the time.
"""

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

RATE = 20_000
BATCH = 500
IN_FLIGHT = 8


def measure(quick: bool) -> dict[str, Figure]:
    workers, flood_s, beat_s = (10, 0.5, 0.1) if quick else (100, 6.0, 0.2)
    with running_cluster() as cluster, running_fleet(cluster, workers, beat_s=beat_s) as fleet:
        fleet.ask("connect")
        fleet.ask("reset")
        time.sleep(flood_s / 2)
        quiet = fleet.ask("report")
        fleet.ask("reset")
        taken = asyncio.run(_flood(cluster, flood_s))
        seen = fleet.ask("report")
    tell(f"{taken:.0f} specs/s: p50 {seen['beat_p50_ms']:.1f} ms, p99 {seen['beat_p99_ms']:.1f} ms")
    return {
        "p99": Figure(
            f"heartbeat answered, p99, while {RATE:,} specs/s arrive",
            "ms",
            seen["beat_p99_ms"],
            floors={"quiet hub": quiet["beat_p99_ms"]},
            bars=[Bar(at_most=100.0)],
            note=f"{taken:,.0f} specs/s were taken; {seen['beats']:,} heartbeats, p50 {seen['beat_p50_ms']:.1f} ms",
        )
    }


async def _flood(cluster: Cluster, flood_s: float) -> float:
    """Submit batches at the pace asked for, a few in flight; gives the specs per second that were acknowledged."""
    room = asyncio.Semaphore(IN_FLIGHT)
    specs = [waiting_spec() for _ in range(BATCH)]
    acknowledged = 0

    async with AsyncHub(settle_config(cluster.home, hub=cluster.url, token=cluster.token)) as hub:

        async def submit() -> None:
            nonlocal acknowledged
            try:
                jobs = await hub.submit_specs(specs)
                acknowledged += len(jobs)
            finally:
                room.release()

        began = time.perf_counter()
        sent = 0
        async with asyncio.TaskGroup() as group:
            while (elapsed := time.perf_counter() - began) < flood_s:
                await asyncio.sleep(max(0.0, sent / RATE - elapsed))
                await room.acquire()
                group.create_task(submit())
                sent += BATCH
        return acknowledged / (time.perf_counter() - began)
