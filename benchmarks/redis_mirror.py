"""The live view in Redis: how many lives of jobs a second it can show, how far behind it is, how fast it is made anew;
and what a hub's submits notice of a Redis that stands still.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import msgspec
from tests.hub.mirror.view import Feeder, ended, make_attempt, mirroring, until
from tests.valkey import Valkey

from benchmarks.cluster import running_cluster
from benchmarks.figures import Bar, Figure, quantile
from benchmarks.http_pool import HttpConnection
from benchmarks.progress import tell
from benchmarks.servers import running_valkey
from benchmarks.specs import waiting_spec

BATCH = 100
STATS = "dray:{q:default}:stats"
PATIENCE_S = 300.0


def measure(quick: bool) -> dict[str, Figure]:
    lives, waiting, submits = (500, 2_000, 20) if quick else (50_000, 1_000_000, 2_000)
    with running_valkey() as server:
        figures = asyncio.run(_measure_mirror(server, lives, waiting))
    with running_valkey() as server:
        return figures | _measure_hub(server, submits)


async def _measure_mirror(server: Valkey, lives: int, waiting: int) -> dict[str, Figure]:
    feeder, client = Feeder(), server.client()
    async with mirroring(feeder, server.url, documents_s=0) as mirror:
        await until(lambda: mirror.gauge.state == "writes")
        began = time.perf_counter()
        for first in range(1, lives, BATCH):
            await _live(feeder, first)
        await _wait(client, feeder)
        rate = lives / (time.perf_counter() - began)
        tell(f"{rate:.0f} lives of jobs a second")
        lags = []
        for number in range(max(50, lives // 250)):
            await _live(feeder, lives + 1 + BATCH * number)
            began = time.perf_counter()
            # As somebody sees it who reads all the time.
            await _wait(client, feeder)
            lags.append(time.perf_counter() - began)
        late = quantile(lags, 0.99) * 1e3
        tell(f"seen after {late:.0f} ms, p99")
        base = 10 * lives + 100_000
        for first in range(0, waiting, 5_000):
            feeder.submit(base + first, min(5_000, waiting - first))
            await asyncio.sleep(0)
        await _wait(client, feeder)
        began = time.perf_counter()
        client.flushall()
        # A write finds out at once.
        feeder.submit(base + waiting, 1)
        await until(lambda: client.hget(STATS, "count") == str(waiting + 1), PATIENCE_S)
        rebuilt_s = time.perf_counter() - began
        tell(f"made anew in {rebuilt_s:.1f} s")
    what = "the view in Redis"
    return {
        "rate": Figure(
            f"{what}: jobs submitted, run and ended",
            "jobs/s",
            rate,
            bars=[Bar(at_least=5_000)],
            note="turns that wait for the one before are merged, as under a hub that is that fast",
        ),
        "lag": Figure(
            f"{what}: from three turns of {BATCH} jobs until a reader sees the last, p99",
            "ms",
            late,
            bars=[Bar(at_most=500)],
        ),
        "rebuild": Figure(
            f"{what}: {waiting:,} waiting jobs made anew", "s", rebuilt_s, bars=[Bar(at_most=20)]
        ),
    }


async def _live(feeder: Feeder, first: int) -> None:
    """Jobs are submitted, run, and end: three turns."""
    jobs = feeder.submit(first, BATCH)
    running = [msgspec.structs.replace(job, running=1, cursor=1) for job in jobs]
    feeder.write(running, [make_attempt(job, job.seq) for job in jobs])
    feeder.write([ended(job) for job in jobs], gone=())
    await asyncio.sleep(0)


async def _wait(client: Any, feeder: Feeder) -> None:
    await until(lambda: client.hget(STATS, "seq") == str(feeder.seq), PATIENCE_S)


def _measure_hub(server: Valkey, submits: int) -> dict[str, Figure]:
    """Submits one after another, in turns while Redis answers and while it is stopped."""
    with running_cluster(redis=server.url) as cluster:
        spans: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(4):
            stopped = bool(turn % 2)
            server.pause(signal.SIGSTOP if stopped else signal.SIGCONT)
            spans[stopped] += asyncio.run(_submit(cluster.url, cluster.token, submits))
        server.pause(signal.SIGCONT)
    calm, stopped_ms = (quantile(spans[stopped], 0.99) * 1e3 for stopped in (False, True))
    tell(f"one submit, p99: {calm:.2f} ms, {stopped_ms:.2f} ms while Redis stands still")
    what, bars = "one submit while Redis stands still, p99", [Bar(at_most=1.1, of="Redis answers")]
    return {"stopped": Figure(what, "ms", stopped_ms, floors={"Redis answers": calm}, bars=bars)}


async def _submit(url: str, token: str, count: int) -> list[float]:
    body, spans = msgspec.json.encode(waiting_spec()), []
    async with HttpConnection(url, token) as connection:
        for number in range(count):
            began = time.perf_counter()
            await connection.post("/jobs", body, f"{time.time_ns()}-{number}")
            spans.append(time.perf_counter() - began)
    return spans
