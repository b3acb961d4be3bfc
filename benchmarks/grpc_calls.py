"""What a call over gRPC costs the hub beside the same call over HTTP, and what serving gRPC costs at its start.

CPU of the hub's process, all threads, by call: rounds of both in turn, eight calls at once. What the client spends is
not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import msgspec
import psutil

from benchmarks.cluster import Cluster, running_cluster
from benchmarks.figures import Bar, Figure
from benchmarks.http_pool import HttpConnection
from benchmarks.progress import tell
from dray.v1 import resources_pb2, scheduler_pb2, scheduler_pb2_grpc

AT_ONCE = 8
SERVED: dict[str, Any] = {"grpc_port": "0"}
SPEC = {"command": ["true"], "hold": True}
Call = Callable[[], Awaitable[Any]]


def measure(quick: bool) -> dict[str, Figure]:
    rounds, calls, starts = (2, 16, 1) if quick else (9, 400, 5)
    figures = {}
    with running_cluster(**SERVED) as cluster:
        for name, spans in asyncio.run(_compare(cluster, rounds, calls)).items():
            ours, theirs = (statistics.median(one) for one in spans)
            tell(f"{name}: {ours:.0f} us of the hub's CPU over gRPC, {theirs:.0f} over HTTP")
            figures[name] = Figure(
                f"hub: CPU of one {name} over gRPC, {AT_ONCE} at once",
                "us",
                ours,
                runs=spans[0],
                floors={"HTTP": theirs},
                bars=[Bar(at_most=3.3, of="HTTP")],
                note=f"{ours / theirs:.2f} x",
            )
    plain, served = _starts({}, starts), _starts(SERVED, starts)
    for at, (name, unit, most) in enumerate((("start", "ms", 150.0), ("memory", "MiB", 20.0))):
        more = served[at] - plain[at]
        figures[name] = Figure(
            f"hub: {name} with gRPC, beyond that without",
            unit,
            more,
            bars=[Bar(at_most=most)],
            note=f"{served[at]:.0f} against {plain[at]:.0f}",
        )
    return figures


async def _compare(cluster: Cluster, rounds: int, calls: int) -> dict[str, tuple[list[float], list[float]]]:
    """CPU of a call, by its name: over gRPC and over HTTP, round by round."""
    metadata = (("authorization", f"Bearer {cluster.token}"),)
    address = msgspec.json.decode((cluster.home / "hub.json").read_bytes())["grpc"]
    pool = [HttpConnection(cluster.url, cluster.token) for _ in range(AT_ONCE)]
    async with grpc.aio.insecure_channel(address) as channel, contextlib.AsyncExitStack() as stack:
        for connection in pool:
            await stack.enter_async_context(connection)
        job = (await pool[0].post("/jobs", msgspec.json.encode(SPEC)))["id"]
        stub = scheduler_pb2_grpc.SchedulerStub(channel)
        spec = scheduler_pb2.SubmitJobRequest(job=resources_pb2.JobSpec(command=["true"], hold=True))
        named = scheduler_pb2.GetJobRequest(job=job)

        def over_grpc(method: Any, request: Any) -> Sequence[Call]:
            return [partial(method, request, metadata=metadata)] * AT_ONCE

        def over_http(verb: str, path: str, body: bytes = b"") -> Sequence[Call]:
            return [partial(one.ask, verb, path, body) for one in pool]

        pairs = {
            "GetHub": (over_grpc(stub.GetHub, scheduler_pb2.GetHubRequest()), over_http("GET", "/hub")),
            "GetJob": (over_grpc(stub.GetJob, named), over_http("GET", f"/jobs/{job}")),
            "SubmitJob": (
                over_grpc(stub.SubmitJob, spec),
                over_http("POST", "/jobs", msgspec.json.encode(SPEC)),
            ),
        }
        found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in pairs}
        for number in range(rounds + 1):
            for name, pair in pairs.items():
                for told, ways in zip(found[name], pair, strict=True):
                    spent = await _spend(cluster.hub_pid, ways, calls)
                    # The first round warms both up.
                    if number:
                        told.append(spent)
        return found


async def _spend(pid: int, ways: Sequence[Call], calls: int) -> float:
    """Microseconds of the hub's CPU for each of so many calls."""

    async def go(call: Call) -> None:
        for _ in range(calls // len(ways)):
            await call()

    before = _cpu_us(pid)
    await asyncio.gather(*(go(call) for call in ways))
    return (_cpu_us(pid) - before) / calls


def _cpu_us(pid: int) -> float:
    """What all threads of a process have computed, finer than in ticks of a clock."""
    return (
        sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1000
    )


def _starts(settings: dict[str, Any], count: int) -> tuple[float, float]:
    """Milliseconds of CPU to the first word, and MiB of memory then: the middle ones."""
    spent, held = [], []
    for _ in range(count):
        with running_cluster(**settings) as cluster:
            spent.append(_cpu_us(cluster.hub_pid) / 1000)
            held.append(psutil.Process(cluster.hub_pid).memory_info().rss / (1 << 20))
    return statistics.median(spent), statistics.median(held)
