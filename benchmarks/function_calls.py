"""Python functions over the whole product: client, hub, agent, warm runners, SQLite. Every result is durable.

The peers keep nothing. A process pool with chunks of its own is faster than anything that records each call; it is
asked here for one call at a time, as everybody else is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cluster import Cluster, cpu_seconds, running_cluster
from benchmarks.figures import Bar, Figure, median_figure, quantile
from benchmarks.function_floors import POOL, ask_peers, floor_of
from benchmarks.function_peer import WIDTH, doze, nothing
from benchmarks.progress import tell
from dray.client.faces.hub import Hub, connect

ALL = (POOL, "Ray", "Dask", "Parsl")
NAP_S = 0.01


def measure(quick: bool) -> dict[str, Figure]:
    calls, single, naps, runs = (200, 20, 20, 1) if quick else (10_000, 500, 10_000, 5)
    names = (POOL,) if quick else ALL
    with running_cluster(WIDTH) as cluster, connect(cluster.url, cluster.token, cluster.home) as hub:
        list(hub.map(nothing, range(200)))
        figures = _throughput(cluster, hub, calls, runs)
        figures |= _latency(hub, single)
        figures["naps"] = _naps(hub, naps)
    many, absent = ask_peers("calls", calls, names)
    for name in ("map", "submits"):
        figures[name].floors = floor_of(many, "per_s")
        figures[name].note = "; ".join(part for part in (figures[name].note, absent) if part)
    one, absent = ask_peers("latency", single, names)
    for share in ("p50", "p99"):
        figures[f"call_{share}"].floors = floor_of(one, f"{share}_ms")
        figures[f"call_{share}"].note = absent
    dozed, absent = ask_peers("naps", naps // 5, (POOL,) if quick else (POOL, "Ray"))
    figures["naps"].floors |= floor_of(dozed, "per_s")
    figures["naps"].note = absent
    return figures


def _throughput(cluster: Cluster, hub: Hub, calls: int, runs: int) -> dict[str, Figure]:
    maps, submits, costs = [], [], []
    for number in range(runs):
        before = cpu_seconds(cluster.hub_pid)
        maps.append(_rate(calls, lambda: list(hub.map(nothing, range(calls)))))
        costs.append((cpu_seconds(cluster.hub_pid) - before) / calls * 1e6)
        submits.append(_rate(calls, lambda: _submit_all(hub, calls)))
        tell(f"run {number + 1}: map {maps[-1]:,.0f}/s, submits {submits[-1]:,.0f}/s, hub {costs[-1]:.0f} µs")
    return {
        "map": median_figure(
            f"{calls:,} no-op calls by `map`, {WIDTH} slots",
            "calls/s",
            maps,
            bars=[Bar(at_least=12_000), Bar(at_least=1.0, of=POOL), Bar(at_least=5, of="Ray")],
        ),
        "submits": median_figure(
            f"{calls:,} separate `submit`s, all results, {WIDTH} slots",
            "calls/s",
            submits,
            bars=[Bar(at_least=8_000), Bar(at_least=3.5, of="Ray")],
        ),
        "hub_cost": median_figure(
            "CPU of the hub (loop and writer) per call in a map",
            "µs",
            costs,
            bars=[Bar(at_most=80)],
            note=f"median of {runs}: {statistics.median(costs):.0f}",
        ),
    }


def _submit_all(hub: Hub, calls: int) -> list[Any]:
    return [future.result() for future in [hub.submit(nothing, number) for number in range(calls)]]


def _rate(calls: int, work: Callable[[], list[Any]]) -> float:
    began = time.perf_counter()
    found = work()
    span = time.perf_counter() - began
    if found != list(range(calls)):
        raise RuntimeError(f"{calls} calls gave {len(found)} results, or in another order")
    return calls / span


def _latency(hub: Hub, calls: int) -> dict[str, Figure]:
    spans = []
    for number in range(calls + 20):
        began = time.perf_counter()
        if hub.submit(nothing, number).result() != number:
            raise RuntimeError("a call gave back something else")
        if number >= 20:  # the first ones warm the way
            spans.append((time.perf_counter() - began) * 1000)
    return {
        f"call_{name}": Figure(
            f"one call at a time, submit to result ({calls}), {name}",
            "ms",
            quantile(spans, share),
            bars=[Bar(at_most=bar)],
        )
        for name, share, bar in (("p50", 0.5, 1.6), ("p99", 0.99, 4.0))
    }


def _naps(hub: Hub, calls: int) -> Figure:
    rate = _rate(calls, lambda: list(hub.map(doze, range(calls))))
    perfect = WIDTH / NAP_S
    return Figure(
        f"{calls:,} calls of 10 ms each on {WIDTH} slots",
        "calls/s",
        rate,
        floors={"perfect": perfect},
        bars=[Bar(at_least=0.97, of="perfect")],
    )
