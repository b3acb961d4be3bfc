"""Revoked means now, and so does expired: what a token holds open ends with it, and nothing it says counts any more."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import websockets
from tests.hub.asking import ask
from websockets.exceptions import ConnectionClosed

from dray.testing import MockWorker, RunningHub, running_hub

WaitUntil = Callable[..., Any]


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as made:
        yield made


def make(hub: RunningHub, *scopes: str, **more: Any) -> dict[str, Any]:
    status, made = ask(hub, "POST", "/tokens", {"user": "ana", "scopes": list(scopes), **more})
    assert status == 201, made
    return dict(made)


def close_of(worker: MockWorker) -> tuple[int, str]:
    """Wait until the hub has closed this worker's socket, without a word from here."""
    with pytest.raises(ConnectionClosed) as closed:
        worker.recv("never", 20)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


def begin(hub: RunningHub, worker: MockWorker, wait_until: WaitUntil) -> tuple[str, Any]:
    """Have a job run on this worker: its id and its assignment."""
    worker.register()
    job = ask(hub, "POST", "/jobs", {"command": ["true"]})[1]["id"]
    worker.ready()
    task = worker.assigned()
    worker.accept(task)
    wait_until(lambda: state_of(hub, job) == "running")
    return job, task


def state_of(hub: RunningHub, job: str) -> str:
    return str(ask(hub, "GET", f"/jobs/{job}")[1]["state"])


def test_a_revoked_worker_is_cut_off_and_its_results_count_no_more(
    hub: RunningHub, wait_until: WaitUntil
) -> None:
    made = make(hub, "worker")
    with MockWorker(hub.url, made["token"], "cut") as worker:
        job, task = begin(hub, worker, wait_until)
        assert ask(hub, "DELETE", f"/tokens/{made['id']}")[0] == 200
        assert close_of(worker) == (4401, f"token {made['id']} was revoked")
        with pytest.raises(ConnectionClosed):
            worker.result(task)
    wait_until(lambda: ask(hub, "GET", "/workers/cut")[1]["status"] == "offline")
    assert state_of(hub, job) == "running", "its fate is left to the timers"
    with pytest.raises(websockets.InvalidStatus, match="401"), MockWorker(hub.url, made["token"], "cut"):
        pass
    ask(hub, "POST", f"/jobs/{job}/cancel", {})


def test_what_a_revoked_worker_goes_on_saying_is_not_taken(hub: RunningHub, wait_until: WaitUntil) -> None:
    """It heeds no goodbye and goes on sending: the hub drops it all, or has broken the connection off by then."""
    made = make(hub, "worker")
    with MockWorker(hub.url, made["token"], "deaf") as worker:
        job, task = begin(hub, worker, wait_until)
        said = worker.script.encode("job_result", worker.script.result(task, "succeeded", None, b""))
        socket = worker._connection()
        socket.protocol.send_text(said.encode() if isinstance(said, str) else said)
        raw, late = socket.socket.dup(), b"".join(socket.protocol.data_to_send())
        assert ask(hub, "DELETE", f"/tokens/{made['id']}")[0] == 200
        with raw, contextlib.suppress(ConnectionError):
            raw.sendall(late)
        wait_until(lambda: ask(hub, "GET", "/workers/deaf")[1]["status"] == "offline")
    assert state_of(hub, job) == "running"
    ask(hub, "POST", f"/jobs/{job}/cancel", {})


def test_a_wait_ends_with_its_token(hub: RunningHub, wait_until: WaitUntil) -> None:
    made = make(hub, "submit")
    _, job = ask(hub, "POST", "/jobs", {"command": ["true"]}, token=made["token"])
    answers: list[tuple[int, Any]] = []

    def wait() -> None:
        answers.append(ask(hub, "GET", f"/jobs/{job['id']}?wait_s=50", token=made["token"]))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: ask(hub, "GET", "/tokens")[1]["tokens"][0]["last_used_at"])
    ask(hub, "DELETE", f"/tokens/{made['id']}")
    thread.join(20)
    ((status, answer),) = answers
    assert status == 401
    assert f"token {made['id']} was revoked" in answer["error"]["message"]
    ask(hub, "POST", f"/jobs/{job['id']}/cancel", {})


@pytest.mark.parametrize("scope", ["worker", "read"])
def test_a_socket_ends_when_its_token_expires(hub: RunningHub, scope: str) -> None:
    """A worker's, and one that only asks questions."""
    made = make(hub, scope, expires_s=0.5)
    with MockWorker(hub.url, made["token"], "brief") as worker:
        if scope == "worker":
            worker.register()
        code, reason = close_of(worker)
    assert code == 4401
    assert reason.startswith(f"token {made['id']} expired at ")
