"""Streams handed on: kept until somebody takes them over, and joined, so that what comes out of one goes into
another.
"""

from __future__ import annotations

import asyncio

from dray.wire.streams.frames import EXIT, Bytes
from dray.wire.streams.mux import Stream, Taker

MOST_TOLD = 64


class Early(Taker):
    """Keeps what comes, a window at most, for whoever takes the stream over."""

    def __init__(self) -> None:
        self._came: list[bytes] = []
        self._told: list[tuple[int, bytes]] = []
        self._eof, self._end = False, ""

    def data(self, data: bytes) -> None:
        self._came.append(data)

    def told(self, kind: int, payload: bytes) -> None:
        self._told.append((kind, payload))
        # No window counts these: the last ones have to do.
        del self._told[:-MOST_TOLD]

    def eof(self) -> None:
        self._eof = True

    def ended(self, reason: str) -> None:
        self._end = reason

    def hand_over(self, stream: Stream, taker: Taker) -> None:
        """Let another one hear everything, from the first byte on."""
        stream.taker = taker
        for data in self._came:
            taker.data(data)
        for kind, payload in self._told:
            taker.told(kind, payload)
        if self._eof:
            taker.eof()
        if self._end:
            taker.ended(self._end)


class Opening(Early):
    """Waits until a stream stands. `answer`: why it does not, empty where it does; `words` came with it."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.words = b""

    def opened(self, told: bytes) -> None:
        self.words = told
        if not self.answer.done():
            self.answer.set_result("")

    def ended(self, reason: str) -> None:
        super().ended(reason)
        if not self.answer.done():
            self.answer.set_result(reason or "it ended at once")


class Joint(Taker):
    """What comes out of one stream goes into the other, and counts as dealt with when that one has let it go."""

    opposite: Joint

    def __init__(self, own: Stream, other: Stream) -> None:
        self._own, self._other = own, other
        self._unsent = 0
        self._exit: bytes | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data(self, data: bytes) -> None:
        self._pass_on(data)

    def view(self, view: memoryview) -> None:
        self._pass_on(view)

    def _pass_on(self, data: Bytes) -> None:
        self._other.write(data)
        if self._other.is_full:
            self._unsent += len(data)
        else:
            self._own.credit(len(data))

    def room(self) -> None:
        # This stream takes more: what waited for that is the opposite's.
        self.opposite.release()

    def release(self) -> None:
        """The other stream has let go what waited for it."""
        amount, self._unsent = self._unsent, 0
        self._own.credit(amount)

    def told(self, kind: int, payload: bytes) -> None:
        if kind == EXIT:
            self._exit = payload
        else:
            self._other.tell(kind, payload)

    def eof(self) -> None:
        self._other.finish(self._exit)

    def ended(self, reason: str) -> None:
        self.leave()
        if reason:
            self._other.reset(reason)
            self.opposite.leave()

    def leave(self) -> None:
        """Nothing more comes."""
        if not self.over.done():
            self.over.set_result(None)


def join(first: Stream, second: Stream) -> tuple[Joint, Joint]:
    """What takes the first of two streams, and what the second, so that each goes on in the other."""
    forth, back = Joint(first, second), Joint(second, first)
    forth.opposite, back.opposite = back, forth
    return forth, back
