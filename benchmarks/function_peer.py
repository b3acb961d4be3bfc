"""The same calls through a peer: `python function_peer.py PEER WORK COUNT`. Imports nothing of dray.

Runs in the peer's own environment with two workers on this machine, and prints one JSON object of figures. What is not
durable there is durable in dray: the comparison favours the peer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

WIDTH = 2
MEGABYTE = 1 << 20


def nothing(value: Any = None) -> Any:
    return value


def doze(value: int) -> int:
    time.sleep(0.01)
    return value


def double(array: Any) -> Any:
    return array * 2


class Peer(Protocol):
    """What is asked of each: one call, and many."""

    def one(self, function: Callable[[Any], Any], value: Any) -> Any: ...
    def many(self, function: Callable[[Any], Any], values: list[Any]) -> list[Any]: ...


class Ray:
    def __init__(self, module: Any) -> None:
        self._ray, self._known = module, {}  # type: ignore[var-annotated]  # functions by themselves

    def _remote(self, function: Callable[[Any], Any]) -> Any:
        if function not in self._known:
            self._known[function] = self._ray.remote(function)
        return self._known[function]

    def one(self, function: Callable[[Any], Any], value: Any) -> Any:
        return self._ray.get(self._remote(function).remote(value))

    def many(self, function: Callable[[Any], Any], values: list[Any]) -> list[Any]:
        remote = self._remote(function)
        found: list[Any] = self._ray.get([remote.remote(value) for value in values])
        return found


class Dask:
    def __init__(self, client: Any) -> None:
        self._client = client

    def one(self, function: Callable[[Any], Any], value: Any) -> Any:
        return self._client.submit(function, value, pure=False).result()

    def many(self, function: Callable[[Any], Any], values: list[Any]) -> list[Any]:
        found: list[Any] = self._client.gather(self._client.map(function, values, pure=False))
        return found


class Pool:
    """Anything with the interface of `concurrent.futures`."""

    def __init__(self, submit: Callable[..., Any]) -> None:
        self._submit = submit

    def one(self, function: Callable[[Any], Any], value: Any) -> Any:
        return self._submit(function, value).result()

    def many(self, function: Callable[[Any], Any], values: list[Any]) -> list[Any]:
        return [future.result() for future in [self._submit(function, value) for value in values]]


@contextmanager
def ray_peer() -> Iterator[Peer]:
    import ray  # type: ignore[import-not-found]  # lives in an environment of its own

    ray.init(num_cpus=WIDTH, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield Ray(ray)
    finally:
        ray.shutdown()


@contextmanager
def dask_peer() -> Iterator[Peer]:
    from distributed import Client, LocalCluster  # type: ignore[import-not-found]  # as above

    with (
        LocalCluster(
            n_workers=WIDTH, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        yield Dask(client)


@contextmanager
def parsl_peer() -> Iterator[Peer]:
    import parsl  # type: ignore[import-not-found]  # as above
    from parsl.config import Config  # type: ignore[import-not-found]  # as above
    from parsl.executors import HighThroughputExecutor  # type: ignore[import-not-found]  # as above

    executor = HighThroughputExecutor(
        label="bench", address="127.0.0.1", max_workers_per_node=WIDTH, cores_per_worker=1
    )
    apps: dict[Any, Any] = {}
    with parsl.load(Config(executors=[executor], run_dir=os.environ["PEER_SCRATCH"])):

        def submit(function: Callable[[Any], Any], value: Any) -> Any:
            if function not in apps:
                apps[function] = parsl.python_app(function)
            return apps[function](value)

        yield Pool(submit)


@contextmanager
def pool_peer() -> Iterator[Peer]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(WIDTH) as pool:
        peer = Pool(pool.submit)
        # Its own way of calling many times, one by one as everybody else does here.
        peer.many = lambda function, values: list(pool.map(function, values, chunksize=1))  # type: ignore[method-assign]  # reason above
        yield peer


PEERS = {"ray": ray_peer, "dask": dask_peer, "parsl": parsl_peer, "pool": pool_peer}


def rate(peer: Peer, function: Callable[[Any], Any], values: list[Any]) -> float:
    began = time.perf_counter()
    found = peer.many(function, values)
    span = time.perf_counter() - began
    if len(found) != len(values):
        raise SystemExit(f"{len(values)} calls gave {len(found)} results")
    return len(values) / span


def measure_calls(peer: Peer, count: int) -> dict[str, Any]:
    rates = [rate(peer, nothing, list(range(count))) for _ in range(3)]
    return {"per_s": sorted(rates)[1]}


def measure_latency(peer: Peer, count: int) -> dict[str, Any]:
    spans = []
    for number in range(count):
        began = time.perf_counter()
        peer.one(nothing, number)
        spans.append(time.perf_counter() - began)
    spans.sort()
    return {"p50_ms": 1000 * spans[count // 2], "p99_ms": 1000 * spans[int(count * 0.99)]}


def measure_arrays(peer: Peer, count: int) -> dict[str, Any]:
    import numpy as np

    arrays = [np.full(MEGABYTE // 8, float(number)) for number in range(count)]
    return {"per_s": rate(peer, double, arrays)}


def measure_naps(peer: Peer, count: int) -> dict[str, Any]:
    return {"per_s": rate(peer, doze, list(range(count)))}


WORKS: dict[str, Callable[[Peer, int], dict[str, Any]]] = {
    "calls": measure_calls,
    "latency": measure_latency,
    "arrays": measure_arrays,
    "naps": measure_naps,
}


def main(name: str, work: str, count: int) -> None:
    began = time.perf_counter()
    with PEERS[name]() as peer:
        peer.one(nothing, 0)
        first_s = time.perf_counter() - began
        peer.many(nothing, list(range(200)))
        print(json.dumps({"first_s": first_s, **WORKS[work](peer, count)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
