"""Durable submits to a hub on PostgreSQL beside one on SQLite: many in flight, in batches, one after another.

Each way gets a hub of its own; the two kinds of store take turns, so that what else the machine does meets both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from tests.postgres import Server

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.durable_submits import Way, channel_batches, channel_singles, open_client, warm_up
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.progress import tell
from benchmarks.servers import running_postgres
from benchmarks.specs import waiting_spec


def measure(quick: bool) -> dict[str, Figure]:
    singles, specs, alone, runs = (64, 1_000, 10, 1) if quick else (8_000, 60_000, 500, 3)
    figures: dict[str, Figure] = {}
    with running_postgres() as server:
        ways: tuple[tuple[str, str, Way, int], ...] = (
            ("singles", "32 in flight", channel_singles, singles),
            ("batches", "in batches of 500", channel_batches, specs),
        )
        for name, how, way, count in ways:
            pairs = [(_rate(server, way, count), _rate(None, way, count)) for _ in range(runs)]
            ours, theirs = zip(*pairs, strict=True)
            tell(f"{how}: PostgreSQL {ours}, SQLite {theirs}")
            what, floors = (
                f"durable submits to a hub on PostgreSQL, {how}",
                {"SQLite": statistics.median(theirs)},
            )
            bars = [Bar(at_least=0.7, of="SQLite")]
            figures[name] = median_figure(what, "specs/s", ours, floors=floors, bars=bars)
        spans = [(_one(server, alone), _one(None, alone)) for _ in range(runs)]
        ours, theirs = zip(*spans, strict=True)
        what, floors = "one submit to a hub on PostgreSQL, p50", {"SQLite": statistics.median(theirs)}
        bars = [Bar(at_most=2.0, of="SQLite")]
        figures["one"] = median_figure(what, "ms", ours, floors=floors, bars=bars)
    return figures


def _hub(server: Server | None) -> dict[str, Any]:
    return {} if server is None else {"store": server.url(server.make_database())}


def _rate(server: Server | None, way: Way, count: int) -> float:
    with running_cluster(**_hub(server)) as cluster:
        asyncio.run(warm_up(cluster))
        began = time.perf_counter()
        asyncio.run(way(cluster, count))
        return count / (time.perf_counter() - began)


def _one(server: Server | None, count: int) -> float:
    with running_cluster(**_hub(server)) as cluster:
        return asyncio.run(_one_by_one(cluster, count))


async def _one_by_one(cluster: Cluster, count: int) -> float:
    spans = []
    async with open_client(cluster) as hub:
        for _ in range(count + count // 10):
            began = time.perf_counter()
            await hub.submit_specs([waiting_spec()])
            spans.append(time.perf_counter() - began)
    return statistics.median(spans[count // 10 :]) * 1e3
