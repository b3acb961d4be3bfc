"""Calls as people see them, from submit until they are forgotten: documents, lists, output, what they wait for."""

from __future__ import annotations

import asyncio
import http.client
import json
import sqlite3
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.hub.calls_desk import DEADLINE_S, SPEC, client_of, lanes_of, new_job

from dray.testing import RunningHub, make_slots, make_spec, running_hub
from dray.wire.messages import client as wire


@pytest.fixture
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


def fetch(hub: RunningHub, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=DEADLINE_S)
    try:
        connection.request("GET", f"/api/v1{path}", None, {"Authorization": f"Bearer {hub.token}"})
        answer = connection.getresponse()
        raw = answer.read()
        is_json = answer.headers["content-type"].startswith("application/json")
        return answer.status, json.loads(raw) if is_json else raw
    finally:
        connection.close()


async def get(hub: RunningHub, path: str) -> Any:
    status, document = await asyncio.to_thread(fetch, hub, path)
    assert status == 200, document
    return document


async def test_calls_that_wait_run_and_have_ended(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub, slots=1) as lanes:
        await client.ask("calls", {"job": job, "args": [b"x"] * 6, "spec": SPEC | {"name": "square"}})
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        first = next(iter(lanes.calls[lane]))
        await lanes.worker.send("calls_result", lanes.frame(lane, [first], wall_us=[250_000]))
        await client.results(job, 1)
        await lanes.take(1)
        document = await get(hub, f"/jobs/{job}")
        assert (document["calls"], document["state"], document["name"]) == (True, "running", "square")
        assert "function" not in document["spec"]
        assert document["tasks"]["total"] == 6
        assert document["tasks"]["succeeded"] == 1
        tasks = (await get(hub, f"/jobs/{job}/tasks"))["tasks"]
        assert [task["id"] for task in tasks] == [f"{job}/{place}" for place in range(6)]
        assert tasks[0]["state"] == "succeeded"
        attempt = tasks[0]["attempts"][0]
        assert (attempt["uid"], attempt["worker"], attempt["usage"]["wall_s"]) == (lane, "w", 0.25)
        running = [task for task in tasks if task["state"] == "running"]
        assert [task["worker"] for task in running] == ["w"] * len(running)
        assert running
        assert tasks[-1]["state"] == "pending"
        page = await get(hub, f"/jobs/{job}/tasks?limit=2")
        assert (len(page["tasks"]), page["next_cursor"]) == (2, "2")
        page = await get(hub, f"/jobs/{job}/tasks?state=pending&limit=1000")
        assert [task["state"] for task in page["tasks"]] == ["pending"] * (5 - len(running))
        assert [one["id"] for one in (await get(hub, "/jobs"))["jobs"]] == [job]
        assert (await get(hub, f"/jobs/{job}/events"))["events"]
        assert (await get(hub, f"/jobs/{job}/why"))["summary"]
        shown = await get(hub, "/workers/w")
        assert [line["task_id"] for line in shown["jobs"]] == [job]
        status, said = await asyncio.to_thread(fetch, hub, f"/jobs/{job}/value?task={running[0]['index']}")
        assert (status, said["error"]["code"]) == (409, "conflict")
        doctor = await get(hub, "/doctor")
        assert doctor["ok"], doctor["checks"]


async def test_each_call_has_its_own_output(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub, slots=1) as lanes:
        await client.add(job, [b"x"] * 3, close=True)
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        first = next(iter(lanes.calls[lane]))
        log = {
            "task_id": f"{job}/{first}",
            "attempt": lane,
            "stream": "stdout",
            "offset": 0,
            "data": b"hello ",
        }
        await lanes.worker.send("job_log", log)
        await lanes.worker.send("job_log", log | {"offset": 6, "data": b"you\n"})
        await lanes.worker.send("job_log", log | {"task_id": f"{job}/2", "data": b"third\n"})
        offsets: list[Any] = []
        while len(offsets) < 3:
            ack = (await lanes.worker.recv("ack")).payload
            offsets += [ack["log_offsets"]] if ack["re"] == "job_log" else []
        name = f"{lane}.{first}"
        assert offsets[1] == {name: {"stdout": 10, "stderr": 0}}
        assert offsets[2] == {f"{lane}.2": {"stdout": 6, "stderr": 0}}
        assert await get(hub, f"/jobs/{job}/logs?task={first}") == b"hello you\n"
        await lanes.worker.send("job_log", log | {"attempt": "9-9"})
        assert "no attempt" in (await lanes.worker.recv("error")).error
        await lanes.serve(3)
        assert (await client.recv(kind=wire.ENDED)).payload["state"] == "succeeded"
        # What comes after the result still belongs to its call.
        await lanes.worker.send("job_log", log | {"offset": 10, "data": b"late\n"})
        deadline = time.monotonic() + DEADLINE_S
        while (await get(hub, f"/jobs/{job}/logs?task={first}")) != b"hello you\nlate\n":
            assert time.monotonic() < deadline
        assert await get(hub, f"/jobs/{job}/logs?task=2") == b"third\n"
        assert await get(hub, f"/jobs/{job}/logs?task=1") == b""
        async with hub.async_worker(
            "thief", slots=make_slots(), features=("job_log",), msgpack=True
        ) as thief:
            await thief.register()
            await thief.send("job_log", log)
            assert "no attempt" in (await thief.recv("error")).error


async def test_a_task_that_waits_for_its_children_gives_its_slot_to_them(hub: RunningHub) -> None:
    parent, child = new_job("parent"), new_job("child")
    async with client_of(hub) as client, lanes_of(hub, slots=1) as lanes:
        await client.add(parent, [b"p"], close=True)
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        await lanes.worker.send("job_started", {"task_id": parent, "attempt": lane})
        await client.add(child, [b"c"], close=True)
        await lanes.worker.send("job_yield", {"task_id": parent, "attempt": lane})
        await lanes.worker.ready(credits=1)
        while not any(name != lane for name in lanes.calls):
            lanes._note((await lanes.worker.recv("calls_assign", DEADLINE_S)).payload)
        (other,) = [name for name in lanes.calls if name != lane]
        await lanes.worker.send("job_resume", {"task_id": parent, "attempt": lane})
        await lanes.worker.send("calls_result", lanes.frame(other))
        resumed = (await lanes.worker.recv("job_resume", DEADLINE_S)).payload
        assert resumed == {"task_id": parent, "attempt": lane}
        await lanes.worker.send("job_resume", {"task_id": parent, "attempt": lane})
        assert (await lanes.worker.recv("job_resume", DEADLINE_S)).payload == resumed
        await lanes.worker.send("calls_result", lanes.frame(lane))
        ended = {(await client.recv(kind=wire.ENDED)).payload["job"] for _ in range(2)}
        assert ended == {parent, child}
        await lanes.worker.send("job_yield", {"task_id": parent, "attempt": lane})
        await lanes.worker.send("job_resume", {"task_id": parent, "attempt": "9-9"})
        assert (await client.ask("ping")).type == wire.ANSWER


async def test_a_job_may_wait_for_one_call(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub, slots=1) as lanes:
        await client.add(job, [b"a", b"b"])
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        after = {"function": b"f", "after": [f"ok:{job}/0"]}
        waiting = new_job("waits")
        await client.ask("calls", {"job": waiting, "spec": after, "args": [b"w"]})
        assert (await get(hub, f"/jobs/{waiting}"))["after"] == [f"ok:{job}/0"]
        await lanes.worker.send("calls_result", lanes.frame(lane, [0]))
        await client.results(job, 1)
        assert (await get(hub, f"/jobs/{waiting}"))["after"] == []
        # One that is submitted after that call ended finds it in its chunk.
        late = new_job("late")
        await client.ask("calls", {"job": late, "spec": after, "args": [b"w"]})
        assert (await get(hub, f"/jobs/{late}"))["after"] == []
        never = new_job("never")
        broken = {"function": b"f", "after": [f"fail:{job}/0"]}
        answer = (await client.ask("calls", {"job": never, "spec": broken, "args": [b"w"]})).payload
        assert answer["state"] == "killed"
        missing = {"function": b"f", "after": [f"ok:{job}/9"]}
        refused = await client.refused("calls", {"job": new_job(), "spec": missing, "args": [b"w"]})
        assert "has no task 9" in refused["message"]
        command = make_spec("true") | {"after": [f"any:{job}/0"]}
        assert (await client.ask("submit", {"specs": [command]})).type == wire.ANSWER


async def test_results_are_read_until_their_job_is_forgotten() -> None:
    job = new_job()
    with running_hub(finished_s=1.0) as hub:
        async with client_of(hub) as client, lanes_of(hub) as lanes:
            await client.add(job, [b"ab"] * 30, close=True)
            await lanes.serve(30)
            assert (await client.recv(kind=wire.ENDED)).payload["state"] == "succeeded"
        hub.restart()
        async with client_of(hub) as client:
            assert len((await client.collect(job))["index"]) == 30
            assert await get(hub, f"/jobs/{job}/value?task=29") == b"ba"
            tasks = (await get(hub, f"/jobs/{job}/tasks"))["tasks"]
            assert {task["state"] for task in tasks} == {"succeeded"}
        hub.stop()
        sweep(hub)
        hub.start()
        async with client_of(hub) as client:
            assert (await client.refused("collect", {"job": job}))["code"] == "not_found"
            assert (await asyncio.to_thread(fetch, hub, f"/jobs/{job}/value?task=0"))[0] == 404
            assert (await client.refused("calls", {"job": job, "first": 30, "args": [b"x"]}))[
                "code"
            ] == "not_found"
        with sqlite3.connect(hub.home / "hub.sqlite") as connection:
            for table in ("call_args", "call_results"):
                query = f"SELECT count(*) FROM {table}"  # noqa: S608 - one of the names above
                assert connection.execute(query).fetchone() == (0,)


def sweep(hub: RunningHub) -> None:
    """What housekeeping does once a minute, done now on the store of a hub that is down."""
    from dray.hub.store.base import Retention
    from dray.hub.store.sqlite.store import SqliteStore

    store = SqliteStore.open(hub.home / "hub.sqlite")
    store.begin_epoch()
    later = round(time.time() * 1000) + 3_600_000
    assert store.sweep(Retention(later, 10**9, 0, 0, 0))
    store.close(clean=True)
