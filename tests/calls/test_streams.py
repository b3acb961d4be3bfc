"""Open arrays over time: closed by the hub, cut off, and left behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests import warm

import dray
from dray.client.faces.private_hub import PrivateHub
from dray.testing import RunningHub, running_hub
from dray.wire.messages.client import ERROR, Reply

LIMIT_S = 60.0
COUNT = 3000  # more than go into two messages


def add_one(x: int) -> int:
    return x + 1


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[RunningHub]:
    """A hub that closes an open array after half a second without calls."""
    with running_hub(tmp_path / "h", open_idle_s=0.5) as running:
        with (tmp_path / "agent.log").open("wb") as log:
            agent = warm.Popen[bytes](
                [sys.executable, "-P", "-m", "dray.cli.main", "worker", "start", "--home", str(running.home)],
                stdout=log,
                stderr=log,
            )
        try:
            yield running
        finally:
            agent.terminate()
            agent.wait()


def wait_until_ended(hub: dray.Hub, job_id: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not hub.status(job_id).state.final:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_array_that_the_hub_has_closed_is_replaced(impatient: RunningHub) -> None:
    with impatient.connect() as hub:
        first = hub.submit(add_one, 1)
        assert first.result(LIMIT_S) == 2
        wait_until_ended(hub, first.id.partition("/")[0])
        later = [hub.submit(add_one, number) for number in range(20)]
        assert [future.result(LIMIT_S) for future in later] == [number + 1 for number in range(20)]
        assert first.id.partition("/")[0] not in {future.id.partition("/")[0] for future in later}
        assert [hub.job(future.id).result(LIMIT_S) for future in later[:3]] == [1, 2, 3]


def test_a_map_whose_input_pauses_goes_on_in_a_new_array(impatient: RunningHub) -> None:
    with impatient.connect() as hub:
        jobs: list[str] = []

        def items() -> Iterator[int]:
            yield from range(16)
            wait_until_ended(hub, jobs[0])
            yield from range(16, 40)

        results = hub.map(add_one, items(), window=16, timeout=LIMIT_S)
        jobs.append(results.job)
        assert list(results) == [number + 1 for number in range(40)]
        assert results.job != jobs[0]


@pytest.mark.parametrize("put_off", [0, 1], ids=["the one that makes the array", "a later one"])
def test_calls_that_overtake_others_which_the_hub_has_put_off_follow_them(
    impatient: RunningHub, put_off: int
) -> None:
    """A hub that is just starting, or has no room for the moment, refuses one batch and takes the next."""
    with impatient.connect() as hub:
        before = hub.submit(add_one, 1)
        assert before.result(LIMIT_S) == 2
        channel = hub._opened()[1]._channel
        send, batches, refused = channel._send_soon, list[int](), list[int]()

        def send_soon(message: bytes) -> None:
            asked = msgspec.msgpack.decode(message)
            if asked["type"] == "calls" and not before.id.startswith(asked["payload"]["job"]):
                if asked["id"] in refused and len(batches) == put_off + 1:
                    # Nothing has overtaken it yet.
                    asyncio.get_running_loop().call_later(0.02, channel._send_again, asked["id"])
                    return
                batches.append(asked["payload"]["first"])
                if len(batches) == put_off + 1:
                    refused.append(asked["id"])
                    refusal = {"code": "not_ready", "message": "try again in a moment"}
                    channel._take(Reply(ERROR, asked["id"], error=refusal))
                    return
            send(message)

        channel._send_soon = send_soon  # type: ignore[method-assign]  # stands for a hub that cannot for a moment
        results = hub.map(add_one, range(COUNT), timeout=LIMIT_S)
        assert list(results) == [number + 1 for number in range(COUNT)]
        assert len(set(batches)) > 2
        assert len(batches) > len(set(batches)) + 1, "one was put off, and others came before it"


def test_closing_the_client_lets_its_jobs_end(impatient: RunningHub) -> None:
    with impatient.connect() as hub:
        future = hub.submit(add_one, 1)
        assert future.result(LIMIT_S) == 2
        job_id = future.id.partition("/")[0]
    with impatient.connect() as hub:
        wait_until_ended(hub, job_id)
        assert hub.status(job_id).state is dray.JobState.SUCCEEDED


LEFT = """
import dray, sys
hub = dray.connect(home=sys.argv[1])
done = hub.submit(abs, -1)
assert done.result(60) == 1
print(done.id.partition("/")[0], flush=True)
"""
HANDED_OVER = """
import dray, sys
hub = dray.connect(home=sys.argv[1])
calls = [hub.submit(abs, -number) for number in range(6000)]
results = hub.map(abs, range(6000))
single = hub.submit(abs, -1, key="once")
print(calls[0].id.partition("/")[0], results.job)
"""
INTERRUPTED = """
import dray, os, signal, sys, time
hub = dray.connect(home=sys.argv[1])
results = hub.map(time.sleep, [0.05] * 2000, progress=False)
print(results.job, flush=True)
next(results)
signal.setitimer(signal.ITIMER_REAL, 0.2)
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in results:
    pass
"""
HUB_DIES = """
import dray, os, signal, sys
hub = dray.connect(home=sys.argv[1])
calls = [hub.submit(abs, -number) for number in range(6000)]
os.kill(int(sys.argv[2]), signal.SIGKILL)
calls += [hub.submit(abs, -number) for number in range(6000)]
"""


def run_to_its_end(text: str, *words: str, heard: str = "") -> str:
    """What it prints; of what it writes to stderr all must be lines with `heard` in them."""
    ran = subprocess.run(
        [sys.executable, "-c", text, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert [line for line in ran.stderr.splitlines() if not heard or heard not in line] == []
    return ran.stdout


def test_a_program_that_ends_lets_its_arrays_end(cluster: PrivateHub, hub: dray.Hub) -> None:
    job = run_to_its_end(LEFT, str(cluster.home)).strip()
    assert hub.status(job).state is dray.JobState.SUCCEEDED


def test_what_a_program_has_submitted_before_its_end_is_recorded(cluster: PrivateHub, hub: dray.Hub) -> None:
    for job in run_to_its_end(HANDED_OVER, str(cluster.home)).split():
        assert hub.status(job)["tasks"]["total"] == 6000
        assert hub.wait(job, LIMIT_S).state is dray.JobState.SUCCEEDED
    single = [job for job in hub.jobs(name="abs") if job["spec"].get("array") is None]
    assert len(single) == 1


def test_an_interrupted_program_leaves_nothing_running(cluster: PrivateHub, hub: dray.Hub) -> None:
    words = [sys.executable, "-c", INTERRUPTED, str(cluster.home)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert "KeyboardInterrupt" in ran.stderr
    assert "the rest was cancelled" in ran.stderr
    assert hub.status(ran.stdout.strip())["cancel_requested"]
    assert hub.wait(ran.stdout.strip(), LIMIT_S).state is dray.JobState.KILLED


def test_a_hub_that_is_gone_does_not_hold_the_end_of_a_program_up(tmp_path: Path) -> None:
    with running_hub(tmp_path / "h") as running:
        pid = json.loads((running.home / "hub.json").read_text())["pid"]
        # Where the program itself takes that long, it tells that nobody answers.
        run_to_its_end(HUB_DIES, str(running.home), str(pid), heard="no hub answers")
