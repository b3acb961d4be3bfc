"""What a hub that stands by answers itself: the same as the leader would, of a turn that it names, or nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.hub.asking import ask, look, wait_until
from tests.hub.several_hubs import Hubs, at, hubs, stand_by
from tests.hub.store.test_following import World, catch_up

from dray.core.lifecycle.state.state import State
from dray.hub.access.caller import Caller
from dray.hub.answers.job_documents import JobDocuments, JobReads
from dray.hub.calls.reading import CallReader
from dray.hub.engine.follower import Follower
from dray.hub.engine.recovery import recover
from dray.hub.relays.fold_answers import FRESH_S, Reads, look_at
from dray.hub.rows import RowKey, Rows, RowsWanted
from dray.hub.store.base import JobFilter
from dray.hub.store.memory import MemoryStore
from dray.sim.faults.run import History
from dray.sim.faults.world.world import SMALL

__all__ = ["hubs"]
ALL = JobFilter(limit=1000)
ADMIN = Caller("t", "root", ("admin",))
JOB = {"command": ["true"]}


# --- against what a leader would say ----------------------------------------------------------------------------------


class LeaderReader:
    """A state that was just recovered, read as an engine would."""

    def __init__(self, store: MemoryStore, state: State) -> None:
        self._state, self.rows = state, Rows(state, store)

    async def ask(self, look: Callable[[State], Any], *wants: RowKey) -> Any:
        return await self.read(look, *wants)

    async def read(self, look: Callable[[State], Any], *wants: RowKey) -> Any:
        while True:
            await self.rows.fetch(wants)
            try:
                with self.rows.deciding():
                    return look(self._state)
            except RowsWanted as missed:
                wants = (*wants, *missed.keys)

    async def settle(self) -> None: ...


class Source:
    """A follower and the rows beside it."""

    def __init__(self, follower: Follower, store: Any) -> None:
        self.follower, self.store = follower, store

    async def reach(self, seq: int, within_s: float) -> bool:
        raise AssertionError("nobody asks for a turn here")


class NoForecasts:
    def now_ms(self) -> int:
        return 0

    def document(self, job_id: str) -> None:
        return None


async def read_all(jobs: JobReads, job_id: str) -> list[Any]:
    page = await jobs.tasks(ADMIN, job_id, (), "", 50)
    failed = await jobs.tasks(ADMIN, job_id, ("failed", "killed"), "", 50)
    return [await jobs.job(ADMIN, job_id), page, failed, await jobs.events(ADMIN, job_id)]


@pytest.mark.parametrize("seed", range(4))
async def test_what_a_follower_says_of_a_job_is_what_a_leader_says(seed: int) -> None:
    history, draw = History(seed, SMALL), random.Random(seed)
    world = World(history)
    follower, seen, passed = Follower(world, history.hub.rules), 0, 0
    while history.world.now_ms < history.world.size.span_ms and history.world.step():
        if draw.random() > 0.01:
            continue
        catch_up(follower)
        recovered = recover(world.store, history.hub.rules)
        leader: Any = LeaderReader(world.store, recovered.state)
        nothing: Any = NoForecasts()
        documents = JobDocuments(leader.rows, CallReader(leader.rows, tuple), nothing)
        jobs = [*recovered.state.jobs, *(job.id for job in world.store.list_jobs(ALL))]
        for job_id in draw.sample(jobs, min(len(jobs), 6)):
            source: Any = Source(follower, world.store)
            found: Any = await look_at(source, job_id, reader_of(job_id))
            job = leader.rows.job(job_id)
            if found is None:
                passed += 1
                assert not job.state.final or job_id in follower._fresh, "one that has ended is answered"
                continue
            assert job.state.final
            assert found[0] == await read_all(JobReads(leader, leader.rows, documents), job_id)
            assert found[1] == recovered.seq
            _, page, failed, _ = found[0]
            if page["next_cursor"] is None:
                # One list is of rows alone, the other of memory first.
                assert failed["tasks"] == [
                    task for task in page["tasks"] if task["state"] in ("failed", "killed")
                ]
            seen += 1
    assert seen > 20
    assert passed > 5


def reader_of(job_id: str) -> Callable[[Reads], Any]:
    return lambda reads: read_all(reads.jobs, job_id)


async def test_a_state_that_nobody_has_compared_with_the_store_for_a_while_answers_nothing() -> None:
    history = History(0, SMALL)
    world = World(history)
    follower = Follower(world, history.hub.rules)
    source: Any = Source(follower, world.store)
    policy = lambda reads: reads.reader.ask(lambda state: {"queues": len(state.policy.queues)})  # noqa: E731 - twice
    assert await look_at(source, "", policy) is None, "nothing is loaded"
    catch_up(follower)
    assert await look_at(source, "", policy) is not None
    follower.looked_s = time.monotonic() - FRESH_S - 1
    assert await look_at(source, "", policy) is None
    catch_up(follower)
    assert await look_at(source, "", policy) is not None


async def test_what_only_the_leader_has_cannot_be_looked_at() -> None:
    history = History(0, SMALL)
    world = World(history)
    follower = Follower(world, history.hub.rules)
    catch_up(follower)
    source: Any = Source(follower, world.store)
    for name in ("presence", "columns", "backlog", "reservations", "timers"):

        def reach(reads: Reads, name: str = name) -> Any:
            return reads.reader.ask(lambda state: {"found": len(getattr(state, name))})

        assert await look_at(source, "", reach) is None, name


# --- real hubs --------------------------------------------------------------------------------------------------------


def get(hub: Any, path: str, token: str = "", **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Ask, and give the headers of the answer as well."""
    with contextlib.closing(http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=30)) as line:
        line.request(
            "GET", f"/api/v1{path}", None, {"Authorization": f"Bearer {token or hub.token}", **headers}
        )
        answer = line.getresponse()
        return (
            answer.status,
            json.loads(answer.read()),
            {name.lower(): text for name, text in answer.getheaders()},
        )


def counts_of(hub: Any) -> tuple[int, int]:
    status = look(hub.url, "/api/v1/hub/status")
    return status["answered"], status["passed_on"]


def is_answered_here(hub: Any, path: str, **more: str) -> bool:
    """Whether a hub answers this by itself, and not by the leader."""
    before = counts_of(hub)
    assert get(hub, path, **more)[0] == 200
    after = counts_of(hub)
    assert sum(after) == sum(before) + 1
    return after[0] > before[0]


def test_a_gateway_answers_of_ended_jobs_itself_and_passes_on_what_it_cannot_know(hubs: Hubs) -> None:
    leader, gateway = hubs(), at(stand_by(hubs))
    with leader.worker("w1") as worker:
        worker.register()
        for name in ("a1", "a2"):
            ask(leader, "POST", "/jobs", {"id": name, **JOB})
        worker.run_one()
        wait_until(lambda: ask(leader, "GET", "/jobs/a1")[1]["state"] == "succeeded")
        wait_until(lambda: is_answered_here(gateway, "/jobs/a1"))
        for path in (
            "/jobs/a1",
            "/jobs/a1/events",
            "/jobs/a1/tasks",
            "/policy",
            "/templates",
            "/templates/sweep",
        ):
            wait_until(lambda: is_answered_here(gateway, path))  # noqa: B023 - at once
            assert get(gateway, path)[1] == get(leader, path)[1]
        for path in ("/jobs/a2", "/jobs/a1?wait_s=1", "/jobs", "/jobs/a2/why", "/workers", "/queues", "/hub"):
            assert not is_answered_here(gateway, path), path
        assert get(gateway, "/jobs/none")[0] == 404
        ana = leader.make_token("ana", ("read",))
        assert get(gateway, "/jobs/a1", token=ana)[1:2] == get(leader, "/jobs/a1", token=ana)[1:2]
        assert get(gateway, "/jobs/a1", token=ana)[0] == 404
        assert get(gateway, "/jobs/a1?bogus=1")[0] == 400


def put_policy(hub: Any, queue: str) -> int:
    """Change the policy, and give the turn that this answer knows of."""
    with contextlib.closing(http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=30)) as line:
        signed = {"Authorization": f"Bearer {hub.token}", "Content-Type": "application/json"}
        line.request("PUT", "/api/v1/policy", json.dumps({"queues": {queue: {}}}), signed)
        answer = line.getresponse()
        assert (answer.status, answer.read()[:1]) == (200, b"{")
        return int(answer.headers["Dray-Seq"])


def test_who_has_written_reads_it_at_any_hub(hubs: Hubs) -> None:
    leader, first, second = hubs(), at(stand_by(hubs)), at(stand_by(hubs))
    sides, here = (leader, first, second), 0
    for number in range(90):
        writer, reader = sides[number % 3], sides[(number + 1) % 3]
        seq = put_policy(writer, f"q{number}")
        status, shown, headers = get(reader, "/policy", **{"Dray-Min-Seq": str(seq)})
        assert status == 200
        assert f"q{number}" in json.dumps(shown)
        assert int(headers["dray-seq"]) >= seq
        here += "dray-turn" not in headers
    assert here > 10, "some of it without the leader"
    # A turn that nobody has taken yet: the leader tells what there is.
    for text in ("999999999", "x"):
        answer = get(first, "/policy", **{"Dray-Min-Seq": text})
        assert (answer[0], "dray-turn" in answer[2]) == (200, True)


def test_a_revoked_token_reads_nothing_at_a_gateway_either(hubs: Hubs) -> None:
    leader, gateway = hubs(), at(stand_by(hubs))
    ask(leader, "POST", "/jobs", {"id": "a1", **JOB})
    ask(leader, "POST", "/jobs/a1/cancel")
    token = leader.make_token("root", ("read",))
    wait_until(lambda: is_answered_here(gateway, "/policy", token=token))
    assert ask(leader, "DELETE", f"/tokens/{token.split('_')[1]}")[0] == 200
    # The leader says so to its gateways before it answers.
    wait_until(lambda: get(gateway, "/policy", token=token)[0] == 401)
