"""Ports for real: leased before a task starts, kept through the death of its agent, given back when it is gone."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from tests.e2e.cluster import Cluster, wait_dead, wait_for

SERVE = "echo $DRAY_PORT $DRAY_PORT_HTTP $DRAY_PORT_GRPC_WEB; exec sleep 600"


@contextmanager
def listening(port: int) -> Iterator[None]:
    with closing(socket.socket()) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        yield


def find_span(count: int) -> int:
    """The first of some ports in a row that nobody has now, below those that systems give out by themselves."""
    while True:
        first = random.randrange(10_000, 18_000)
        try:
            for port in range(first, first + count):
                with closing(socket.socket()) as probe:
                    probe.bind(("", port))
        except OSError:
            continue
        return first


def ports_of(cluster: Cluster, job_id: str) -> dict[str, int]:
    return dict(cluster.call("GET", f"/jobs/{job_id}").json["attempts"][-1]["ports"])


def test_leases_outlive_an_agent_and_end_with_their_task(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    first = find_span(3)
    flags = ("--ports", f"{first}-{first + 2}")
    agent = cluster.start_agent("w1", 4, "", *flags)
    one = cluster.submit("sh", "-c", SERVE, ports=["http", "grpc-web"])
    cluster.wait_running(one)
    held = ports_of(cluster, one)
    assert list(held) == ["http", "grpc-web"]
    assert {*held.values()} < {*range(first, first + 3)}
    assert cluster.wait_logs(one, 1) == [f"{held['http']} {held['http']} {held['grpc-web']}"]
    shown = cluster.dray("show", one).out
    assert f":{held['http']}" in shown
    assert "grpc-web" in shown
    agent.kill()
    agent = cluster.start_agent("w1", 4, "", *flags)
    cluster.wait_worker("w1")
    # Its two are still held: one is left.
    two = cluster.submit("sh", "-c", SERVE, ports=["http", "admin"])
    three = cluster.submit("sh", "-c", SERVE, ports=["http"])
    cluster.wait_running(three)
    assert not {*ports_of(cluster, three).values()} & {*held.values()}
    told = wait_for(
        lambda: [e for e in cluster.events(two) if "no port is free" in str(e)], "it was refused and said why"
    )
    assert f"{first}-{first + 2}" in str(told[0])
    cluster.call("POST", f"/jobs/{one}/cancel", {})
    cluster.wait_running(two)
    assert ports_of(cluster, one) == held
    assert cluster.job(two)["tasks"]["failed"] == 0


def test_leases_are_known_after_the_death_of_a_supervisor(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    first = find_span(1)
    agent = cluster.start_agent("w1", 4, "", "--ports", f"{first}-{first}")
    one = cluster.submit("sh", "-c", SERVE, ports=["http"])
    cluster.wait_running(one)
    supervisor = agent.supervisor_pid
    agent.signal(signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    wait_dead([supervisor])
    agent.signal(signal.SIGCONT)
    # Lost and placed again: its process was ended before its port was given anew.
    wait_for(lambda: len(cluster.call("GET", f"/jobs/{one}").json["attempts"]) == 2, "it is tried again")
    cluster.wait_running(one)
    assert cluster.call("GET", f"/jobs/{one}").json["attempts"][-1]["ports"] == {"http": first}


def test_a_fixed_port_is_part_of_matching(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    cluster.start_agent("w1", 4, "")
    port = find_span(1)
    with listening(port):
        one = cluster.submit("sh", "-c", SERVE, ports=[f"http={port}"])
        wait_for(lambda: f"port {port}" in str(cluster.events(one)), "a stranger has its port")
        assert "no task" in str(cluster.events(one))
    cluster.wait_running(one)
    assert ports_of(cluster, one) == {"http": port}
    two = cluster.submit("sh", "-c", SERVE, ports=["a", f"b={port}"])
    why = wait_for(
        lambda: (w := cluster.call("GET", f"/jobs/{two}/why").json)["blockers"] and w, "it waits for the port"
    )
    assert [blocker["kind"] for blocker in why["blockers"]] == ["port"]
    assert f"port {port}" in why["summary"]
    assert [(holder["task_id"], holder["what"]) for holder in why["holders"]] == [(one, f"port {port}")]
    cluster.call("POST", f"/jobs/{one}/cancel", {})
    cluster.wait_running(two)
