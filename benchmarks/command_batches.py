"""N times `true` as jobs of their own, submitted in batches of 100 while the first ones already run."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.floors import xargs_rate
from benchmarks.progress import rounds, tell
from benchmarks.specs import true_spec
from dray.client.faces.async_hub import AsyncHub
from dray.client.reach.discovery import settle_config

BATCH = 100
WAIT_S = 120.0
BUDGET_S = 60.0


def measure(quick: bool) -> dict[str, Figure]:
    tasks, runs = (BATCH, 1) if quick else (5_000, 3)
    figures = {}
    for slots in (2, 8):
        rates, floors = [], []
        with running_cluster(slots) as cluster:
            asyncio.run(_run(cluster, BATCH))  # warms the way
            for number in rounds(runs, BUDGET_S):
                rates.append(asyncio.run(_run(cluster, tasks)))
                floors.append(xargs_rate(tasks, slots))
                tell(f"{slots} slots, run {number + 1}: dray {rates[-1]:.0f}/s, xargs {floors[-1]:.0f}/s")
        figures[f"batches_{slots}_slots"] = median_figure(
            f"{tasks:,} × `true` as jobs of their own in batches of {BATCH}, {slots} slots",
            "jobs/s",
            rates,
            floors={"xargs": statistics.median(floors)},
            bars=[Bar(at_least=0.25, of="xargs")],
        )
    return figures


async def _run(cluster: Cluster, tasks: int) -> float:
    config = settle_config(cluster.home, hub=cluster.url, token=cluster.token)
    async with AsyncHub(config) as hub:
        began = time.perf_counter()
        waits = []
        for _ in range(0, tasks, BATCH):
            jobs = await hub.submit_specs([true_spec() for _ in range(BATCH)])
            waits.append(asyncio.create_task(hub.wait_all(jobs, WAIT_S)))
        ended = [status for group in await asyncio.gather(*waits) for status in group]
        span = time.perf_counter() - began
    bad = [status.id for status in ended if not status.ok]
    if bad or len(ended) != tasks:
        raise RuntimeError(f"{len(ended)} of {tasks} jobs ended, {len(bad)} of them not well")
    return tasks / span
