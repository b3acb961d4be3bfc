"""When frames leave: with the turn that is told, else at the end of a step of the loop; whoever waits goes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dray.hub.access.caller import Caller
from dray.hub.workers.frames import Departures
from dray.hub.workers.session import Limits, SocketSession
from dray.wire.messages.codec import message
from dray.wire.messages.worker import worker_codec


class Direct:
    """A socket that takes every frame at once."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def take_frames(self, take: Callable[[bytes], bool]) -> None: ...

    def write_frame(self, frame: bytes) -> bool:
        self.frames.append(frame)
        return True

    def abort_in(self, delay_s: float) -> None: ...


async def nothing(event: object) -> None: ...


def session_on(direct: Direct, departures: Departures) -> SocketSession:
    caller, limits = Caller("t", "ana", ("worker",)), Limits(1 << 20, 8 << 20, 4, 1 << 20)
    session = SocketSession(1, caller, worker_codec(True), nothing, limits, departures, direct)
    session.lists = True
    return session


async def test_what_a_turn_says_leaves_with_it_in_one_frame() -> None:
    direct, departures = Direct(), Departures()
    session = session_on(direct, departures)
    departures.hold()
    session.push(message("ack"))
    session.push(message("no_work"))
    assert direct.frames == []
    for flush in departures.release():
        flush()
    (frame,) = direct.frames
    assert b"ack" in frame
    assert b"no_work" in frame


async def test_outside_of_turns_it_leaves_at_the_end_of_the_step() -> None:
    direct, departures = Direct(), Departures()
    session = session_on(direct, departures)
    session.push(message("ack"))
    session.push(message("no_work"))
    assert direct.frames == []
    await asyncio.sleep(0)
    assert len(direct.frames) == 1


def test_whoever_waits_is_served_first() -> None:
    departures, served = Departures(), []
    departures.hold()
    departures.add(lambda: served.append("heard"))
    departures.add(lambda: served.append("awaited"), awaited=True)
    for flush in departures.release():
        flush()
    assert served == ["awaited", "heard"]
    assert list(departures.release()) == []


async def test_a_socket_that_takes_nothing_more_may_still_have_been_read_from() -> None:
    """What a worker said before its goodbye counts, also where an answer finds its socket closed meanwhile."""

    async def gone(event: object) -> None:
        raise OSError("the peer has gone")

    caller, limits = Caller("t", "ana", ("worker",)), Limits(1 << 20, 8 << 20, 4, 1 << 20)
    session = SocketSession(1, caller, worker_codec(False), gone, limits, Departures())
    session.push(message("ack"))
    await session.pump()
    assert session.closing is None, "frames of a session that is being closed are dropped"
    for _ in range(9):
        session.push(message("ack"))
    assert session.closing is None, "nobody is called slow who has gone"
