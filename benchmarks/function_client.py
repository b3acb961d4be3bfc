"""A client process whose time and memory are measured: `python -m benchmarks.function_client WORK COUNT`.

Prints one JSON object. Where the hub is comes by DRAY_HUB and DRAY_TOKEN; without them it is a private one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

BEGAN = time.perf_counter()


def first_result() -> dict[str, float]:
    import dray

    hub = dray.connect()
    if hub.submit(abs, -7).result() != 7:
        raise SystemExit("the call gave back something else")
    span = time.perf_counter() - BEGAN
    hub.close()
    return {"span_s": span}


def connect_only() -> dict[str, float]:
    import dray

    hub = dray.connect()
    hub.ping()
    span = time.perf_counter() - BEGAN
    hub.close()
    return {"span_s": span}


def queue_up(count: int) -> dict[str, float]:
    """Queue calls that nobody runs, then say how large this process is and wait to be killed."""
    import psutil

    import dray
    from benchmarks.function_peer import nothing

    hub = dray.connect()
    futures = [hub.submit(nothing, number) for number in range(count)]
    if futures[-1].id == "":
        raise SystemExit("the last call has no id")
    deadline = time.monotonic() + 300
    while hub.job(futures[-1].id.partition("/")[0]).status()["tasks"]["total"] < count:
        if time.monotonic() > deadline:
            raise SystemExit("the calls did not arrive")
        time.sleep(0.05)
    print(json.dumps({"mib": psutil.Process().memory_info().rss / (1 << 20)}), flush=True)
    sys.stdin.read()
    raise SystemExit(0)


def map_many(count: int) -> dict[str, float]:
    import psutil

    import dray
    from benchmarks.function_peer import nothing

    hub = dray.connect()
    list(hub.map(nothing, range(200)))
    process, most = psutil.Process(), 0.0
    began, ended = time.perf_counter(), 0
    for number, value in enumerate(hub.map(nothing, range(count))):
        if value != number:
            raise SystemExit(f"call {number} gave back {value}")
        ended += 1
        if number % 10_000 == 0:
            most = max(most, process.memory_info().rss / (1 << 20))
    if ended != count:
        raise SystemExit(f"{count} calls gave {ended} results")
    return {"per_s": count / (time.perf_counter() - began), "mib": most}


def main(work: str, count: int) -> None:
    works: dict[str, Callable[[], dict[str, float]]] = {
        "first": first_result,
        "connect": connect_only,
        "queue": lambda: queue_up(count),
        "map": lambda: map_many(count),
    }
    print(json.dumps(works[work]()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
