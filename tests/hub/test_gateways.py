"""Workers behind hubs that stand by: their sockets outlive the leader, and nothing is acked that it has not done."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from tests.hub.asking import ask, wait_until
from tests.hub.several_hubs import Hubs, Standby, hubs, stand_by
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dray.presence import ensure_id
from dray.testing.hub_process import RunningHub
from dray.testing.mock_worker import MockWorker
from dray.testing.worker_script import MODERN
from dray.wire.reach.dialling import Way
from dray.wire.reach.http_line import HubConnection
from dray.wire.reach.pinned_tls import make_context

__all__ = ["hubs"]
# Of one that is not to take over within a test, and yet looks who leads often enough.
NEVER_S = 9


def worker_of(hub: Standby, name: str = "w1", **options: Any) -> MockWorker:
    return MockWorker(hub.address, hub.token, name, **{"msgpack": True, "features": MODERN, **options})


def submit(hub: RunningHub, job_id: str, **spec: Any) -> None:
    assert ask(hub, "POST", "/jobs", {"id": job_id, "command": ["true"], **spec})[0] == 201


def state_of(hub: RunningHub, job_id: str) -> str:
    return str(ask(hub, "GET", f"/jobs/{job_id}")[1].get("state"))


def connect(worker: MockWorker) -> None:
    """Dial as soon as the gateway lets workers in: its link takes a moment."""

    def dialled() -> bool:
        try:
            worker.open()
        except InvalidStatus as refused:
            if refused.response.status_code != 503:
                raise
            return False
        return True

    wait_until(dialled)


def end_of(worker: MockWorker) -> int:
    """The code by which the hub closes a worker's socket."""
    try:
        while True:
            worker.recv(timeout_s=30)
    except ConnectionClosed as closed:
        return int(closed.rcvd.code) if closed.rcvd is not None else 0


def ack_of(worker: MockWorker, what: str) -> dict[str, Any]:
    """Wait for the ack of one kind of message."""
    while True:
        ack = worker.recv("ack")
        if ack.payload["re"] == what:
            return dict(ack.payload)


def beat(worker: MockWorker, number: int) -> dict[str, Any]:
    """A heartbeat and its answer."""
    worker.heartbeat(beat=number, active=[])
    ack = ack_of(worker, "heartbeat")
    assert ack["beat"] == number
    return ack


def attempts_of(hub: RunningHub, job_id: str) -> list[dict[str, Any]]:
    return list(ask(hub, "GET", f"/jobs/{job_id}")[1]["attempts"])


@contextlib.contextmanager
def behind(hub: Standby, name: str = "w1", **options: Any) -> Iterator[MockWorker]:
    """A worker that is connected to a hub that stands by, and has registered."""
    worker = worker_of(hub, name, **options)
    connect(worker)
    try:
        worker.register(incarnation=f"{name}-1")
        yield worker
    finally:
        with contextlib.suppress(Exception):
            worker.close()


def test_a_worker_behind_a_gateway_runs_jobs(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    worker = worker_of(gateway)
    connect(worker)
    ack = worker.register()
    assert ack.payload["leader"] == leader.url
    submit(leader, "a1")
    assert worker.run_one().task_id == "a1"
    wait_until(lambda: state_of(leader, "a1") == "succeeded")
    # The first is passed on whole, those that say the same in digests.
    assert [beat(worker, number)["beat"] for number in (1, 2, 3)] == [1, 2, 3]
    wait_until(lambda: [row["workers"] for row in ask(leader, "GET", "/hubs")[1]["hubs"]] == [0, 1])
    metrics = ask(leader, "GET", "/metrics")[1]
    assert f'dray_gateway_sessions{{gateway="{ensure_id(gateway.home)}"}} 1.0' in metrics
    worker.close()
    wait_until(lambda: ask(leader, "GET", "/workers")[1]["workers"][0]["status"] == "offline")


def test_a_worker_that_speaks_json_and_knows_no_features_is_served_too(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    with behind(gateway, features=None, msgpack=False) as worker:
        submit(leader, "a1")
        worker.run_one()
        wait_until(lambda: state_of(leader, "a1") == "succeeded")
        leader.kill()
        # What it was told it may not be told twice: it registers again.
        assert end_of(worker) == 1012


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_task_goes_on_over_the_same_socket_when_the_leader_goes(hubs: Hubs, how: signal.Signals) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    with behind(gateway) as worker:
        first = beat(worker, 1)["epoch"]
        submit(leader, "a1")
        submit(leader, "a2")
        worker.ready(credits=1)
        task = worker.assigned()
        worker.accept(task)
        worker.started(task)
        wait_until(lambda: state_of(leader, "a1") == "running")
        psutil.Process(leader.pid).send_signal(how)
        # Said while nobody leads.
        worker.result(task)
        gateway.wait()
        assert ack_of(worker, "job_result")["results"] == {task.attempt: "recorded"}
        assert beat(worker, 2)["epoch"] > first
        assert [attempt["phase"] for attempt in attempts_of(gateway, "a1")] == ["succeeded"]
        assert worker.run_one().task_id == "a2"
        wait_until(lambda: state_of(gateway, "a2") == "succeeded")
        if how == signal.SIGSTOP:
            psutil.Process(leader.pid).send_signal(signal.SIGCONT)
            wait_until(lambda: ask(leader, "GET", "/hub/status")[1]["role"] == "standby")
            assert beat(worker, 3)["epoch"] > first


def test_a_gateway_that_does_not_lead_itself_finds_the_next_leader(hubs: Hubs) -> None:
    leader, gateway, heir = hubs(), stand_by(hubs, store_lease_s=NEVER_S), stand_by(hubs)
    with behind(gateway) as worker:
        submit(leader, "a1")
        worker.ready()
        task = worker.assigned()
        process = psutil.Process(leader.pid)
        process.send_signal(signal.SIGSTOP)
        worker.accept(task)
        worker.started(task)
        heir.wait()
        again = worker.assigned()
        assert again.attempt == task.attempt, "it was not known to be accepted when the lead changed"
        worker.result(task)
        assert ack_of(worker, "job_result")["results"] == {task.attempt: "recorded"}
        epoch = beat(worker, 1)["epoch"]
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: ask(leader, "GET", "/hub/status")[1]["role"] == "standby")
        assert beat(worker, 2)["epoch"] == epoch
        assert [attempt["phase"] for attempt in attempts_of(heir, "a1")] == ["succeeded"]
        # And back, by a hand-over: the socket is still the same.
        heir.stop()
        assert beat(worker, 3)["epoch"] > epoch


def test_nothing_is_acked_while_the_leader_does_not_answer(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs, store_lease_s=NEVER_S)
    with behind(gateway) as worker:
        beat(worker, 1)
        beat(worker, 2)
        process = psutil.Process(leader.pid)
        process.send_signal(signal.SIGSTOP)
        worker.heartbeat(beat=3, active=[])
        with pytest.raises(TimeoutError):
            worker.recv("ack", timeout_s=3)
        process.send_signal(signal.SIGCONT)
        assert ack_of(worker, "heartbeat")["beat"] == 3


def test_a_gateway_that_dies_loses_nothing_that_it_had_not_passed_on(hubs: Hubs) -> None:
    leader, gateway, other = hubs(), stand_by(hubs, store_lease_s=NEVER_S), stand_by(hubs)
    with behind(gateway) as worker:
        submit(leader, "a1")
        worker.ready()
        task = worker.assigned()
        worker.accept(task)
        wait_until(lambda: attempts_of(leader, "a1")[0]["accepted_at"])
        psutil.Process(leader.pid).send_signal(signal.SIGSTOP)
        worker.result(task)
        gateway.kill()
    other.wait()
    moved = MockWorker(other.url, other.token, "w1", features=MODERN, msgpack=True)
    with moved:
        unacked = moved.script.result(task, "succeeded", 0, b"")
        ack = moved.register(incarnation="w1-1", finished_unacked=[unacked])
        assert ack.payload["results"] == {task.attempt: "recorded"}
    assert [attempt["phase"] for attempt in attempts_of(other, "a1")] == ["succeeded"]


def test_the_leader_says_who_comes_in_and_a_revoked_token_ends_its_socket(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    made = ask(leader, "POST", "/tokens", {"user": "ada", "scopes": ["worker"]})[1]
    reader = ask(leader, "POST", "/tokens", {"user": "ada", "scopes": ["join"]})[1]
    worker = MockWorker(gateway.address, made["token"], "w1", features=MODERN, msgpack=True)
    connect(worker)
    worker.register()
    for token, status in (("dray_00000000_none", 401), (reader["token"], 403)):
        with pytest.raises(InvalidStatus) as refused:
            MockWorker(gateway.address, token, "w2").open()
        assert refused.value.response.status_code == status
    assert ask(leader, "DELETE", f"/tokens/{made['id']}")[0] == 200
    assert end_of(worker) == 4401
    worker.close()
    with pytest.raises(InvalidStatus) as refused:
        worker.open()
    assert refused.value.response.status_code == 401


def test_a_token_that_was_revoked_while_nobody_led_opens_nothing_at_the_next_leader(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    made = ask(leader, "POST", "/tokens", {"user": "ada", "scopes": ["worker"]})[1]
    worker = MockWorker(gateway.address, made["token"], "w1", features=MODERN, msgpack=True)
    connect(worker)
    worker.register()
    # The link breaks before the gateway hears of it.
    psutil.Process(gateway.pid).send_signal(signal.SIGSTOP)
    assert ask(leader, "DELETE", f"/tokens/{made['id']}")[0] == 200
    leader.kill()
    psutil.Process(gateway.pid).send_signal(signal.SIGCONT)
    gateway.wait()
    assert end_of(worker) == 4401


def test_a_worker_that_moves_between_gateways_has_one_session(hubs: Hubs) -> None:
    leader, one, two = hubs(), stand_by(hubs), stand_by(hubs)
    with behind(one) as before, behind(two) as after:
        assert end_of(before) == 4409
        submit(leader, "a1")
        after.run_one()
        wait_until(lambda: state_of(leader, "a1") == "succeeded")
        with behind(one) as again:
            assert end_of(after) == 4409
            beat(again, 1)


def test_output_goes_through_and_is_there_once(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    with behind(gateway) as worker:
        submit(leader, "a1")
        worker.ready()
        task = worker.assigned()
        worker.accept(task)
        worker.started(task)

        def prints(offset: int, text: bytes) -> None:
            said = {"stream": "stdout", "offset": offset, "data": text}
            worker.send("job_log", worker.script.about(task, **said))

        prints(0, b"one\n")
        ends = ack_of(worker, "job_log")["log_offsets"]
        assert ends == {task.attempt: {"stdout": 4, "stderr": 0}}
        leader.kill()
        prints(4, b"two\n")
        gateway.wait()
        # What the one that died may not have been done with is filed once, however often it comes.
        while ack_of(worker, "job_log")["log_offsets"] != {task.attempt: {"stdout": 8, "stderr": 0}}:
            pass
        worker.result(task)
        ack_of(worker, "job_result")
    assert ask(gateway, "GET", "/jobs/a1/logs")[1] == "one\ntwo\n"


def test_a_token_of_a_person_opens_no_link(hubs: Hubs) -> None:
    leader = hubs()
    stand_by(hubs)
    for token in (leader.token, f"dray_hub_abc_{'0' * 64}"):
        stranger = MockWorker(leader.url, token, "w1")
        stranger._address = stranger._address.replace("/ws", "/ws/gateway")
        with pytest.raises(InvalidStatus):
            stranger.open()


def test_beyond_one_machine_a_link_goes_by_the_certificate_that_the_leader_announces(hubs: Hubs) -> None:
    # Each has a certificate of its own, which nobody else was told.
    leader, gateway = hubs(host="0.0.0.0"), hubs(Standby, host="0.0.0.0")
    assert isinstance(gateway, Standby)
    assert gateway.address.startswith("https:")
    log = leader.home / "hub.err"
    wait_until(lambda: f"gateway {ensure_id(gateway.home)} brings" in log.read_text())
    # And so does what clients ask there, who know the gateway's certificate alone.
    pinned = str(json.loads((gateway.home / "hub.json").read_text())["fingerprint"])
    where = urlsplit(gateway.address)
    line = HubConnection(
        Way(f"https://127.0.0.1:{where.port}"),
        gateway.token,
        30,
        lambda: make_context(gateway.address, pinned),
    )
    with contextlib.closing(line):
        assert line.ask("GET", "/api/v1/jobs").read().startswith(b'{"jobs":[]')
