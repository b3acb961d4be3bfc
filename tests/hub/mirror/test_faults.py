"""What goes wrong with Redis under a mirror: each on a real server, and each mended by the mirror itself."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable

import pytest
from tests.hub.mirror.view import Feeder, make_attempt, make_job, mirroring, read_view, until
from tests.valkey import Valkey, Valkeys

from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.hub.mirror import node, ports
from dray.hub.mirror.mirror import STANDS_BY, Mirror

WAITING = "dray:{q:default}:waiting"
STATS = "dray:{q:default}:stats"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "CHECK_S", 0.3)
    monkeypatch.setattr("dray.hub.mirror.writer.AGAIN_S", 0.2)
    monkeypatch.setattr("dray.hub.mirror.connection.ANSWER_S", 1.0)


def doctor(mirror: Mirror) -> dict[str, object]:
    return mirror.examine(State(Rules()))


async def test_flushed_and_tampered_with(valkey: Valkey) -> None:
    feeder, client = Feeder(), valkey.client()
    job = make_job(500, running=1, cursor=1)
    feeder.submit(1, 300)
    feeder.write([job], [make_attempt(job, 1)])
    async with mirroring(feeder, valkey.url) as mirror:
        await until(lambda: client.zcard(WAITING) == 300 and client.dbsize() > 300)
        await until(lambda: mirror.gauge.lag_s == 0)
        view = read_view([client])
        client.flushall()
        await until(lambda: client.dbsize() > 300 and read_view([client]) == view, what="all is back")
        client.zremrangebyrank(WAITING, 0, 4)
        await until(lambda: read_view([client]) == view, what="what was taken out is back")
        # Also while there is work, by the write itself.
        client.delete(WAITING)
        feeder.submit(1000, 1)
        await until(lambda: client.zcard(WAITING) == 301)
        assert mirror.gauge.rebuilds >= 5


async def test_killed_and_back_empty(own_valkey: Callable[..., Valkey]) -> None:
    server, feeder = own_valkey(), Feeder()
    client = server.client()
    feeder.submit(1, 100)
    async with mirroring(feeder, server.url) as mirror:
        await until(lambda: client.zcard(WAITING) == 100)
        server.kill()
        feeder.submit(200, 10)
        await until(lambda: mirror.gauge.state == "away" and mirror.gauge.lag_s > 0.2)
        assert not doctor(mirror)["ok"]
        assert "Redis is away" in str(doctor(mirror)["detail"])
        server.start()
        await until(lambda: client.zcard(WAITING) == 110 and client.hget(STATS, "count") == "110")
        await until(lambda: mirror.gauge.state == "writes" and mirror.gauge.lag_s == 0)
        assert doctor(mirror)["ok"]


async def test_not_there_at_the_start(own_valkey: Callable[..., Valkey]) -> None:
    server, feeder = own_valkey(), Feeder()
    server.kill()
    feeder.submit(1, 5)
    async with mirroring(feeder, server.url) as mirror:
        await until(lambda: "127.0.0.1" in str(doctor(mirror)["detail"]) and mirror.gauge.state == "away")
        server.start()
        client = server.client()
        await until(lambda: client.zcard(WAITING) == 5)


async def test_stopped_for_a_while(own_valkey: Callable[..., Valkey]) -> None:
    server, feeder = own_valkey(), Feeder()
    client = server.client()
    feeder.submit(1, 50)
    async with mirroring(feeder, server.url) as mirror:
        await until(lambda: client.hget(STATS, "count") == "50" and mirror.gauge.lag_s == 0)
        rebuilds = mirror.gauge.rebuilds
        server.pause(signal.SIGSTOP)
        for number in range(20):
            began = time.monotonic()
            feeder.submit(100 + number, 1)
            assert time.monotonic() - began < 1, "whoever feeds waits for nobody"
            await asyncio.sleep(0.01)
        await until(lambda: mirror.gauge.state == "away")
        server.pause(signal.SIGCONT)
        await until(lambda: client.hget(STATS, "count") == "70" and mirror.gauge.lag_s == 0)
        assert mirror.gauge.rebuilds == rebuilds, (
            "what was under way is not in doubt: it is there, or is sent again"
        )
        assert client.xlen("dray:{q:default}:events") == 20, "each event once"


async def test_full(own_valkey: Callable[..., Valkey]) -> None:
    server, feeder = own_valkey(), Feeder()
    client = server.client()
    feeder.submit(1, 100)
    async with mirroring(feeder, server.url) as mirror:
        await until(lambda: client.hget(STATS, "count") == "100")
        client.config_set("maxmemory", "1mb")
        feeder.submit(1000, 100)
        await until(lambda: mirror.gauge.state == "full")
        assert "has no memory left" in str(doctor(mirror)["detail"])
        client.config_set("maxmemory", "0")
        await until(lambda: client.zcard(WAITING) == 200 and mirror.gauge.state == "writes")


async def test_a_server_that_drops_keys_in_silence_is_not_written_to(
    own_valkey: Callable[..., Valkey], caplog: pytest.LogCaptureFixture
) -> None:
    server, feeder = own_valkey("--maxmemory-policy", "allkeys-lru"), Feeder()
    client = server.client()
    feeder.submit(1, 3)
    with caplog.at_level(logging.WARNING):
        async with mirroring(feeder, server.url) as mirror:
            await until(lambda: mirror.gauge.state == "unsafe")
            assert "maxmemory-policy allkeys-lru" in str(doctor(mirror)["detail"])
            assert "allkeys-lru" in caplog.text
            assert not client.dbsize()
            client.config_set("maxmemory-policy", "volatile-lru")
            await until(lambda: client.zcard(WAITING) == 3)
            client.config_set("maxmemory-policy", "allkeys-random")
            await until(lambda: mirror.gauge.state == "unsafe")


async def test_evicting_documents_harms_nothing_else(own_valkey: Callable[..., Valkey]) -> None:
    server, feeder = own_valkey("--maxmemory-policy", "volatile-lru"), Feeder()
    client = server.client()
    async with mirroring(feeder, server.url) as mirror:
        feeder.submit(1, 2_000)
        await until(lambda: client.dbsize() > 2_000)
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", used + 300_000)
        feeder.submit(10_000, 2_000)
        await until(lambda: client.zcard(WAITING) == 4_000)
        await until(lambda: client.info("stats")["evicted_keys"] > 0)
        assert mirror.gauge.state == "writes"


async def test_where_config_is_forbidden(own_valkey: Callable[..., Valkey]) -> None:
    server, feeder = own_valkey("--maxmemory-policy", "allkeys-lfu"), Feeder()
    client = server.client()
    client.execute_command("ACL", "SETUSER", "mirror", "on", ">pa:ss", "~*", "+@all", "-config", "-client")
    feeder.submit(1, 3)
    url = server.url.replace("redis://", "redis://mirror:pa%3Ass@")
    async with mirroring(feeder, url) as mirror:
        await until(lambda: mirror.gauge.state == "unsafe")
        assert "pa:ss" not in str(doctor(mirror)["detail"])
        assert "pa%3Ass" not in str(doctor(mirror)["detail"])
        client.config_set("maxmemory-policy", "noeviction")
        await until(lambda: client.zcard(WAITING) == 3)


async def test_a_wrong_password_is_told(own_valkey: Callable[..., Valkey]) -> None:
    server, feeder = own_valkey("--requirepass", "right"), Feeder()
    async with mirroring(feeder, server.url.replace("redis://", "redis://:wrong@")) as mirror:
        await until(
            lambda: "password" in str(doctor(mirror)["detail"]).lower() or "WRONGPASS" in str(doctor(mirror))
        )
        assert "wrong@" not in str(doctor(mirror)["detail"])


async def test_an_older_epoch_that_wakes_up_changes_nothing(valkey: Valkey) -> None:
    client, old = valkey.client(), Feeder()
    old.submit(1, 10)
    async with mirroring(old, valkey.url) as sleeper:
        await until(lambda: client.zcard(WAITING) == 10)
        new = Feeder()
        new.store.begin_epoch()
        new.submit(1, 4)
        async with mirroring(new, valkey.url) as writer:
            await until(lambda: client.zcard(WAITING) == 4 and writer.gauge.state == "writes")
            for number in range(30):
                old.submit(100 + number, 1)
                await asyncio.sleep(0.01)
            await until(lambda: sleeper.gauge.state == "another")
            assert doctor(sleeper)["ok"]
            new.submit(50, 1)
            await until(lambda: client.zcard(WAITING) == 5)
            assert client.hget(STATS, "epoch") == "2"


async def test_two_writers_of_one_history(valkey: Valkey) -> None:
    """One that stands by goes before the leader, and the leader writes again when it is gone."""
    client, feeder = valkey.client(), Feeder()
    feeder.submit(1, 10)
    async with mirroring(feeder, valkey.url) as leader:
        await until(lambda: leader.gauge.state == "writes")
        async with mirroring(feeder, valkey.url, rank=STANDS_BY, words="the one beside") as beside:
            await until(lambda: beside.gauge.state == "writes" and leader.gauge.state == "another")
            assert "the one beside writes" in str(doctor(leader)["detail"])
            feeder.submit(100, 5)
            await until(lambda: client.zcard(WAITING) == 15)
        await until(lambda: leader.gauge.state == "writes")
        feeder.submit(200, 5)
        await until(lambda: client.zcard(WAITING) == 20)


async def test_two_writers_without_a_lock_come_to_the_same(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence alone: whoever is behind is refused, whoever is ahead goes on over what the other wrote."""
    monkeypatch.setattr("dray.hub.mirror.scripts.LOCK.text", "return ''")
    from dray.hub.mirror import scripts

    free = scripts.Script("return ''")
    monkeypatch.setattr("dray.hub.mirror.writer.LOCK", free)
    monkeypatch.setattr("dray.hub.mirror.connection.SCRIPTS", (*scripts.SCRIPTS, free))
    client, feeder = valkey.client(), Feeder()
    async with mirroring(feeder, valkey.url), mirroring(feeder, valkey.url):
        for number in range(60):
            jobs = feeder.submit(10 * number + 1, 10)
            feeder.write(
                [
                    jobs[0].__class__(
                        **{f: getattr(jobs[0], f) for f in jobs[0].__struct_fields__} | {"held": True}
                    )
                ]
            )
            await asyncio.sleep(0.005)
        await until(lambda: client.hget(STATS, "seq") == str(feeder.seq))
        await until(lambda: client.zcard(WAITING) == 540 and client.hget(STATS, "count") == "540")
        assert len({member.partition(":")[2] for member in client.zrange(WAITING, 0, -1)}) == 540


async def test_too_much_at_once_is_read_anew(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "MOST_ROWS", 100)
    client, feeder = valkey.client(), Feeder()
    async with mirroring(feeder, valkey.url) as mirror:
        mirror._inbox._most_rows = 100
        await until(lambda: mirror.gauge.state == "writes")
        for number in range(30):
            feeder.submit(100 * number + 1, 40)
        await until(lambda: client.zcard(WAITING) == 1_200 and client.hget(STATS, "count") == "1200")
        await until(lambda: client.xlen("dray:{q:default}:events") == 1_200, what="events come from the log")


async def test_events_go_on_where_the_last_hub_stopped(valkey: Valkey) -> None:
    client, feeder = valkey.client(), Feeder()
    events = "dray:{q:default}:events"
    async with mirroring(feeder, valkey.url):
        feeder.submit(1, 3)
        await until(lambda: client.xlen(events) == 3)
    feeder.submit(10, 2)
    feeder.store.begin_epoch()
    async with mirroring(feeder, valkey.url):
        await until(lambda: client.xlen(events) == 5)
        feeder.submit(20, 1)
        await until(
            lambda: [at for at, _ in client.xrange(events)] == ["1-0", "1-1", "1-2", "2-0", "2-1", "3-0"]
        )


async def test_a_cluster_goes_on_without_one_of_its_masters(valkeys: Valkeys) -> None:
    servers = valkeys.make_cluster()
    clients = [server.client() for server in servers]
    feeder = Feeder()
    queues = [f"q{number}" for number in range(12)]
    for number, queue in enumerate(queues):
        feeder.submit(100 * number + 1, 20, queue)

    def cards(which: list[int]) -> dict[str, int]:
        found = {}
        for number in which:
            for key in clients[number].scan_iter("dray:{q:*}:waiting"):
                found[key] = clients[number].zcard(key)
        return found

    async with mirroring(feeder, servers[2].url) as mirror:
        everything = {f"dray:{{q:{queue}}}:waiting": 20 for queue in queues}
        await until(lambda: cards([0, 1, 2]) == everything)
        await until(lambda: sum(client.dbsize() for client in clients) > 240, what="documents")
        # Not the one that has the keys of the site, and the lock.
        site = next(number for number in range(3) if "dray:{site}:stats" in clients[number].scan_iter())
        victim = (site + 1) % 3
        rest = [number for number in range(3) if number != victim]
        hit = set(cards([victim]))
        assert hit
        assert len(hit) < 12
        servers[victim].kill()
        for number, queue in enumerate(queues):
            feeder.submit(100 * number + 50, 5, queue)
        left = {key: 25 for key in everything if key not in hit}
        await until(lambda: cards(rest) == left, what="the others go on")
        await until(lambda: mirror.gauge.state == "away" and mirror.gauge.lag_s > 0)
        servers[victim].start()
        await until(lambda: cards([0, 1, 2]) == dict.fromkeys(everything, 25), 60, what="it is whole again")
    for server in servers:
        server.stop()
