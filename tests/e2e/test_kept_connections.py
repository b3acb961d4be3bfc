"""Connections that are kept to services, seen from there: who shares one, how long they stand, and what a service that
stops or changes has of them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.cluster import CALM, DEADLINE_S, Cluster, wait_for
from tests.e2e.test_forward import make_token, wait_endpoints

# Says on which connection it was asked and how many there are. Its end waits for all of them.
WEB = """
import json, os, signal, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
OPEN = set()
class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def setup(self):
        super().setup()
        OPEN.add(self.client_address[1])
    def finish(self):
        super().finish()
        OPEN.discard(self.client_address[1])
    def answer(self):
        told = {'peer': self.client_address[1], 'open': len(OPEN), 'kind': sys.argv[1], 'path': self.path}
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    # Reads no body: the next request on the same connection would begin with it.
    do_GET = do_POST = answer
    def log_message(self, *args): pass
class Server(ThreadingHTTPServer):
    daemon_threads = False
server = Server(('127.0.0.1', int(os.environ['DRAY_PORT'])), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever()
server.server_close()
"""
# Serves one connection at a time, and that for as long as it stands.
SINGLE = WEB.replace("ThreadingHTTPServer", "HTTPServer")


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "8")
        for name, code, replicas in (("web", WEB, 2), ("one", WEB, 1), ("single", SINGLE, 1)):
            given: dict[str, Any] = {
                "type": "service",
                "name": name,
                "replicas": replicas,
                "ports": ["http"],
                "min_cpu_cores": 0,
                "health_check": {"tcp": True, "interval_s": 1},
                "share": ["ben"],
                "update": {"drain_s": 1, "settle_s": 0},
            }
            cluster.submit(sys.executable, "-c", code, "first", **given)
        for name, replicas in (("web", 2), ("one", 1), ("single", 1)):
            wait_endpoints(cluster, name, replicas)
        yield cluster
    finally:
        cluster.close()


def ask(site: Cluster, name: str, token: str = "", body: bytes | None = None, path: str = "") -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {token or site.token}"}
        connection.request("POST" if body else "GET", f"/proxy/{name}/{path}", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)


def test_a_caller_has_connections_of_its_own_and_none_for_long(site: Cluster) -> None:
    ben = make_token(site, "ben", "submit", "read")
    owner = site.call("GET", "/services/one").json["user"]
    mine: set[int] = set()
    bens: set[int] = set()
    for _ in range(20):
        mine.add(ask(site, "one")["peer"])
        bens.add(ask(site, f"one@{owner}", ben)["peer"])
    assert not mine & bens
    assert len(mine) + len(bens) < 30, "most of them were used again"
    # One that idles is closed before the service would do it.
    wait_for(
        lambda: ask(site, "one", body=b"GET /smuggled HTTP/1.1\r\n\r\n")["open"] == 1, "the others are gone"
    )


def test_a_body_that_the_service_does_not_read_is_nobodys_next_request(site: Cluster) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    for number in range(20):
        assert ask(site, "one", body=smuggled, path=f"{number}")["path"] == f"/{number}"
        assert ask(site, "one", path=f"{number}")["path"] == f"/{number}"


def test_a_service_that_serves_one_connection_at_a_time_serves_everybody(site: Cluster) -> None:
    ben = make_token(site, "ben", "submit", "read")
    owner = site.call("GET", "/services/single").json["user"]
    over = threading.Event()
    counts: Counter[str] = Counter()

    def go_on(name: str, token: str) -> None:
        while not over.is_set():
            ask(site, name, token)
            counts[name] += 1

    threads = [
        threading.Thread(target=go_on, args=who) for who in (("single", ""), (f"single@{owner}", ben)) * 2
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(counts) == 2 and min(counts.values()) >= 100, "both are answered, again and again")
    over.set()
    for thread in threads:
        thread.join(DEADLINE_S)


def test_an_update_under_load_fails_no_request_and_what_is_kept_stops_no_stop(site: Cluster) -> None:
    over = threading.Event()
    answers: Counter[str] = Counter()

    def go_on() -> None:
        while not over.is_set():
            try:
                answers[ask(site, "web")["kind"]] += 1
            except Exception as fault:  # noqa: BLE001 - each is told below
                answers[f"failed: {fault!r}"] += 1

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: answers["first"] > 100, "it is asked")
        updated = site.dray("service", "update", "web", "--", sys.executable, "-c", WEB, "second")
        assert updated.code == 0, updated
        shown: dict[str, Any] = {}

        def is_over() -> bool:
            shown.update(site.call("GET", "/services/web").json)
            kinds = {one["revision"] for one in shown["replica_list"]}
            return kinds == {2} and shown["ready"] == 2

        wait_for(is_over, "all replicas are new ones")
        seen = answers["second"]
        wait_for(lambda: answers["second"] > seen + 100, "they are asked")
    finally:
        over.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert set(answers) == {"first", "second"}, answers
    # Stopped at once after a request: its end waits for connections, and none is left to it.
    ask(site, "web")
    began = time.monotonic()
    assert site.dray("service", "stop", "web").code == 0
    wait_for(lambda: site.call("GET", f"/jobs/{shown['id']}").json["state"] == "killed", "it has ended")
    assert time.monotonic() - began < 25, "it was not killed for its connections' sake"
