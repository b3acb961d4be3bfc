"""A worker's token speaks for one worker: attacks on another's id and attempts, with real sockets."""

from __future__ import annotations

import http.client
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.hub.asking import ask
from websockets.exceptions import ConnectionClosed

from dray.testing import MockWorker, RunningHub, running_hub

WaitUntil = Callable[..., Any]
FEATURES = ("list", "job_started", "job_log", "calls")


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as made:
        yield made


def make(hub: RunningHub, *scopes: str, **more: Any) -> dict[str, Any]:
    status, made = ask(hub, "POST", "/tokens", {"scopes": list(scopes), **more})
    assert status == 201, made
    return dict(made)


def refusal(worker: MockWorker) -> str:
    """Try to register; gives the reason with which the hub closes the socket."""
    worker.send("register", worker.script.register())
    with pytest.raises(ConnectionClosed) as closed:
        worker.recv("ack", 20)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4403
    return closed.value.rcvd.reason


def audited(hub: RunningHub, action: str, target: str) -> list[str]:
    records = ask(hub, "GET", "/audit?limit=1000")[1]["records"]
    return [
        record["token_id"] for record in records if (record["action"], record["target"]) == (action, target)
    ]


def worker_check(hub: RunningHub) -> Any:
    (found,) = [c for c in ask(hub, "GET", "/doctor")[1]["checks"] if c["name"] == "worker tokens"]
    return found


def test_an_id_belongs_to_the_token_that_first_registered_it() -> None:
    with running_hub() as hub:
        mine, thief = make(hub, "worker"), make(hub, "worker")
        with MockWorker(hub.url, mine["token"], "a") as owner:
            owner.register()
            assert worker_check(hub)["ok"]
            for _ in range(3):
                with MockWorker(hub.url, thief["token"], "a") as other:
                    assert "worker id a was registered with another token" in refusal(other)
            owner.heartbeat()
            owner.recv("ack")
        with MockWorker(hub.url, hub.token, "a") as admin:
            assert "another token" in refusal(admin), "an admin revokes first, and is on record for it"
        assert audited(hub, "worker.bind", "a") == [mine["id"]]
        assert sorted(audited(hub, "worker.refuse", "a")) == sorted([thief["id"], admin_id(hub)])
        check = worker_check(hub)
        assert not check["ok"]
        assert (
            f"token {thief['id']} tried to register as worker a and was refused, 3 times" in check["detail"]
        )
        said = (hub.home / "hub.err").read_text()
        assert said.count(f"token {thief['id']} tried to register as worker a") == 1
        hub.restart()
        with MockWorker(hub.url, thief["token"], "a") as other:
            assert "another token" in refusal(other), "it is bound for good, not for the life of a hub"
        with MockWorker(hub.url, mine["token"], "a") as owner:
            owner.register()
            assert ask(hub, "DELETE", f"/tokens/{mine['id']}")[0] == 200
        with MockWorker(hub.url, thief["token"], "a") as other:
            other.register()
        assert audited(hub, "worker.bind", "a") == [thief["id"], mine["id"]], "revoking frees the id"


def admin_id(hub: RunningHub) -> str:
    return hub.token.split("_")[1]


def test_a_workers_token_speaks_for_one_worker(hub: RunningHub) -> None:
    made = make(hub, "worker")
    with MockWorker(hub.url, made["token"], "one") as first:
        first.register()
        with MockWorker(hub.url, made["token"], "two") as second:
            assert f"token {made['id']} speaks for worker one and no other" in refusal(second)
        first.heartbeat()
        first.recv("ack")
    with MockWorker(hub.url, made["token"], "two") as second:
        refusal(second)
    assert ask(hub, "GET", "/workers/two")[0] == 404
    with MockWorker(hub.url, made["token"], "one") as first:
        first.register()


def test_an_admins_token_is_every_worker_that_nobody_else_is(hub: RunningHub) -> None:
    with hub.worker("many-1") as first, hub.worker("many-2") as second:
        first.register()
        second.register()
        with MockWorker(hub.url, make(hub, "worker")["token"], "many-1") as thief:
            refusal(thief)


def run_on(hub: RunningHub, worker: MockWorker, wait_until: WaitUntil) -> tuple[str, Any]:
    worker.register()
    job = ask(hub, "POST", "/jobs", {"command": ["true"]})[1]["id"]
    worker.ready()
    task = worker.assigned()
    worker.accept(task)
    worker.started(task)
    wait_until(lambda: ask(hub, "GET", f"/jobs/{job}")[1]["state"] == "running")
    return job, task


def test_nothing_is_taken_for_an_attempt_of_another_worker(hub: RunningHub, wait_until: WaitUntil) -> None:
    """With its right uid, with its task's name alone, and with a uid that is guessed from its number."""
    victim = MockWorker(hub.url, make(hub, "worker")["token"], "victim", features=FEATURES, msgpack=True)
    thief = MockWorker(hub.url, make(hub, "worker")["token"], "thief", features=FEATURES, msgpack=True)
    with victim, thief:
        job, task = run_on(hub, victim, wait_until)
        thief.register()
        uid = task.attempt
        print_on(victim, task, 0, b"mi")
        follower = Follower(hub, job)
        wait_until(lambda: follower.read == b"mi")
        number, _, tag = uid.rpartition("-")
        assert len(tag) == 12
        for guess in (uid, None, number, f"{number}-{'0' * 12}"):
            about = {"task_id": job} | ({"attempt": guess} if guess else {})
            thief.send("job_log", {**about, "stream": "stdout", "offset": 2, "data": b"forged"})
            usage = {"stdout_bytes": 2, "stderr_bytes": 0}
            thief.send("job_result", {**about, "state": "failed", "exit_code": 1, "usage": usage})
            thief.send("job_progress", {**about, "step": 7, "note": "forged"})
            thief.send("job_started", {**about, "pid": 1})
            thief.send("job_accepted", about)
            thief.send("service_health", {**about, "healthy": False})
        thief.send("job_yield", {"task_id": job, "attempt": uid})
        end = {"seq": 1, "lane": uid, "job": "guess", "index": [0], "no": [1], "state": "succeeded"}
        thief.send("calls_result", {**end, "value": [b"forged"], "wall_us": [1]})
        thief.heartbeat()
        while thief.recv("ack").payload.get("re") != "heartbeat":
            pass
        assert all(job not in said.error for said in thief.script.held if "calls_result" in said.error)
        shown = ask(hub, "GET", f"/jobs/{job}")[1]
        assert (shown["state"], shown["phase"], shown.get("progress")) == ("running", "running", None)
        print_on(victim, task, 2, b"ne")
        victim.result(task, usage={"stdout_bytes": 4, "stderr_bytes": 0})
        wait_until(lambda: ask(hub, "GET", f"/jobs/{job}")[1]["state"] == "succeeded")
        follower.thread.join(20)
        assert follower.read == b"mine"


def test_a_hub_that_was_put_back_draws_no_uid_again(tmp_path: Path, wait_until: WaitUntil) -> None:
    """Its counters stand where they stood, and what it handed out since may still run somewhere."""
    with running_hub(tmp_path / "now"):
        pass
    shutil.copytree(tmp_path / "now", tmp_path / "back", ignore=shutil.ignore_patterns("*.sock"))
    uids = []
    for home in ("now", "back"):
        with (
            running_hub(tmp_path / home) as hub,
            MockWorker(hub.url, hub.token, "w", features=FEATURES) as worker,
        ):
            uids.append(run_on(hub, worker, wait_until)[1].attempt)
    assert uids[0] != uids[1]
    assert uids[0].rpartition("-")[0] == uids[1].rpartition("-")[0]


def print_on(worker: MockWorker, task: Any, offset: int, data: bytes) -> None:
    about = {"task_id": task.task_id, "attempt": task.attempt, "stream": "stdout"}
    worker.send("job_log", {**about, "offset": offset, "data": data})


class Follower:
    """Reads the output of a job as it comes."""

    def __init__(self, hub: RunningHub, job: str) -> None:
        self.read = b""
        self._connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=30)
        headers = {"Authorization": f"Bearer {hub.token}"}
        self._connection.request("GET", f"/api/v1/jobs/{job}/logs?follow=1", headers=headers)
        self._answer = self._connection.getresponse()
        self.thread = threading.Thread(target=self._follow)
        self.thread.start()

    def _follow(self) -> None:
        while piece := self._answer.read1():
            self.read += piece
        self._connection.close()


def test_one_who_is_not_let_in_moves_neither_epoch_nor_output(hub: RunningHub, wait_until: WaitUntil) -> None:
    victim = MockWorker(hub.url, make(hub, "worker")["token"], "vic-2", features=FEATURES, msgpack=True)
    thief = MockWorker(hub.url, make(hub, "worker")["token"], "vic-2", features=FEATURES, msgpack=True)
    with victim, thief:
        job, task = run_on(hub, victim, wait_until)
        before = ask(hub, "GET", "/hub")[1]["epoch"]
        finished = {"task_id": job, "attempt": task.attempt, "state": "failed", "exit_code": 1}
        said = thief.script.register(max_epoch_seen=before + 5, finished_unacked=[finished])
        thief.send("register", said)
        with pytest.raises(ConnectionClosed):
            thief.recv("ack", 20)
        assert ask(hub, "GET", "/hub")[1]["epoch"] == before
        assert ask(hub, "GET", f"/jobs/{job}")[1]["state"] == "running"
        ask(hub, "POST", f"/jobs/{job}/cancel", {})


def test_what_others_run_is_not_told_over_a_workers_socket(hub: RunningHub, wait_until: WaitUntil) -> None:
    with hub.worker("shown") as worker, MockWorker(hub.url, make(hub, "read", user="eve")["token"]) as eve:
        job, _ = run_on(hub, worker, wait_until)
        eve.send("worker_show_request", {"worker_id": "shown"})
        assert eve.recv("worker_show_response").payload["jobs"] == []
        worker.send("worker_show_request", {"worker_id": "shown"})
        assert [line["task_id"] for line in worker.recv("worker_show_response").payload["jobs"]] == [job]
        ask(hub, "POST", f"/jobs/{job}/cancel", {})
