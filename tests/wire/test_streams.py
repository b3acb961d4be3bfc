"""The multiplexer, held against random interleavings of two ends, and against peers that keep no rules."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.errors import Overloaded
from dray.wire.streams import frames
from dray.wire.streams.frames import HEAD, PIECE_BYTES, WINDOW_BYTES
from dray.wire.streams.gathering import MOST, Gatherer
from dray.wire.streams.joints import MOST_TOLD, Early
from dray.wire.streams.mux import MAX_HELD, MAX_STREAMS, Mux, Stream, Taker


class Ear(Taker):
    """Keeps all it hears, and deals with it when it is told to."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.undone = 0
        self.log: list[str] = []
        self.told_kinds: list[int] = []

    def opened(self, told: bytes) -> None:
        self.log.append("opened")

    def data(self, data: bytes) -> None:
        assert "eof" not in self.log
        self.got += data
        self.undone += len(data)

    def eof(self) -> None:
        self.log.append("eof")

    def told(self, kind: int, payload: bytes) -> None:
        self.told_kinds.append(kind)

    def ended(self, reason: str) -> None:
        assert not self.log or not self.log[-1].startswith("ended")
        self.log.append(f"ended {reason}")

    def kept(self, whole: bool) -> None:
        self.log.append("kept whole" if whole else "kept")


class End:
    """One end, and the frames that are on their way from it."""

    def __init__(self, accepts: bool) -> None:
        self.way: deque[bytes] = deque()
        self.room = True
        self.cuts: list[str] = []
        self.streams: dict[int, Stream] = {}
        self.ears: dict[int, Ear] = {}
        self.sent: dict[int, bytearray] = {}
        self.written = 0
        self.mux = Mux(
            lambda head, rest: self.way.append(head + rest),
            lambda: self.room,
            self.cuts.append,
            self.welcome if accepts else None,
        )

    def welcome(self, stream: Stream, target: bytes) -> None:
        self.keep(stream, Ear())

    def keep(self, stream: Stream, ear: Ear) -> None:
        stream.taker = ear
        self.streams[stream.number], self.ears[stream.number] = stream, ear
        self.sent[stream.number] = bytearray()

    def open(self) -> None:
        ear = Ear()
        self.keep(self.mux.open(b"{}", ear), ear)

    def write(self, number: int, size: int) -> None:
        stream = self.streams[number]
        if stream.waiting_bytes > WINDOW_BYTES or stream.ended or stream._finishing:
            return
        self.written += 1
        data = struct.pack("!I", self.written) * (size // 4 + 1)
        self.sent[number] += data
        stream.write(data)


class Pair:
    """Two ends and what may happen between them."""

    def __init__(self) -> None:
        self.ends = End(False), End(True)
        self.broken: set[int] = set()

    def deliver(self, of: int) -> None:
        if self.ends[of].way:
            self.ends[1 - of].mux.take(self.ends[of].way.popleft())

    def settle(self) -> None:
        """Let everything arrive and be dealt with."""
        for end in self.ends:
            end.room = True
            end.mux.flush()
        while any(end.way for end in self.ends) or any(
            ear.undone for end in self.ends for ear in end.ears.values()
        ):
            for of in (0, 1):
                while self.ends[of].way:
                    self.deliver(of)
                for number, ear in self.ends[of].ears.items():
                    amount, ear.undone = ear.undone, 0
                    self.ends[of].streams[number].credit(amount)


ACTIONS = (
    *("open", "accept", "finish", "tell", "room"),
    *["deliver"] * 12,
    *["write"] * 8,
    *["credit"] * 8,
)
STEPS = 600


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_bytes_arrive_once_and_in_order_whatever_comes_between(seed: int) -> None:
    # A walk drawn from one number: lists of steps as hypothesis draws them are too short to fill a window.
    draw, pair = random.Random(seed), Pair()
    for _ in range(STEPS):
        action, side = draw.choice(ACTIONS), draw.randrange(2)
        end = pair.ends[side]
        if action == "open":
            if len(pair.ends[0].streams) < 4:
                pair.ends[0].open()
        elif action == "deliver":
            pair.deliver(side)
        elif action == "room":
            end.room = not end.room
            end.mux.flush()
        elif end.streams:
            act(pair, side, action, draw)
        for one in pair.ends:
            assert not one.cuts, "an honest peer is never cut off"
            for ear in one.ears.values():
                assert ear.undone <= WINDOW_BYTES, "no end holds more than a window of a stream"
    for number, stream in pair.ends[1].streams.items():
        if number not in pair.broken:
            stream.accept()
    pair.settle()
    for side in (0, 1):
        other = pair.ends[1 - side]
        for number, ear in pair.ends[side].ears.items():
            if number in pair.broken:
                assert bytes(other.sent.get(number, b"")).startswith(bytes(ear.got))
            else:
                assert ear.got == other.sent[number]
    check_ends(pair)


def act(pair: Pair, side: int, action: str, draw: random.Random) -> None:
    end = pair.ends[side]
    number, size = draw.choice(list(end.streams)), draw.choice([1, 5000, PIECE_BYTES, 3 * PIECE_BYTES])
    stream, ear = end.streams[number], end.ears[number]
    if action == "write" and (stream.opened or side == 0):
        end.write(number, size)
    elif action == "credit":
        amount = min(size, ear.undone)
        ear.undone -= amount
        stream.credit(amount)
    elif action == "accept" and side == 1:
        stream.accept()
    elif action == "finish" and (stream.opened or side == 0) and draw.random() < 0.2:
        if draw.random() < 0.7:
            stream.finish()
        else:
            pair.broken.add(number)
            stream.reset("enough")
    elif action == "tell" and stream.opened:
        stream.tell(frames.RESIZE, b"")


def check_ends(pair: Pair) -> None:
    """A stream that both finished has ended at both; a reset one at both; the rest lives at both."""
    first, second = pair.ends
    for number in first.streams:
        ended = [end.streams[number].ended for end in pair.ends if number in end.streams]
        assert len(set(ended)) == 1
        if number in pair.broken:
            assert ended[0]
    assert len(first.mux) == len(second.mux)


def cut_by(*raw: bytes, opens: int = 1, prepare: Callable[[End], None] = lambda end: None) -> list[str]:
    """What an end that opens says of a peer that sends these frames."""
    end = End(False)
    for _ in range(opens):
        end.open()
    prepare(end)
    for frame in raw:
        end.mux.take(frame)
    return end.cuts


OPENED = HEAD.pack(1, frames.OPENED)


@pytest.mark.parametrize(
    "raw",
    [
        [b""],
        [b"\0\0\0\1"],
        [HEAD.pack(1, 77)],
        [HEAD.pack(0, frames.DATA) + b"x"],
        [HEAD.pack(2, frames.DATA) + b"x"],
        [HEAD.pack(7, frames.OPEN) + b"{}"],
        [HEAD.pack(1, frames.OPEN) + b"{}"],
        [HEAD.pack(1, frames.DATA) + b"before it stands"],
        [HEAD.pack(1, frames.EOF)],
        [OPENED, OPENED],
        [OPENED, HEAD.pack(1, frames.REFUSED)],
        [OPENED, HEAD.pack(1, frames.DATA)],
        [OPENED, HEAD.pack(1, frames.DATA) + bytes(PIECE_BYTES + 1)],
        [
            OPENED,
            *[HEAD.pack(1, frames.DATA) + bytes(PIECE_BYTES)] * (WINDOW_BYTES // PIECE_BYTES),
            HEAD.pack(1, 3) + b"x",
        ],
        [OPENED, HEAD.pack(1, frames.EOF), HEAD.pack(1, frames.EOF)],
        [OPENED, HEAD.pack(1, frames.EOF), HEAD.pack(1, frames.DATA) + b"x"],
        [OPENED, HEAD.pack(1, frames.WINDOW) + b"\0\0\0\1"],
        [OPENED, HEAD.pack(1, frames.WINDOW) + b"\xff"],
        [OPENED, HEAD.pack(1, frames.KEEP) + bytes(8)],
    ],
)
def test_a_peer_that_keeps_no_rules_is_cut_off(raw: list[bytes]) -> None:
    assert not cut_by(*raw[:-1]), "up to there it kept them"
    assert len(cut_by(*raw)) == 1


def test_frames_that_crossed_the_end_of_their_stream_are_passed_over() -> None:
    late = [HEAD.pack(1, kind) + b"\0\0\0\1" for kind in range(1, frames.KEEP + 1)]
    assert not cut_by(*late, prepare=lambda end: end.streams[1].reset("enough"))


def test_a_peer_that_does_not_read_what_it_is_told_is_cut_off() -> None:
    end = End(False)
    end.open()
    end.room = False
    for _ in range(MAX_HELD + 1):
        end.streams[1].tell(frames.RESIZE, b"")
    assert len(end.cuts) == 1


def test_there_is_a_limit_on_streams_at_both_ends() -> None:
    end, taking = End(False), End(True)
    for _ in range(MAX_STREAMS):
        end.open()
    with pytest.raises(Overloaded):
        end.open()
    for number in range(1, MAX_STREAMS + 2):
        taking.mux.take(HEAD.pack(number, frames.OPEN) + b"{}")
    assert taking.way[-1][:5] == HEAD.pack(MAX_STREAMS + 1, frames.REFUSED)
    assert not taking.cuts


def test_a_slow_stream_holds_up_no_other() -> None:
    pair = Pair()
    for _ in range(2):
        pair.ends[0].open()
    slow, quick = pair.ends[0].streams.values()
    slow.write(bytes(4 * WINDOW_BYTES))
    assert slow.is_full
    quick.write(b"hello")
    while pair.ends[0].way:
        pair.deliver(0)
    assert pair.ends[1].ears[2].got == b"hello"
    assert pair.ends[1].ears[1].undone == WINDOW_BYTES
    assert not pair.ends[1].cuts


def test_whoever_waits_for_room_is_told_once_there_is_some() -> None:
    pair = Pair()
    pair.ends[0].open()
    told: list[bool] = []
    stream = pair.ends[0].streams[1]
    stream.taker.room = lambda: told.append(stream.is_full)  # type: ignore[method-assign] # only for this one
    stream.write(bytes(2 * WINDOW_BYTES))
    assert stream.is_full
    assert not told
    pair.settle()
    assert told == [False]


def test_the_end_of_the_socket_is_the_end_of_every_stream_and_told_once() -> None:
    pair = Pair()
    pair.ends[0].open()
    pair.ends[0].mux.close("gone")
    pair.ends[0].mux.close("gone again")
    assert pair.ends[0].ears[1].log == ["ended gone"]
    with pytest.raises(Overloaded, match="gone"):
        pair.ends[0].open()


def test_an_exit_is_told_after_the_last_byte_and_before_the_end() -> None:
    pair = Pair()
    pair.ends[0].open()
    stream = pair.ends[0].streams[1]
    stream.write(bytes(3 * WINDOW_BYTES))
    stream.finish(b"7")
    pair.settle()
    ear = pair.ends[1].ears[1]
    assert (len(ear.got), ear.told_kinds, ear.log) == (3 * WINDOW_BYTES, [frames.EXIT], ["eof"])


def test_whoever_takes_a_stream_over_hears_all_of_it() -> None:
    end, early, ear = End(True), Early(), Ear()
    end.mux.take(HEAD.pack(1, frames.OPEN) + b"{}")
    stream = end.streams[1]
    stream.taker = early
    end.mux.take(HEAD.pack(1, frames.DATA) + b"one")
    end.mux.take(HEAD.pack(1, frames.DATA) + b"two")
    end.mux.take(HEAD.pack(1, frames.EOF))
    early.hand_over(stream, ear)
    assert (bytes(ear.got), ear.log) == (b"onetwo", ["eof"])


def test_of_words_beside_the_bytes_only_so_many_are_kept() -> None:
    end, early, ear = End(True), Early(), Ear()
    end.mux.take(HEAD.pack(1, frames.OPEN) + b"{}")
    stream = end.streams[1]
    stream.taker = early
    for kind in (*[frames.RESIZE] * 10_000, frames.SIGNAL):
        end.mux.take(HEAD.pack(1, kind) + b"\x00\x18\x00\x50")
    early.hand_over(stream, ear)
    assert len(ear.told_kinds) == MOST_TOLD
    assert ear.told_kinds[-1] == frames.SIGNAL


def test_a_stream_is_kept_whole_only_where_all_that_was_sent_has_been_read() -> None:
    pair = Pair()
    for _ in range(3):
        pair.ends[0].open()
    for stream in pair.ends[0].streams.values():
        stream.write(b"ask")
    while pair.ends[0].way:
        pair.deliver(0)
    for stream in pair.ends[1].streams.values():
        stream.accept()
        stream.write(b"told")
    while pair.ends[1].way:
        pair.deliver(1)
    # More comes for the second while its end is on the way, and the third has said its end.
    pair.ends[1].streams[2].write(b"and more")
    pair.ends[1].streams[3].finish()
    assert all(stream.keep() for stream in pair.ends[0].streams.values())
    pair.settle()
    logs = [ear.log for ear in pair.ends[1].ears.values()]
    assert logs == [["kept whole"], ["kept"], ["kept"]]
    assert not any(end.cuts or len(end.mux) for end in pair.ends)


def test_a_stream_is_not_kept_before_it_stands_nor_while_something_is_to_be_sent_nor_after_an_end() -> None:
    pair = Pair()
    for _ in range(3):
        pair.ends[0].open()
    new, full, ended = pair.ends[0].streams.values()
    while pair.ends[0].way:
        pair.deliver(0)
    assert not new.keep()
    for number in (2, 3):
        pair.ends[1].streams[number].accept()
    pair.ends[1].streams[3].finish()
    while pair.ends[1].way:
        pair.deliver(1)
    full.write(bytes(2 * WINDOW_BYTES))
    assert not full.keep()
    assert not ended.keep()


async def test_what_may_wait_leaves_with_what_may_not_and_by_itself_after_a_moment() -> None:
    sent: list[list[bytes]] = []
    gatherer = Gatherer(lambda several: sent.append([head + bytes(rest) for head, rest in several]))
    gatherer.write(b"1", b"now")
    gatherer.lay_by(b"2", b"later")
    assert sent == [[b"1now"]]
    gatherer.write(b"3", b"now")
    assert sent == [[b"1now"], [b"2later", b"3now"]]
    gatherer.lay_by(b"4", b"alone")
    async with asyncio.timeout(60):
        while len(sent) < 3:  # noqa: ASYNC110 - a list tells nobody that it grew
            await asyncio.sleep(0.001)
    assert sent[2] == [b"4alone"]
    for number in range(MOST + 1):
        gatherer.lay_by(b"%d" % number, b"")
    assert [len(several) for several in sent[3:]] == [MOST]
