"""Submits per second, each answered after its commit: one at a time with 32 in flight, and in batches of 500.

Over the client channel and over HTTP. The jobs ask for a card that no worker has, so nothing but the submit is
measured. Each way gets a hub of its own: a store that holds the jobs of the run before would be another measurement.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.http_pool import HttpConnection
from benchmarks.machine_facts import measure_fsync_us
from benchmarks.progress import tell
from benchmarks.specs import waiting_spec
from dray.client.faces.async_hub import AsyncHub
from dray.client.reach.discovery import settle_config

IN_FLIGHT = 32
BATCH = 500
BATCHES_IN_FLIGHT = 4
Way = Callable[[Cluster, int], Coroutine[Any, Any, None]]


def measure(quick: bool) -> dict[str, Figure]:
    singles, specs, runs = (64, 1_000, 1) if quick else (8_000, 60_000, 3)
    one, many = "one at a time, 32 in flight", f"in batches of {BATCH}"
    ways: tuple[tuple[str, str, Way, int, float], ...] = (
        ("channel_singles", f"durable submits {one}, client channel", channel_singles, singles, 3_000),
        ("http_singles", f"durable submits {one}, HTTP, 32 connections", _http_singles, singles, 0),
        ("channel_batches", f"durable submits {many}, client channel", channel_batches, specs, 20_000),
        ("http_batches", f"durable submits {many}, HTTP", _http_batches, specs, 0),
    )
    figures = {}
    for name, what, way, count, bar in ways:
        rates = [_rate(way, count) for _ in range(runs)]
        tell(f"{what}: {', '.join(f'{rate:.0f}' for rate in rates)} specs/s")
        bars = [Bar(at_least=bar)] if bar else []
        floors = {"one fsync each": 1e6 / measure_fsync_us()}
        figures[name] = median_figure(what, "specs/s", rates, bars=bars, floors=floors)
    return figures


def _rate(way: Way, count: int) -> float:
    with running_cluster() as cluster:
        asyncio.run(warm_up(cluster))
        began = time.perf_counter()
        asyncio.run(way(cluster, count))
        span = time.perf_counter() - began
        kept = sum(queue["waiting"] for queue in cluster.request("GET", "/queues")["queues"])
    if kept < count:
        raise RuntimeError(f"{count} specs were acknowledged, the hub holds {kept}")
    return count / span


async def warm_up(cluster: Cluster) -> None:
    async with open_client(cluster) as hub:
        await hub.ping()


def open_client(cluster: Cluster) -> AsyncHub:
    return AsyncHub(settle_config(cluster.home, hub=cluster.url, token=cluster.token))


async def channel_singles(cluster: Cluster, count: int) -> None:
    async with open_client(cluster) as hub:

        async def submit(times: int) -> None:
            for _ in range(times):
                await hub.submit_specs([waiting_spec()])

        await asyncio.gather(*(submit(count // IN_FLIGHT) for _ in range(IN_FLIGHT)))


async def channel_batches(cluster: Cluster, count: int) -> None:
    async with open_client(cluster) as hub:

        async def submit(times: int) -> None:
            for _ in range(times):
                await hub.submit_specs([waiting_spec() for _ in range(BATCH)])

        await asyncio.gather(*(submit(times) for times in _shares(count // BATCH, BATCHES_IN_FLIGHT)))


async def _http_singles(cluster: Cluster, count: int) -> None:
    body = msgspec.json.encode(waiting_spec())
    await _post_all(cluster, "/jobs", body, _shares(count, IN_FLIGHT))


async def _http_batches(cluster: Cluster, count: int) -> None:
    body = msgspec.json.encode([waiting_spec() for _ in range(BATCH)])
    await _post_all(cluster, "/jobs:batch", body, _shares(count // BATCH, BATCHES_IN_FLIGHT))


async def _post_all(cluster: Cluster, path: str, body: bytes, shares: list[int]) -> None:
    async def submit(times: int) -> None:
        async with HttpConnection(cluster.url, cluster.token) as connection:
            for _ in range(times):
                await connection.post(path, body, uuid.uuid4().hex)

    await asyncio.gather(*(submit(times) for times in shares))


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (place < count % parts) for place in range(parts)]
