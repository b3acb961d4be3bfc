"""How long one step of the hub's event loop takes under a mixed load: nobody else is served meanwhile.

The load: batches of jobs, an array whose tasks print, calls with small and with large values, lists and output that are
read. On asyncio's own loop (`watched_hub.py`), so the figure is of steps and not of throughput.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from benchmarks.cluster import Cluster, temporary_home
from benchmarks.figures import Bar, Figure, quantile
from benchmarks.function_peer import nothing
from benchmarks.progress import tell
from benchmarks.specs import true_spec, waiting_spec
from dray.client.faces.hub import Hub, connect

LONG_MS = 2.0
SLOTS = 4
NAMED = 8


def measure(quick: bool) -> dict[str, Figure]:
    rounds = 1 if quick else 20
    with temporary_home() as home:
        cluster = Cluster(home, {})
        cluster.watched = home / "steps.json"
        try:
            cluster.start_hub()
            cluster.start_agent(SLOTS)
            _load(cluster, rounds)
        finally:
            cluster.close()
        found = json.loads(cluster.watched.read_text())
    return _figures(found)


def _load(cluster: Cluster, rounds: int) -> None:
    """Several people at once, each with one kind of work."""
    faults: list[BaseException] = []

    def repeat(work: Callable[[Hub], Any]) -> None:
        try:
            with connect(cluster.url, cluster.token, cluster.home) as hub:
                for _ in range(rounds):
                    work(hub)
        except BaseException as fault:  # noqa: BLE001 - told by whoever started this
            faults.append(fault)

    works = (_submit, _print, _call, _call_large, _read)
    people = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for person in people:
        person.start()
    for person in people:
        person.join()
    if faults:
        raise faults[0]


def _submit(hub: Hub) -> None:
    hub.submit_many([waiting_spec() for _ in range(500)])


def _print(hub: Hub) -> None:
    words = {"command": ["/bin/sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x"]}
    job = hub.submit(true_spec() | words | {"array": {"first": 0, "last": 19}})
    job.wait(60)
    for _ in job.logs(task=0):
        pass


def _call(hub: Hub) -> None:
    list(hub.map(nothing, range(1000)))


def _call_large(hub: Hub) -> None:
    list(hub.map(nothing, [bytes(1 << 20) for _ in range(4)]))


def _read(hub: Hub) -> None:
    for _ in range(5):
        hub.jobs(limit=100)


def _figures(found: dict[str, Any]) -> dict[str, Figure]:
    spans = [span * 1000 for many in found["long"].values() for span in many]
    told = sorted(found["long"].items(), key=lambda item: -item[1][0])[:NAMED]
    names = ", ".join(f"{name} {many[0] * 1000:.1f} ({len(many)} x)" for name, many in told)
    stood = sorted(found["places"].items(), key=lambda item: -item[1])[:NAMED]
    places = ", ".join(f"{place} {count}" for place, count in stood)
    longest = max(spans, default=0.0)
    tell(f"{found['steps']} steps, {len(spans)} above {LONG_MS:g} ms, longest {longest:.1f} ms")
    return {
        "longest": Figure(
            "longest step of the hub's loop under a mixed load",
            "ms",
            longest,
            bars=[Bar(at_most=LONG_MS)],
            note=f"longest in ms by what ran: {names}; where they stood: {places}",
        ),
        "long_steps": Figure(
            f"steps of the hub's loop above {LONG_MS:g} ms under a mixed load",
            "per 1,000",
            1000 * len(spans) / max(1, found["steps"]),
            note=f"p50 of these {quantile(spans or [0.0], 0.5):.1f} ms, p99 {quantile(spans or [0.0], 0.99):.1f} ms",
        ),
    }
