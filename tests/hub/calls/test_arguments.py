"""Arguments on their way to workers: kept within a bound, read back, cut into messages and frames of bounded size."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from dray.core.lifecycle.state.effects import Note
from dray.hub.access.caller import Caller
from dray.hub.calls.arguments import ArgsMemory, pack_args, size_of
from dray.hub.calls.assignments import MESSAGE_BYTES, _portions
from dray.hub.store.base import Turn
from dray.hub.store.memory import MemoryStore
from dray.hub.workers.frames import Departures
from dray.hub.workers.session import FRAME_BYTES, Limits, SocketSession
from dray.wire.messages.codec import message
from dray.wire.messages.worker import worker_codec


class Memory:
    """Arguments of one job in chunks of ten, all of them in the store."""

    def __init__(self, most_bytes: int, chunks: int = 5) -> None:
        self.store = MemoryStore()
        self.store.begin_epoch()
        self.args = [b"%03d" % place for place in range(10 * chunks)]
        packed = [
            pack_args("j1", first, self.args[first : first + 10]) for first in range(0, 10 * chunks, 10)
        ]
        self.store.commit(Turn(1, 1, 1, b"", b"", chunks=packed))
        self.memory = ArgsMemory(self.store, most_bytes)
        self.reads = 0
        find = self.store.find_args

        def counted(job_id: str, index: int) -> Any:
            self.reads += 1
            return find(job_id, index)

        self.store.find_args = counted  # type: ignore[method-assign]  # the store is the test's own

    def add_all(self) -> None:
        for first in range(0, len(self.args), 10):
            self.memory.add("j1", first, self.args[first : first + 10])


def test_fresh_arguments_are_not_read_back_and_let_go_when_used_up() -> None:
    desk = Memory(1 << 20)
    desk.add_all()
    assert desk.memory.give_out("j1", range(50)) == desk.args
    assert (desk.reads, len(desk.memory)) == (0, 0)
    # One that comes back is read again.
    assert desk.memory.give_out("j1", [17, 3]) == [b"017", b"003"]
    assert desk.reads == 2


@pytest.mark.parametrize(
    "order", [range(50), list(itertools.chain(*zip(range(25), range(25, 50), strict=True)))]
)
def test_beyond_the_bound_they_wait_in_the_store(order: Any) -> None:
    bound = 2 * size_of([b"000"] * 10)
    desk = Memory(bound)
    desk.add_all()
    assert len(desk.memory) == 2
    given = []
    for index in order:
        given += desk.memory.give_out("j1", [index])
        assert desk.memory.size <= bound
    assert given == [desk.args[index] for index in order]
    assert desk.reads <= 8


def test_what_is_not_there_is_none_and_an_ended_job_is_let_go() -> None:
    desk = Memory(1 << 20)
    assert desk.memory.give_out("j1", [49, 50]) == [b"049", None]
    assert desk.memory.give_out("j2", [0]) == [None]
    desk.add_all()
    desk.memory.hear(Note("job_ended", "j2"))
    assert len(desk.memory) == 5
    desk.memory.hear(Note("job_ended", "j1"))
    assert (len(desk.memory), desk.memory.size) == (0, 0)


def test_a_column_is_cut_where_its_messages_would_grow_too_large() -> None:
    assert list(_portions([])) == []
    assert list(_portions([b"x"] * 5000)) == [(0, 4096), (4096, 5000)]
    large = [b"x" * 200_000] * 7
    cuts = list(_portions(large))
    assert [piece for start, end in cuts for piece in large[start:end]] == large
    assert all(sum(map(len, large[start:end])) <= MESSAGE_BYTES for start, end in cuts)
    assert list(_portions([b"x" * (2 * MESSAGE_BYTES)] * 2)) == [(0, 1), (1, 2)]


class Socket:
    """Takes frames only when it is told to."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.room = asyncio.Semaphore(0)

    async def send(self, event: dict[str, Any]) -> None:
        await self.room.acquire()
        self.frames.append(event)


def session_on(socket: Socket) -> SocketSession:
    limits = Limits(1 << 20, 8 << 20, 4, 1 << 20)
    session = SocketSession(
        1, Caller("t", "ana", ("worker",)), worker_codec(True), socket.send, limits, Departures()
    )
    session.lists = True
    return session


async def test_calls_do_not_count_as_unread_and_frames_stay_small() -> None:
    socket = Socket()
    session = session_on(socket)
    pump = asyncio.create_task(session.pump())
    calls = message("calls_assign", {"args": [b"x" * 60_000] * 8})
    for _ in range(20):
        session.push(message("ack"))
        await asyncio.sleep(0)
        for _ in range(10):
            session.push(calls)
        if session._plain >= 4:
            break
    assert session.closing is None
    assert len(session._outbox) > 4
    session.push(message("ack"))
    assert session.closing is not None
    for _ in range(500):
        socket.room.release()
    await pump
    frames = [event["bytes"] for event in socket.frames if "bytes" in event]
    assert max(map(len, frames)) < FRAME_BYTES + 4096
    heard = [one for frame in frames for one in _split(frame)]
    assert sum(one["type"] == "calls_assign" for one in heard) % 10 == 0
    assert socket.frames[-1]["code"] == 1013


def _split(frame: bytes) -> list[Any]:
    decoded = msgspec.msgpack.decode(frame)
    return decoded if isinstance(decoded, list) else [decoded]
