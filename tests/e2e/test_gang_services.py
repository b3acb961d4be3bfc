"""A service with several nodes, with real processes: its groups meet, serve by their first member, and start again
whole when one member is killed, through a death of the hub too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.cluster import CALM, Cluster, is_alive, wait_dead, wait_for

# How a member of a group gets to rank 0, whenever that listens.
JOIN = """
import socket, time

def join(place):
    while True:
        try:
            return socket.create_connection(place, timeout=30)
        except OSError:
            time.sleep(0.05)
"""
# Every member joins rank 0; only rank 0 answers callers, with who it is and who has joined.
SERVER = (
    JOIN
    + """
import http.server, os

rank, size, generation = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "DRAY_GANG_GENERATION"))
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
print("pid", os.getpid(), flush=True)
if rank == "0":
    listener = socket.create_server(place)
    joined = sorted(listener.accept()[0].recv(16).decode() for _ in range(int(size) - 1))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{generation} of {size}: {rank} {' '.join(joined)}".encode())

    http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["DRAY_PORT"])), Handler).serve_forever()
peer = join(place)
peer.sendall(rank.encode())
while True:
    time.sleep(60)
"""
)


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = make_cluster(CALM)
    cluster.start_hub()
    for name in ("w1", "w2"):
        cluster.start_agent(name, 2, "", "--service-slots", "4")
    (cluster.folder / "server.py").write_text(SERVER)
    return cluster


def show(cluster: Cluster) -> dict[str, Any]:
    answer = cluster.call("GET", "/services/web")
    assert answer.status == 200, answer
    return dict(answer.json)


def wait_ready(cluster: Cluster, replicas: int) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        document = show(cluster)
        return document if (document["ready"], document["replicas"]) == (replicas, replicas) else None

    return wait_for(there, f"web has {replicas} ready groups") or {}


def pid_of(cluster: Cluster, index: int, besides: tuple[int, ...] = ()) -> int:
    """The process of a member, as it printed it; another than those before."""

    def printed() -> int:
        text = cluster.call("GET", "/jobs/web/logs", task=index).body.decode()
        pids = (int(line.split()[1]) for line in text.splitlines() if line.startswith("pid "))
        return next((pid for pid in pids if pid not in besides), 0)

    return wait_for(printed, f"member {index} has printed its pid")


def test_a_killed_member_brings_its_whole_group_back_and_no_other(cluster: Cluster) -> None:
    command = (str(cluster.folder / "server.py"),)
    terms: dict[str, Any] = {"type": "service", "name": "web", "id": "web", "node_count": 2, "replicas": 2}
    cluster.submit(
        "python3", *command, **terms, ports=["http"], health_check={"http": "/", "interval_s": 0.2}
    )
    document = wait_ready(cluster, 2)
    assert [(one["group"], one["rank"]) for one in document["replica_list"]] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert document["summary"] == "2 of 2 groups of 2 nodes ready"
    listed = cluster.call("GET", "/services/web/endpoints").json["endpoints"]
    assert [one["id"] for one in listed] == ["web/0", "web/2"], "callers are sent to the first of each group"
    pids = [pid_of(cluster, index) for index in range(4)]

    os.kill(pids[1], signal.SIGKILL)
    again = [pid_of(cluster, index, tuple(pids)) for index in (0, 1)]
    wait_dead(pids[:2])
    document = wait_ready(cluster, 2)
    assert [one["restarts"] for one in document["replica_list"]] == [1, 1, 0, 0], "one end counts once"
    assert all(map(is_alive, pids[2:])), "the other group was let be"

    cluster.kill_hub()
    os.kill(again[0], signal.SIGKILL)
    cluster.start_hub()
    third = [pid_of(cluster, index, (*pids, *again)) for index in (0, 1)]
    wait_dead(again)
    document = wait_ready(cluster, 2)
    assert [one["restarts"] for one in document["replica_list"]] == [2, 2, 0, 0]

    assert cluster.call("POST", "/services/web/scale", {"replicas": 1}).status == 200
    wait_dead(pids[2:])
    assert cluster.call("POST", "/services/web/stop", {"grace_s": 5}).json["state"] == "killed"
    wait_dead(third)
    cluster.check()
