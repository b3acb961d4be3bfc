"""Calls with a 1 MB array as argument and result: buffers beside the pickle, blobs on disk, fetched once."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.cluster import running_cluster
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.function_floors import POOL, ask_peers, floor_of
from benchmarks.function_peer import MEGABYTE, WIDTH, double
from benchmarks.progress import tell
from dray.client.faces.hub import Hub, connect


def measure(quick: bool) -> dict[str, Figure]:
    calls, runs = (10, 1) if quick else (1_000, 2)
    with running_cluster(WIDTH) as cluster, connect(cluster.url, cluster.token, cluster.home) as hub:
        _run(hub, 4)
        rates = []
        for number in range(runs):
            rates.append(_run(hub, calls))
            tell(f"run {number + 1}: {rates[-1]:,.0f}/s")
    found, absent = ask_peers("arrays", calls, (POOL,) if quick else (POOL, "Ray", "Dask"))
    return {
        "arrays": median_figure(
            f"{calls:,} calls with a 1 MB numpy argument and result, {WIDTH} slots",
            "calls/s",
            rates,
            floors=floor_of(found, "per_s"),
            bars=[Bar(at_least=1.0, of="Ray"), Bar(at_least=3.0, of="Dask")],
            note=absent,
        )
    }


def _run(hub: Hub, calls: int) -> float:
    # Each array is another one: what is equal would be sent once and stored once.
    arrays = [np.full(MEGABYTE // 8, float(time.monotonic_ns() + number)) for number in range(calls)]
    began = time.perf_counter()
    for number, found in enumerate(hub.map(double, arrays)):
        if found[0] != arrays[number][0] * 2:
            raise RuntimeError("a call gave back something else")
    return calls / (time.perf_counter() - began)
