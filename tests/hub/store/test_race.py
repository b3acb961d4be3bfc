"""Several hubs at one database, each sure that it leads: what one was answered, the next one has read.

Needs a real server: the ways in which a plain condition fails come from how it takes snapshots. $DRAY_RACE_S makes it
as long as one likes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from tests.postgres import Server

from dray.hub.store.postgres import turns
from dray.hub.store.postgres.address import Address
from dray.hub.store.postgres.schema import migrate

RACE_S = float(os.environ.get("DRAY_RACE_S", "2"))
MOST_S = 30.0
CONTENDERS = 3
STINT = 4
_TAKE = "UPDATE dray.leader SET epoch = epoch + 1 WHERE id = 1 RETURNING epoch"
_VALUES = "$1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::bytea, $6::bytea"
_INSERT = "INSERT INTO dray.log (epoch, seq, now_ms, at_ms, facts, notes) SELECT"
WHOLE: list[list[Any]] = [[] for _ in range(22)]
UNSAFE = {
    "no condition": f"{_INSERT} {_VALUES} RETURNING seq",
    "a plain condition": f"{_INSERT} {_VALUES} FROM dray.leader WHERE id = 1 AND epoch = $1 RETURNING seq",
    "a share of its key": turns.BARE.replace("FOR SHARE", "FOR KEY SHARE"),
}


class Race:
    """Counts what was answered to one leader and not there when the next one read."""

    def __init__(self, url: str, statement: str, more: list[list[Any]]) -> None:
        self._url, self._statement, self._more = url, statement, more
        self._seqs = itertools.count(1)
        self._answered: dict[int, set[int]] = defaultdict(set)
        self._read: dict[int, set[int]] = {}
        self._over = False

    @property
    def unseen(self) -> int:
        return sum(len(self._answered[epoch - 1] - read) for epoch, read in self._read.items())

    @property
    def taken(self) -> int:
        return len(self._read)

    async def run(self, enough: Callable[[Race], bool], within_s: float) -> None:
        contenders = [asyncio.ensure_future(self._contend()) for _ in range(CONTENDERS)]
        until = time.monotonic() + within_s
        while time.monotonic() < until and not enough(self):
            await asyncio.wait(contenders, timeout=0.05)
        self._over = True
        await asyncio.gather(*contenders)

    async def _contend(self) -> None:
        """Take the lead, read, commit until told that another one leads, or for a few turns without being told."""
        connection = await asyncpg.connect(self._url)
        try:
            while not self._over:
                epoch = await connection.fetchval(_TAKE)
                rows = await connection.fetch("SELECT seq FROM dray.log WHERE epoch = $1", epoch - 1)
                self._read[epoch] = {row[0] for row in rows}
                for _ in range(STINT):
                    seq = next(self._seqs)
                    values = (epoch, seq, 0, 0, b"facts", b"", *self._more)
                    if not await connection.fetch(self._statement, *values):
                        break
                    self._answered[epoch].add(seq)
        finally:
            await connection.close()


@pytest.fixture(scope="module")
def synced(servers: Callable[..., Server]) -> Server:
    """With real syncs: a commit that takes its time is what the race is about."""
    return servers("fsync=on")


async def race(
    server: Server, statement: str, enough: Callable[[Race], bool], within_s: float, *more: Any
) -> Race:
    url = server.url(server.make_database())
    connection = await asyncpg.connect(url)
    await migrate(connection, Address(url), if_empty=True)
    await connection.close()
    found = Race(url, statement, list(more))
    await found.run(enough, within_s)
    return found


@pytest.mark.timeout(RACE_S + 120)
async def test_what_a_leader_was_answered_the_next_one_reads(synced: Server) -> None:
    found = await race(synced, turns.BARE, lambda race: False, RACE_S)
    assert (found.unseen, found.taken > 10) == (0, True)


@pytest.mark.timeout(RACE_S + 120)
async def test_nor_is_any_of_a_whole_turn_unseen(synced: Server) -> None:
    found = await race(synced, turns.WHOLE, lambda race: False, RACE_S, *WHOLE)
    assert (found.unseen, found.taken > 10) == (0, True)


@pytest.mark.parametrize("name", UNSAFE)
async def test_the_race_would_find_a_weaker_fence(synced: Server, name: str) -> None:
    found = await race(synced, UNSAFE[name], lambda race: race.unseen > 0, MOST_S)
    assert found.unseen > 0, f"{found.taken} changes of leader"
