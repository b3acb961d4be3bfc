"""Output as it is filed: frames, so that both streams of an attempt keep their order of arrival.

A frame is (kind, stream offset, length) and data; a gap is a frame without data. The same bytes in every kind of place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

HEADER = struct.Struct("<BQI")
GAP, OVER = 8, 16
GAP_MOST = (1 << 32) - 1  # a longer gap is told short: the piece behind it names its own offset


class Frame(NamedTuple):
    """One piece of output; `gap` counts bytes that are not there, `over` says that the cap is why."""

    stream: int
    offset: int
    data: bytes
    gap: int
    over: bool

    @property
    def end(self) -> int:
        """Up to where its stream is told."""
        return self.offset + len(self.data) + self.gap


def write_gap(stream: int, offset: int, length: int, over: bool = False) -> bytes:
    """A frame for what is not there."""
    return HEADER.pack(GAP | (OVER if over else 0) | stream, offset, min(length, GAP_MOST))


def write_data(stream: int, offset: int, data: bytes) -> bytes:
    """A frame with data."""
    return HEADER.pack(stream, offset, len(data)) + data


class Frames:
    """Walks the whole frames of a file, each with where it ends."""

    def __init__(self, file: BinaryIO, position: int = 0) -> None:
        self._file, self._position = file, position
        if position:
            file.seek(position)

    def __iter__(self) -> Frames:
        return self

    def __next__(self) -> tuple[Frame, int]:
        header = self._file.read(HEADER.size)
        if len(header) < HEADER.size:
            raise StopIteration
        kind, offset, length = HEADER.unpack(header)
        gap = kind & GAP
        data = b"" if gap else self._file.read(length)
        if not gap and len(data) < length:
            raise StopIteration
        self._position += HEADER.size + len(data)
        frame = Frame(kind & 1, offset, data, length if gap else 0, bool(kind & OVER))
        return frame, self._position


def split_frames(data: bytes) -> Iterator[tuple[Frame, int]]:
    """Walk the whole frames of some bytes, each with where it ends there."""
    at, size = 0, len(data)
    while at + HEADER.size <= size:
        kind, offset, length = HEADER.unpack_from(data, at)
        start = at + HEADER.size
        at = start if kind & GAP else start + length
        if at > size:
            return
        gap = length if kind & GAP else 0
        yield Frame(kind & 1, offset, data[start:at], gap, bool(kind & OVER)), at


def read_whole(file: BinaryIO, most_bytes: int) -> bytes:
    """Read about so many bytes of whole frames from where a file stands; one that is longer, alone."""
    data = file.read(most_bytes)
    whole = 0
    while whole + HEADER.size <= len(data):
        kind, _, length = HEADER.unpack_from(data, whole)
        end = whole + HEADER.size + (0 if kind & GAP else length)
        if end > len(data):
            if whole:
                break
            data += file.read(end - len(data))
            if end > len(data):
                break
        whole = end
    return data[:whole]
