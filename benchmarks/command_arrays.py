"""N times `true` as one array, over the whole product: client channel, hub, agent, supervisor, SQLite.

Floors in the same run: xargs of the same width, a bare `posix_spawn` loop, HyperQueue.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.cluster import Cluster, cpu_seconds, running_cluster
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.floors import hyperqueue_rate, spawn_rate, xargs_rate
from benchmarks.progress import rounds, tell
from benchmarks.specs import array_spec
from dray.client.faces.hub import connect

WAIT_S = 120.0
BUDGET_S = 60.0
XARGS_BAR = {2: 0.30, 8: 0.35}


def measure(quick: bool) -> dict[str, Figure]:
    tasks, runs = (40, 1) if quick else (5_000, 3)
    return {f"array_{slots}_slots": _measure_width(slots, tasks, runs, peer=not quick) for slots in (2, 8)}


def _measure_width(slots: int, tasks: int, runs: int, peer: bool) -> Figure:
    rates: list[float] = []
    xargs: list[float] = []
    spawns: list[float] = []
    peers: list[float] = []
    absent = "" if peer else "HyperQueue is left out at quick sizes"
    cost = ""
    with running_cluster(slots) as cluster:
        run_array(cluster, slots * 4)
        for number in rounds(runs, BUDGET_S):
            rate, cost = _run_counted(cluster, tasks)
            rates.append(rate)
            xargs.append(xargs_rate(tasks, slots))
            spawns.append(spawn_rate(tasks, slots))
            answer = hyperqueue_rate(tasks, slots) if peer and not absent else absent
            if isinstance(answer, str):
                absent = answer
            else:
                peers.append(answer)
            tell(f"{slots} slots, run {number + 1}: dray {rate:.0f}/s, xargs {xargs[-1]:.0f}/s")
    floors = {"xargs": statistics.median(xargs), "posix_spawn loop": statistics.median(spawns)}
    if peers:
        floors["HyperQueue"] = statistics.median(peers)
    return median_figure(
        f"{tasks:,} × `true` as one array, {slots} slots",
        "tasks/s",
        rates,
        floors=floors,
        bars=[Bar(at_least=0.9, of="HyperQueue"), Bar(at_least=XARGS_BAR[slots], of="xargs")],
        note="; ".join(part for part in (cost, absent) if part),
    )


def run_array(cluster: Cluster, tasks: int) -> float:
    """Submit an array and wait for its end; gives tasks per second."""
    with connect(cluster.url, cluster.token, cluster.home) as hub:
        began = time.perf_counter()
        status = hub.submit(array_spec(tasks)).wait(WAIT_S)
        span = time.perf_counter() - began
    if not status.ok or status["tasks"]["succeeded"] != tasks:
        raise RuntimeError(f"the array did not end well: {status['tasks']}")
    return tasks / span


def _run_counted(cluster: Cluster, tasks: int) -> tuple[float, str]:
    """As `run_array`, with the CPU time that each process spent per task."""
    pids = {"hub": [cluster.hub_pid], "agent": cluster.agent_pids, "supervisor": cluster.supervisor_pids()}
    before = {name: sum(map(cpu_seconds, found)) for name, found in pids.items()}
    rate = run_array(cluster, tasks)
    spent = {name: sum(map(cpu_seconds, found)) - before[name] for name, found in pids.items()}
    told = ", ".join(f"{name} {seconds / tasks * 1e6:.0f}" for name, seconds in spent.items())
    return rate, f"CPU µs per task: {told}"
