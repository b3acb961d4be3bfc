"""Deaths while services are in use: who reaches them sees a clean break, the services go on, nothing is left open."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psutil
import pytest
from tests.e2e.cluster import CALM, DEADLINE_S, Agent, Cluster, is_alive, wait_dead, wait_for
from tests.e2e.test_forward import dial, forwarding, wait_endpoints
from tests.e2e.test_ports import find_span
from tests.e2e.test_proxy import CHAT, SOCKETS, TCP, WEB, ask
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

BROKEN = (http.client.IncompleteRead, ConnectionResetError)
ENDLESS = 1 << 34


class Site(NamedTuple):
    """A cluster whose worker has exactly the two ports that its two services hold."""

    cluster: Cluster
    agent: Agent
    flags: tuple[str, ...]
    ports: dict[str, int]
    pids: dict[str, int]


@pytest.fixture
def site(make_cluster: Callable[..., Cluster]) -> Site:
    cluster = make_cluster(CALM)
    cluster.start_hub()
    first = find_span(2)
    flags = ("--service-slots", "4", "--ports", f"{first}-{first + 1}")
    agent = cluster.start_agent("w1", 4, "", *flags)
    for name, code in (("web", WEB), ("sock", SOCKETS)):
        given: dict[str, Any] = {"type": "service", "name": name, "ports": ["http"], "min_cpu_cores": 0}
        cluster.submit(sys.executable, "-c", code, health_check=TCP, **given)
        wait_endpoints(cluster, name, 1)
    ports = {name: endpoint(cluster, name)["ports"]["http"] for name in ("web", "sock")}
    return Site(cluster, agent, flags, ports, {name: listener(port) for name, port in ports.items()})


def endpoint(cluster: Cluster, name: str) -> dict[str, Any]:
    (found,) = cluster.call("GET", f"/services/{name}/endpoints").json["endpoints"]
    return dict(found)


def listener(port: int) -> int:
    """Who listens on a port of this machine."""
    found = psutil.net_connections("tcp")
    return next(
        one.pid or 0 for one in found if one.status == "LISTEN" and one.laddr and one.laddr.port == port
    )


def streams(agent: Agent, ports: dict[str, int]) -> list[int]:
    """Which of these ports an agent is connected to now; its checks are, for moments."""
    found = psutil.Process(agent.pid).net_connections("tcp")
    ends = [one.raddr.port for one in found if one.status in ("ESTABLISHED", "CLOSE_WAIT")]
    return [port for port in ends if port in ports.values()]


def restarts(cluster: Cluster, name: str) -> int:
    (replica,) = cluster.call("GET", f"/services/{name}").json["replica_list"]
    return int(replica["restarts"])


@contextlib.contextmanager
def endless(site: Site) -> Iterator[http.client.HTTPResponse]:
    """An answer by the proxy that has begun, and has no end in sight."""
    connection = http.client.HTTPConnection("127.0.0.1", site.cluster.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        token = {"Authorization": f"Bearer {site.cluster.token}"}
        connection.request("GET", f"/proxy/web/big/{ENDLESS}", headers=token)
        answer = connection.getresponse()
        assert answer.read(1) == b"\0"
        yield answer


@contextlib.contextmanager
def talk(site: Site) -> Iterator[ClientConnection]:
    """A WebSocket to the service by the proxy."""
    url, token = f"ws://127.0.0.1:{site.cluster.port}/proxy/sock/x", site.cluster.token
    sent = {"Authorization": f"Bearer {token}"}
    with connect(url, additional_headers=sent, subprotocols=CHAT, proxy=None) as peer:
        assert peer.recv(DEADLINE_S) == "/x"
        yield peer


def answers(site: Site) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask(site.cluster, "GET", "/proxy/web/").status == 200
    return False


def check_goes_on(site: Site) -> None:
    """New requests and new sockets are served, by the same processes."""
    wait_for(lambda: answers(site), "a new request is answered")
    with talk(site) as peer:
        peer.send("still there")
        assert peer.recv(DEADLINE_S) == "still there"
    for name, port in site.ports.items():
        assert listener(port) == site.pids[name]
        assert endpoint(site.cluster, name)["ports"] == {"http": port}
        assert restarts(site.cluster, name) == 0


def test_a_hub_that_dies_breaks_what_goes_through_it_and_nothing_else(site: Site) -> None:
    with endless(site) as answer, talk(site) as peer:
        assert {*streams(site.agent, site.ports)} == {*site.ports.values()}
        site.cluster.kill_hub()
        with pytest.raises(BROKEN):
            answer.read()
        with pytest.raises(ConnectionClosed) as ended:
            peer.recv(DEADLINE_S)
        assert ended.value.rcvd is None, "nobody has said goodbye: it does not look like an end"
    # Before any hub is back: whoever reads at the other end must not wait for bytes that nobody will send.
    wait_for(lambda: not streams(site.agent, site.ports), "the agent has closed its ends")
    assert all(is_alive(pid) for pid in site.pids.values())
    site.cluster.start_hub()
    site.cluster.wait_worker("w1")
    check_goes_on(site)
    wait_for(lambda: not streams(site.agent, site.ports), "nothing is left open at the agent")


def test_an_agent_that_dies_with_streams_open_has_its_ports_again(site: Site) -> None:
    cluster = site.cluster
    with endless(site) as answer, talk(site) as peer:
        site.agent.kill()
        with pytest.raises(BROKEN):
            answer.read()
        with pytest.raises(ConnectionClosed):
            peer.recv(DEADLINE_S)
    # Whoever wants a port now is not given one of theirs.
    other = cluster.submit("sleep", "600", ports=["http"], min_cpu_cores=0)
    agent = cluster.start_agent("w1", 4, "", *site.flags)
    cluster.wait_worker("w1")
    check_goes_on(site)
    why = f"/jobs/{other}/why"
    wait_for(lambda: "0 of 2 left" in cluster.call("GET", why).json["summary"], "it waits, and is told why")
    wait_for(lambda: not streams(agent, site.ports), "nothing is left open at the agent")
    cluster.call("POST", "/services/web/stop", {"grace_s": 0})
    cluster.wait_running(other)
    assert cluster.job(other)["attempts"][-1]["ports"] == {"http": site.ports["web"]}


def test_a_supervisor_that_dies_with_streams_open_gives_ports_to_nobody_else(site: Site) -> None:
    cluster, supervisor = site.cluster, site.agent.supervisor_pid
    other = cluster.submit("sleep", "600", ports=["http"], min_cpu_cores=0)
    with endless(site) as answer, talk(site) as peer:
        site.agent.signal(signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        wait_dead([supervisor])
        site.agent.signal(signal.SIGCONT)
        # What it kept is ended before anything of theirs is given out: the streams end with the processes.
        with pytest.raises(BROKEN):
            answer.read()
        with pytest.raises(ConnectionClosed):
            peer.recv(DEADLINE_S)
    wait_dead(site.pids.values())
    wait_for(lambda: answers(site), "the next one answers")
    wait_endpoints(cluster, "sock", 1)
    held = {endpoint(cluster, name)["ports"]["http"] for name in ("web", "sock")}
    assert held == {*site.ports.values()}, "the range has no others, and the third task has none of them"
    assert not cluster.job(other)["attempts"] or cluster.job(other)["attempts"][-1]["phase"] != "running"


def test_one_that_does_not_read_delays_no_heartbeat(site: Site) -> None:
    """Its bytes stand in a socket of their own: the worker is heard of as before, for as long as one looks."""
    cluster = site.cluster

    def heard() -> str:
        line = cluster.call("GET", "/workers/w1").json
        assert line["status"] in ("ready", "busy")
        return str(line["last_heartbeat"])

    with forwarding(cluster, "web") as (port, _), dial(port) as slow, endless(site):
        slow.sendall(b"GET /big/%d HTTP/1.1\r\nHost: x\r\n\r\n" % ENDLESS)
        assert slow.recv(1) == b"H"
        for _ in range(6):
            last = heard()
            wait_for(lambda last=last: heard() != last, "the next heartbeat")  # type: ignore[misc] # bound at once
        assert len(streams(site.agent, site.ports)) >= 2, "both still stand there, unread"
        assert ask(cluster, "GET", "/proxy/web/").status == 200, "and hold up no other"
    assert restarts(cluster, "web") == 0
