"""A very large array: how long its submit takes and what it costs in memory while it waits."""

from __future__ import annotations

import time

from benchmarks.cluster import resident_mib, running_cluster
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.specs import waiting_spec
from dray.client.faces.hub import connect


def measure(quick: bool) -> dict[str, Figure]:
    tasks, runs = (10_000, 1) if quick else (1_000_000, 5)
    spans, grown = [], []
    with running_cluster() as cluster, connect(cluster.url, cluster.token, cluster.home) as hub:
        for _ in range(runs):
            before = resident_mib(cluster.hub_pid)
            began = time.perf_counter()
            job = hub.submit(waiting_spec(array={"first": 0, "last": tasks - 1}))
            spans.append(time.perf_counter() - began)
            if job.status()["tasks"]["total"] != tasks:
                raise RuntimeError(f"the hub does not hold {tasks} tasks: {job.status()['tasks']}")
            grown.append(resident_mib(cluster.hub_pid) - before)
    what = f"array of {tasks:,} tasks"
    return {
        "submit": median_figure(f"{what}: submit", "s", spans, bars=[Bar(at_most=1.0)]),
        "memory": median_figure(
            f"{what}: memory that the hub takes more", "MiB", grown, bars=[Bar(at_most=300.0)]
        ),
    }
