"""Output and errors of one process over one stream: `which u8 | size u32 | bytes`, again and again.

A terminal has output alone. What its end was is told beside the bytes, and so are signals and the size of a terminal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from dray.errors import InvalidInput

OUTPUT, ERRORS = 1, 2
HEAD = struct.Struct("!BI")
SIZE = struct.Struct("!HH")
NUMBER = struct.Struct("!B")
MOST_BYTES = 1 << 20


class Ended(msgspec.Struct, frozen=True):
    """How a process ended: its exit code, 128 + n for signal n, and why it never began where it did not."""

    code: int
    error: str = ""


def pack(which: int, data: bytes) -> bytes:
    """One parcel."""
    return HEAD.pack(which, len(data)) + data


class Parcels:
    """Takes a stream's bytes as they come, and gives what is in them as soon as it is there."""

    def __init__(self) -> None:
        self._head = b""
        self._which = self._left = 0

    def open(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """What these bytes bring; raises `InvalidInput` for what is no parcel."""
        at = 0
        while at < len(data):
            if not self._left:
                wanted = HEAD.size - len(self._head)
                self._head += data[at : at + wanted]
                at += wanted
                if len(self._head) < HEAD.size:
                    return
                self._which, self._left = HEAD.unpack(self._head)
                self._head = b""
                if self._which not in (OUTPUT, ERRORS) or not 0 < self._left <= MOST_BYTES:
                    raise InvalidInput("this is no output of a process as this version knows it")
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            yield self._which, piece


def write_ended(ended: Ended) -> bytes:
    """Spell an end."""
    return msgspec.json.encode(ended)


def read_ended(payload: bytes) -> Ended:
    """Read an end; what cannot be read is one that nobody knows."""
    try:
        return msgspec.json.decode(payload, type=Ended)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise InvalidInput("how it ended cannot be read") from None
