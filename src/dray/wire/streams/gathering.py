"""Frames that may wait a moment leave together with the next one that may not: a write to a socket costs more than all
that is in a small frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dray.wire.streams.frames import Bytes

# The longest that a frame waits for another one.
LAID_BY_S = 0.01
MOST = 256
Frames = Sequence[tuple[bytes, Bytes]]


class Gatherer:
    """One socket's frames, each in two parts. `send` writes several at once, and none once it is closed."""

    __slots__ = ("_laid_by", "_loop", "_ringing", "_send")

    def __init__(self, send: Callable[[Frames], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._laid_by: list[tuple[bytes, Bytes]] = []
        self._ringing = False

    def write(self, head: bytes, payload: Bytes) -> None:
        """Write a frame now, and before it what was laid by."""
        if self._laid_by:
            self.lay_by(head, payload)
            self._flush()
        else:
            self._send(((head, payload),))

    def lay_by(self, head: bytes, payload: Bytes) -> None:
        """Keep a frame for the next one, or until nothing has come of that."""
        self._laid_by.append((head, payload))
        if not self._ringing:
            # Not called off by a write: that would cost as much as what is saved here.
            self._ringing = True
            self._loop.call_later(LAID_BY_S, self._ring)
        elif len(self._laid_by) >= MOST:
            self._flush()

    def _ring(self) -> None:
        self._ringing = False
        self._flush()

    def _flush(self) -> None:
        frames, self._laid_by = self._laid_by, []
        if frames:
            self._send(frames)
