"""What a hub takes when it is idle, and for each job that waits."""

from __future__ import annotations

import asyncio

from benchmarks.cluster import Cluster, proportional_mib, resident_mib, running_cluster
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.progress import tell
from benchmarks.specs import waiting_spec
from dray.client.faces.async_hub import AsyncHub
from dray.client.reach.discovery import settle_config

BATCH = 1_000


def measure(quick: bool) -> dict[str, Figure]:
    jobs, starts = (2_000, 1) if quick else (100_000, 3)
    resident, shared = [], []
    grown = 0.0
    for number in range(starts):
        with running_cluster() as cluster:
            asyncio.run(_submit(cluster, 0))
            resident.append(resident_mib(cluster.hub_pid))
            shared.append(proportional_mib(cluster.hub_pid))
            if number == starts - 1:
                asyncio.run(_submit(cluster, jobs))
                grown = resident_mib(cluster.hub_pid) - resident[-1]
    tell(f"idle {resident[-1]:.0f} MiB; {jobs:,} waiting jobs take {grown:.0f} MiB")
    return {
        "idle_rss": median_figure("hub memory, idle, RSS", "MiB", resident, bars=[Bar(at_most=75.0)]),
        "idle_pss": median_figure("hub memory, idle, PSS", "MiB", shared, bars=[Bar(at_most=75.0)]),
        "per_waiting_job": Figure(
            f"hub memory per waiting job ({jobs:,} of them)",
            "KiB",
            grown * 1024 / jobs,
            bars=[Bar(at_most=2.0)],
            note="growth of RSS over the number of jobs: buffers of the store and of the allocator are in it",
        ),
    }


async def _submit(cluster: Cluster, jobs: int) -> None:
    async with AsyncHub(settle_config(cluster.home, hub=cluster.url, token=cluster.token)) as hub:
        for _ in range(0, jobs, BATCH):
            await hub.submit_specs([waiting_spec() for _ in range(BATCH)])
        # A list is answered from the rows, once these show all that was committed.
        await hub.jobs(limit=1)
