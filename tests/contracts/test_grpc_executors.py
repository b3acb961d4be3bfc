"""Executors that lease: workers like any other, kept alive, fenced, drained and explained by the same rules."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import msgspec
import pytest
from tests import warm
from tests.contracts.conftest import HubProcess, Lab
from tests.contracts.grpc_peer import Peer, request_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "foreign_executor.py"
TASKS = 60
SUCCEEDED = "JOB_STATE_SUCCEEDED"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    made = HubProcess(tmp_path_factory.mktemp("hub"), {"grpc_port": "0"})
    yield made
    made.close()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub that is soon done with who says nothing."""
    timers = {"accept_s": "1", "lost_s": "3", "unknown_s": "2", "suspect_s": "1.5", "heartbeat_s": "0.3"}
    made = HubProcess(
        tmp_path_factory.mktemp("hasty"),
        {**timers, "brake_min": "1000", "start_grace_s": "0.1", "grpc_port": "0"},
    )
    yield made
    made.close()


class Executor:
    """One executor, call by call."""

    def __init__(self, hub: HubProcess, name: str, token: str = "", **offer: Any) -> None:
        self.peer, self.name = Peer(hub.home, token or hub.token), name
        self.offer: dict[str, Any] = {"worker": name, "slots": 4, "capabilities": {"cpu_count": 4}, **offer}
        self.session = ""

    def register(self, **more: Any) -> Any:
        answer = self.peer.ask("RegisterWorker", **{**self.offer, **more})
        self.session = answer.session
        return answer

    def ask(self, method: str, **fields: Any) -> Any:
        return self.peer.ask(method, worker=self.name, session=self.session, **fields)

    def refused(self, method: str, **fields: Any) -> tuple[str, str]:
        code, _, details = self.peer.refused(method, worker=self.name, session=self.session, **fields)
        return code.name, details["ErrorInfo"]["reason"]

    def lease(self, tasks: int = 1) -> list[Any]:
        found: list[Any] = []
        while len(found) < tasks:
            found += self.ask("DequeueTasks", max_tasks=tasks - len(found), wait_s=5).leases
        return found

    def renew(self, *leases: Any, **said: Any) -> list[Any]:
        answer = self.ask(
            "RenewLeases", leases=[{"lease": getattr(one, "lease", one), **said} for one in leases]
        )
        return list(answer.orders)

    def leave(self) -> None:
        self.ask("ReturnTasks", leave=True)

    def complete(self, lease: Any, state: str = SUCCEEDED, **more: Any) -> str:
        result = {"lease": lease.lease, "task": lease.task, "state": state, "exit_code": 0, **more}
        verdicts = dict(self.ask("CompleteTasks", results=[result]).verdicts)
        return str(verdicts[lease.lease])


@pytest.fixture
def executor(hub: HubProcess, lab: Lab) -> Iterator[Executor]:
    made = Executor(hub, lab.name())
    made.register()
    yield made
    with contextlib.suppress(grpc.RpcError):
        made.leave()
    made.peer.close()


def test_a_lease_is_an_attempt_from_its_first_word_to_its_result(executor: Executor, lab: Lab) -> None:
    job = lab.submit(cpu_milli=1000, env={"A": "1"}, max_runtime_s=90)
    (lease,) = executor.lease()
    assert (lease.task, list(lease.spec.command), dict(lease.spec.env)) == (job, ["true"], {"A": "1"})
    assert (lease.remaining_s, lease.accept_within_s, lease.lost_after_s) == (90, 30, 120)
    assert lab.job(job)["phase"] == "assigned"
    executor.renew(lease)
    assert executor.renew(lease, step=3, saved_step=2, fraction=0.5, note="half") == []
    shown = lab.job(job)
    assert (shown["state"], shown["worker"], shown["progress"]["step"]) == ("running", executor.name, 3)
    assert shown["attempts"][0]["uid"] == lease.lease
    assert executor.complete(lease, value=b"\x00bytes") == "recorded"
    # Sent until it is answered, whatever was recorded meanwhile.
    assert executor.complete(lease, "JOB_STATE_FAILED") == "duplicate"
    assert lab.job(job)["state"] == "succeeded"
    left = executor.peer.ask("GetTaskResult", task=job)
    assert (left.state, left.value) == (3, b"\x00bytes")


def test_an_executor_is_stopped_drained_and_told_apart(executor: Executor, hub: HubProcess, lab: Lab) -> None:
    first, second = lab.submit(), lab.submit()
    leases = {one.task: one for one in executor.lease(2)}
    executor.renew(*leases.values())
    lab.cancel(first, grace_s=7)
    (order,) = executor.renew(*leases.values())
    assert (order.lease, order.kind, order.reason, order.grace_s) == (leases[first].lease, "stop", "user", 7)
    # The job has ended with its cancel: that its program is gone changes nothing about it.
    assert executor.complete(leases[first], "JOB_STATE_KILLED") == "superseded"
    assert lab.job(first)["state"] == "killed"
    hub.ask("POST", f"/api/v1/workers/{executor.name}/drain", {})
    third = lab.submit()
    assert not executor.ask("DequeueTasks", max_tasks=1, wait_s=0.1).leases
    why = executor.peer.ask("ExplainJob", job=third).reason
    assert "draining" in str(why.blockers) + why.summary
    assert executor.complete(leases[second]) == "recorded"
    hub.ask("POST", f"/api/v1/workers/{executor.name}/resume")
    (lease,) = executor.lease()
    assert executor.complete(lease) == "recorded"


def test_what_is_not_begun_goes_back_free_and_what_is_begun_does_not(executor: Executor, lab: Lab) -> None:
    job = lab.submit()
    (lease,) = executor.lease()
    given = executor.ask("ReturnTasks", leases=[lease.lease, "1-99"], reason="not now")
    assert dict(given.verdicts) == {lease.lease: "recorded", "1-99": "unknown"}
    (again,) = executor.lease()
    assert again.lease != lease.lease
    executor.renew(again)
    assert dict(executor.ask("ReturnTasks", leases=[again.lease]).verdicts) == {again.lease: "begun"}
    assert executor.complete(lease) == "duplicate"
    assert executor.complete(again) == "recorded"
    shown = lab.job(job)
    assert (shown["state"], shown["failures"], shown["losses"]) == ("succeeded", 0, 0)


def test_who_polls_and_vanishes_holds_nobody_up(hasty: HubProcess) -> None:
    lab = Lab(hasty, "v")
    executor, other = Executor(hasty, "v-1"), Executor(hasty, "v-2")
    executor.register()
    job = lab.submit()
    (lease,) = executor.lease()
    other.register()
    (again,) = other.lease()
    other.renew(again)
    assert (again.task, again.lease != lease.lease) == (job, True)
    # A stranger's lease is not to be kept alive, and an older one is over.
    assert [(one.kind, one.reason) for one in other.renew(lease, again)] == [("drop", "unknown")]
    assert [(one.kind, one.reason) for one in executor.renew(lease, again)] == [
        ("drop", "superseded"),
        ("drop", "unknown"),
    ]
    assert executor.complete(lease) == "superseded"
    assert executor.complete(again) == "unknown"
    # Nobody is given work while nobody asks.
    third = lab.submit()
    assert lab.job(third)["phase"] == "queued"
    assert other.complete(again) == "recorded"
    shown = lab.job(job)
    assert (shown["state"], shown["losses"], shown["attempt_count"]) == ("succeeded", 0, 2)
    lab.cancel(third)
    for one in (executor, other):
        one.leave()
        assert one.refused("RenewLeases") == ("FAILED_PRECONDITION", "SESSION_ENDED")
        assert hasty.ask("GET", f"/api/v1/workers/{one.name}")[1]["state_detail"] == "said goodbye"
        one.peer.close()


def test_silence_loses_leases_and_what_comes_later_changes_nothing(hasty: HubProcess) -> None:
    lab = Lab(hasty, "s")
    executor, other = Executor(hasty, "s-1"), Executor(hasty, "s-2")
    executor.register()
    job = lab.submit()
    (lease,) = executor.lease()
    executor.renew(lease)
    other.register()
    (again,) = other.lease()
    assert again.task == job
    assert executor.refused("RenewLeases", leases=[{"lease": lease.lease}]) == (
        "FAILED_PRECONDITION",
        "SESSION_ENDED",
    )
    told = executor.register(active=[{"lease": lease.lease, "task": job}])
    assert list(told.keep) == []
    assert executor.complete(lease) == "superseded"
    assert other.complete(again) == "recorded"
    assert lab.job(job)["losses"] == 1
    for one in (executor, other):
        one.peer.close()


def test_sessions_are_for_one_worker_with_one_token(executor: Executor, hub: HubProcess, lab: Lab) -> None:
    again = Executor(hub, executor.name)
    stranger = Executor(hub, lab.name(), lab.token("worker"))
    stranger.register()
    stranger.session = executor.session
    assert stranger.refused("RenewLeases")[0] == "PERMISSION_DENIED"
    assert stranger.refused("DequeueTasks", max_tasks=0)[0] == "INVALID_ARGUMENT"
    reader = Executor(hub, executor.name, lab.token("read"))
    assert reader.refused("DequeueTasks", max_tasks=1)[0] == "PERMISSION_DENIED"
    # The newest of two under one name is it; its own words again are not another one.
    first = executor.register(incarnation="a").session
    assert executor.register(incarnation="a").session == first
    again.register(incarnation="b")
    assert executor.refused("RenewLeases") == ("FAILED_PRECONDITION", "SESSION_ENDED")
    assert again.renew() == []
    for bad in (
        {"slots": 0},
        {"worker": "no id"},
        {"capabilities": {"gpu_backend": "abacus"}},
        {"slots": 10**6},
    ):
        assert (
            again.peer.refused("RegisterWorker", **{**again.offer, **bad})[0]
            is grpc.StatusCode.INVALID_ARGUMENT
        )
    twice = [{"lease": "1-1", "task": "a", "state": SUCCEEDED}] * 2
    assert again.refused("CompleteTasks", results=twice)[0] == "INVALID_ARGUMENT"
    again.leave()
    for one in (again, stranger, reader):
        one.peer.close()


def test_the_worker_protocol_itself_goes_over_one_stream(hub: HubProcess, lab: Lab) -> None:
    said: queue.Queue[Any] = queue.Queue()
    job, name = lab.submit(), lab.name()
    peer = Peer(hub.home, hub.token)

    def say(kind: str, **payload: Any) -> None:
        envelope = msgspec.msgpack.encode({"type": kind, "payload": payload})
        said.put(request_of("WorkerSession", envelope=envelope))

    answers = peer.stub.WorkerSession(iter(said.get, None), metadata=peer.metadata, timeout=60)

    def heard(kind: str) -> Any:
        for answer in answers:
            got = msgspec.msgpack.decode(answer.envelope)
            for one in got if isinstance(got, list) else [got]:
                if one["type"] == kind:
                    return one.get("payload")
        raise AssertionError(kind)

    slots = {"batch_total": 1}
    say("register", id=name, capabilities={"cpu_count": 4}, slots=slots)
    heard("ack")
    say("ready_for_work", worker_id=name, slots=slots)
    assigned = heard("job_assign")
    assert assigned["spec"]["id"] == job
    about = {"task_id": job, "attempt": assigned["attempt"]["uid"]}
    say("job_accepted", **about)
    say("job_result", **about, state="succeeded", exit_code=0)
    while heard("ack")["re"] != "job_result":
        pass
    assert lab.job(job)["state"] == "succeeded"
    said.put(None)
    assert list(answers) == []
    lab.until(lambda: hub.ask("GET", f"/api/v1/workers/{name}")[1]["state_detail"] == "said goodbye")
    peer.close()


def test_an_executor_in_another_process_goes_on_through_a_hub_kill(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path, {"grpc_port": "0"})
    address = json.loads((tmp_path / "hub.json").read_text())["grpc"]
    log = tmp_path / "ran"
    words = [sys.executable, str(EXAMPLE), address, hub.token, "ex", "8"]
    with (tmp_path / "executor.log").open("wb") as output:
        executor = warm.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        lab = Lab(hub, "t")
        spec = {"command": ["sh", "-c", f"echo x >> {log}"], "array": {"first": 0, "last": TASKS - 1}}
        job = lab.submit(**spec)
        lab.until(lambda: lab.job(job)["tasks"]["succeeded"] > TASKS // 4, 60)
        before = lab.job(job)["tasks"]["succeeded"]
        hub.kill()
        hub.listen_again(grpc_port=address.rpartition(":")[2])
        assert lab.job(job)["tasks"]["succeeded"] >= before
        lab.until(lambda: lab.job(job)["state"] == "succeeded", 60)
        assert lab.job(job)["losses"] == 0
        assert len(log.read_text().split()) >= TASKS
    finally:
        executor.terminate()
        executor.wait(30)
        hub.close()
