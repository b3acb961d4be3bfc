"""`dray ps` and its questions beside 1,000,000 ended jobs and 100,000 that wait: how long people and the loop stand.

The ended ones were submitted and cancelled through the hub's own core and store. Steps of the loop are timed on
asyncio's own loop (`watched_hub.py`), the commands against the hub as it is.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from benchmarks.cluster import START_S, Cluster, clean_environment, dray_command, temporary_home
from benchmarks.figures import Bar, Figure, median_figure
from benchmarks.hub_restart import fill_store, find_store
from benchmarks.progress import tell

LONG_MS = 5.0
# The steps in which requests are answered; the hub's own start and upkeep are other people's figures.
ANSWERING = "RequestResponseCycle.run_asgi"
QUESTIONS = (
    ("ps",),
    ("ps", "--failed"),
    ("ps", "--state", "killed", "-n", "50"),
    ("ps", "--user", "bench"),
    ("ps", "--name", "none-such"),
    ("ps", "--label", "sweep=1"),
    ("ps", "--since", "1h"),
    ("status",),
)


def measure(quick: bool) -> dict[str, Figure]:
    ended, waiting, listings = (2_000, 500, 2) if quick else (1_000_000, 100_000, 15)
    with temporary_home() as home:
        cluster = Cluster(home, {})
        try:
            cluster.start_hub()
            cluster.stop_hub()
            _fill(cluster, ended, waiting)
            cluster.start_hub()
            _check(cluster, waiting)
            spans = [_time(cluster, ("ps",)) * 1000 for _ in range(listings)]
            tell(f"`dray ps`: {min(spans):.0f} to {max(spans):.0f} ms")
            asked = {" ".join(words): _time(cluster, words) * 1000 for words in QUESTIONS}
            cluster.stop_hub()
            cluster.watched = home / "steps.json"
            cluster.start_hub()
            for words in QUESTIONS:
                _time(cluster, words)
        finally:
            cluster.close()
        assert cluster.watched is not None
        found = json.loads(cluster.watched.read_text())
    steps: dict[str, float] = {}
    for step in found["long"]:
        steps[step["name"]] = max(steps.get(step["name"], 0.0), step["span_s"] * 1000)
    told = ", ".join(
        f"{name} {span:.1f}" for name, span in sorted(steps.items(), key=lambda item: -item[1])[:8]
    )
    longest = steps.get(ANSWERING, 0.0)
    tell(f"longest step that answers {longest:.1f} ms; all: {told}")
    beside = f"beside {ended:,} ended and {waiting:,} waiting jobs"
    return {
        "ps": median_figure(f"`dray ps` {beside}, wall time", "ms", spans, bars=[Bar(at_most=200.0)]),
        "slowest": Figure(
            f"slowest question of `ps` and `status` {beside}, wall time",
            "ms",
            max(asked.values()),
            note=", ".join(f"{words} {span:.0f}" for words, span in asked.items()),
        ),
        "step": Figure(
            f"longest step of the hub's loop while these are asked {beside}",
            "ms",
            longest,
            bars=[Bar(at_most=LONG_MS)],
            note=f"0: none above 2 ms; longest in ms by what ran, start of the hub included: {told or 'none'}",
        ),
    }


def _fill(cluster: Cluster, ended: int, waiting: int) -> None:
    began = time.perf_counter()
    store: Path = find_store(cluster.home)
    fill_store(store, ended, prefix="done", cancelled=True)
    fill_store(store, waiting)
    tell(f"{ended + waiting:,} jobs written in {time.perf_counter() - began:.1f} s")


def _check(cluster: Cluster, waiting: int) -> None:
    held = sum(queue["waiting"] for queue in cluster.request("GET", "/queues")["queues"])
    if held != waiting:
        raise RuntimeError(f"{waiting} jobs should wait, the hub holds {held}")


def _time(cluster: Cluster, words: tuple[str, ...]) -> float:
    command = dray_command(*words, "--home", str(cluster.home))
    began = time.perf_counter()
    # Its end is seen by the end of its output: without that a wait with a time limit looks every 50 ms.
    subprocess.run(command, env=clean_environment({}), capture_output=True, timeout=START_S, check=True)
    return time.perf_counter() - began
