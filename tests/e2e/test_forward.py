"""Forwards through a real hub to real tasks: bytes both ways, ends, deaths, and who may not."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cluster import CALM, DEADLINE_S, Cluster, wait_for

from dray.client.reach.discovery import Target
from dray.client.reach.forwarding import open_streams
from dray.client.reach.sockets import dial_hub
from dray.errors import Forbidden
from dray.wire.streams.frames import FORWARD_PATH, SUBPROTOCOL_STREAMS, ServiceTarget, write_target
from dray.wire.streams.joints import Opening

# Speaks first, gives every byte back, and says how many there were once it has seen the end of them.
ECHO = """
import os, socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b'replica %s\\n' % os.environ.get('DRAY_TASK_INDEX', '').encode())
        count = 0
        while data := self.request.recv(65536):
            count += len(data)
            self.request.sendall(data)
        self.request.sendall(b'\\n%d' % count)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True
    request_queue_size = 64
Server(('127.0.0.1', int(os.environ['DRAY_PORT'])), Echo).serve_forever()
"""
TCP = {"tcp": True, "interval_s": 1}
FEW_BYTES = 3 << 20


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "8")
        yield cluster
    finally:
        cluster.close()


def serve(cluster: Cluster, name: str, replicas: int = 1, code: str = ECHO, **fields: Any) -> str:
    given = {
        "type": "service",
        "name": name,
        "replicas": replicas,
        "ports": ["tcp"],
        "min_cpu_cores": 0,
        **fields,
    }
    job_id = cluster.submit(sys.executable, "-c", code, **given)
    wait_endpoints(cluster, name, replicas)
    return job_id


def wait_endpoints(cluster: Cluster, name: str, count: int) -> None:
    def there() -> bool:
        with contextlib.suppress(OSError):
            found = cluster.call("GET", f"/services/{name}/endpoints")
            return found.status == 200 and len(found.json["endpoints"]) == count
        return False

    wait_for(there, f"{name} has {count} endpoints")


@contextlib.contextmanager
def forwarding(cluster: Cluster, *words: str, env: Mapping[str, str] = {}) -> Iterator[tuple[int, Path]]:
    """A forward by the command line: its port, and what it says."""
    process, said = cluster.begin("forward", *words, name=f"forward-{words[0].replace('/', '-')}", env=env)
    try:
        yield wait_for(lambda: read_port(process, said), "the forward has its port"), said
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        said.unlink()


def read_port(process: subprocess.Popen[bytes], said: Path) -> int:
    text = said.read_text()
    assert process.poll() is None, text
    found = re.search(r"^127\.0\.0\.1:(\d+) leads to ", text, re.MULTILINE)
    return int(found[1]) if found else 0


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)


def read_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def exchange(port: int, data: bytes) -> bytes:
    """Send all, say that it was all, and read all: both directions of a connection end apart."""
    with dial(port) as sock:
        hello = b""
        while not hello.endswith(b"\n"):
            hello += sock.recv(1)
        answer = bytearray()
        sock.settimeout(DEADLINE_S)
        for at in range(0, len(data), 1 << 16):
            sock.sendall(data[at : at + (1 << 16)])
            while len(answer) < at:
                answer += sock.recv(1 << 16)
        sock.shutdown(socket.SHUT_WR)
        return hello + bytes(answer) + read_all(sock)


def test_bytes_go_both_ways_and_each_direction_ends_by_itself(site: Cluster) -> None:
    serve(site, "echo", health_check=TCP)
    data = bytes(range(256)) * (FEW_BYTES // 256)
    with forwarding(site, "echo") as (port, _):
        assert exchange(port, b"") == b"replica 0\n\n0"
        assert exchange(port, data) == b"replica 0\n" + data + b"\n%d" % len(data)
        # One whose answer nobody reads holds up no other.
        with dial(port) as idle:
            idle.settimeout(1)
            with contextlib.suppress(TimeoutError):
                idle.sendall(bytes(64 << 20))
            assert exchange(port, b"x") == b"replica 0\nx\n1"
    audit = site.call("GET", "/audit").json["records"]
    assert [entry["action"] for entry in audit].count("forward") == 1, (
        "each connection is not on record by itself"
    )


def test_ports_go_by_name_and_number_and_tasks_have_them_too(site: Cluster) -> None:
    task = site.submit(sys.executable, "-c", ECHO, ports=["first", "other"], min_cpu_cores=0)
    ports = wait_for(lambda: site.wait_running(task)["attempts"][-1].get("ports"), "its ports are known")
    for wanted in ("first", str(ports["first"])):
        with forwarding(site, task, wanted) as (port, _):
            wait_for(lambda port=port: answers(port), "it listens")  # type: ignore[misc] # bound at once
    with forwarding(site, task, "nosuch") as (port, said):
        assert not answers(port)
        assert (
            f"{task} has no port 'nosuch': it has first={ports['first']}, other={ports['other']}"
            in said.read_text()
        )
    with forwarding(site, task, "other") as (port, said):
        assert not answers(port)
        assert f"nothing listens on port {ports['other']}" in said.read_text()
    site.call("POST", f"/jobs/{task}/cancel", {})
    missing = site.dray("forward", "nosuch")
    assert missing.code == 1
    assert "nosuch" in missing.err


def answers(port: int) -> bool:
    try:
        return exchange(port, b"x").endswith(b"\nx\n1")
    except OSError:
        return False


def test_another_users_service_is_not_there(site: Cluster) -> None:
    serve(site, "private", health_check=TCP)
    made = make_token(site, "mallory", "submit", "read")
    env = {"DRAY_TOKEN": made}
    refused = site.dray("forward", "private", env=env)
    assert refused.code == 1
    assert "private" in refused.err
    # Who asks the hub itself hears no more than that.
    assert "no service 'private' runs, or it is not yours" in asyncio.run(ask(site, made))
    assert asyncio.run(ask(site, site.token)) == ""
    reader = make_token(site, getpass.getuser(), "read")
    with pytest.raises(Forbidden, match="submit"):
        asyncio.run(ask(site, reader))
    # Nor is a port opened here that would lead nowhere.
    early = site.dray("forward", "private", env={"DRAY_TOKEN": reader})
    assert early.code == 1
    assert "needs the scope submit" in early.err
    assert "leads to" not in early.out


def test_of_a_replica_that_is_dead_it_is_said_what_to_do(site: Cluster) -> None:
    serve(site, "deaf", code="import time; time.sleep(1000)")
    with forwarding(site, "deaf") as (port, said):
        with pytest.raises(ConnectionResetError):
            exchange(port, b"x")
        wait_for(lambda: "dray service logs deaf" in said.read_text(), "it was told")
    missing = site.dray("forward", "deaf/7")
    assert missing.code == 1
    assert "service deaf has no replica 7: it has 0 (`dray service show deaf`)" in missing.err
    assert "leads to" not in missing.out


def make_token(site: Cluster, user: str, *scopes: str) -> str:
    answer = site.call("POST", "/tokens", {"user": user, "scopes": scopes, "shared_account": True})
    assert answer.status == 201, answer
    return str(answer.json["token"])


async def ask(site: Cluster, token: str) -> str:
    """Open a stream to the service `private` as a client may write it; what is said against it."""
    hub = await dial_hub(Target(site.url, token, "", None), FORWARD_PATH, SUBPROTOCOL_STREAMS)
    try:
        opening = Opening()
        open_streams(hub).open(write_target(ServiceTarget("private")), opening)
        return await opening.answer
    finally:
        await hub.close()


DEAF = "import os, time\nif os.environ['DRAY_TASK_INDEX'] == '0': time.sleep(1000)\n" + ECHO


def test_a_replica_that_does_not_answer_is_told_of_and_another_taken(site: Cluster) -> None:
    job_id = serve(site, "half", 2, DEAF)
    with forwarding(site, "half/1") as (port, _):
        wait_for(lambda: answers(port), "the second replica listens")
    with forwarding(site, "half") as (port, said):

        def told() -> bool:
            assert exchange(port, b"x") == b"replica 1\nx\n1"
            return f"{job_id}/0 on w1 does not answer: nothing listens on port" in said.read_text()

        wait_for(told, "the deaf one was asked first at least once")


def test_connections_break_with_hub_and_agent_and_go_on_with_the_next(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(CALM)
    cluster.start_hub()
    agent = cluster.start_agent("w1", 4, "", "--service-slots", "2")
    serve(cluster, "echo", health_check=TCP)
    with forwarding(cluster, "echo") as (port, said):
        for kill, again in (
            (cluster.kill_hub, cluster.start_hub),
            (agent.kill, lambda: cluster.start_agent("w1")),
        ):
            with dial(port) as sock:
                assert sock.recv(1) == b"r"
                kill()
                with pytest.raises(ConnectionResetError):
                    read_all(sock)
            again()
            wait_for(lambda: answers(port), "it goes on")
        assert "a connection to echo broke" in said.read_text()
    cluster.call("POST", "/services/echo/stop", {"grace_s": 0})
