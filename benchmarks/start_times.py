"""How long people wait: a hub's start, `dray up` to the first task running, `dray ps`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cluster import (
    START_S,
    Cluster,
    clean_environment,
    dray_command,
    running_cluster,
    temporary_home,
    wait_until,
)
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.progress import tell
from benchmarks.specs import true_spec


def measure(quick: bool) -> dict[str, Figure]:
    starts, listings = (1, 2) if quick else (7, 15)
    bare = [_timed([sys.executable, "-c", "pass"]) for _ in range(starts)]
    floors = {"python -c pass": sorted(bare)[len(bare) // 2]}
    hubs = [_start_hub() for _ in range(starts)]
    ups = [_bring_up() for _ in range(starts)]
    tell(
        f"hub ready {min(hubs):.2f}-{max(hubs):.2f} s, first task {min(ups):.2f}-{max(ups):.2f} s after `dray up`"
    )
    lists = _list_jobs(listings)
    return {
        "hub_ready": median_figure(
            "hub up, empty store, to ready", "s", hubs, floors=floors, bars=[Bar(at_most=0.8)]
        ),
        "first_task": median_figure(
            "`dray up` to the first task running", "s", ups, floors=floors, bars=[Bar(at_most=1.5)]
        ),
        "ps": median_figure(
            "`dray ps`, wall time",
            "ms",
            [span * 1000 for span in lists],
            floors={"python -c pass": floors["python -c pass"] * 1000},
            bars=[Bar(at_most=200.0)],
        ),
    }


def _start_hub() -> float:
    with temporary_home() as home:
        cluster = Cluster(home, {})
        try:
            return cluster.start_hub()
        finally:
            cluster.close()


def _bring_up() -> float:
    """From the start of `dray up --detach` to the moment that the first task writes down."""
    with temporary_home() as home:
        stamp = home / "began"
        environment = clean_environment({})
        began = time.time()
        up = subprocess.Popen(
            dray_command("up", "--detach", "--home", str(home), "--port", "0"),
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        try:
            cluster = Cluster(home, {})
            wait_until((home / "hub.json").exists, START_S, "the hub's own file")
            cluster.url = _read_url(home)
            write = f"date +%s.%N > {stamp}.new && mv {stamp}.new {stamp}"
            cluster.request("POST", "/jobs", true_spec(command=["/bin/sh", "-c", write]))
            wait_until(stamp.exists, START_S, "the first task")
            up.wait(START_S)
            return float(stamp.read_text()) - began
        finally:
            down = dray_command("down", "--home", str(home))
            subprocess.run(down, env=environment, stdout=subprocess.DEVNULL, timeout=START_S, check=False)
            if up.poll() is None:
                up.kill()
                up.wait()


def _read_url(home: Path) -> str:
    import json

    return str(json.loads((home / "hub.json").read_text())["url"])


def _list_jobs(times: int) -> list[float]:
    with running_cluster() as cluster:
        for _ in range(20):
            cluster.request("POST", "/jobs", true_spec())
        environment = clean_environment({}) | {"DRAY_HOME": str(cluster.home)}
        script = Path(sys.executable).with_name("dray")
        command = [str(script), "ps"] if script.exists() else dray_command("ps")
        _timed(command, environment)
        return [_timed(command, environment) for _ in range(times)]


def _timed(command: list[str], environment: dict[str, str] | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment or dict(os.environ), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began
