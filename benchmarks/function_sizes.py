"""How much memory function calls take, how long a start takes, and a map of a million calls."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cluster import (
    Cluster,
    clean_environment,
    processes_of,
    proportional_mib,
    resident_mib,
    running_cluster,
    temporary_home,
    wait_until,
)
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.function_peer import WIDTH
from benchmarks.progress import tell

ROOT = Path(__file__).parent.parent
LIMIT_S = 580.0
WARM_S = 60.0


def measure(quick: bool) -> dict[str, Figure]:
    runs, queued, many, few = (1, 200, 500, 200) if quick else (5, 100_000, 1_000_000, 10_000)
    return {**_starts(runs), **_idle(), **_queued(queued), **_million(many, few, runs)}


def _starts(runs: int) -> dict[str, Figure]:
    firsts = []
    for _ in range(runs):
        with temporary_home() as home:
            firsts.append(_client("first", 0, {"DRAY_HOME": str(home)})["span_s"])
    tell(f"private hub to first result: {sorted(firsts)[len(firsts) // 2]:.2f} s")
    with running_cluster() as cluster:
        spans = [1000 * _client("connect", 0, _where(cluster))["span_s"] for _ in range(runs)]
    return {
        "first_result": median_figure(
            "`import dray`, private hub, first result", "s", firsts, bars=[Bar(at_most=1.2)]
        ),
        "connect": median_figure(
            "`import dray` and connect to a running hub", "ms", spans, bars=[Bar(at_most=150)]
        ),
    }


def _idle() -> dict[str, Figure]:
    with running_cluster(WIDTH) as cluster:
        # Runners start after the worker has registered.
        wait_until(lambda: len(_runners(cluster)) >= WIDTH, WARM_S, "the runners")
        _client("map", 1_000, _where(cluster))
        pids = [*cluster.agent_pids, *cluster.supervisor_pids(), *_runners(cluster)]
        worker, hub = sum(map(proportional_mib, pids)), resident_mib(cluster.hub_pid)
    return {
        "hub_idle": Figure("hub memory after 1,000 calls, RSS", "MiB", hub, bars=[Bar(at_most=100)]),
        "worker_idle": Figure(
            f"idle worker with {WIDTH} runners (agent, supervisor, runners), PSS",
            "MiB",
            worker,
            bars=[Bar(at_most=110)],
        ),
    }


def _runners(cluster: Cluster) -> list[int]:
    """Runners are children of the supervisor; their command line names no home."""
    children = [
        child for pid in cluster.supervisor_pids() for child in psutil.Process(pid).children(recursive=True)
    ]
    return [child.pid for child in children if any("dray/runner" in word for word in child.cmdline())]


def _queued(calls: int) -> dict[str, Figure]:
    with running_cluster() as cluster:
        command = [sys.executable, "-m", "benchmarks.function_client", "queue", str(calls)]
        environment = clean_environment({}) | _where(cluster)
        client = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert client.stdout is not None  # asked for above
            said = json.loads(client.stdout.readline())
            hub = resident_mib(cluster.hub_pid)
        finally:
            client.kill()
            client.communicate()
    tell(f"{calls:,} calls queued: hub {hub:.0f} MiB, client {said['mib']:.0f} MiB")
    return {
        "queued_hub": Figure(f"{calls:,} calls queued: hub, RSS", "MiB", hub, bars=[Bar(at_most=150)]),
        "queued_client": Figure(
            f"{calls:,} calls queued: client, RSS", "MiB", said["mib"], bars=[Bar(at_most=100)]
        ),
    }


def _million(calls: int, few: int, runs: int) -> dict[str, Figure]:
    # One short map says little: the first of a cluster is quick, and runners are exchanged in the middle of others.
    with running_cluster(WIDTH) as cluster:
        bases = sorted(_client("map", few, _where(cluster))["per_s"] for _ in range(runs))
        base = bases[len(bases) // 2]
        watcher = _Watcher(cluster)
        try:
            found = _client("map", calls, _where(cluster))
        finally:
            most = watcher.stop()
    tell(f"{calls:,} calls: {found['per_s']:,.0f}/s, {most + found['mib']:,.0f} MiB")
    return {
        "million_rate": Figure(
            f"{calls:,} calls as one map",
            "calls/s",
            found["per_s"],
            floors={f"{few:,} calls": base},
            bars=[Bar(at_least=0.7, of=f"{few:,} calls")],
        ),
        "million_memory": Figure(
            f"{calls:,} calls as one map: hub, worker and client at most",
            "MiB",
            most + found["mib"],
            bars=[Bar(at_most=1024)],
        ),
    }


class _Watcher:
    """Looks at the memory of a cluster's processes until it is stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._most, self._over = cluster, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            # A process may end between two looks.
            with contextlib.suppress(psutil.Error):
                pids = [
                    *(process.pid for process in processes_of(self._cluster.home)),
                    *_runners(self._cluster),
                ]
                self._most = max(self._most, sum(map(proportional_mib, pids)))

    def stop(self) -> float:
        self._over.set()
        self._thread.join()
        return self._most


def _where(cluster: Cluster) -> dict[str, str]:
    return {"DRAY_HUB": cluster.url, "DRAY_TOKEN": cluster.token, "DRAY_HOME": str(cluster.home)}


def _client(work: str, count: int, variables: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.function_client", work, str(count)]
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environment({}) | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{work} failed after {time.monotonic() - began:.0f} s: {done.stderr.strip()[-600:]}"
        )
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said
