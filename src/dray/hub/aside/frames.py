"""What goes through the pipes of a side process: pieces with their length, an empty one after a question's last."""

from __future__ import annotations

import struct
from typing import IO

LENGTH = struct.Struct(">I")
# An answer begins with one of these: the value asked for, or why there is none; before it how far it has come.
VALUE, FAULT, COURSE = b"v", b"f", b"c"


def frame(piece: bytes) -> bytes:
    """A piece as it goes through a pipe."""
    return LENGTH.pack(len(piece)) + piece


def read_pieces(source: IO[bytes]) -> list[bytes] | None:
    """The pieces of one question; None where the pipe ends before its last."""
    pieces: list[bytes] = []
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        length = LENGTH.unpack(head)[0]
        if not length:
            return pieces
        piece = source.read(length)
        if len(piece) < length:
            return None
        pieces.append(piece)
    return None
