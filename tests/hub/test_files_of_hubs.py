"""Whole hubs with different homes on one database: output, values and secrets outlive the one that had them."""

from __future__ import annotations

import hashlib
import http.client
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from tests.hub.asking import ask
from tests.hub.several_hubs import Hubs, Standby, hubs
from tests.postgres import Server

from dray.testing.hub_process import RunningHub
from dray.testing.mock_worker import MockWorker

__all__ = ["hubs"]
LINES = [f"line {number}\n" for number in range(300)]
PLACES = pytest.mark.parametrize("place", ["database", "folder"])


def place_of(place: str, tmp_path: Path) -> dict[str, Any]:
    return {"files": str(tmp_path / "shared")} if place == "folder" else {}


def logs(hub: RunningHub, job: str, more: str = "") -> str:
    return str(ask(hub, "GET", f"/jobs/{job}/logs{more}")[1])


def printing(hub: RunningHub) -> MockWorker:
    return MockWorker(hub.url, hub.token, "w1", features=("job_log",), msgpack=True)


def begin(hub: RunningHub, worker: MockWorker, job_id: str) -> Any:
    worker.register()
    assert ask(hub, "POST", "/jobs", {"id": job_id, "command": ["true"]})[0] == 201
    worker.ready()
    task = worker.assigned(60.0)
    worker.accept(task)
    worker.started(task)
    return task


def say(worker: MockWorker, task: Any, text: str, offset: int) -> None:
    about = {"task_id": task.task_id, "attempt": task.attempt, "stream": "stdout"}
    worker.send("job_log", about | {"offset": offset, "data": text.encode()})


def told(worker: MockWorker) -> int:
    """Up to where the worker was told that its output is filed."""
    while True:
        payload = worker.recv("ack", 60.0).payload
        if payload.get("re") == "job_log":
            (ends,) = payload["log_offsets"].values()
            return int(ends["stdout"])


def put(hub: RunningHub, body: bytes, token: str = "") -> tuple[int, str]:
    digest = hashlib.sha256(body).hexdigest()
    return move(hub, "PUT", digest, token, body)[0], digest


def move(hub: RunningHub, method: str, digest: str, token: str = "", body: bytes = b"") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {token or hub.token}"}
    try:
        connection.request(method, f"/api/v1/blobs/{digest}", body or None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@PLACES
def test_output_and_values_outlive_a_leader_that_is_killed(hubs: Hubs, tmp_path: Path, place: str) -> None:
    settings, text = place_of(place, tmp_path), "".join(LINES)
    first = hubs(**settings)
    second = hubs(Standby, **settings)
    assert isinstance(second, Standby)
    with printing(first) as worker:
        task = begin(first, worker, "a1")
        at = 0
        for line in LINES[:150]:
            say(worker, task, line, at)
            at += len(line)
        acked = told(worker)
        body = os.urandom(3 << 20)
        status, digest = put(first, body)
        assert status == 201
        first.kill()
    second.wait()
    assert logs(second, "a1").encode()[:acked] == text.encode()[:acked]
    assert move(second, "GET", digest) == (200, body)
    with printing(second) as worker:
        worker.register()
        # As an agent does: from where it was told last.
        say(worker, task, text[acked:], acked)
        while told(worker) < len(text):
            pass
    assert logs(second, "a1") == text
    assert logs(second, "a1", "?tail=3") == "".join(LINES[-3:])
    assert not list(second.home.glob("output/*"))
    assert not list(first.home.glob("output/*"))
    assert not (first.home / "task_secret").exists()
    second.kill()
    third = hubs(**settings)
    assert logs(third, "a1") == text


@PLACES
def test_a_leader_that_slept_tells_no_worker_that_its_output_is_kept(
    hubs: Hubs, tmp_path: Path, place: str
) -> None:
    settings, text = place_of(place, tmp_path), "".join(LINES)
    first = hubs(**settings)
    second = hubs(Standby, **settings)
    assert isinstance(second, Standby)
    with printing(first) as worker:
        task = begin(first, worker, "a1")
        say(worker, task, text[:1000], 0)
        assert told(worker) == 1000
        process = psutil.Process(first.pid)
        process.send_signal(signal.SIGSTOP)
        # It finds this when it wakes.
        say(worker, task, text[1000:2000], 1000)
        second.wait()
        with printing(second) as again:
            again.register()
            say(again, task, text[1000:1500], 1000)
            assert told(again) == 1500
            process.send_signal(signal.SIGCONT)
            with pytest.raises(Exception):  # noqa: B017, PT011 - closed, however the socket says so
                told(worker)
            say(again, task, text[1500:], 1500)
            while told(again) < len(text):
                pass
    assert logs(second, "a1") == text


def test_output_flows_on_through_kills_of_the_server(hubs: Hubs, servers: Callable[..., Server]) -> None:
    server, text = servers(), "".join(LINES)
    hub = hubs(url=server.url("postgres"))
    with printing(hub) as worker:
        task, at = begin(hub, worker, "a1"), 0
        for number, line in enumerate(LINES):
            if number in (100, 200):
                server.kill()
            say(worker, task, line, at)
            at += len(line)
            if number in (101, 201):
                server.start()
        while told(worker) < len(text):
            pass
    assert logs(hub, "a1") == text
    assert "Traceback" not in (hub.home / "hub.err").read_text()


@PLACES
def test_others_see_neither_output_nor_values(hubs: Hubs, tmp_path: Path, place: str) -> None:
    hub = hubs(**place_of(place, tmp_path))
    ann, bob = hub.make_token("ann"), hub.make_token("bob", ["read", "submit"])
    stranger = hub.make_token("ops", ["worker"])
    status, digest = put(hub, b"ann's own" * 20_000, ann)
    assert status == 201
    assert move(hub, "GET", digest, ann)[0] == 200
    assert [move(hub, "GET", digest, token)[0] for token in (bob, stranger)] == [404, 404]
    for odd in ("..%2f..%2ftask_secret", "../secrets/task_secret", "%2e%2e", "drafts", "a" * 63 + "%00"):
        assert move(hub, "GET", odd)[0] in (400, 404), odd
    with printing(hub) as worker:
        task = begin(hub, worker, "a1")
        say(worker, task, "secret\n", 0)
        told(worker)
        assert ask(hub, "GET", "/jobs/a1/logs", token=bob)[0] == 404
        for odd in ("../../x", "a1/../../x", "a1\0", "nobody"):
            about = {"task_id": odd, "attempt": task.attempt, "stream": "stdout", "offset": 7}
            worker.send("job_log", about | {"data": b"x"})
        with printing_as(hub, "w2", stranger) as thief:
            thief.register()
            say(thief, task, "forged\n", 7)
            thief.heartbeat()
            thief.recv("ack", 60.0)
    assert logs(hub, "a1") == "secret\n"
    if place == "folder":
        assert not [path for path in (tmp_path / "shared" / "output").iterdir() if path.name != "a1"]


def printing_as(hub: RunningHub, name: str, token: str) -> MockWorker:
    return MockWorker(hub.url, token, name, features=("job_log",), msgpack=True)


@PLACES
def test_the_doctor_and_the_metrics_tell_of_files(hubs: Hubs, tmp_path: Path, place: str) -> None:
    hub = hubs(**place_of(place, tmp_path))
    (check,) = [one for one in ask(hub, "GET", "/doctor")[1]["checks"] if one["name"] == "files"]
    assert (check["ok"], "shared" in check["detail"]) == (True, place == "folder")
    metrics = ask(hub, "GET", "/metrics")[1]
    assert "dray_files_ok 1.0" in metrics
    assert ("\ndray_files_free_bytes " in metrics) == (place == "folder")


def queues(hub: RunningHub) -> set[str]:
    said = str(ask(hub, "POST", "/jobs", {"command": ["true"], "queue": "nowhere"})[1])
    return {name for name in ("first", "second", "third") if name in said}


def write_policy(hub: RunningHub, queue: str) -> None:
    (hub.home / "policy.yaml").write_text(f"queues:\n  {queue}:\n")


def test_a_hub_that_takes_over_leaves_the_policy_and_a_file_that_changes_is_read(hubs: Hubs) -> None:
    first, second = hubs(), hubs(Standby)
    assert isinstance(second, Standby)
    first.kill()
    second.wait()
    write_policy(second, "second")
    second.stop()
    second.url = ""
    RunningHub.start(second)
    assert queues(second) == {"second"}
    # A home that has none, and one that has another which nobody touched since: what is in force stays.
    second.stop()
    first.start()
    assert queues(first) == {"second"}
    first.stop()
    third = hubs(Prepared, policy="third")
    assert queues(third) == {"second"}
    assert "is not the policy in force, which stays" in (third.home / "hub.err").read_text()
    third.stop()
    RunningHub.start(second)
    assert queues(second) == {"second"}
    # One that is changed there counts, and one that is removed from where it came.
    second.stop()
    write_policy(second, "first")
    RunningHub.start(second)
    assert queues(second) == {"first"}
    second.stop()
    third.start()
    assert queues(third) == {"first"}
    third.stop()
    (second.home / "policy.yaml").unlink()
    RunningHub.start(second)
    assert queues(second) == set()


class Prepared(RunningHub):
    """A hub whose home has a policy before it starts for the first time."""

    def start(self) -> None:
        settings = dict(self._settings)
        if policy := settings.pop("policy", ""):
            write_policy(self, str(policy))
        self._settings = settings
        super().start()


def test_tokens_of_tasks_and_of_a_new_home_outlive_the_one_that_led(
    hubs: Hubs, database: str, tmp_path: Path
) -> None:
    first = hubs()
    first.kill()
    home = tmp_path / "bare"
    home.mkdir()
    other = RunningHub(home, {"store": database})
    other.start()
    try:
        # The disk of the first is lost: whoever runs a hub there is not locked out.
        assert ask(other, "GET", "/jobs")[0] == 200
        assert ask(other, "GET", "/jobs", token=first.token)[0] == 200
        text = other.token
        other.restart()
        assert other.token == text
        (home / "token").unlink()
        other.restart()
        assert not (home / "token").exists()
    finally:
        other.stop()
