"""Three hundred workers with four slots each that end every task at once: more than one hub can keep busy.

What the hub is late with is its own doing, and asking for it again makes it later: almost no assignment may be sent
twice, and heartbeats and questions are answered while the work piles up.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import time
from urllib.parse import urlsplit

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.figures import Bar, Figure, quantile
from benchmarks.fleet import running_fleet
from benchmarks.progress import tell
from benchmarks.specs import array_spec, true_spec
from dray.client.faces.async_hub import AsyncHub
from dray.client.reach.discovery import settle_config

WORKERS, SLOTS = 300, 4
BATCH = 500
WAIT_S = 300.0
ASK_S = 0.1


def measure(quick: bool) -> dict[str, Figure]:
    workers, tasks, beat_s = (10, 200, 0.5) if quick else (WORKERS, 20_000, 2.0)
    with running_cluster() as cluster, running_fleet(cluster, workers, SLOTS, beat_s) as fleet:
        fleet.ask("connect")
        fleet.ask("work")
        fleet.ask("reset")
        span, asked = asyncio.run(_run(cluster, tasks))
        seen = fleet.ask("report")
    tell(f"{tasks / span:.0f} tasks/s, {seen['resent']} of {seen['new_attempts']} assignments sent again")
    what = f"{workers} workers × {SLOTS} slots, {tasks:,} tasks that end at once"
    return {
        "resent": Figure(
            f"{what}: assignments sent again",
            "% of tasks",
            100 * seen["resent"] / max(1, seen["new_attempts"]),
            bars=[Bar(at_most=1.0)],
            note=f"{tasks / span:,.0f} tasks/s, {seen['resent']:,} sent again, {seen['cancels']:,} taken back",
        ),
        "beat": Figure(
            f"{what}: heartbeat answered, p99",
            "ms",
            seen["beat_p99_ms"] or 0.0,
            note=f"{seen['beats']:,} heartbeats, p50 {seen['beat_p50_ms'] or 0.0:.0f} ms",
        ),
        "question": Figure(
            f"{what}: the state of one job told, p99",
            "ms",
            quantile(asked, 0.99) * 1000,
            note=f"{len(asked)} asked",
        ),
    }


async def _run(cluster: Cluster, tasks: int) -> tuple[float, list[float]]:
    """Half of the tasks as one array, the others as jobs of their own; gives the span and how long questions took."""
    asked: list[float] = []
    async with AsyncHub(settle_config(cluster.home, hub=cluster.url, token=cluster.token)) as hub:
        began = time.perf_counter()
        jobs = await hub.submit_specs([array_spec(tasks // 2)])
        asking = asyncio.create_task(_ask(cluster, jobs[0].id, asked))
        for first in range(tasks // 2, tasks, BATCH):
            jobs += await hub.submit_specs([true_spec() for _ in range(min(BATCH, tasks - first))])
        ended = await hub.wait_all(jobs, WAIT_S)
        span = time.perf_counter() - began
        asking.cancel()
    if bad := [status.id for status in ended if not status.ok]:
        raise RuntimeError(f"{len(bad)} of {len(ended)} jobs did not end well")
    return span, asked


async def _ask(cluster: Cluster, job: str, asked: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.to_thread(_get, cluster, f"/api/v1/jobs/{job}")
        asked.append(time.perf_counter() - began)
        await asyncio.sleep(ASK_S)


def _get(cluster: Cluster, path: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(cluster.url).netloc, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {cluster.token}"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"GET {path}: {answer.status} {answer.read()!r}")
        answer.read()
