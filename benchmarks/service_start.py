"""From the submit of a service to the hub's word that it is ready, one after another; the same program started here
beside.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time

from benchmarks.cluster import Cluster, running_cluster, wait_until
from benchmarks.figures import Bar, Figure, quantile
from benchmarks.progress import tell
from benchmarks.small_service import ASK, COMMAND

WARM = 3
LIMIT_S = 60.0
LOOK_S = 0.001


def measure(quick: bool) -> dict[str, Figure]:
    count = 10 if quick else 100
    with running_cluster() as cluster:
        cluster.start_agent(2, "bench", "--service-slots", "4")
        spans, floor = [], []
        for number in range(count + WARM):
            # In turn, so that both meet the machine as it is then.
            through, alone = _serve(cluster, f"s{number}"), _start_here()
            if number >= WARM:
                spans.append(through)
                floor.append(alone)
    added, own = quantile(spans, 0.5) - quantile(floor, 0.5), quantile(floor, 0.5)
    tell(f"{count} services: ready after {quantile(spans, 0.5):.1f} ms, the program alone {own:.1f} ms")
    return {
        "added_p50": Figure(
            f"a service, submitted to ready ({count}), above the program's own start, p50",
            "ms",
            added,
            bars=[Bar(at_most=60.0)],
            note=f"{quantile(spans, 0.5):.1f} ms in all, p99 {quantile(spans, 0.99):.0f} ms; {own:.1f} ms alone",
        )
    }


def _serve(cluster: Cluster, name: str) -> float:
    """Milliseconds until it is listed as ready, asked for over one connection."""
    connection = http.client.HTTPConnection(cluster.url.removeprefix("http://"), timeout=LIMIT_S)
    headers = {"Authorization": f"Bearer {cluster.token}", "Content-Type": "application/json"}
    spec = {
        "id": name,
        "command": COMMAND,
        "type": "service",
        "ports": ["http"],
        "health_check": {"http": "/"},
    }
    connection.connect()
    try:
        began = time.perf_counter()
        connection.request("POST", "/api/v1/jobs", json.dumps({**spec, "min_cpu_cores": 0}), headers)
        connection.getresponse().read()
        while True:
            connection.request("GET", f"/api/v1/services/{name}/endpoints", headers=headers)
            if json.loads(connection.getresponse().read())["endpoints"]:
                break
            if time.perf_counter() - began > LIMIT_S:
                raise TimeoutError(f"{name} is not ready after {LIMIT_S:g} s")
            time.sleep(LOOK_S)
        span = (time.perf_counter() - began) * 1000
    finally:
        connection.close()
    cluster.request("POST", f"/services/{name}/stop", {"grace_s": 0})
    wait_until(lambda: not cluster.services_in_use("bench"), LIMIT_S, f"the end of {name}")
    return span


def _start_here() -> float:
    """Milliseconds from the start of the same program to its first answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.perf_counter()
    process = subprocess.Popen(COMMAND, env={**os.environ, "DRAY_PORT": str(port)})
    try:
        while not _answers(port):
            time.sleep(LOOK_S)
        return (time.perf_counter() - began) * 1000
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as sock:
            sock.sendall(ASK)
            return sock.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
