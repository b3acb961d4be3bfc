"""Memory that a socket reads into: one piece, used again and again, so that bulk costs no fresh pages.

What has been read stands between `begin` and `end`; whoever takes of it moves `begin`. It is small until a read fills
it, grows for what does not fit, and gives that back once it is taken. Surprising rule: it never changes its size in
place, because whoever reads into it may still hold on to it.
"""

from __future__ import annotations

FIRST_BYTES = 8 << 10
BULK_BYTES = 128 << 10
# Where less is left, what stands there is moved to the front first.
ROOM_BYTES = 32 << 10


class ReadMemory:
    """What was read from one socket and not taken yet."""

    __slots__ = ("begin", "data", "end")

    def __init__(self) -> None:
        self.data = bytearray(FIRST_BYTES)
        self.begin = self.end = 0

    def __len__(self) -> int:
        return self.end - self.begin

    def room(self) -> memoryview:
        """Where the next bytes go: never empty."""
        size = len(self.data)
        if self.end == size < BULK_BYTES:
            # More may have been there than went in.
            self._move(BULK_BYTES)
        elif self.begin == self.end:
            self.begin = self.end = 0
            if size > BULK_BYTES:
                self.data = bytearray(BULK_BYTES)
        elif size - self.end < ROOM_BYTES and self.begin:
            self._move(size)
        if self.end == len(self.data):
            self._move(2 * size)
        return memoryview(self.data)[self.end :]

    def want(self, count: int) -> None:
        """So many bytes will stand there at once, those included that do."""
        if count > len(self.data):
            self._move(max(count, BULK_BYTES))

    def copy(self, start: int, stop: int) -> bytes:
        """Bytes between two places of `data`, as they stand now."""
        return bytes(memoryview(self.data)[start:stop])

    def _move(self, size: int) -> None:
        fresh, count = bytearray(size), len(self)
        fresh[:count] = memoryview(self.data)[self.begin : self.end]
        self.data, self.begin, self.end = fresh, 0, count
