"""Who leads when something stands between hubs and their database: silence, hands that hold on, refusals.

Real servers, and a relay that stops passing bytes. Leases are short; nothing here depends on how short.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest
from tests.e2e.proxy import Relay
from tests.hub.asking import wait_until
from tests.postgres import PASSWORD, Server

from dray.errors import EpochLost
from dray.hub.store.leading import Seen
from dray.hub.store.postgres.store import PgStore

Open = Callable[..., PgStore]
LEASE_S = 0.9


@pytest.fixture
def relay(shared_postgres: Server) -> Iterator[Relay]:
    made = Relay(shared_postgres.port)
    yield made
    made.close()


def through(relay: Relay, server: Server) -> str:
    return server.url("postgres").replace(str(server.port), str(relay.port))


def fall_silent(relay: Relay) -> None:
    """Nothing comes through any more, and nobody is told: as in a partition."""
    for direction in ("up", "down"):
        relay.lose(direction, later_too=True)


def is_lost(store: PgStore) -> bool:
    try:
        store.verify()
    except EpochLost:
        return True
    return False


def test_a_leader_that_is_cut_off_from_the_database_is_taken_over_and_steps_down(
    open_postgres: Open, relay: Relay, shared_postgres: Server, database: str, make: Any
) -> None:
    cut_off = open_postgres(through(relay, shared_postgres), lease_s=LEASE_S)
    other = open_postgres(lease_s=LEASE_S)
    cut_off.begin_epoch()
    cut_off.commit(make.turn(1))
    waiting = other.lead_soon("http://other")
    wait_until(lambda: "leads" in other.watched.words)
    fall_silent(relay)
    late = cut_off.commit_soon(make.turn(2))
    waiting.result(60)
    assert not cut_off.is_trusted, "nothing leaves it that needs no commit"
    assert not late.done()
    other.commit(make.turn(2, facts=b"of the new leader"))
    relay.heal()
    relay.cut()
    with pytest.raises(EpochLost):
        late.result(60)
    assert is_lost(cut_off)
    assert [(entry.seq, entry.facts) for entry in other.tail(1)] == [(2, b"of the new leader")]


def test_one_that_is_cut_off_from_the_database_takes_nothing_over(
    open_postgres: Open, relay: Relay, shared_postgres: Server, database: str, make: Any
) -> None:
    """Silence of the database is not silence of the leader."""
    leader = open_postgres(lease_s=LEASE_S)
    cut_off = open_postgres(through(relay, shared_postgres), lease_s=LEASE_S)
    leader.begin_epoch()
    waiting = cut_off.lead_soon("http://cut-off")
    wait_until(lambda: "leads" in cut_off.watched.words)
    fall_silent(relay)
    wait_until(lambda: "answer" in cut_off.watched.words)
    relay.heal()
    relay.cut()
    wait_until(lambda: "leads" in cut_off.watched.words)
    assert not waiting.done()
    leader.commit(make.turn(1))
    assert leader.is_trusted


def test_what_a_stopped_leader_still_holds_is_ended(
    open_postgres: Open, shared_postgres: Server, database: str
) -> None:
    """A share of the leader's row that is kept by a backend which waits for its hub would last for ever."""
    leader, other = open_postgres(lease_s=LEASE_S), open_postgres(lease_s=LEASE_S)
    leader.begin_epoch()

    async def hold() -> asyncpg.Connection[Any]:
        # As the hub's own connections, but for the limit on idle transactions: it does not look at a COPY.
        settings = {"application_name": f"dray:{leader._candidate.holder}"}
        connection = await asyncpg.connect(database, server_settings=settings)
        await connection.execute("BEGIN")
        await connection.fetch("SELECT 1 FROM dray.leader WHERE id = 1 FOR SHARE")
        return connection

    held = leader._loop.call(hold())
    waiting = other.lead_soon("http://other")
    waiting.result(60)
    assert other.epoch == 2
    assert held.is_closed()


def test_a_look_that_came_late_is_no_silence(open_postgres: Open, database: str) -> None:
    """One that stands by was stopped itself, between two looks: what it has not seen, it does not count."""
    leader, other = open_postgres(lease_s=60.0), open_postgres(lease_s=1.0)
    leader.begin_epoch()
    looks, look = 0, other._candidate.look

    async def look_late() -> Seen:
        nonlocal looks
        looks += 1
        if looks == 1:
            await asyncio.sleep(1.2)
        return await look()

    other._candidate.look = look_late  # type: ignore[method-assign]  # stands still before it asks
    other.lead_soon("http://other").result(60)
    assert looks > 5, "it has looked for a whole lease"


def test_a_leader_outlives_a_database_that_turns_it_away(
    open_postgres: Open, servers: Callable[..., Server], make: Any
) -> None:
    """A password that is changed before hubs know of it; a server that has no room for one more row."""
    server = servers()
    leader, other = (open_postgres(server.url("postgres"), lease_s=LEASE_S) for _ in range(2))
    leader.begin_epoch()
    leader.commit(make.turn(1))
    waiting = other.lead_soon("http://other")
    wait_until(lambda: "leads" in other.watched.words)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dray:%'"
    server.run(f"CREATE ROLE keeper SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
    server.run("ALTER ROLE dray PASSWORD 'another'; " + end)
    late = leader.commit_soon(make.turn(2))
    wait_until(lambda: not leader.is_trusted and "let this user in" in other.watched.words)
    assert not late.done()
    assert not waiting.done()
    server.run(f"ALTER ROLE dray PASSWORD '{PASSWORD}'", user="keeper")
    # Whoever is back first leads.
    wait_until(lambda: other.epoch or leader.is_trusted)
    if other.epoch:
        with pytest.raises(EpochLost):
            late.result(60)
    else:
        late.result(60)


def test_a_database_that_stands_still_makes_nobody_take_over(
    open_postgres: Open, servers: Callable[..., Server], make: Any
) -> None:
    server = servers()
    leader, other = (open_postgres(server.url("postgres"), lease_s=LEASE_S) for _ in range(2))
    leader.begin_epoch()
    waiting = other.lead_soon("http://other")
    wait_until(lambda: "leads" in other.watched.words)
    server.pause(signal.SIGSTOP)
    late = leader.commit_soon(make.turn(1))
    wait_until(lambda: "answer" in other.watched.words and not leader.is_trusted)
    assert not waiting.done()
    server.pause(signal.SIGCONT)
    late.result(60)
    wait_until(lambda: leader.is_trusted)
    assert (leader.epoch, other.epoch) == (1, 0)


def test_a_raise_of_one_that_was_taken_over_takes_nothing_back(open_postgres: Open, database: str) -> None:
    """It hears a worker that has seen a later epoch, and knows nothing of the take-over yet."""
    stale, leader = open_postgres(), open_postgres()
    stale.begin_epoch()
    leader.begin_epoch()
    raised: list[BaseException] = []

    def raise_it() -> None:
        try:
            stale.raise_epoch(7)
        except EpochLost as lost:
            raised.append(lost)

    thread = threading.Thread(target=raise_it)
    thread.start()
    thread.join(60)
    assert raised
    leader.verify()
    assert leader.raise_epoch(8) == 8
