"""Where a large file is cut: by what is in it, so that a small edit moves no cut but those beside it.

A cut may come behind eight bytes whose product with a fixed number begins with enough zeros. All of them at once: the
eight ways of reading a stretch as numbers of eight bytes are eight passes of numpy over it, which is some GB/s, where a
rolling hash in Python would be a thousandth. Surprising rule: these numbers are part of the format in so far as another
choice cuts the same file elsewhere, which costs an upload and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

WINDOW = 8
LEAST_BYTES, MOST_BYTES = 64 << 10, 512 << 10
_ODD = np.uint64(0x9E3779B97F4A7C15)
# One place in 2^17 on average.
_LIMIT = np.uint64(1 << (64 - 17))
_BLOCK = 1 << 17
_READ = 4 << 20


def find_places(data: memoryview) -> list[int]:
    """Offsets behind which a cut may come, in order."""
    found: list[int] = []
    for start in range(0, len(data), _BLOCK):
        part = data[start : start + _BLOCK + WINDOW - 1]
        here: list[int] = []
        for shift in range(WINDOW):
            count = (len(part) - shift) // WINDOW
            if count <= 0:
                break
            words = np.frombuffer(part, "<u8", count, shift)
            hits = np.flatnonzero(words * _ODD < _LIMIT)
            if hits.size:
                here += (hits * WINDOW + (start + shift + WINDOW)).tolist()
        found += sorted(here)
    return found


def cut_file(file: BinaryIO) -> Iterator[bytes]:
    """Read a file to its end, chunk by chunk."""
    held = bytearray()
    ended = False
    while not ended or held:
        if not ended:
            more = file.read(_READ)
            ended = not more
            held += more
        at = 0
        with memoryview(held) as view:
            ends = list(_cuts(view, ended))
        for end in ends:
            yield bytes(held[at:end])
            at = end
        del held[:at]


def _cuts(view: memoryview, ended: bool) -> Iterator[int]:
    """Ends of the chunks that can be told: what may go on behind the last one is left."""
    start = 0
    places = iter(find_places(view))
    for place in places:
        while place - start > MOST_BYTES:
            start += MOST_BYTES
            yield start
        if place - start >= LEAST_BYTES:
            start = place
            yield start
    while len(view) - start > MOST_BYTES:
        start += MOST_BYTES
        yield start
    if ended and start < len(view):
        yield len(view)
