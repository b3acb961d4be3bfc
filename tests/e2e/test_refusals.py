"""What a hub refuses, and how it says so: taken ports and homes, broken stores, full disks, wrong tokens."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sqlite3
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import warm
from tests.e2e.cluster import DEADLINE_S, DRAY, NERVOUS, Cluster, Finished, is_alive, wait_for

import dray
from dray.errors import NoSpace

# Shifts wall time by what a file says, and leaves the monotonic clock alone, as `date -s` would.
FAKE_CLOCK = """
import os, time

_real_ns, _path = time.time_ns, os.environ.get("E2E_CLOCK", "")

def _shift_s():
    try:
        with open(_path) as file:
            return float(file.read() or 0)
    except (OSError, ValueError):
        return 0.0

if _path:
    time.time_ns = lambda: _real_ns() + int(_shift_s() * 1e9)
    time.time = lambda: time.time_ns() / 1e9
"""


def try_hub(cluster: Cluster, *flags: str) -> Finished:
    """Start a hub that is expected to refuse."""
    words = [*DRAY, "hub", "--home", str(cluster.home), *flags]
    done = warm.run(words, DEADLINE_S, env=cluster.env, cwd=cluster.folder)
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


def wait_said(log: Path, text: str) -> None:
    wait_for(lambda: text in log.read_text(), f"{log.name} says {text!r}")


def assert_refused(done: Finished, *words: str) -> None:
    assert done.code
    assert "Traceback" not in done.err, done.err
    for word in words:
        assert word in done.err, done.err


def test_a_taken_port(make_cluster: Callable[..., Cluster]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_refused(try_hub(make_cluster(), "--port", port), port, "--port")


def test_a_second_hub_on_the_same_home(site: Cluster) -> None:
    assert site.hub is not None
    assert_refused(try_hub(site, "--port", "0"), str(site.hub.pid), str(site.home))
    assert site.call("GET", "/hub").status == 200


def test_a_home_that_cannot_be_written(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.home.write_text("a file")
    assert_refused(try_hub(cluster, "--port", "0"), str(cluster.home))


def say_in_the_clear(address: str, port: int) -> bytes:
    """What a listener answers to a request in plain HTTP, until it hangs up."""
    said = b""
    with socket.create_connection((address, port), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(4096):
                said += piece
    return said


def test_beyond_loopback_nothing_is_said_in_the_clear(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub("--host", "0.0.0.0")
    # The way to itself over any network that this machine is in; loopback alone where it is in none.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):
            probe.connect(("192.0.2.1", 9))
        outside = probe.getsockname()[0]
    addresses = {"127.0.0.1", "127.0.0.1" if outside == "0.0.0.0" else outside}
    for address in addresses:
        assert not say_in_the_clear(address, cluster.port).startswith(b"HTTP/")
        trust = ssl.create_default_context(cafile=str(cluster.home / "tls/cert.pem"))
        trust.check_hostname = False
        connection = http.client.HTTPSConnection(address, cluster.port, timeout=30, context=trust)
        with contextlib.closing(connection):
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
    assert (cluster.home / "tls/key.pem").stat().st_mode & 0o077 == 0
    assert cluster.stop_hub() == 0
    # On loopback the same question is answered: what was not answered above was not misspelled.
    cluster.start_hub()
    assert say_in_the_clear("127.0.0.1", cluster.port).startswith(b"HTTP/1.1 ")


def test_a_certificate_without_its_key_is_no_way_round_that(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.home.mkdir()
    (cluster.home / "config.toml").write_text('[hub]\ntls_cert = "/no/such/cert.pem"\n')
    assert_refused(try_hub(cluster, "--host", "0.0.0.0", "--port", "0"), "tls_key")
    assert not (cluster.home / "hub.json").exists()


@pytest.mark.home_site("its file is damaged")
def test_a_corrupt_store_is_left_as_it_is(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    for _ in range(20):
        cluster.submit("true", env={"PADDING": "x" * 2000})
    cluster.kill_hub()
    store = cluster.home / "hub.sqlite"
    sqlite3.connect(store).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    content = bytearray(store.read_bytes())
    assert len(content) > 16384
    content[4096:12288] = b"\xa5" * 8192
    store.write_bytes(content)
    assert_refused(try_hub(cluster, "--port", "0"), "damaged", "backup")
    assert store.read_bytes() == bytes(content)


@pytest.mark.home_site("its file is changed")
def test_a_store_from_a_newer_version(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    assert cluster.stop_hub() == 0
    connection = sqlite3.connect(cluster.home / "hub.sqlite")
    connection.execute("PRAGMA user_version = 9999")
    connection.close()
    assert_refused(try_hub(cluster, "--port", "0"), "9999", "upgrade")


def test_wrong_tokens_and_scopes(site: Cluster) -> None:
    assert site.call("GET", "/jobs", token="").status == 401
    assert site.call("GET", "/jobs", token="dray_00000000_wrong").status == 401
    tokens = {}
    for scope in ("read", "submit", "worker"):
        tokens[scope] = site.call(
            "POST", "/tokens", {"scopes": [scope], "user": "eve", "shared_account": True}
        ).json["token"]
    spec = {"command": ["true"]}
    assert site.call("POST", "/jobs", spec, tokens["read"]).status == 403
    assert site.call("POST", "/jobs", spec, tokens["worker"]).status == 403
    assert site.call("POST", "/workers/w1/drain", {}, tokens["submit"]).status == 403
    assert site.call("POST", "/tokens", {"scopes": ["admin"]}, tokens["submit"]).status == 403
    assert site.call("GET", "/audit", token=tokens["submit"]).status == 403
    assert site.call("GET", "/jobs", token=tokens["submit"]).status in (200, 403)
    done = site.dray("submit", "--token", tokens["read"], "--", "true")
    assert done.code != 0
    assert "scope" in done.err or "submit" in done.err


def test_an_agent_with_a_wrong_token_or_scope_stays_out(site: Cluster) -> None:
    token = site.call("POST", "/tokens", {"scopes": ["read"], "user": "eve"}).json["token"]
    for name, secret, told in (
        ("bad1", "dray_00000000_wrong", "the hub answers 401"),
        ("bad2", token, "lacks the scope 'worker'"),
    ):
        home = site.folder / name
        words = [*DRAY, "worker", "start", "--hub", site.url, "--home", str(home), "--name", name]
        agent = site.spawn([*words, "--token", secret, "--backend", "cpu"], site.folder / f"{name}.log")
        log = site.folder / f"{name}.log"
        wait_said(log, told)
        assert site.call("GET", f"/workers/{name}").status == 404
        assert secret not in log.read_text()
        agent.kill()


@pytest.fixture
def small_disk(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("a small disk is a tmpfs, and mounting one needs root")
    cluster = make_cluster()
    cluster.home.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "none", str(cluster.home)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip(f"this host mounts no tmpfs: {mount.stderr.strip()}")
    cluster.env |= {"DRAY_HUB_RESERVE_BYTES": "4m", "DRAY_HUB_MIN_FREE_BYTES": "4m"}
    try:
        yield cluster
    finally:
        cluster.close()
        subprocess.run(["umount", "-l", str(cluster.home)], check=True)


def test_a_full_disk(small_disk: Cluster) -> None:
    cluster = small_disk
    cluster.start_hub()
    cluster.start_agent("w1")
    flag = cluster.folder / "flag"
    script = f"echo begun; while ! [ -e {flag} ]; do sleep 0.02; done; head -c 3000000 /dev/zero; exit 8"
    running = [cluster.submit("sh", "-c", script) for _ in range(3)]
    for job_id in running:
        cluster.wait_running(job_id)
    ballast = cluster.home / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    # Room that was there a moment ago is believed for that moment: what is written in it fits into what is kept free.
    ask = {"command": ["true"]}
    wait_for(lambda: cluster.call("POST", "/jobs", ask).status == 507, "submits are refused")
    assert cluster.call("POST", "/jobs", ask).json["error"]["code"]
    assert cluster.dray("submit", "--", "true").code != 0
    with dray.connect(cluster.url, cluster.token, cluster.folder) as hub, pytest.raises(NoSpace):
        # In many messages: those behind the first are refused because that was, and it is the one that tells why.
        hub.map(abs, range(50_000)).await_recorded()
    flag.touch()
    for job_id in running:
        job = cluster.wait_state(job_id, "failed")
        assert (job["exit_code"], job["attempt_count"]) == (8, 1)
    assert cluster.hub is not None
    assert is_alive(cluster.hub.pid), cluster.hub_text()
    assert cluster.call("GET", "/doctor").json["ok"] is False
    ballast.unlink()
    again = {"command": ["echo", "again"], "id": "again"}
    wait_for(lambda: cluster.call("POST", "/jobs", again).status == 201, "submits are taken again")
    cluster.wait_state("again", "succeeded")
    cluster.check()
    cluster.kill_hub()
    cluster.start_hub()
    assert {cluster.job(job_id)["exit_code"] for job_id in running} == {8}


@pytest.mark.home_site("a database has a clock of its own, and the doctor says so")
def test_a_clock_that_is_set_back_and_forth_moves_no_timer(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster({**NERVOUS, "LOST_S": "4", "START_GRACE_S": "0.1"})
    site_folder, clock = cluster.folder / "site", cluster.folder / "clock"
    site_folder.mkdir()
    (site_folder / "sitecustomize.py").write_text(FAKE_CLOCK)
    clock.write_text("0")
    env = {"PYTHONPATH": str(site_folder), "E2E_CLOCK": str(clock)}
    cluster.start_hub(env=env)
    agent = cluster.start_agent("w1")
    running = cluster.submit("sleep", "300")
    cluster.wait_running(running)
    waits = cluster.submit("true", cpu_milli=10**9, scheduling_timeout_s=3600)

    def set_clock(shift_s: int) -> str:
        clock.write_text(str(shift_s))
        shown = cluster.job(cluster.submit("true"))["submitted_at"]
        return str(shown)

    year = time.gmtime().tm_year
    assert set_clock(-86400 * 400) < f"{year}"
    assert set_clock(86400 * 400) > f"{year + 1}"
    # Three heartbeats later a timer that followed the wall would have fired.
    told = cluster.call("GET", "/workers/w1").json["last_heartbeat"]
    wait_for(lambda: cluster.call("GET", "/workers/w1").json["last_heartbeat"] > told, "heartbeats go on")
    assert cluster.job(running)["attempts"][0]["phase"] == "running"
    assert cluster.job(waits)["state"] == "pending"
    set_clock(-86400 * 400)
    job = cluster.wait_state(cluster.submit("sh", "-c", "exit 2"), "failed")
    assert job["started_at"] < f"{year}"
    told_types = [event["type"] for event in cluster.events(job["id"])]
    assert told_types[0] == "job_submitted"
    agent.kill()
    wait_for(lambda: cluster.job(running)["attempts"][0]["phase"] == "lost", "silence is still noticed", 60)
    cluster.kill_hub()
    set_back = cluster.start_agent("w1", wait=False)
    cluster.start_hub(env=env)
    cluster.wait_running(running)
    assert is_alive(set_back.pid)
    cluster.check()
    assert json.loads((cluster.home / "hub.json").read_text())["epoch"] == 2


def test_expired_tokens_follow_the_wall_clock(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    made = cluster.call("POST", "/tokens", {"scopes": ["read"], "expires_s": 0.5}).json
    assert cluster.call("GET", "/jobs", token=made["token"]).status == 200
    wait_for(lambda: cluster.call("GET", "/jobs", token=made["token"]).status == 401, "it expires")


def test_files_are_private(site: Cluster) -> None:
    open_to_others = [
        path
        for path in [site.home, *site.home.rglob("*"), *(site.folder / "w1").rglob("*")]
        if path.name in ("token", "hub.sqlite", "hub.sqlite-wal", "hub.json", "journal", "h")
        and path.stat().st_mode & 0o077
    ]
    assert open_to_others == []
    assert Path(site.home).stat().st_mode & 0o077 == 0
