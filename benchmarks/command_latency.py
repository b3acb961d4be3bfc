"""One command after another, from submit to result, over the client channel with its watch."""

from __future__ import annotations

import asyncio
import os
import time

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.figures import Bar, Figure, quantile
from benchmarks.floors import hyperqueue_spans, true_path
from benchmarks.progress import tell
from benchmarks.specs import true_spec
from dray.client.faces.async_hub import AsyncHub
from dray.client.reach.discovery import settle_config

WAIT_S = 30.0


def measure(quick: bool) -> dict[str, Figure]:
    commands = 20 if quick else 500
    with running_cluster(2) as cluster:
        spans = asyncio.run(_run(cluster, commands))
    floor = _spawn_spans(commands)
    peer = "HyperQueue is left out at quick sizes" if quick else hyperqueue_spans(commands // 5)
    tell(f"{commands} commands: p50 {quantile(spans, 0.5):.1f} ms, p99 {quantile(spans, 0.99):.1f} ms")
    figures = {}
    for name, share, bar in (("p50", 0.5, 10.0), ("p99", 0.99, 30.0)):
        known = {} if isinstance(peer, str) else {"HyperQueue, idle": quantile(peer, share)}
        figures[f"latency_{name}"] = Figure(
            f"one command, submit to result, one after another ({commands}), {name}",
            "ms",
            quantile(spans, share),
            floors={"posix_spawn and wait": quantile(floor, share), **known},
            bars=[Bar(at_most=bar), *([Bar(at_most=1.1, of="HyperQueue, idle")] if name == "p50" else [])],
            note=peer if isinstance(peer, str) else "",
        )
    return figures


async def _run(cluster: Cluster, commands: int) -> list[float]:
    config = settle_config(cluster.home, hub=cluster.url, token=cluster.token)
    spans = []
    async with AsyncHub(config) as hub:
        for number in range(commands + 10):
            began = time.perf_counter()
            job = (await hub.submit_specs([true_spec()]))[0]
            status = await hub.wait(job, WAIT_S)
            if not status.ok:
                raise RuntimeError(f"job {job.id} ended {status.state}: {status.error}")
            if number >= 10:  # the first ones warm the way
                spans.append((time.perf_counter() - began) * 1000)
    return spans


def _spawn_spans(commands: int) -> list[float]:
    path, environment, spans = true_path(), dict(os.environ), []
    for _ in range(commands):
        began = time.perf_counter()
        os.waitpid(os.posix_spawn(path, [path], environment), 0)
        spans.append((time.perf_counter() - began) * 1000)
    return spans
