"""How long one step of the hub's event loop takes under a mixed load: nobody else is served meanwhile.

The load: batches of jobs, an array whose tasks print, calls with small and with large values, lists and output that are
read. On asyncio's own loop (`watched_hub.py`), so the figure is of steps and not of throughput.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.cluster import Cluster, temporary_home
from benchmarks.figures import Bar, Figure
from benchmarks.function_peer import nothing
from benchmarks.progress import tell
from benchmarks.specs import true_spec, waiting_spec
from benchmarks.watched_hub import LongStep
from dray.client.faces.hub import Hub, connect

LONG_MS = 2.0
SLOTS = 4
NAMED = 8
TURNS = "Engine.run"


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
    """Turns compute, as much as one batch brings; what is no turn should be short. Waits for a core are told apart."""
    steps = [LongStep(**step) for step in found["long"]]
    turns = [step for step in steps if step.name == TURNS]
    others = [step for step in steps if step.name != TURNS]
    longest = max((step.span_s for step in steps), default=0.0) * 1000
    tell(f"{found['steps']} steps, {len(steps)} above {LONG_MS:g} ms, longest {longest:.1f} ms")
    queued = 100 * sum(step.queued_s for step in steps) / max(sum(step.span_s for step in steps), 1e-9)
    return {
        "longest": Figure(
            "longest step of the hub's loop under a mixed load, as a clock on the wall sees it",
            "ms",
            longest,
            note=f"of all steps above {LONG_MS:g} ms {queued:.0f} % of the time no core was free for the hub",
        ),
        "others": Figure(
            "longest step that is no turn, less what it waited for a core",
            "ms",
            _longest_ms(others),
            bars=[Bar(at_most=LONG_MS)],
            note=_places(others),
        ),
        "turns": Figure(
            "longest turn under the same load, less what it waited for a core",
            "ms",
            _longest_ms(turns),
            note=_places(turns),
        ),
        "waits": Figure(
            "longest wait of one step for a file, a socket or the interpreter lock",
            "ms",
            max((_waited_s(step) for step in steps), default=0.0) * 1000,
            note=f"above {LONG_MS:g} ms {sum(_waited_s(step) > LONG_MS / 1000 for step in steps)} times",
        ),
        "long_steps": Figure(
            f"steps of the hub's loop above {LONG_MS:g} ms under a mixed load, less what they waited for a core",
            "per 1,000",
            1000 * sum(_busy_s(step) > LONG_MS / 1000 for step in steps) / max(1, found["steps"]),
            note=f"{1000 * len(steps) / max(1, found['steps']):.0f} by a clock on the wall",
        ),
    }


def _busy_s(step: LongStep) -> float:
    return max(step.span_s - step.queued_s, step.ran_s)


def _waited_s(step: LongStep) -> float:
    return max(step.span_s - step.queued_s - step.ran_s, 0.0)


def _longest_ms(steps: list[LongStep]) -> float:
    return max(map(_busy_s, steps), default=0.0) * 1000


def _places(steps: list[LongStep]) -> str:
    """What ran in those that were long by themselves, and where they were seen."""
    busy = [step for step in steps if _busy_s(step) > LONG_MS / 1000]
    names, places = (Counter(getattr(step, field) for step in busy) for field in ("name", "place"))
    return "; ".join(
        f"{what}: "
        + (", ".join(f"{name or 'not seen'} {count}" for name, count in many.most_common(NAMED)) or "none")
        for what, many in ((f"above {LONG_MS:g} ms by what ran", names), ("where they stood", places))
    )
