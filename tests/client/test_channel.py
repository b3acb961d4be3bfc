"""The channel across breaks: a hub that dies and comes back, tokens that end, watches that go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from dray.client.faces.async_hub import AsyncHub
from dray.client.reach.channel import Channel
from dray.client.reach.discovery import Target, settle_config
from dray.core.model.records.records import JobState
from dray.errors import Conflict, HubUnavailable, NotFound, TooLarge, Unauthenticated
from dray.testing import RunningHub, make_spec, running_hub
from dray.wire.reach.websocket import WebSocket

DEADLINE_S = 60.0
WaitUntil = Callable[..., Awaitable[object]]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "hub") as running:
        yield running


def client_of(running: RunningHub, token: str = "", **flags: Any) -> AsyncHub:
    return AsyncHub(settle_config(running.home, token=token or None, **flags))


async def test_a_hub_killed_amid_submits_doubles_nothing_and_loses_nothing(hub: RunningHub) -> None:
    names = [f"n{place}" for place in range(400)]
    async with client_of(hub) as client, asyncio.timeout(DEADLINE_S):
        answered: asyncio.Queue[str] = asyncio.Queue()

        async def submit(name: str) -> str:
            job = await client.submit(["true"], name=name)
            answered.put_nowait(name)
            return job.id

        async def keep_submitting(part: list[str]) -> list[str]:
            return [await submit(name) for name in part]

        running = [asyncio.create_task(keep_submitting(names[start::8])) for start in range(8)]
        for _ in range(2):
            for _ in range(60):
                await answered.get()
            await asyncio.to_thread(hub.kill)
            assert not all(task.done() for task in running)
            await asyncio.to_thread(hub.start)
        ids = [job_id for task in running for job_id in await task]
        jobs = await client.jobs(limit=1000)
    assert sorted(job["name"] for job in jobs) == sorted(names)
    assert sorted(job.id for job in jobs) == sorted(ids)


async def test_a_batch_cut_off_by_a_crash_is_sent_again_under_its_key(hub: RunningHub) -> None:
    async with client_of(hub) as client, asyncio.timeout(DEADLINE_S):
        await client.ping()
        specs = [make_spec("true", name=f"b{place}") for place in range(2000)]
        submitting = asyncio.create_task(client.submit_specs(specs))
        await asyncio.sleep(0)
        await asyncio.to_thread(hub.kill)
        await asyncio.to_thread(hub.start)
        jobs = await submitting
        listed = await client.jobs(limit=5000)
    assert sorted(job.id for job in jobs) == sorted(job.id for job in listed)
    assert len(jobs) == 2000


class DeafProxy:
    """Stands between client and hub. While `deaf`, requests pass and answers are lost; then it cuts the line."""

    def __init__(self, url: str) -> None:
        self._host, self._port = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self.deaf = False
        self.swallowed = asyncio.Event()
        self.connections = 0
        self._lines: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._lines.append(asyncio.ensure_future(self._join(reader, writer)))

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hub_reader, hub_writer = await asyncio.open_connection(self._host, self._port)
        there = asyncio.create_task(self._copy(reader, hub_writer, False))
        try:
            await self._copy(hub_reader, writer, True)
        finally:
            there.cancel()
            for end in (writer, hub_writer):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if back and self.deaf:
                    self.deaf = False
                    self.swallowed.set()
                    return
                sink.write(data)
                await sink.drain()


async def test_a_submit_whose_answer_was_lost_is_the_same_job_when_sent_again(hub: RunningHub) -> None:
    async with (
        DeafProxy(hub.url) as proxy,
        asyncio.timeout(DEADLINE_S),
        client_of(hub, hub=proxy.url) as client,
    ):
        proxy.deaf = True
        job = await client.submit(["true"], name="once")
        assert proxy.swallowed.is_set()
        assert proxy.connections == 2
        # The first sending had made it: what came back was the answer to the second.
        assert job.created is False
        assert [status.id for status in await client.jobs()] == [job.id]


async def test_a_wait_outlives_the_hub(hub: RunningHub) -> None:
    async with client_of(hub) as client, asyncio.timeout(DEADLINE_S):
        job = await client.submit(["true"])
        waiting = asyncio.create_task(client.wait(job))
        await client.ping()
        await asyncio.to_thread(hub.kill)
        await asyncio.to_thread(hub.start)
        async with hub.async_worker() as worker:
            await worker.register()
            await worker.run_one()
            status = await waiting
    assert (status.state, status.exit_code, status.ok) == (JobState.SUCCEEDED, 0, True)


async def test_a_hub_that_is_away_for_longer_is_told_of_once(
    hub: RunningHub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wait_until_async: WaitUntil,
) -> None:
    monkeypatch.setattr("dray.client.reach.channel.SAY_AFTER_S", 0.05)
    async with client_of(hub) as client, asyncio.timeout(DEADLINE_S):
        await client.ping()
        await asyncio.to_thread(hub.kill)
        await wait_until_async(lambda: "dialling on" in caplog.text)
        await asyncio.to_thread(hub.start)
        await client.ping()
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["no", "the"]
    assert "What was submitted goes on" in caplog.text
    assert "the hub is back after" in caplog.text


async def test_rows_are_followed_to_the_end(hub: RunningHub) -> None:
    async with client_of(hub) as client, asyncio.timeout(DEADLINE_S), hub.async_worker() as worker:
        await worker.register()
        job = await client.submit(["true"])
        await worker.ready()
        task = await worker.assigned()
        states = []
        async for row in client.follow(job):
            states.append(row["state"])
            if len(states) == 1:
                await worker.accept(task)
            if row["state"] == "running":
                await worker.result(task, "failed", 3)
    assert list(dict.fromkeys(states)) == ["pending", "running", "failed"]


async def test_a_thousand_waits_share_one_channel(hub: RunningHub) -> None:
    async with client_of(hub) as client, asyncio.timeout(DEADLINE_S):
        jobs = await client.submit_many([["true"]] * 1000, cpus=1)
        waiting = asyncio.create_task(client.wait_all(jobs))
        await asyncio.gather(*(job.cancel() for job in jobs))
        states = {status.state for status in await waiting}
    assert states == {JobState.KILLED}


async def test_two_clients_with_one_key_get_one_job(hub: RunningHub) -> None:
    async with client_of(hub) as one, client_of(hub) as two, asyncio.timeout(DEADLINE_S):
        first, second = await asyncio.gather(
            one.submit(["true"], key="same"), two.submit(["true"], key="same")
        )
        assert first.id == second.id
        assert sorted((first.created, second.created)) == [False, True]
        with pytest.raises(Conflict):
            await two.submit(["false"], key="same")


async def test_a_hub_that_stays_away_is_given_up(hub: RunningHub) -> None:
    client = await client_of(hub, away_s=0.2).open()
    job = await client.submit(["true"])
    waiting = asyncio.create_task(client.wait(job))
    await client.ping()
    await asyncio.to_thread(hub.stop)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(HubUnavailable):
            await client.ping()
        with pytest.raises(HubUnavailable):
            await waiting
        await asyncio.to_thread(hub.start)
        assert (await client.ping())["epoch"] == 2
        await client.close()
        with pytest.raises(HubUnavailable):
            await client.ping()


async def test_a_clean_restart_is_not_noticed(hub: RunningHub) -> None:
    async with client_of(hub) as client, asyncio.timeout(DEADLINE_S):
        for epoch in (1, 2, 3):
            assert (await client.ping())["epoch"] == epoch
            await asyncio.to_thread(hub.restart)


async def test_a_bad_token_is_told_at_once_and_a_revoked_one_ends_what_waits(hub: RunningHub) -> None:
    with pytest.raises(Unauthenticated):
        await client_of(hub, "dray_x_y").open()
    async with client_of(hub, hub.make_token("gone")) as client, asyncio.timeout(DEADLINE_S):
        job = await client.submit(["true"])
        waiting = asyncio.create_task(client.wait(job))
        await client.ping()
        await asyncio.to_thread(_revoke, hub, "gone")
        with pytest.raises(Unauthenticated):
            await client.ping()
        with pytest.raises(Unauthenticated):
            await waiting


def _revoke(hub: RunningHub, user: str) -> None:
    import http.client
    import json
    from urllib.parse import urlsplit

    headers = {"Authorization": f"Bearer {hub.token}"}
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=DEADLINE_S)
    connection.request("GET", "/api/v1/tokens", headers=headers)
    tokens = json.loads(connection.getresponse().read())["tokens"]
    (token_id,) = [entry["id"] for entry in tokens if entry["user"] == user]
    connection.request("DELETE", f"/api/v1/tokens/{token_id}", headers=headers)
    assert connection.getresponse().status == 200
    connection.close()


async def test_what_is_not_there_and_what_is_too_large(hub: RunningHub) -> None:
    async with client_of(hub) as client, asyncio.timeout(DEADLINE_S):
        for ask in (client.wait, client.status, client.why, client.cancel):
            with pytest.raises(NotFound):
                await ask("nobody")
        with pytest.raises(TooLarge):
            await client.submit_specs([make_spec("x", "y" * 200_000)] * 50)
        assert await client.ping()


async def test_a_wait_that_is_given_up_leaves_the_others_alone(hub: RunningHub) -> None:
    async with client_of(hub) as client, asyncio.timeout(DEADLINE_S):
        job = await client.submit(["true"])
        other = asyncio.create_task(client.wait(job))
        with pytest.raises(TimeoutError, match="it goes on"):
            await client.wait(job, timeout=0.05)
        assert await client.cancel(job) is True
        assert (await other).state is JobState.KILLED
        assert await client.cancel(job) is False


async def test_a_close_at_the_very_moment_of_a_break_ends_the_channel(hub: RunningHub) -> None:
    closing: list[asyncio.Task[None]] = []
    broken = asyncio.Event()

    class ClosedAtTheBreak(Channel):
        async def _dial_again(self) -> WebSocket:
            # The session is over and its keeper is about to dial again.
            if not closing:
                closing.append(asyncio.create_task(self.close()))
                broken.set()
                await asyncio.sleep(0)
            return await super()._dial_again()

    target = Target(hub.url, hub.token, fingerprint="", cafile=None)
    channel = ClosedAtTheBreak(lambda: target)
    async with asyncio.timeout(DEADLINE_S):
        await channel.open()
        await channel.ask("ping", {})
        await asyncio.to_thread(hub.kill)
        await broken.wait()
        await closing[0]
        with pytest.raises(HubUnavailable, match="was closed"):
            await channel.ask("ping", {})
