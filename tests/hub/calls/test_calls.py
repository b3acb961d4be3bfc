"""Calls over real sockets through a real hub and its SQLite store: added once, given out, recorded, told, read back."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.hub.calls_desk import DEADLINE_S, SPEC, Client, Lanes, client_of, lanes_of, new_job, rows

from dray.testing import RunningHub, make_spec, running_hub
from dray.wire.messages import client as wire


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def hub() -> Iterator[RunningHub]:
    """A hub of the test's own: it restarts, or its workers must be the only ones."""
    with running_hub() as running:
        yield running


def ask(hub: RunningHub, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=DEADLINE_S)
    try:
        headers = {"Authorization": f"Bearer {token or hub.token}", "Content-Type": "application/json"}
        connection.request(method, f"/api/v1{path}", json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        raw = answer.read()
        is_json = answer.headers["content-type"].startswith("application/json")
        return answer.status, json.loads(raw) if is_json else raw
    finally:
        connection.close()


async def test_calls_are_made_given_out_and_told(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub) as lanes:
        answer = await client.add(job, [b"a%d" % place for place in range(300)], close=True)
        assert answer == {"job": job, "total": 300, "state": "pending"}
        assert await lanes.serve(300) == 300
        found = await client.results(job, 300)
        assert found == {place: ("succeeded", (b"a%d" % place)[::-1]) for place in range(300)}
        ended = (await client.recv(kind=wire.ENDED)).payload
        assert ended == {"job": job, "state": "succeeded", "error": "", "exit_class": ""}
        spec = lanes.specs[lanes.messages[0]["lane"]]
        assert (spec["id"], spec["function"]) == (job, SPEC["function"])
        told = [message for message in lanes.messages if message.get("spec")]
        assert len(told) == len({message["lane"] for message in lanes.messages})


async def test_a_single_call_is_a_job_of_its_own_id(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub) as lanes:
        single = {"job": job, "spec": {"function": b"f"}, "args": [b"abc"]}
        assert (await client.ask("calls", single)).payload == {"job": job, "total": 1, "state": "pending"}
        await lanes.end(1)
        assert await client.results(job, 1) == {0: ("succeeded", b"cba")}
        assert (await client.recv(kind=wire.ENDED)).payload["state"] == "succeeded"
        assert (await client.ask("calls", single)).payload == {"job": job, "total": 1, "state": "succeeded"}
        document = ask(hub, "GET", f"/jobs/{job}")[1]
        assert (document["state"], document["exit_class"], document["worker"]) == ("succeeded", "ok", "w")
        assert [attempt["phase"] for attempt in document["attempts"]] == ["succeeded"]
        assert ask(hub, "GET", f"/jobs/{job}/value") == (200, b"cba")
        got = (await client.ask("result", {"ids": [job]})).payload
        assert got["jobs"][0]["value"] == b"cba"


async def test_sent_again_calls_are_those_that_were_there(shared: RunningHub) -> None:
    job = new_job()
    async with client_of(shared) as client:
        first = {"job": job, "spec": SPEC, "first": 0, "args": [b"0", b"1", b"2"]}
        for _ in range(3):
            assert (await client.ask("calls", first)).payload["total"] == 3
        assert (await client.add(job, [b"1", b"2", b"3", b"4"], first=1))["total"] == 5
        assert (await client.add(job, [b"4"], first=4))["total"] == 5
        assert (await client.refused("calls", {"job": job, "first": 7, "args": [b"x"]}))["code"] == "conflict"
        assert (await client.add(job, [], first=5, close=True))["total"] == 5
        assert (await client.add(job, [], first=5, close=True))["total"] == 5
        assert (await client.add(job, [b"3", b"4"], first=3))["total"] == 5
        records = ask(shared, "GET", "/audit?limit=20")[1]["records"]
        mine = [(record["action"], record["detail"]) for record in records if record["target"] == job]
        assert mine == [("calls", "0 more, closed"), ("calls", "2 more"), ("submit", "1 jobs")]
        late = await client.refused("calls", {"job": job, "first": 5, "args": [b"x"]})
        assert late["code"] == "closed"
        other = await client.refused("calls", first | {"spec": SPEC | {"name": "other"}})
        assert other["code"] == "conflict"
        assert ask(shared, "POST", f"/jobs/{job}/cancel", {})[0] == 200


async def test_what_is_no_call_is_refused(shared: RunningHub) -> None:
    async with client_of(shared) as client:
        job = new_job()
        refused = await client.refused("calls", {"job": job, "args": [b"x"]})
        assert refused["code"] == "not_found"
        refused = await client.refused("calls", {"job": job, "args": [b"x"], "spec": make_spec("true")})
        assert (refused["code"], refused["problems"][0]["where"]) == ("invalid_spec", "function")
        fixed = SPEC | {"array": {"last": 3}}
        refused = await client.refused("calls", {"job": job, "args": [b"x"], "spec": fixed})
        assert refused["problems"][0]["where"] == "array"
        refused = await client.refused(
            "calls", {"job": job, "args": [b"x", b"y"], "spec": {"function": b"f"}}
        )
        assert refused["problems"][0]["where"] == "args"
        big = {"function": b"f" * (256 * 1024 + 1)}
        refused = await client.refused("calls", {"job": job, "args": [b"x"], "spec": big})
        assert "262144" in refused["message"]
        refused = await client.refused("submit", {"specs": [{"function": b"f"}]})
        assert refused["problems"][0]["where"] == "function"
        command = (await client.ask("submit", {"specs": [make_spec("true") | {"id": new_job()}]})).payload[
            "ids"
        ][0]
        refused = await client.refused("calls", {"job": command, "args": [b"x"]})
        assert (refused["code"], "command" in refused["message"]) == ("conflict", True)
        refused = await client.refused("collect", {"job": command})
        assert refused["code"] == "conflict"
        digest = "ab" * 32
        refused = await client.refused(
            "calls", {"job": job, "args": [[digest, 9]], "spec": SPEC, "blobs": ["cd" * 32]}
        )
        assert refused["code"] == "missing_blobs"
        assert {problem["where"] for problem in refused["problems"]} == {digest, "cd" * 32}
        assert (await client.ask("cancel", {"id": command})).type == wire.ANSWER


async def test_others_neither_see_nor_extend_what_is_not_theirs(shared: RunningHub) -> None:
    job = new_job()
    async with client_of(shared) as client, client_of(shared, shared.make_token("eve")) as eve:
        await client.add(job, [b"a"])
        assert (await eve.refused("collect", {"job": job}))["code"] == "not_found"
        assert (await eve.refused("calls", {"job": job, "first": 1, "args": [b"x"]}))["code"] == "not_found"
        taken = await eve.refused("calls", {"job": job, "args": [b"a"], "spec": SPEC})
        assert taken["code"] == "conflict"
        reader = shared.make_token("ana", ["read"])
        async with client_of(shared, reader) as ana:
            assert (await ana.refused("calls", {"job": new_job(), "args": [b"a"], "spec": SPEC}))[
                "code"
            ] == "forbidden"
        await client.ask("cancel", {"id": job})


async def test_results_sent_again_change_nothing_and_are_acked(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub) as lanes:
        await client.add(job, [b"a", b"b", b"c"], close=True)
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        frame = lanes.frame(lane)
        changed = frame | {"value": [b"other"] * len(frame["index"]), "seq": 77}
        for one in (frame, frame, changed):
            await lanes.worker.send("calls_result", one)
            await lanes.acked(one["seq"])
        stranger = frame | {"lane": "9-9", "seq": 78}
        await lanes.worker.send("calls_result", stranger)
        await lanes.acked(78)
        await lanes.worker.send("calls_result", frame | {"job": "another", "seq": 79})
        assert "not of another" in (await lanes.worker.recv("error")).error
        await lanes.acked(79)
        await lanes.serve(3 - len(frame["index"]))
        found = await client.results(job, 3)
        assert found == {0: ("succeeded", b"a"), 1: ("succeeded", b"b"), 2: ("succeeded", b"c")}
        collected = await client.collect(job)
        assert rows(collected) == found
        assert (collected["next"], collected["job_state"]) == (None, "succeeded")


async def test_failures_are_told_with_their_value_and_words(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub, slots=1) as lanes:
        await client.add(job, [b"ab", b"cd"], close=True)
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        index = next(iter(lanes.calls[lane]))
        details = {str(index): ["raised", "ValueError: no" + "!" * 5000]}
        await lanes.worker.send("calls_result", lanes.frame(lane, [index], "failed", details=details))
        pushed = (await client.recv(kind=wire.RESULTS)).payload
        assert rows(pushed) == {0: ("failed", b"ba")}
        kind, words = pushed["details"]["0"]
        assert (kind, len(words)) == ("raised", 4096)
        await lanes.serve(1)
        assert (await client.recv(kind=wire.ENDED)).payload["state"] == "failed"
        collected = await client.collect(job)
        assert rows(collected) == {0: ("failed", b"ba"), 1: ("succeeded", b"dc")}
        assert collected["details"]["0"][0] == "raised"
        tasks = ask(hub, "GET", f"/jobs/{job}/tasks")[1]["tasks"]
        assert [(task["state"], task["exit_class"]) for task in tasks] == [
            ("failed", "raised"),
            ("succeeded", "ok"),
        ]
        assert ask(hub, "GET", f"/jobs/{job}/tasks?state=failed")[1]["tasks"] == tasks[:1]
        values = (await client.ask("values", {"id": job})).payload
        assert (values["states"], values["values"]) == (["failed", "succeeded"], [b"ba", b"dc"])


async def test_a_failure_with_tries_left_is_no_result(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub, slots=1) as lanes:
        await client.ask("calls", {"job": job, "args": [b"ab"], "spec": SPEC | {"retries": 1}, "close": True})
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        await lanes.worker.send(
            "calls_result", lanes.frame(lane, [0], "failed", details={"0": ["raised", "once"]})
        )
        await lanes.take(1)
        assert rows(await client.collect(job)) == {}
        await lanes.end(1)
        assert await client.results(job, 1) == {0: ("succeeded", b"ba")}
        task = ask(hub, "GET", f"/jobs/{job}/tasks")[1]["tasks"][0]
        assert (task["state"], task["failures"]) == ("succeeded", 1)


async def test_a_worker_that_knows_base_only_gets_no_calls(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, hub.async_worker("plain") as plain:
        await plain.register()
        await plain.ready()
        await client.add(job, [b"a"], close=True)
        command = (await client.ask("submit", {"specs": [make_spec("true")]})).payload["ids"][0]
        assert (await plain.assigned()).task_id == command
        assert all(heard.type != "calls_assign" for heard in plain.script.held)
        await plain.send("calls_result", {"seq": 1, "lane": "1-1", "job": job, "index": [0], "no": [1],
                                          "state": "succeeded", "value": [None], "wall_us": [1]})  # fmt: skip
        assert "feature 'calls'" in (await plain.recv("error")).error
        assert (await client.collect(job))["index"] == []
        async with lanes_of(hub) as lanes:
            await lanes.serve(1)
            await client.results(job, 1)


async def test_calls_are_cancelled_and_queued_again_one_by_one(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub, slots=1) as lanes:
        await client.add(job, [b"a", b"b", b"c"], close=True)
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        held = dict(lanes.calls[lane])
        assert 0 in held
        # One that waits is gone at once; its place is not filled.
        assert (await client.ask("cancel", {"id": job, "task": 2})).type == wire.ANSWER
        pushed = (await client.recv(kind=wire.RESULTS)).payload
        assert rows(pushed) == {2: ("killed", None)}
        assert pushed["details"]["2"][0] == "cancelled"
        # One that runs is queued again with its lane, by a higher number.
        assert (await client.ask("requeue", {"id": job, "task": 0})).payload.get("note") is None
        cancel = (await lanes.worker.recv("job_cancel", DEADLINE_S)).payload
        assert (cancel["task_id"], cancel["attempt"]) == (job, lane)
        frame = lanes.frame(lane, state="killed")
        await lanes.worker.send("calls_result", frame)
        await lanes.worker.send("job_result", {"task_id": job, "attempt": lane, "state": "killed"})
        await lanes.worker.ready()
        await lanes.serve(2)
        found = await client.results(job, 2)
        assert found == {0: ("succeeded", b"a"), 1: ("succeeded", b"b")}
        assert (await client.recv(kind=wire.ENDED)).payload["state"] == "killed"
        again = next(
            message for message in lanes.messages if message["lane"] != lane and 0 in message["index"]
        )
        assert again["no"][again["index"].index(0)] > held[0][0]
        refused = await client.refused("requeue", {"id": job, "task": 0})
        assert refused["code"] == "conflict"


async def restarted(hub: RunningHub) -> None:
    """Kill the hub as a crash does and start it again."""
    await asyncio.to_thread(hub.kill)
    await asyncio.to_thread(hub.start)


async def test_a_hub_that_dies_between_any_two_steps_loses_and_doubles_nothing(hub: RunningHub) -> None:
    job = new_job()
    args = [b"v%d" % place for place in range(40)]
    async with client_of(hub) as client:
        await client.add(job, args[:20])
    await restarted(hub)
    async with client_of(hub) as client:
        assert (await client.add(job, args[:20]))["total"] == 20
        assert (await client.add(job, args[20:], first=20))["total"] == 40
    await restarted(hub)
    lane, frame = "", {}
    async with client_of(hub) as client, lanes_of(hub, slots=1, journal_id="j") as lanes:
        assert (await client.add(job, [], first=40, close=True))["total"] == 40
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        frame = lanes.frame(lane)
        await lanes.worker.drop()
    # Given out and never answered: the same calls come again on the same lane, by the same number of their try.
    await restarted(hub)
    active = [{"task_id": job, "attempt": lane, "state": "running"}]
    async with lanes_of(hub, slots=1, journal_id="j", active_tasks=active) as again:
        await again.take(1)
        resent = again.messages[0]
        assert (resent["lane"], resent["index"], resent["no"]) == (lane, frame["index"], frame["no"])
        again.calls.clear()
        await again.worker.send("calls_result", frame)
        await again.acked(frame["seq"])
        await again.worker.drop()
    await restarted(hub)
    # Recorded before: sent again after the register, it is acked and changes nothing.
    async with client_of(hub) as client, lanes_of(hub, slots=1, journal_id="j", active_tasks=active) as last:
        await last.worker.send("calls_result", frame | {"value": [b"late"] * len(frame["index"])})
        await last.acked(frame["seq"])
        collected = await client.collect(job)
        assert sorted(collected["index"]) == sorted(frame["index"])
        await serve_rest(last, client, job, 40)
        collected = await client.collect(job)
        assert rows(collected) == {place: ("succeeded", value[::-1]) for place, value in enumerate(args)}
        assert collected["job_state"] == "succeeded"


async def serve_rest(lanes: Lanes, client: Client, job: str, total: int) -> None:
    """Go on until every call has a result."""
    async with asyncio.timeout(DEADLINE_S):
        while len((await client.collect(job))["index"]) < total:
            await lanes.end()
            await lanes.acked(lanes.seq)
