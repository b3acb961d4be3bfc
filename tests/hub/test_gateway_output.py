"""Output of workers at a gateway is filed there: the leader need not be awake, and whoever reads finds it once."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from tests.hub.asking import ask, look, wait_until
from tests.hub.several_hubs import Hubs, Standby, hubs, stand_by
from tests.hub.test_gateways import NEVER_S, ack_of, beat, behind, submit

from dray.testing.mock_worker import MockWorker

__all__ = ["hubs"]


def begin(worker: MockWorker) -> Any:
    """Take a task on."""
    worker.ready()
    task = worker.assigned()
    worker.accept(task)
    worker.started(task)
    return task


def prints(worker: MockWorker, task: Any, offset: int, text: bytes) -> None:
    worker.send("job_log", worker.script.about(task, stream="stdout", offset=offset, data=text))


def is_filed(worker: MockWorker, task: Any, end: int) -> None:
    """Wait until the worker is told that it is."""
    while ack_of(worker, "job_log")["log_offsets"] != {task.attempt: {"stdout": end, "stderr": 0}}:
        pass


def settle(gateway: Standby, worker: MockWorker) -> None:
    """Wait until the leader is done with all that a worker has said, and the gateway knows of it."""
    beat(worker, 1)
    wait_until(lambda: look(gateway.address, "/api/v1/hub/status")["lag"] == 0)


def test_output_is_filed_while_the_leader_sleeps(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs, store_lease_s=60)
    with behind(gateway) as worker:
        submit(leader, "a1")
        task = begin(worker)
        prints(worker, task, 0, b"one\n")
        is_filed(worker, task, 4)
        settle(gateway, worker)
        prints(worker, task, 4, b"two\n")
        is_filed(worker, task, 8)
        # Were that one still under way to the leader, the next would follow it there.
        settle(gateway, worker)
        os.kill(leader.pid, signal.SIGSTOP)
        try:
            prints(worker, task, 8, b"three\n")
            is_filed(worker, task, 14)
        finally:
            os.kill(leader.pid, signal.SIGCONT)
        # It reads what another hub has filed.
        wait_until(lambda: ask(leader, "GET", "/jobs/a1/logs")[1] == "one\ntwo\nthree\n")
        worker.result(task)
        ack_of(worker, "job_result")


def test_who_hears_of_the_end_finds_all_that_was_printed_before_it(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    with behind(gateway) as worker:
        for number in range(25):
            submit(leader, f"a{number}")
            task, text = begin(worker), f"{number}: ".encode() + b"x" * 20_000
            for at in range(0, len(text), 1000):
                prints(worker, task, at, text[at : at + 1000])
            worker.result(task)
            wait_until(lambda: ask(leader, "GET", f"/jobs/a{number}")[1]["state"] == "succeeded")  # noqa: B023 - at once
            assert ask(leader, "GET", f"/jobs/a{number}/logs")[1] == text.decode()


def test_who_follows_output_hears_of_what_a_gateway_files(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    with behind(gateway) as worker:
        submit(leader, "a1")
        task = begin(worker)
        wait_until(lambda: ask(leader, "GET", "/jobs/a1")[1]["state"] == "running")
        heard: list[Any] = []
        follows = threading.Thread(target=lambda: heard.append(ask(leader, "GET", "/jobs/a1/logs?follow=1")))
        follows.start()
        for number in range(20):
            prints(worker, task, 2 * number, b"%d\n" % (number % 10))
            is_filed(worker, task, 2 * number + 2)
        worker.result(task)
        follows.join(60)
    assert heard == [(200, "".join(f"{number % 10}\n" for number in range(20)))]


def test_a_worker_does_not_print_for_another_at_a_gateway_either(hubs: Hubs) -> None:
    leader, gateway = hubs(), stand_by(hubs)
    with behind(gateway, "w1") as worker, behind(gateway, "w2") as other:
        submit(leader, "a1")
        task = begin(worker)
        settle(gateway, worker)
        prints(other, task, 0, b"lies\n")
        assert "no attempt of task a1" in other.recv("error").error
        prints(worker, task, 0, b"truth\n")
        is_filed(worker, task, 6)
        worker.result(task)
        ack_of(worker, "job_result")
    assert ask(leader, "GET", "/jobs/a1/logs")[1] == "truth\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_prints_on_when_the_lead_changes_and_when_its_gateway_leads(
    hubs: Hubs, how: signal.Signals
) -> None:
    leader, heir, gateway = hubs(), stand_by(hubs), stand_by(hubs, store_lease_s=NEVER_S)
    with behind(gateway) as one, behind(heir, "w2") as two:
        tasks, texts = [], [b"", b""]
        for number, worker in enumerate((one, two)):
            submit(leader, f"a{number}")
            tasks.append(begin(worker))

        def go_on(count: int) -> None:
            for _ in range(count):
                for number, worker in enumerate((one, two)):
                    line = b"%d\n" % len(texts[number])
                    prints(worker, tasks[number], len(texts[number]), line)
                    texts[number] += line

        go_on(10)
        os.kill(leader.pid, how)
        go_on(10)
        heir.wait()
        go_on(10)
        for number, worker in enumerate((one, two)):
            is_filed(worker, tasks[number], len(texts[number]))
            worker.result(tasks[number])
            ack_of(worker, "job_result")
        for number in range(2):
            assert ask(heir, "GET", f"/jobs/a{number}/logs")[1] == texts[number].decode()
    if how is signal.SIGSTOP:
        os.kill(leader.pid, signal.SIGCONT)
