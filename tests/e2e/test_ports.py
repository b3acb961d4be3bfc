"""Ports for real: leased before a task starts, kept through the death of its agent, given back when it is gone."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
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


def find_end(cluster: Cluster, job_id: str) -> Any:
    attempt = cluster.job(job_id)["attempts"][0]
    return attempt if attempt["ended_at"] else None


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
    assert [attempt["phase"] for attempt in cluster.job(two)["attempts"]] == []
    cluster.call("POST", f"/jobs/{one}/cancel", {})
    cluster.wait_running(two)
    assert ports_of(cluster, one) == held
    assert cluster.job(two)["tasks"]["failed"] == 0


def test_a_range_that_is_used_up_keeps_back_only_those_who_ask_for_ports(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    first = find_span(3)
    cluster.start_agent("w1", 4, "", "--service-slots", "8", "--ports", f"{first}-{first + 2}")
    services = [cluster.submit("sh", "-c", SERVE, type="service", ports=["http"]) for _ in range(4)]
    for one in services[:3]:
        cluster.wait_running(one)
    why = cluster.call("GET", f"/jobs/{services[3]}/why").json
    assert [blocker["kind"] for blocker in why["blockers"]] == ["ports"]
    assert "asks for 1 port, the largest worker has 0 of 3 left" in why["summary"]
    assert "asks for 1 port, this one has 0 of 3 left" in str(why)
    held = {(holder["task_id"].partition("/")[0], holder["what"]) for holder in why["holders"]}
    assert held == {(one, "1 port") for one in services[:3]}
    job = cluster.submit("true")
    cluster.wait_state(job, "succeeded")
    assert cluster.job(services[3])["attempts"] == [], "nothing was tried in vain"
    cluster.call("POST", f"/jobs/{services[0]}/cancel", {})
    cluster.wait_running(services[3])


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


@pytest.mark.parametrize("checked", [True, False])
def test_a_port_that_was_stolen_is_no_fault_of_the_task(
    make_cluster: Callable[..., Cluster], checked: bool
) -> None:
    """Somebody listens before the task does: its check finds out, or its failure does."""
    cluster = make_cluster()
    cluster.start_hub()
    first = find_span(1)
    cluster.start_agent("w1", 4, "", "--ports", f"{first}-{first}")
    go = cluster.folder / "go"
    start = f"until test -e {go}; do sleep 0.05; done; exec {sys.executable} -m http.server $DRAY_PORT"
    health = {"tcp": True} if checked else None
    job = cluster.submit("sh", "-c", start, ports=["http"], health_check=health)
    cluster.wait_running(job)
    with listening(first):
        if not checked:
            go.touch()
        lost = wait_for(lambda: find_end(cluster, job), "its attempt has ended")
        assert lost["exit_class"] == "lost"
        assert "another program" in lost["error"]
    go.touch()
    wait_for(lambda: cluster.job(job)["attempts"][-1]["phase"] == "running", "it is tried again")
    assert cluster.job(job)["attempts"][-1]["no"] > 1


def test_checks_go_on_beside_a_task_after_the_death_of_its_agent(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    agent = cluster.start_agent("w1", 4, "")
    seen = cluster.folder / "seen"
    check = {
        "command": ["sh", "-c", f"echo $DRAY_JOB_ID $DRAY_PORT >> {seen}"],
        "interval_s": 0.2,
        "timeout_s": 60,
    }
    job = cluster.submit("sleep", "600", ports=["http"], health_check=check)
    cluster.wait_running(job)
    (port,) = ports_of(cluster, job).values()
    wait_for(lambda: seen.exists() and seen.read_text().startswith(f"{job} {port}\n"), "its check has run")
    agent.kill()
    seen.unlink()
    cluster.start_agent("w1", 4, "")
    wait_for(lambda: seen.exists() and f"{job} {port}\n" in seen.read_text(), "the next agent checks it too")


def test_what_a_check_says_decides_who_is_ready(make_cluster: Callable[..., Cluster]) -> None:
    """A liveness check that fails has the hub start the service anew."""
    cluster = make_cluster()
    cluster.start_hub()
    cluster.start_agent("w1", 4, "", "--service-slots", "2")
    ill = cluster.folder / "ill"
    check = {"command": ["sh", "-c", f"test ! -e {ill}"], "interval_s": 0.2, "timeout_s": 60}
    job = cluster.submit("sleep", "600", type="service", ports=["http"], health_check=check)

    def endpoints() -> list[Any]:
        return list(cluster.call("GET", f"/services/{job}/endpoints").json["endpoints"])

    wait_for(endpoints, "it is ready")
    ill.touch()
    wait_for(lambda: not endpoints(), "it is not ready any more")
    wait_for(lambda: find_end(cluster, job), "it was stopped")
    ill.unlink()
    wait_for(endpoints, "the next one is ready")
