"""What dray ships for tests is itself tried: hub processes, mock workers of both faces and both encodings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
import websockets

from dray.errors import HubUnavailable
from dray.testing import RunningHub, make_capability, make_slots, running_hub
from dray.testing.worker_script import MODERN


@pytest.fixture
def hub() -> Iterator[RunningHub]:
    with running_hub(accept_s=1) as running:
        yield running


@pytest.mark.parametrize(("features", "msgpack"), [(None, False), (MODERN, True), (MODERN, False)])
def test_a_worker_walks_a_job_through(
    hub: RunningHub, features: tuple[str, ...] | None, msgpack: bool
) -> None:
    with hub.connect() as client, hub.worker("w1", features=features, msgpack=msgpack) as worker:
        assert worker.register().payload["re"] == "register"
        worker.ready()
        assert worker.recv("no_work").error == ""
        job = client.submit(["true"], name="walk")
        task = worker.assigned()
        assert (task.task_id, task.spec["name"]) == (job.id, "walk")
        worker.accept(task)
        if features:
            worker.started(task)
        worker.heartbeat()
        worker.result(task, "failed", 7, error="on purpose")
        status = job.wait(timeout=60)
    assert (status.state, status.exit_code, status.error) == ("failed", 7, "on purpose")


async def test_the_async_face_does_the_same(hub: RunningHub) -> None:
    async with hub.async_worker("w2", capability=make_capability(gpus=2), slots=make_slots(2)) as worker:
        await worker.register()
        with hub.connect() as client:
            job = await asyncio.to_thread(client.submit, ["true"], gpus=2)
            task = await worker.run_one()
            assert task.devices == [0, 1]
            assert (await asyncio.to_thread(job.wait, 10)).ok
        with pytest.raises(TimeoutError, match="heard no job_assign"):
            await worker.recv("job_assign", timeout_s=0.05)


def test_a_goodbye_hands_unaccepted_work_back(hub: RunningHub) -> None:
    with hub.connect() as client:
        job = client.submit(["true"])
        with hub.worker("leaver") as worker:
            worker.register()
            worker.ready()
            worker.assigned()
        with hub.worker("taker") as worker:
            worker.register()
            assert worker.run_one().task_id == job.id
            assert job.wait(timeout=60).worker == "taker"


def test_a_cut_cable_and_bad_input(hub: RunningHub) -> None:
    with hub.worker("cut") as worker:
        worker.register()
        worker.send_raw("not json")
        assert "envelope" in worker.recv("error").error
        worker.drop()
        with pytest.raises(ConnectionError, match="open it first"):
            worker.ready()


def test_settings_reach_the_hub_and_restarts_keep_home_and_address(hub: RunningHub) -> None:
    url, pid = hub.url, hub.pid
    with hub.connect() as client, hub.worker("slow") as worker:
        worker.register()
        worker.ready()
        job = client.submit(["true"])
        task = worker.assigned()
        assert worker.recv("job_cancel", timeout_s=60).payload["task_id"] == task.task_id  # accept_s=1
    hub.restart()
    assert (hub.url, hub.pid != pid) == (url, True)
    with hub.connect() as client:
        assert client.job(job.id).state == "pending"


def test_a_hub_that_cannot_start_says_why() -> None:
    with pytest.raises(HubUnavailable, match=r"(?i)heartbeat_s"), running_hub(heartbeat_s="soon"):
        pass


def test_a_killed_hub_is_gone_at_once() -> None:
    with running_hub() as hub:
        pid = hub.pid
        hub.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises((OSError, websockets.WebSocketException)):
            hub.worker().open()
