"""A database looked at without leading there: for `dray doctor` when no hub runs, or none can."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import asyncpg

from dray.hub.store.base import Position
from dray.hub.store.leading import Timings
from dray.hub.store.postgres.address import Address
from dray.hub.store.postgres.connection import Target, check_server, open_connection
from dray.hub.store.postgres.errors import translate
from dray.hub.store.postgres.schema import read_version

PATIENCE_S = 10.0
_FOUND = """SELECT store_id, leader.epoch, greatest(applied_seq, (SELECT max(seq) FROM dray.log)), holder
    FROM dray.meta, dray.leader"""
_COUNTS = "SELECT state, count(*) FROM dray.jobs GROUP BY state ORDER BY state"


class Examined(NamedTuple):
    """What is in a database."""

    shown: str
    store_id: str
    position: Position
    holder: str
    counts: dict[str, int]


def examine_database(text: str) -> Examined | None:
    """Look at a database; None where it holds no store yet. Raises with a sentence where it cannot be used."""
    target = Target(Address(text), "dray doctor", Timings(PATIENCE_S))
    return asyncio.run(_examine(target))


async def _examine(target: Target) -> Examined | None:
    await check_server(target)
    connection = await open_connection(target)
    try:
        if not await read_version(connection, target.address):
            return None
        ((store_id, epoch, seq, holder),) = await connection.fetch(_FOUND)
        counts = {str(row[0]): int(row[1]) for row in await connection.fetch(_COUNTS)}
        return Examined(target.address.shown, store_id, Position(epoch, seq), holder, counts)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translate(error, target.address, "look at the store") from error
    finally:
        await connection.close(timeout=1)
