"""Services that do not behave: they go into the background, fork, close their port, take all ports, answer badly."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.e2e.cluster import CALM, DEADLINE_S, Cluster, is_alive, wait_dead, wait_for
from tests.e2e.test_ports import find_span

LISTEN = """
import os, socket, sys, time
def listen():
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(('127.0.0.1', int(os.environ['DRAY_PORT'])))
    server.listen()
    return server
def note(name):
    with open(name, 'a') as file:
        file.write(f'{os.getpid()} ')
"""
# As daemons of old did: twice a fork, a session of its own, and the one that was started leaves.
DAEMON = (
    LISTEN
    + """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note('daemons')
        server = listen()
        time.sleep(1000)
    os._exit(0)
time.sleep(0.3)
"""
)
FORKS = (
    LISTEN
    + """
server = listen()
note('forked')
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        note('forked')
        time.sleep(1000)
while True:
    server.accept()[0].close()
"""
)
CLOSES = (
    LISTEN
    + """
server = listen()
note('starts')
while not os.path.exists('close'):
    time.sleep(0.02)
server.close()
time.sleep(1000)
"""
)
# Says five gigabytes and gives a little, or refuses as many without a look.
HUGE = (
    LISTEN
    + """
server = listen()
while True:
    peer, _ = server.accept()
    asked = peer.recv(65536)
    if asked.startswith(b'HEAD'):
        peer.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 5368709120\\r\\n\\r\\n')
    elif asked.startswith(b'POST'):
        peer.sendall(b'HTTP/1.1 413 Too Large\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n')
    elif b'/flood' in asked:
        peer.sendall(b'HTTP/1.1 200 OK\\r\\nX: ')
        try:
            while True:
                peer.sendall(bytes([65]) * 65536)
        except OSError:
            pass
    elif b'/split' in asked:
        peer.sendall(b'HTTP/1.1 200 OK\\r\\nX-A: 1\\r\\n Set-Cookie: dray_pass=stolen\\r\\n')
        peer.sendall(b'Content-Length: 2\\r\\n\\r\\nok')
    else:
        peer.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 5368709120\\r\\n\\r\\nlittle')
    peer.close()
"""
)
TCP = {"tcp": True, "interval_s": 0.2, "unhealthy_after": 2}


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "8")
        yield cluster
    finally:
        cluster.close()


def serve(site: Cluster, name: str, code: str, **fields: Any) -> str:
    given = {"type": "service", "name": name, "ports": ["http"], "min_cpu_cores": 0, **fields}
    return site.submit(sys.executable, "-c", code, **given)


def show(site: Cluster, name: str) -> dict[str, Any]:
    document: dict[str, Any] = site.call("GET", f"/services/{name}").json
    return document


def pids_in(site: Cluster, name: str) -> list[int]:
    path = site.folder / name
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def test_a_service_that_goes_into_the_background_has_ended_and_leaves_nothing(site: Cluster) -> None:
    serve(site, "daemon", DAEMON)
    wait_for(lambda: len(pids_in(site, "daemons")) >= 2, "it was started again")
    first = pids_in(site, "daemons")[0]
    wait_dead([first])
    assert show(site, "daemon")["replica_list"][0]["restarts"] >= 1
    assert site.dray("service", "stop", "daemon", "--grace", "0").code == 0
    wait_for(lambda: not any(map(is_alive, pids_in(site, "daemons"))), "the last one is gone as well")


def test_all_that_a_service_has_forked_goes_with_it(site: Cluster) -> None:
    serve(site, "forks", FORKS, health_check=TCP)
    wait_for(lambda: len(pids_in(site, "forked")) == 4 and show(site, "forks")["ready"] == 1, "it is ready")
    parent, *children = pids_in(site, "forked")
    os.kill(parent, 9)
    wait_dead([parent, *children])
    wait_for(
        lambda: len(pids_in(site, "forked")) == 8 and show(site, "forks")["ready"] == 1, "it is ready again"
    )
    assert site.dray("service", "stop", "forks", "--grace", "0").code == 0
    wait_dead(pids_in(site, "forked"))


def test_a_service_that_closes_its_port_is_not_ready_and_starts_again(site: Cluster) -> None:
    serve(site, "closes", CLOSES, health_check=TCP)
    wait_for(lambda: show(site, "closes")["ready"] == 1, "it is ready")
    (site.folder / "close").touch()
    wait_for(lambda: show(site, "closes")["ready"] == 0, "it is left out of the endpoints")
    (site.folder / "close").unlink()
    wait_for(
        lambda: len(pids_in(site, "starts")) == 2 and show(site, "closes")["ready"] == 1, "it starts again"
    )
    told = show(site, "closes")["replica_list"][0]["last_error"]
    assert "nothing listens" in told or "refused" in told, told
    site.dray("service", "stop", "closes", "--grace", "0")


def test_when_the_range_is_used_up_the_next_one_waits_and_is_told_why(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    first = find_span(2)
    cluster.start_agent("w1", 4, "", "--service-slots", "8", "--ports", f"{first}-{first + 1}")
    jobs = [
        cluster.submit("sleep", "1000", type="service", name=f"s{n}", ports=["http"], min_cpu_cores=0)
        for n in range(3)
    ]

    def standing() -> dict[str, Any]:
        return {row["name"]: row for row in cluster.call("GET", "/services").json["services"]}

    wait_for(lambda: sum(row["ready"] for row in standing().values()) == 2, "two of them run")

    def told() -> str:
        left = next(name for name, row in standing().items() if not row["ready"])
        return (
            left
            if "asks for 1 port, the largest worker has 0 of 2 left" in cluster.dray("why", left).out
            else ""
        )

    left = wait_for(told, "the third says what is missing")
    other = next(name for name in standing() if name != left)
    assert cluster.dray("service", "stop", other, "--grace", "0").code == 0
    wait_for(lambda: standing()[left]["ready"] == 1, "the port that came free is its")
    for job in jobs:
        cluster.call("POST", f"/jobs/{job}/cancel", {"grace_s": 0})


@pytest.fixture(scope="module")
def huge(site: Cluster) -> str:
    serve(site, "huge", HUGE, health_check=TCP)
    wait_for(lambda: show(site, "huge")["ready"] == 1, "it is ready")
    return "/proxy/huge/"


@contextlib.contextmanager
def asking(site: Cluster, method: str, path: str, **headers: str) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    try:
        connection.putrequest(method, path)
        for name, value in {"Authorization": f"Bearer {site.token}", **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        yield connection
    finally:
        connection.close()


def test_sizes_beyond_four_gigabytes_are_passed_on_as_they_are(site: Cluster, huge: str) -> None:
    with asking(site, "HEAD", huge) as connection:
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Length"]) == (200, str(5 << 30))
    with asking(site, "GET", huge) as connection:
        answer = connection.getresponse()
        assert answer.headers["Content-Length"] == str(5 << 30)
        with pytest.raises(http.client.IncompleteRead) as cut:
            answer.read()
        assert cut.value.partial == b"little", "what is not whole does not look so"
    with asking(site, "POST", huge, Content_Length=str(5 << 30)) as connection:
        assert connection.getresponse().status == 413, "nobody waits for a body that is not wanted"


def test_headers_without_end_and_folded_ones_do_no_harm(site: Cluster, huge: str) -> None:
    with asking(site, "GET", f"{huge}flood") as connection:
        assert connection.getresponse().status == 502
    with asking(site, "GET", f"{huge}split") as connection:
        answer = connection.getresponse()
        assert "Set-Cookie" not in answer.headers, "a folded line is no header of its own"
    # Nor is what stands behind a bare line feed.
    with socket.create_connection(("127.0.0.1", site.port), timeout=DEADLINE_S) as sock:
        head = f"GET {huge} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {site.token}\r\n"
        sock.sendall(f"{head}X-One: a\nX-Forwarded-For: 6.6.6.6\r\n\r\n".encode())
        assert b"6.6.6.6" not in sock.recv(1 << 16)
