"""Several hubs that file output of one attempt in a database: each byte is there once, whoever is late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from dray.hub.files.base import Addition, Found
from dray.hub.files.frames import split_frames
from dray.hub.files.postgres import PgTapes
from dray.hub.files.side import OpenSide, Side
from dray.hub.store.postgres.store import PgStore
from dray.hub.workers.outputs import Outputs
from dray.wire.messages.worker import JobLog

CAP = 1 << 30


class Attempt:
    """As much of one as tapes are named by."""

    job_id, index, no, uid, lane, worker, calls = "j1", 0, 1, "u1", False, "w1", None


def find(worker: str, job_id: str, index: int, uid: str) -> Any:
    return Attempt()


def piece(at: int, text: bytes) -> JobLog:
    return JobLog(task_id="j1", attempt="u1", stream="stdout", offset=at, data=text)


def text_of(tapes: PgTapes) -> bytes:
    tape = tapes.tape("j1", "0.1.u1")
    (found,) = tapes.find([tape])
    position, data = 0, b""
    while portion := tape.read(position, found.size):
        for frame, _ in split_frames(portion):
            assert not frame.gap
            data += frame.data
        position += len(portion)
    return data


def test_who_finds_the_end_of_a_tape_taken_is_told(lead: Callable[[], PgStore]) -> None:
    store = lead()
    near, far = PgTapes(store.attach(Side)), PgTapes(store.attach(OpenSide))
    mine, theirs = near.tape("j1", "a"), far.tape("j1", "a")
    first = Addition(mine, 0, b"one", (3, 0))
    assert near.write([first]) == [True]
    assert near.write([first]) == [True], "the same again, as after an answer that did not come"
    assert far.write([Addition(theirs, 0, b"uno", (3, 0))]) == [None]
    assert far.write(
        [Addition(theirs, 3, b"two", (6, 0)), Addition(far.tape("j1", "b"), 0, b"x", (1, 0))]
    ) == [
        True,
        True,
    ]
    assert near.write([Addition(mine, 3, b"dos!", (7, 0))]) == [None]
    assert near.find([mine]) == [Found((6, 0), 6)]


@pytest.mark.parametrize("seed", range(3))
async def test_pieces_that_come_by_several_hubs_at_once_are_there_once(
    lead: Callable[[], PgStore], seed: int
) -> None:
    store, draw = lead(), random.Random(seed)
    kinds = (Side, OpenSide, OpenSide)
    hubs = [Outputs(PgTapes(store.attach(kind)), CAP, find) for kind in kinds]
    for hub in hubs:
        hub.start()
    whole = bytes(draw.randrange(256) for _ in range(60_000))
    told = list[int]()

    def tell(ends: dict[str, dict[str, int]] | None) -> None:
        assert ends is not None
        told.append(ends["u1"]["stdout"])

    at, said, hub = 0, 0, hubs[0]
    while at < len(whole):
        if draw.random() < 0.1:
            # It moves, and sends what was not acked again, cut otherwise, while the first hub may still be at it.
            hub, at = draw.choice(hubs), max(told, default=0)
        for _ in range(draw.randrange(1, 8)):
            size = draw.randrange(1, 900)
            hub.take("w1", piece(at, whole[at : at + size]), tell)
            said, at = said + 1, min(len(whole), at + size)
        await asyncio.sleep(draw.choice((0, 0, 0.002)))
    for hub in hubs:
        await hub.close()
    assert len(told) == said
    assert max(told) == len(whole)
    assert text_of(PgTapes(store.attach(Side))) == whole
