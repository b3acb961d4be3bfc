"""The client channel over real sockets against a real hub: framing, rules, ownership, limits, watches."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import websockets
from tests.hub.calls_desk import Client
from websockets.asyncio.client import connect

from dray.testing import MockWorker, RunningHub, make_spec, running_hub
from dray.wire.messages import client as wire

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub(queue_bytes=65536, batch_specs=600) as running:
        yield running


@pytest.fixture
def quiet_hub() -> Iterator[RunningHub]:
    """A hub where nothing else waits for a worker."""
    with running_hub() as running:
        yield running


class Raw(Client):
    """What jobs and the channel itself have to say."""

    async def rows(self, job_id: str, last: bool = True) -> list[dict[str, Any]]:
        """Pushed rows of a job, up to its last one."""
        rows: list[dict[str, Any]] = []
        while True:
            changed = await self.recv(kind=wire.CHANGED)
            rows += [row for row in changed.payload["jobs"] if row["id"] == job_id]
            if rows and (not last or "document" in rows[-1]):
                return rows

    async def closed(self) -> tuple[int | None, str | None]:
        with contextlib.suppress(websockets.ConnectionClosed):
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    await self.connection.recv()
        return self.connection.close_code, self.connection.close_reason


@contextlib.asynccontextmanager
async def opened(hub: RunningHub, token: str = "", **options: Any) -> Any:
    options = {"subprotocols": [websockets.Subprotocol(wire.SUBPROTOCOL_CLIENT)], **options}
    async with connect(
        "ws" + hub.url.removeprefix("http") + wire.CLIENT_PATH,
        additional_headers={"Authorization": f"Bearer {token or hub.token}"},
        compression=None,
        max_size=None,
        proxy=None,
        **options,
    ) as connection:
        yield Raw(connection)


def call(hub: RunningHub, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        sent = {"Authorization": f"Bearer {hub.token}", "Content-Type": "application/json", **headers}
        connection.request(method, f"/api/v1{path}", json.dumps(body) if body else None, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def show(hub: RunningHub, job_id: str) -> Any:
    return call(hub, "GET", f"/jobs/{job_id}")[1]


async def test_submit_answers_in_columns_and_http_shows_the_same_jobs(hub: RunningHub) -> None:
    async with opened(hub) as raw:
        assert raw.connection.subprotocol == wire.SUBPROTOCOL_CLIENT
        answer = (await raw.ask("submit", {"specs": [make_spec("a"), make_spec("b")], "key": "two"})).payload
        assert answer["created"] is True
        assert answer["states"] == ["pending", "pending"]
        shown = [show(hub, job_id)["spec"]["command"] for job_id in answer["ids"]]
        assert shown == [["a"], ["b"]]


async def test_many_requests_in_one_frame_are_answered_each_under_its_id(hub: RunningHub) -> None:
    async with opened(hub) as raw:
        messages = [wire.write_message("ping", f"p{place}") for place in range(300)]
        messages.append(wire.write_message("submit", "s", {"specs": [make_spec()]}))
        await raw.connection.send(wire.join_messages(messages))
        epochs = {(await raw.recv(f"p{place}")).payload["epoch"] for place in range(300)}
        assert epochs == {1}
        assert (await raw.recv("s")).type == wire.ANSWER


async def test_a_key_makes_a_submit_happen_once_over_either_way_in(hub: RunningHub) -> None:
    async with opened(hub) as one, opened(hub) as two:
        payload = {"specs": [make_spec("once")], "key": "shared key"}
        first, second = await asyncio.gather(one.ask("submit", payload), two.ask("submit", payload))
        assert first.payload["ids"] == second.payload["ids"]
        assert sorted((first.payload["created"], second.payload["created"])) == [False, True]
        other = await two.ask("submit", {"specs": [make_spec("other")], "key": "shared key"})
        assert other.error["code"] == "conflict"
    status, document = call(hub, "POST", "/jobs", make_spec("once"), **{"Idempotency-Key": "shared key"})
    assert (status, document["id"]) == (200, first.payload["ids"][0])


async def test_every_problem_of_every_spec_comes_back_at_once(hub: RunningHub) -> None:
    async with opened(hub) as raw:
        specs = [make_spec(), make_spec(gpu_count=-1), {"comand": ["x"]}, 7]
        refusal = await raw.ask("submit", {"specs": specs})
        assert refusal.error["code"] == "invalid_spec"
        places = [problem["where"] for problem in refusal.error["problems"]]
        assert places == ["[1].gpu_count", "[2].comand", "[3]"]


@pytest.mark.parametrize(
    ("kind", "payload", "code"),
    [
        ("submit", {"specs": []}, "invalid_input"),
        ("submit", {"specs": [{}], "key": "caf\u00e9"}, "invalid_input"),
        ("submit", {"specs": [make_spec()] * 601}, "too_large"),
        ("submit", {"spec": make_spec()}, "invalid_input"),
        ("why", {"id": "nobody"}, "not_found"),
        ("cancel", {"id": "nobody"}, "not_found"),
        ("cancel", {"id": "a b"}, "invalid_input"),
        ("cancel", {"id": "x", "grace_s": -1}, "invalid_input"),
        ("values", {"id": "nobody"}, "not_found"),
        ("values", {"id": "x", "first": -1}, "invalid_input"),
        ("jobs", {"states": ["happy"]}, "invalid_input"),
        ("jobs", {"cursor": "x"}, "invalid_input"),
        ("jobs", {"limit": 0}, "invalid_input"),
        ("get", {"ids": ["x"] * 1001}, "invalid_input"),
        ("plan", {"spec": 3}, "invalid_input"),
        ("dance", {}, "invalid_input"),
    ],
)
async def test_bad_requests_are_refused_in_the_documented_shape(
    hub: RunningHub, kind: str, payload: Any, code: str
) -> None:
    async with opened(hub) as raw:
        refusal = await raw.ask(kind, payload)
        assert (refusal.type, refusal.error["code"]) == (wire.ERROR, code)
        assert set(refusal.error) == {"code", "message", "problems"}
        assert (await raw.ask("ping")).type == wire.ANSWER


async def test_a_frame_that_cannot_be_read_is_answered_without_an_id_and_the_tenth_closes(
    hub: RunningHub,
) -> None:
    async with opened(hub) as raw:
        for bad in (b"\xc1", b"", "text", msgspec.msgpack.encode([1]), b"\x91" * 100_000):
            await raw.connection.send(bad)
            assert (await raw.recv(None)).error["code"] == "invalid_input"
        assert (await raw.ask("ping")).type == wire.ANSWER
        for _ in range(10):
            await raw.connection.send(msgspec.msgpack.encode({"type": "ping"}))
        code, reason = await raw.closed()
        assert code == 4400
        assert "10 bad messages" in (reason or "")


async def test_a_frame_over_the_limit_closes_with_4400(hub: RunningHub) -> None:
    async with opened(hub) as raw:
        await raw.connection.send(wire.write_message("submit", 1, {"specs": ["x" * (8 << 20)]}))
        assert (await raw.closed())[0] == 4400


async def test_a_foreign_subprotocol_is_refused(hub: RunningHub) -> None:
    with pytest.raises(websockets.ConnectionClosed) as closed:
        async with opened(hub, subprotocols=[websockets.Subprotocol("soap")]) as raw:
            await raw.connection.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4400


@pytest.mark.parametrize(("scopes", "status"), [(("worker",), 403), (None, 401)])
async def test_the_upgrade_needs_a_token_with_a_scope(
    hub: RunningHub, scopes: tuple[str, ...] | None, status: int
) -> None:
    token = hub.make_token("wes", scopes) if scopes else "dray_no_such"
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with opened(hub, token):
            pass
    assert refused.value.response.status_code == status


async def test_read_scope_reads_and_changes_nothing(hub: RunningHub) -> None:
    async with opened(hub, hub.make_token("rea", ("read",))) as raw:
        assert (await raw.ask("jobs")).payload["jobs"] == []
        for kind, payload in (("submit", {"specs": [make_spec()]}), ("cancel", {"id": "x"})):
            assert (await raw.ask(kind, payload)).error["code"] == "forbidden"


async def test_what_belongs_to_others_is_not_there(hub: RunningHub) -> None:
    async with opened(hub) as owner, opened(hub, hub.make_token("eve")) as eve:
        (job_id,) = (await owner.ask("submit", {"specs": [make_spec()]})).payload["ids"]
        for kind in ("get", "result", "watch"):
            answer = (await eve.ask(kind, {"ids": [job_id]})).payload
            assert (answer["jobs"], answer["missing"]) == ([], [job_id])
        for kind in ("cancel", "why", "values", "tasks"):
            assert (await eve.ask(kind, {"id": job_id})).error["code"] == "not_found"
        assert (await eve.ask("submit", {"specs": [make_spec(user_id="ada")]})).error["code"] == "forbidden"
        assert (await owner.ask("cancel", {"id": job_id})).payload["state"] == "killed"
        await eve.ask("ping")
        assert not [reply for reply in eve.heard if reply.type == wire.CHANGED]


async def test_a_watch_tells_each_change_and_the_document_once(quiet_hub: RunningHub) -> None:
    hub = quiet_hub
    worker = hub.worker()
    async with opened(hub) as raw:
        (job_id,) = (await raw.ask("submit", {"specs": [make_spec()]})).payload["ids"]
        (row,) = (await raw.ask("watch", {"ids": [job_id, job_id]})).payload["jobs"]
        assert (row["state"], row["phase"]) == ("pending", "queued")
        with worker:
            await asyncio.to_thread(worker.register)
            await asyncio.to_thread(worker.run_one)
        rows = await raw.rows(job_id)
        assert [row["turn"] for row in rows] == sorted(row["turn"] for row in rows)
        assert rows[-1]["document"] == show(hub, job_id)
        assert sum("document" in row for row in rows) == 1
        again = (await raw.ask("watch", {"ids": [job_id]})).payload["jobs"]
        assert again[0]["document"]["state"] == "succeeded"


async def test_unwatch_ends_the_telling(hub: RunningHub) -> None:
    async with opened(hub) as raw:
        ids = (await raw.ask("submit", {"specs": [make_spec(), make_spec()]})).payload["ids"]
        await raw.ask("watch", {"ids": ids})
        assert (await raw.ask("unwatch", {"ids": ids[:1]})).type == wire.ANSWER
        for job_id in ids:
            await raw.ask("cancel", {"id": job_id})
        changed = await raw.recv(kind=wire.CHANGED)
        assert [row["id"] for row in changed.payload["jobs"]] == ids[1:]


async def test_results_and_values_carry_the_bytes_a_task_gave_back(quiet_hub: RunningHub) -> None:
    def serve(worker: MockWorker) -> None:
        with worker:
            worker.register()
            for place in range(4):
                worker.run_one(value=b"\x00value %d" % place)
                worker.recv("ack")

    hub = quiet_hub
    async with opened(hub) as raw:
        specs = [make_spec(), make_spec(array={"first": 0, "last": 2})]
        single, array = (await raw.ask("submit", {"specs": specs})).payload["ids"]
        early = (await raw.ask("result", {"ids": [single, "nobody"]})).payload
        assert (early["jobs"], early["unfinished"], early["missing"]) == ([], [single], ["nobody"])
        await raw.ask("watch", {"ids": [single, array]})
        await asyncio.to_thread(serve, hub.worker(features=["job_started"], msgpack=True))
        assert (await raw.rows(array))[-1]["tasks"]["succeeded"] == 3
        (row,) = (await raw.ask("result", {"ids": [single]})).payload["jobs"]
        assert (row["value"], row["document"]["exit_code"]) == (b"\x00value 0", 0)
        columns = (await raw.ask("values", {"id": array})).payload
        assert columns["values"] == [b"\x00value 1", b"\x00value 2", b"\x00value 3"]
        assert (columns["states"], columns["next"]) == (["succeeded"] * 3, None)
        part = (await raw.ask("values", {"id": array, "first": 1, "limit": 1})).payload
        assert (part["values"], part["next"]) == ([b"\x00value 2"], 2)


async def test_long_answers_are_cut_and_say_what_is_left(hub: RunningHub) -> None:
    async with opened(hub) as raw:
        big = [make_spec("x", "y" * 200_000) for _ in range(30)]
        ids = [
            job
            for part in (big[:15], big[15:])
            for job in (await raw.ask("submit", {"specs": part})).payload["ids"]
        ]
        answer = (await raw.ask("get", {"ids": ids})).payload
        assert answer["left"]
        assert [job["id"] for job in answer["jobs"]] + answer["left"] == ids


async def test_a_watcher_that_does_not_read_is_closed_with_1013(hub: RunningHub) -> None:
    async with opened(hub, max_queue=1) as slow, opened(hub) as other:
        ids: list[str] = []
        for _ in range(6):
            specs = [make_spec("x", "y" * 100_000) for _ in range(25)]
            ids += (await other.ask("submit", {"specs": specs})).payload["ids"]
        await slow.ask("watch", {"ids": ids})
        slow.connection.transport.pause_reading()
        for job_id in ids:
            await other.ask("cancel", {"id": job_id})
        slow.connection.transport.resume_reading()
        assert (await slow.closed())[0] == 1013
        assert (await other.ask("ping")).type == wire.ANSWER


async def test_a_revoked_token_ends_the_channel(hub: RunningHub) -> None:
    token = hub.make_token("gone")
    async with opened(hub, token) as raw:
        await raw.ask("ping")
        tokens = call(hub, "GET", "/tokens")[1]["tokens"]
        (token_id,) = [entry["id"] for entry in tokens if entry["user"] == "gone"]
        assert call(hub, "DELETE", f"/tokens/{token_id}")[0] == 200
        assert (await raw.closed()) == (4401, f"token {token_id} was revoked")


async def test_a_stopping_hub_answers_what_it_has_recorded() -> None:
    with running_hub() as hub:
        async with opened(hub) as raw:
            messages = [
                wire.write_message("submit", place, {"specs": [make_spec()], "key": f"k{place}"})
                for place in range(600)
            ]
            await raw.connection.send(wire.join_messages(messages))
            await raw.recv(0)
            stopping = asyncio.create_task(asyncio.to_thread(hub.stop))
            answered = {0}
            with contextlib.suppress(websockets.ConnectionClosed):
                while True:
                    replies, raw.heard = raw.heard, []
                    answered |= {reply.id for reply in replies if reply.type == wire.ANSWER}
                    raw.heard = wire.read_replies(await raw.connection.recv())
            await stopping
        hub.start()
        async with opened(hub) as raw:
            assert len((await raw.ask("jobs", {"limit": 1000})).payload["jobs"]) == len(answered)


async def test_a_stopping_hub_says_goodbye_with_1001() -> None:
    with running_hub() as hub:
        async with opened(hub) as raw:
            await raw.ask("ping")
            stopping = asyncio.create_task(asyncio.to_thread(hub.stop))
            assert (await raw.closed())[0] == 1001
            await stopping
