"""A database with a standby of its own: what is answered, what may be believed, and what a failover loses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.e2e.proxy import Relay
from tests.hub.asking import wait_until
from tests.hub.replicas import Pair
from tests.postgres import Server

from dray.errors import EpochLost
from dray.hub.store.base import Position
from dray.hub.store.postgres.store import PgStore

Open = Callable[..., PgStore]
LEASE_S = 1.2


@pytest.fixture
def pair(servers: Callable[..., Server]) -> Iterator[Pair]:
    made = Pair(servers)
    yield made
    made.close()


@pytest.fixture
def database_at(pair: Pair) -> Iterator[Relay]:
    """The address that hubs know, which moves at a failover."""
    made = Relay(pair.primary.port)
    yield made
    made.close()


def url_at(relay: Relay, pair: Pair) -> str:
    return pair.primary.url("postgres").replace(str(pair.primary.port), str(relay.port))


def test_only_what_the_standby_has_as_well_is_believed_and_that_outlives_a_failover(
    pair: Pair, database_at: Relay, open_postgres: Open, make: Any
) -> None:
    """A commit that gave up waiting can be read on the primary, and is gone after a failover: only a later commit that
    was answered speaks for it.
    """
    pair.wait_for_it()
    store = open_postgres(url_at(database_at, pair), lease_s=LEASE_S)
    store.begin_epoch()
    store.commit(make.turn(1))
    pair.part()
    late = store.commit_soon(make.turn(2))
    waits = "FROM pg_stat_activity WHERE application_name LIKE 'dray:%' AND wait_event = 'SyncRep'"
    # Whoever waits for the standby is told to stop: then all can see the turn, and the standby has never heard of it.
    wait_until(lambda: pair.primary.run(f"SELECT pg_cancel_backend(pid) {waits}"))
    wait_until(lambda: pair.primary.run("SELECT count(*) FROM dray.log WHERE seq = 2") == "1")
    wait_until(lambda: not store.is_trusted)
    assert not late.done(), "it is there, and yet not to be believed"
    pair.join()
    late.result(60)
    for seq in range(3, 20):
        store.commit(make.turn(seq))
    pair.part()
    late = store.commit_soon(make.turn(20))
    wait_until(lambda: not store.is_trusted)
    assert not late.done()
    pair.fail_over(database_at)
    late.result(60)
    wait_until(lambda: store.is_trusted)
    store.commit(make.turn(21))
    assert [entry.seq for entry in store.tail(0)] == list(range(1, 22))
    assert store.lost is None


def test_a_failover_that_lost_commits_ends_the_lead_and_is_told_to_the_next(
    pair: Pair, database_at: Relay, open_postgres: Open, make: Any
) -> None:
    """Without a quorum: what was answered and is not there any more is noticed, and its numbers are not given out."""
    store = open_postgres(url_at(database_at, pair), lease_s=LEASE_S)
    store.begin_epoch()
    store.commit(make.turn(1))
    reached = pair.primary.run("SELECT pg_current_wal_lsn()")
    wait_until(lambda: pair.standby.run(f"SELECT pg_last_wal_replay_lsn() >= '{reached}'") == "t")
    pair.part()
    for seq in range(2, 7):
        store.commit(make.turn(seq))
    pair.fail_over(database_at)
    with pytest.raises(EpochLost):
        store.commit(make.turn(7))
    home = store._home
    store.close(clean=False)
    again = open_postgres(url_at(database_at, pair), home=home, lease_s=LEASE_S)
    again.begin_epoch()
    assert again.lost is not None
    assert (again.lost.found.seq, again.lost.known) == (1, Position(1, 6))
    again.commit(make.turn(7))
    assert [entry.seq for entry in again.tail(0)] == [1, 7]
    assert again.epoch > store.epoch


def test_a_read_after_a_failover_that_lost_rows_ends_the_lead(
    pair: Pair, database_at: Relay, open_postgres: Open, make: Any
) -> None:
    """The log is whole and the rows are older: a job that memory has let go of would be said never to have been."""
    store = open_postgres(url_at(database_at, pair), lease_s=LEASE_S)
    store.begin_epoch()
    store.commit(make.turn(1))
    reached = pair.primary.run("SELECT pg_current_wal_lsn()")
    wait_until(lambda: pair.standby.run(f"SELECT pg_last_wal_replay_lsn() >= '{reached}'") == "t")
    pair.part()
    store.project(make.projection(1, jobs=[make.row(1)]))
    assert store.find_job("j1") is not None
    pair.fail_over(database_at)
    with pytest.raises(EpochLost, match="rows went back to turn 0, from 1"):
        store.find_job("j1")
    with pytest.raises(EpochLost):
        store.commit(make.turn(2))
