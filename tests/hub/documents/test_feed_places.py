"""Where a reader of the feed begins."""

from __future__ import annotations

import asyncio

from dray.hub.documents.public_feed import Feed
from dray.hub.store.base import Turn
from dray.hub.store.memory import MemoryFile, MemoryStore


def test_who_begins_at_a_moment_misses_nothing_where_the_wall_clock_was_set_back():
    store = MemoryStore(MemoryFile())
    store.begin_epoch()
    walls = [9_000_000, 9_001_000, 1_000, 2_000, 9_004_000, 3_000]
    for number, at_ms in enumerate(walls, 1):
        store.commit(Turn(seq=number, now_ms=100 * number, at_ms=at_ms, facts=b"", notes=b""))
    feed = Feed(store)
    feed.start(len(walls))
    for number in range(1, len(walls) + 1):
        for moment_ms in (100 * number, 100 * number - 50):
            turn = int(asyncio.run(feed.find(moment_ms)).partition(".")[0])
            assert max(0, number - 2) <= turn < number
