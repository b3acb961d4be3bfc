"""The blocking face and the facade, against a real hub."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dray
from dray.errors import InvalidConfig, InvalidSpec
from dray.testing import RunningHub, running_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def client(hub: RunningHub) -> Iterator[dray.Hub]:
    with hub.connect() as connected:
        yield connected


def test_an_impossible_job_ends_as_unschedulable(client: dray.Hub) -> None:
    job = client.submit(["true"], resources={"cpu": 100}, scheduling_timeout_seconds=0.2)
    status = client.wait(job, timeout=60)
    assert status.state == dray.JobState.UNSCHEDULABLE
    assert status["state"] == status.state
    assert job.state is dray.JobState.UNSCHEDULABLE
    assert dict(status)["id"] == job.id
    assert "unschedulable" in repr(status)


def test_a_pending_job_says_why_and_can_be_cancelled(client: dray.Hub) -> None:
    job = client.submit(
        ["python", "train.py"], cpus=2, gpus=1, vram="16G", tier="training", scheduling_timeout=300, name="t"
    )
    assert job.state is dray.JobState.PENDING
    assert job.why()["state"] == "pending"
    assert job.status()["spec"]["job_tier"] == "training"
    with pytest.raises(TimeoutError):
        job.wait(timeout=0.05)
    assert job.cancel() is True
    assert job.wait(timeout=60).state is dray.JobState.KILLED
    assert job.cancel() is False


def test_output_and_values_of_a_task(hub: RunningHub, client: dray.Hub) -> None:
    job = client.submit(["true"], priority=9)
    with hub.worker(features=["job_started"], msgpack=True) as worker:
        worker.register()
        worker.ready()
        task = worker.assigned()
        worker.accept(task)
        worker.started(task)
        worker.send("job_log", worker.script.about(task, stream="stdout", offset=0, data=b"hello\n"))
        worker.result(task, value=b"42")
        assert job.wait(timeout=60).value == b"42"
    assert client.values(job) == [b"42"]
    assert b"".join(job.logs()) == b"hello\n"
    assert b"".join(job.logs(follow=True, stream="stderr")) == b""
    with pytest.raises(dray.DrayError):
        list(client.logs("nobody"))


def test_lists_are_filtered_and_several_waits_keep_their_order(client: dray.Hub) -> None:
    jobs = client.submit_many([["a"], ["b"]], name="pair", labels={"kind": "pair"})
    for job in jobs:
        job.cancel()
    assert [status.id for status in client.wait(jobs, timeout=60)] == [job.id for job in jobs]
    assert {status.id for status in client.jobs(labels={"kind": "pair"})} == {job.id for job in jobs}
    assert [status.id for status in client.jobs(limit=1)] == [jobs[-1].id]


def test_refusals_keep_their_class_and_their_problems(client: dray.Hub) -> None:
    with pytest.raises(InvalidSpec) as refused:
        _ = client.submit(["true"], priority="high", retries=-1)
    assert [problem.where for problem in refused.value.problems] == ["priority", "retries"]


def test_it_works_inside_a_running_loop(client: dray.Hub) -> None:
    async def inside() -> dray.JobState:
        return client.submit(["true"]).state

    assert asyncio.run(inside()) is dray.JobState.PENDING


def test_many_threads_share_one_client(client: dray.Hub) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda place: client.submit(["true"], name=f"t{place}").id, range(64)))
    assert len(set(ids)) == 64


def test_a_forked_process_has_a_channel_of_its_own(hub: RunningHub) -> None:
    # In a fresh interpreter: forking this one would copy the threads of the test runner.
    script = (
        "import dray, os, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        f"hub = dray.connect({hub.url!r}, {hub.token!r})\n"
        "first = hub.submit(['true']).id\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0 if hub.job(first).state == 'pending' and hub.submit(['true']).id else 1)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "sys.exit(code or (0 if hub.ping() else 2))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


def test_connect_finds_the_hub_of_its_home_and_of_the_environment(
    hub: RunningHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_HOME", str(hub.home))
    monkeypatch.delenv("DRAY_HUB", raising=False)
    monkeypatch.delenv("DRAY_TOKEN", raising=False)
    with dray.connect() as found:
        assert found.ping()["ready"] is True
    monkeypatch.setenv("DRAY_HOME", str(tmp_path))
    monkeypatch.setenv("DRAY_HUB", hub.url)
    monkeypatch.setenv("DRAY_TOKEN", hub.token)
    with dray.connect() as found:
        assert found.ping()["ready"] is True
    with pytest.raises(InvalidConfig, match="in the clear"):
        dray.connect("http://198.51.100.7:7373")


def test_without_a_hub_connect_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAY_HUB", "DRAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(dray.HubUnavailable, match="dray up"):
        dray.connect(home=tmp_path)
    (tmp_path / "hub.json").write_text('{"url": "http://127.0.0.1:9", "pid": 1}')
    (tmp_path / "token").write_text("dray_x_y")
    with pytest.raises(dray.HubUnavailable, match="no hub answers"):
        dray.connect(home=tmp_path)


def test_importing_dray_loads_nothing_else() -> None:
    script = (
        "import sys; before = set(sys.modules); import dray\n"
        "print(sorted(name for name in set(sys.modules) - before if name.split('.')[0] != '__future__'))\n"
        "assert dray.__version__ and 'connect' in dir(dray)\n"
        "assert dray.JobState.UNSCHEDULABLE.value == 'unschedulable'\n"
        "assert 'numpy' not in sys.modules and 'websockets' not in sys.modules\n"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert ran.stdout.strip() == "['dray']"


def test_the_facade_knows_its_names_and_no_others() -> None:
    for name in dray.__all__:
        assert getattr(dray, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dray.nonsense  # noqa: B018 - looking is the test


def test_a_program_that_ends_while_its_hub_is_away_says_nothing_of_it() -> None:
    script = """
import atexit, time
import dray
from dray.testing import running_hub

with running_hub() as hub:
    client = dray.connect(hub.url, hub.token, home=hub.home)
    client.ping()
    hub.kill()
    inner = client._opened()[1]._channel
    # Called last of all: by then there are no threads to dial in, and it has been tried.
    tries = inner.dials
    def wait():
        deadline = time.monotonic() + 30
        while inner.dials < tries + 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    atexit.register(wait)
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=False, env=env
    )
    assert (done.returncode, done.stderr) == (0, "")


LEFT = """
import atexit, sys, threading
atexit.register(lambda: print([one.name for one in threading.enumerate() if one.name == "dray-client"]))
import dray
print(dray.connect(*sys.argv[1:]).ping()["ready"])
"""


def test_no_loop_outlives_its_program(hub: RunningHub) -> None:
    """Otherwise it may call into an interpreter that is no more: a program that was done would end by a crash."""
    words = [sys.executable, "-c", LEFT, hub.url, hub.token]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n[]\n", "")
