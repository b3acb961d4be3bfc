"""Services from Python: a function that is given its port, and where a program finds a service."""

from __future__ import annotations

import functools
import json
import os
import sys
import urllib.error
from collections.abc import Callable, Iterator

import pytest
from tests.e2e.cluster import CALM, Cluster, wait_for

import dray
from dray.errors import InvalidInput, InvalidSpec, NotFound
from dray.functions.serving import MOST_BYTES

GREETING = "hello"


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "8")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def hub(site: Cluster) -> Iterator[dray.Hub]:
    with dray.connect(site.url, token=site.token) as found:
        yield found


def make_server(times: int = 0) -> Callable[[int], None]:
    """A function that answers so many requests and returns; 0: it goes on. Made here, so that it travels by value."""
    greeting = GREETING

    def greet(port: int) -> None:
        import os
        from http.server import BaseHTTPRequestHandler, HTTPServer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(
                    f"{greeting} {self.path} {os.getpid()} {os.environ.get('DRAY_FUNCTION')}".encode()
                )

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body + (self.headers["X-Kind"] or "").encode())

            def log_message(self, *args: object) -> None: ...

        server = HTTPServer(("127.0.0.1", port), Handler)
        print("listens", flush=True)  # noqa: T201 - what a service says
        for _ in range(times or 10**9):
            server.handle_request()

    return greet


CHECK = {"tcp": True, "interval_s": 0.2}


def at(site: Cluster) -> dict[str, str]:
    """What makes a process known as one of this cluster's, which ends with it."""
    return {"HOME": str(site.folder)}


def ready(hub: dray.Hub, name: str) -> None:
    wait_for(lambda: hub.endpoints(name), f"{name} is ready")


def test_a_function_serves_at_its_port_and_is_found_by_its_name(hub: dray.Hub, site: Cluster) -> None:
    job = hub.serve(make_server(), name="greeter", cpus=0, health_check=CHECK, env=at(site))
    ready(hub, "greeter")
    found = hub.endpoint("greeter")
    assert found.url == str(found) == f"{site.url}/proxy/greeter"
    assert site.token not in repr(found)
    with found.open("/a?b=1") as answer:
        said, path, pid, left = answer.read().decode().split()
    assert (said, path, left) == ("hello", "/a?b=1", "None"), "what it was packed in is not handed on"
    with found.open("x", data=b"body", X_Kind="!") as answer:
        assert answer.read() == b"body!"
    wait_for(lambda: b"listens" in site.logs(job.id), "its output is there")
    os.kill(int(pid), 9)

    def again() -> bool:
        try:
            with found.open() as answer:
                return bool(answer.read().decode().split()[2] != pid)
        except urllib.error.HTTPError:
            return False

    wait_for(again, "it was started again, and the address is still good")
    hub.scale("greeter", 0)
    with pytest.raises(NotFound):
        hub.endpoint("nobody")


def test_a_function_that_returns_has_ended_and_starts_again(hub: dray.Hub, site: Cluster) -> None:
    async def wait(port: int) -> None:
        import asyncio

        print("waits at", port, flush=True)  # noqa: T201 - what a service says
        await asyncio.sleep(0)

    job = hub.serve(wait, cpus=0, env=at(site))
    wait_for(
        lambda: site.call("GET", "/services/wait").json["replica_list"][0]["restarts"] >= 2, "it starts again"
    )
    assert site.logs(job.id, task=0).count(b"waits at") >= 1
    job.cancel()


def test_functions_that_cannot_serve_are_refused_before_they_are_sent(hub: dray.Hub) -> None:
    def two(port: int, model: str) -> None: ...

    with pytest.raises(InvalidInput, match="needs 2 arguments"):
        _ = hub.serve(two)
    data = os.urandom(MOST_BYTES)
    with pytest.raises(InvalidInput, match="load what is large inside of it"):
        _ = hub.serve(lambda port: len(data))
    with pytest.raises(InvalidSpec, match="keyword"):
        _ = hub.serve(make_server(), nonsense=1)
    bound = hub.serve(functools.partial(two, model="small"), name="bound", cpus=0, hold=True)
    bound.cancel()


def test_a_function_of_another_python_says_what_does_not_fit(site: Cluster) -> None:
    job = site.submit(sys.executable, "-m", "dray.functions.serving", "x", env={"DRAY_FUNCTION": "nonsense"})
    assert site.wait_state(job)["state"] == "failed"
    assert b"there is no function to serve by" in site.logs(job, stream="stderr")


def test_tasks_and_calls_find_the_services_that_they_use(hub: dray.Hub, site: Cluster) -> None:
    _ = hub.serve(make_server(), name="used", cpus=0, health_check=CHECK, env=at(site))

    def ask() -> str:
        import dray

        with dray.endpoint("used").open("/call") as answer:
            return str(answer.read().decode())

    assert hub.submit(ask, uses=["used"], cpus=0).result(60).startswith("hello /call")
    code = "import dray; print(dray.endpoint('used').open('/task').read().decode())"
    job = site.submit(sys.executable, "-c", code, uses=["used"], min_cpu_cores=0)
    assert site.wait_state(job)["state"] == "succeeded", site.logs(job)
    assert site.logs(job).startswith(b"hello /task")
    outside = site.dray("service", "endpoints", "used", "-o", "json")
    assert len(json.loads(outside.out)["endpoints"]) == 1
