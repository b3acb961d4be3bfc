"""What clients are told of calls: once, in order, also those that read slowly, come late or go away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.hub.calls_desk import DEADLINE_S, client_of, lanes_of, new_job, rows

from dray.core.lifecycle.state.effects import CallsDone, Note
from dray.core.lifecycle.state.state import State
from dray.core.model.records.records import Job, JobState
from dray.hub.calls.results import Recorded
from dray.hub.calls.subscriptions import CallFeed
from dray.hub.store.base import ResultsChunk, Turn
from dray.hub.store.memory import MemoryStore
from dray.testing import RunningHub, running_hub
from dray.wire.messages import client as wire
from dray.wire.messages.worker import CallsResult


@pytest.fixture
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        yield running


class Reader:
    """A listener whose room is what the test says."""

    def __init__(self) -> None:
        self.room = 100
        self.heard: list[Any] = []
        self.behind = False

    def has_room(self) -> bool:
        return self.room > 0

    def push_calls(self, message: bytes) -> None:
        self.room -= 1
        [reply] = wire.read_replies(message)
        self.heard.append(reply)

    def lag(self, behind: bool) -> None:
        self.behind = behind

    def told(self) -> list[Any]:
        return [reply.payload["index"] if reply.type == wire.RESULTS else wire.ENDED for reply in self.heard]


class Desk:
    """A feed and its store, driven turn by turn."""

    def __init__(self) -> None:
        self.state, self.store = State(), MemoryStore()
        self.store.begin_epoch()
        self.feed = CallFeed(self.state, self.store)
        self.job = Job(
            id="j1",
            seq=1,
            user="ana",
            name="",
            queue="q",
            priority=0,
            tier="t",
            spec=b"",
            numbered=True,
            total=9,
        )
        self.state.jobs["j1"] = self.job
        self.seq = 0

    def turn(self, *ends: int | CallsDone, over: bool = False, publish: bool = True) -> list[Any]:
        """Record one chunk for each index, and tell of the turn."""
        self.seq += 1
        ended: list[Any] = [one if isinstance(one, CallsDone) else self.record(one) for one in ends]
        chunks = [one.chunk for one in ended if isinstance(one, Recorded)]
        self.store.commit(Turn(self.seq, 1, 1, b"", b"", chunks=chunks))
        if over:
            self.job.state = JobState.SUCCEEDED
            self.feed.hear(Note("job_ended", "j1"))
        if publish:
            self.feed.publish(self.seq, ended)
        return ended

    def record(self, index: int) -> Recorded:
        columns = CallsResult(
            seq=1, lane="1-1", job="j1", index=[index], no=[1], state="succeeded", value=[b"v"], wall_us=[1]
        )
        blob = msgspec.msgpack.encode(columns)
        return Recorded(ResultsChunk("j1", index, index, "w", "1-1", blob), columns)


def test_a_listener_that_keeps_up_hears_all_at_once() -> None:
    desk, reader, other = Desk(), Reader(), Reader()
    desk.feed.add(desk.job, reader)
    desk.feed.add(desk.job, reader)
    desk.turn(0, 1)
    desk.feed.add(desk.job, other)
    desk.turn(2, CallsDone("j1", (3, 4), "killed", "cancelled", "why"), over=True)
    assert reader.told() == [[0], [1], [2], [3, 4], wire.ENDED]
    assert other.told() == [[2], [3, 4], wire.ENDED]
    assert reader.heard[3].payload["details"] == {"3": ["cancelled", "why"], "4": ["cancelled", "why"]}
    assert len(desk.feed) == 0


@pytest.mark.parametrize("room", [0, 1, 2, 3, 5])
def test_one_that_falls_behind_misses_nothing_and_hears_nothing_twice(room: int) -> None:
    desk, reader = Desk(), Reader()
    desk.feed.add(desk.job, reader)
    reader.room = room
    desk.turn(0, 1, 2)
    desk.turn(CallsDone("j1", (7,), "killed", "cancelled", ""), 3)
    while reader.behind and len(reader.told()) < 2:
        reader.room = 1
        desk.feed.catch_up(reader)
    desk.turn(4, 5, over=True)
    for _ in range(20):
        reader.room = max(reader.room, 1)
        desk.feed.catch_up(reader)
    told = reader.told()
    assert [one[0] for one in told[:-1] if one != [7]] == [0, 1, 2, 3, 4, 5]
    assert sorted(one[0] for one in told[:-1]) == [0, 1, 2, 3, 4, 5, 7]
    assert told[-1] == wire.ENDED
    assert not reader.behind
    assert len(desk.feed) == 0


def test_what_is_committed_and_not_yet_told_is_told_once() -> None:
    desk, reader = Desk(), Reader()
    desk.feed.add(desk.job, reader)
    reader.room = 0
    desk.turn(0)
    later = desk.turn(1, publish=False)
    reader.room = 9
    desk.feed.catch_up(reader)
    assert reader.told() == [[0]]
    desk.feed.publish(desk.seq, later)
    assert reader.told() == [[0], [1]]


def test_who_leaves_hears_no_more() -> None:
    desk, reader, stays = Desk(), Reader(), Reader()
    desk.feed.add(desk.job, reader)
    desk.feed.add(desk.job, stays)
    desk.feed.leave(reader)
    desk.turn(0)
    assert (reader.told(), stays.told()) == ([], [[0]])
    desk.feed.leave(stays)
    assert len(desk.feed) == 0


async def test_a_client_that_does_not_read_for_a_while_gets_everything_later(hub: RunningHub) -> None:
    """Far more than a socket and the hub's queue hold: the rest waits in the store, not in memory."""
    job, value, total = new_job(), b"v" * 60_000, 600
    async with client_of(hub) as client, lanes_of(hub) as lanes, client_of(hub) as other:
        await client.add(job, [])
        client.connection.transport.pause_reading()
        for start in range(0, total, 100):
            added = await other.ask("calls", {"job": job, "first": start, "args": [value] * 100})
            assert added.type == wire.ANSWER
            await lanes.serve(100)
            await other.results(job, 100)
        await other.ask("calls", {"job": job, "first": total, "close": True})
        assert (await other.recv(kind=wire.ENDED)).payload["state"] == "succeeded"
        client.connection.transport.resume_reading()
        found: dict[int, Any] = {}
        async with asyncio.timeout(3 * DEADLINE_S):
            while len(found) < total:
                pushed = rows((await client.recv(kind=wire.RESULTS)).payload)
                assert not pushed.keys() & found.keys()
                found |= pushed
        assert all(one == ("succeeded", value) for one in found.values())
        assert (await client.recv(kind=wire.ENDED)).payload["job"] == job


async def test_after_a_reconnect_the_rest_is_collected_and_told(hub: RunningHub) -> None:
    job = new_job()
    async with lanes_of(hub) as lanes:
        async with client_of(hub) as client:
            await client.add(job, [b"%d" % place for place in range(60)])
            served = await lanes.serve(20)
        # The client is gone; its calls go on, and its results are kept.
        served += await lanes.serve(10)
        async with client_of(hub) as client:
            found = rows(await client.collect(job))
            while len(found) < served:
                found |= rows((await client.recv(kind=wire.RESULTS)).payload)
            await client.add(job, [], first=60, close=True)
            serving = asyncio.create_task(lanes.serve(60 - served))
            while len(found) < 60:
                found |= rows((await client.recv(kind=wire.RESULTS)).payload)
            await serving
            assert found == {place: ("succeeded", (b"%d" % place)[::-1]) for place in range(60)}
            assert (await client.recv(kind=wire.ENDED)).payload["state"] == "succeeded"


async def test_collect_goes_on_where_an_answer_ended(hub: RunningHub) -> None:
    job, value = new_job(), b"w" * 60_000
    async with client_of(hub) as client, lanes_of(hub) as lanes:
        for start in (0, 100):
            await client.add(job, [value] * 100, first=start, close=start > 0)
        await lanes.serve(200)
        async with client_of(hub) as late:
            pages, seen = 0, []
            page: Any = {"next": 0}
            while (first := page["next"]) is not None:
                page = await late.collect(job, first)
                assert sum(map(len, page["value"])) < 5 << 20
                seen += page["index"]
                pages += 1
            assert (seen, page["state"], page["job_state"]) == (list(range(200)), "succeeded", "succeeded")
            assert pages > 1
            assert (await late.collect(job, 5, 3))["index"] == [5, 6, 7]
            assert (await late.collect(job, 200))["index"] == []


async def test_a_cancelled_map_ends_with_every_call_accounted_for(hub: RunningHub) -> None:
    job = new_job()
    async with client_of(hub) as client, lanes_of(hub) as lanes:
        await client.add(job, [b"x"] * 50)
        await lanes.take(1)
        lane = next(iter(lanes.calls))
        await lanes.worker.send("calls_result", lanes.frame(lane))
        done = await client.results(job, 1)
        await client.ask("cancel", {"id": job})
        assert (await client.recv(kind=wire.ENDED)).payload["state"] == "killed"
        collected = await client.collect(job)
        states = rows(collected)
        assert len(states) == 50
        assert {index for index, (state, _) in states.items() if state == "succeeded"} == set(done)
        assert {state for index, (state, _) in states.items() if index not in done} == {"killed"}
        assert collected["details"]["49"][0] == "cancelled"
        with contextlib.suppress(TimeoutError):
            assert (await lanes.worker.recv("job_cancel", 2.0)).payload["task_id"] == job
