"""What the mirror writes to a real server, and that it stays so."""

from __future__ import annotations

import json

import msgspec
from tests.hub.mirror.view import Feeder, ended, make_attempt, make_job, mirroring, read_view, until
from tests.valkey import Valkey

from dray.core.lifecycle.state.effects import Note
from dray.core.model.records.records import JobState, Phase
from dray.core.model.records.worker import Worker


async def test_jobs_wait_run_and_end(valkey: Valkey) -> None:
    feeder, client = Feeder(), valkey.client()
    async with mirroring(feeder, valkey.url) as mirror:
        low, high = make_job(1, priority=-5), make_job(2, priority=7)
        array = make_job(3, total=10, numbered=True)
        feeder.write([low, high, array], workers=[Worker(id="w1")], notes=[Note("job_submitted", "j1")])
        await until(lambda: client.zcard("dray:{q:default}:waiting") == 3)
        order = [member.partition(":")[2] for member in client.zrange("dray:{q:default}:waiting", 0, -1)]
        assert order == ["j2", "j3", "j1"]
        stats = client.hgetall("dray:{q:default}:stats")
        assert (stats["waiting_jobs"], stats["waiting_tasks"], stats["count"]) == ("3", "12", "3")
        assert (stats["p:7"], stats["p:0"], stats["p:-5"]) == ("1", "10", "1")
        assert stats["oldest_ms"] == str(low.submitted_at_ms)
        assert stats["seq"] == str(feeder.seq)
        assert client.smembers("dray:{site}:queues") == {"default"}
        assert json.loads(client.hget("dray:{site}:workers", "w1"))["id"] == "w1"

        runs = msgspec.structs.replace(low, cursor=1, running=1, state=JobState.RUNNING)
        feeder.write([runs], [make_attempt(low, 1)], notes=[Note("task_started", "j1", "j1", "w1")])
        await until(lambda: client.zscore("dray:{q:default}:running", "j1"))
        assert client.zcard("dray:{q:default}:waiting") == 2
        assert client.hget("dray:{q:default}:stats", "p:-5") is None

        done = make_attempt(low, 1, phase=Phase.SUCCEEDED)
        feeder.write([ended(low)], [done], gone=["w1"], notes=[Note("job_ended", "j1"), Note("alarm")])
        await until(lambda: not client.exists("dray:{q:default}:running"))
        await until(lambda: json.loads(client.get("dray:{j:j1}") or "{}").get("state") == "succeeded")
        assert client.ttl("dray:{j:j1}") > 3000
        assert client.hlen("dray:{site}:workers") == 0
        told = [(at, fields["type"]) for at, fields in client.xrange("dray:{q:default}:events")]
        assert told == [("1-0", "job_submitted"), ("2-0", "task_started"), ("3-0", "job_ended")]
        assert [fields["type"] for _, fields in client.xrange("dray:{site}:events")] == ["alarm"]
        await until(lambda: mirror.gauge.lag_s == 0 and mirror.gauge.state == "writes")


async def test_what_is_barred_is_counted_and_not_in_line(valkey: Valkey) -> None:
    feeder, client = Feeder(), valkey.client()
    held = make_job(1, held=True, total=3, numbered=True)
    feeder.write([held, make_job(2, after=("j1",)), make_job(3, unserved=True), make_job(4)])
    async with mirroring(feeder, valkey.url):
        await until(lambda: client.zcard("dray:{q:default}:waiting") == 1)
        stats = client.hgetall("dray:{q:default}:stats")
        assert (stats["held_jobs"], stats["held_tasks"], stats["waiting_jobs"]) == ("3", "5", "1")
        feeder.write([msgspec.structs.replace(held, held=False)])
        await until(lambda: client.zcard("dray:{q:default}:waiting") == 2)


async def test_a_job_that_is_moved_takes_what_runs_along(valkey: Valkey) -> None:
    feeder, client = Feeder(), valkey.client()
    job = make_job(1, total=4, cursor=2, running=2, numbered=True, state=JobState.RUNNING)
    feeder.write([job], [make_attempt(job, 1, 0), make_attempt(job, 2, 1), make_attempt(job, 3, -1)])
    async with mirroring(feeder, valkey.url):
        names = {"j1/0", "j1/1", "j1/lane-1-3"}
        await until(lambda: set(client.zrange("dray:{q:default}:running", 0, -1)) == names)
        feeder.write([msgspec.structs.replace(job, queue="night", priority=3)])
        await until(lambda: set(client.zrange("dray:{q:night}:running", 0, -1)) == names)
        await until(lambda: not client.exists("dray:{q:default}:running", "dray:{q:default}:waiting"))
        assert client.hget("dray:{q:default}:stats", "running") == "0"


async def test_odd_names_stay_in_their_tags(valkey: Valkey) -> None:
    feeder, client = Feeder(), valkey.client()
    feeder.write([make_job(1, "a}b{:c d"), make_job(2, "ü*")])
    async with mirroring(feeder, valkey.url, prefix="site:7"):
        await until(lambda: client.zcard("site:7:{q:a%7Db%7B%3Ac%20d}:waiting") == 1)
        await until(lambda: client.zcard("site:7:{q:%C3%BC%2A}:waiting") == 1)
        assert client.smembers("site:7:{site}:queues") == {"a}b{:c d", "ü*"}
        assert not list(client.scan_iter("dray:*"))


async def test_queues_of_an_earlier_hub_are_told_to_be_empty(valkey: Valkey) -> None:
    client, first = valkey.client(), Feeder()
    first.submit(1, 5, "old")
    async with mirroring(first, valkey.url):
        await until(lambda: client.zcard("dray:{q:old}:waiting") == 5)
    later = Feeder()
    later.store.begin_epoch()
    later.submit(1, 2)
    async with mirroring(later, valkey.url):
        await until(lambda: client.zcard("dray:{q:default}:waiting") == 2)
        await until(lambda: client.hget("dray:{q:old}:stats", "waiting_jobs") == "0")
        assert not client.exists("dray:{q:old}:waiting")
        assert client.smembers("dray:{site}:queues") == {"default", "old"}


async def test_a_lot_at_once_goes_in_portions(valkey: Valkey) -> None:
    feeder, client = Feeder(), valkey.client()
    feeder.submit(1, 3_000)
    async with mirroring(feeder, valkey.url):
        await until(lambda: client.hget("dray:{q:default}:stats", "count") == "3000")
        feeder.submit(10_001, 5_000, "default")
        await until(lambda: client.hget("dray:{q:default}:stats", "count") == "8000")
        assert client.zcard("dray:{q:default}:waiting") == 8_000
        await until(lambda: client.dbsize() >= 8_000 + 6)
        view = read_view([client])
        client.flushall()
        await until(lambda: client.dbsize() >= 8_000 + 5)
        assert read_view([client]) == view
