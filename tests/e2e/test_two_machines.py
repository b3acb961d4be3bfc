"""Two machines, as network namespaces with one cable between them: joining over TLS by the line that the hub prints."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from tests.e2e.cluster import DRAY, Cluster, wait_for
from tests.e2e.test_gangs import MEET

# The hub has a network of its own, in which the address of the tests' database is nobody's.
pytestmark = pytest.mark.home_site("a hub in a network of its own")

HUB_ADDRESS, AGENT_ADDRESS = "10.213.77.1", "10.213.77.2"


class Wire(NamedTuple):
    """Names of the two namespaces."""

    hub: str
    agent: str


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def need_namespaces() -> None:
    """Skip where this machine makes no network namespaces."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    trial = f"drt{os.getpid():x}"
    try:
        ip("netns", "add", trial)
        ip("netns", "del", trial)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this host makes no network namespaces: {error.stderr.decode().strip()}")


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    need_namespaces()
    mark = f"{os.getpid():x}"
    names = Wire(f"drh{mark}", f"dra{mark}")
    try:
        ip("netns", "add", names.hub)
        ip("netns", "add", names.agent)
        ip(
            "link",
            "add",
            f"vh{mark}",
            "netns",
            names.hub,
            "type",
            "veth",
            "peer",
            f"va{mark}",
            "netns",
            names.agent,
        )
        for name, link, address in (
            (names.hub, f"vh{mark}", HUB_ADDRESS),
            (names.agent, f"va{mark}", AGENT_ADDRESS),
        ):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def inside(namespace: str, words: list[str]) -> list[str]:
    return ["ip", "netns", "exec", namespace, *words]


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster], wire: Wire) -> Cluster:
    cluster = make_cluster()
    words = [*DRAY, "hub", "--home", str(cluster.home), "--host", HUB_ADDRESS, "--port", "7373"]
    cluster.hub = cluster.spawn(inside(wire.hub, words), cluster.folder / "hub.log")
    wait_for(
        lambda: "dray token create --scope join" in cluster.hub_text(), "the hub says how to add machines"
    )
    assert "drayjoin_" not in cluster.hub_text(), "a log is no place for a token"
    line = ask(cluster, wire, "token", "create", "--scope", "join").stdout
    (cluster.folder / "join").write_text(line)
    return cluster


def join_words(cluster: Cluster, name: str) -> list[str]:
    """The printed line with a name and a home of the new machine's own behind it."""
    program, *words = shlex.split((cluster.folder / "join").read_text())
    assert program == "dray"
    return [*DRAY, *words, "--name", name, "--home", str(cluster.folder / name), "--backend", "cpu"]


def ask(cluster: Cluster, wire: Wire, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        inside(wire.hub, [*DRAY, *words]),
        env=cluster.env,
        cwd=cluster.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_joining_by_the_printed_line(cluster: Cluster, wire: Wire) -> None:
    words = join_words(cluster, "far")
    assert f"https://{HUB_ADDRESS}:7373" in words
    cluster.spawn(inside(wire.agent, words), cluster.folder / "far.log")
    wait_for(lambda: "far" in ask(cluster, wire, "worker", "ls").stdout, "the worker joins")
    (kept,) = [*(cluster.folder / "far" / "worker").glob("token")]
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.read_text().split()[:2][1] == "far"
    assert not kept.read_text().startswith("drayjoin_"), "it has a token of its own now"
    done = ask(cluster, wire, "run", "--", "sh", "-c", "cat /proc/net/fib_trie; echo $DRAY_WORKER")
    assert done.returncode == 0, done
    assert AGENT_ADDRESS in done.stdout, "it ran on the other machine"
    assert done.stdout.endswith("far\n")


def test_a_gang_across_both_machines_meets(cluster: Cluster, wire: Wire) -> None:
    """Each agent names the address of its own end of the cable; the first member listens there."""
    for name, namespace in (("near", wire.hub), ("far", wire.agent)):
        cluster.spawn(inside(namespace, join_words(cluster, name)), cluster.folder / f"{name}.log")
    wait_for(lambda: ask(cluster, wire, "worker", "ls").stdout.count(" ready ") == 2, "both workers join")
    (cluster.folder / "meet.py").write_text(MEET)
    done = ask(cluster, wire, "run", "-N", "2", "--", "python3", "meet.py")
    assert done.returncode == 0, done
    assert "rank 0 of 2 met [0, 1] in try 1" in done.stdout
    assert "10.213.77." in done.stdout


def test_the_join_token_only_joins(cluster: Cluster, wire: Wire) -> None:
    words = join_words(cluster, "far")
    token = words[words.index("--token") + 1]
    refused = ask(cluster, wire, "ps", "--token", token)
    assert refused.returncode != 0
    assert "is a join token" in refused.stderr
    assert oct((cluster.home / "token").stat().st_mode & 0o777) == "0o600"
    keys = [
        path for path in cluster.home.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    ]
    assert keys
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)


def test_a_wrong_fingerprint_is_refused_before_the_token_leaves(cluster: Cluster, wire: Wire) -> None:
    words = join_words(cluster, "far")
    pinned = words.index("--fingerprint") + 1
    words[pinned] = "sha256:" + "0" * 64
    log = cluster.folder / "far.log"
    agent = cluster.spawn(inside(wire.agent, words), log)
    wait_for(lambda: "this is not the hub that was joined" in log.read_text(), "the agent refuses the hub")
    assert agent.poll() is None, "it goes on trying, since the right hub may come back"
    listed = ask(cluster, wire, "worker", "ls").stdout
    assert "far" not in listed
    assert words[words.index("--token") + 1] not in log.read_text()


def test_an_impostor_sees_no_token(cluster: Cluster, wire: Wire) -> None:
    """A listener that speaks no TLS stands where the hub should be, and writes down all that it is sent."""
    code = (
        "import socket, sys\n"
        f"listener = socket.create_server(('{HUB_ADDRESS}', 7474))\n"
        "print('listening', flush=True)\n"
        "for _ in range(3):\n"
        "    peer, _ = listener.accept()\n"
        "    peer.settimeout(1)\n"
        "    print(peer.recv(65536).hex(), flush=True)\n"
        "    peer.close()\n"
    )
    heard = cluster.folder / "heard.log"
    impostor = cluster.spawn(inside(wire.hub, [sys.executable, "-c", code]), heard)
    wait_for(lambda: "listening" in heard.read_text(), "the impostor listens")
    words = [word.replace(":7373", ":7474") for word in join_words(cluster, "far")]
    cluster.spawn(inside(wire.agent, words), cluster.folder / "far.log")
    assert impostor.wait(60) == 0
    token = words[words.index("--token") + 1]
    sent = b"".join(bytes.fromhex(line) for line in heard.read_text().split()[1:])
    assert sent
    assert token.encode() not in sent


def test_plain_http_beyond_loopback_is_refused(cluster: Cluster, wire: Wire) -> None:
    plain = [
        *DRAY,
        "ps",
        "--hub",
        f"http://{HUB_ADDRESS}:7373",
        "--token",
        "dray_x",
        "--home",
        str(cluster.folder),
    ]
    done = subprocess.run(
        inside(wire.agent, plain), env=cluster.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert re.search(r"https|TLS", done.stderr), done.stderr
    log = cluster.folder / "plain.log"
    words = [word.replace("https://", "http://") for word in join_words(cluster, "plain")]
    at = words.index("--fingerprint")
    agent = cluster.spawn(inside(wire.agent, [*words[:at], *words[at + 2 :]]), log)
    assert agent.wait(60) == 1, log.read_text()
    assert re.search(r"https|TLS", log.read_text())
    assert words[words.index("--token") + 1] not in log.read_text()


def test_the_hub_itself_serves_no_plain_http_there(cluster: Cluster, wire: Wire) -> None:
    code = (
        "import http.client\n"
        f"c = http.client.HTTPConnection('{HUB_ADDRESS}', 7373, timeout=5)\n"
        "try:\n"
        "    c.request('GET', '/healthz'); print(c.getresponse().status)\n"
        "except (OSError, http.client.HTTPException) as error:\n"
        "    print('refused', type(error).__name__)\n"
    )
    done = subprocess.run(
        inside(wire.agent, [sys.executable, "-c", code]),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.startswith("refused"), done.stdout
