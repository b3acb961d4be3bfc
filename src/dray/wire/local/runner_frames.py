"""Frames between an agent and its runners, over unix sockets: a length, a kind, a body in columns or JSON.

The standard library only: a runner may live in an environment that has nothing else. Nothing here opens a pickle.
Surprising rule: a runner holds two sockets. Calls and results go over the first, read by the thread that runs them;
what must be heard while a call runs (give back, hand over, the agent's death) comes over the second.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

HEAD = struct.Struct("<IB")
_COUNT = struct.Struct("<I")
_GROWN = struct.Struct("<QB")
MAX_FRAME_BYTES = 256 << 20
# What the hub takes of one call: a runner that says more must not make its agent send what is refused for ever.
MAX_INDEX, MAX_NO, MAX_WALL_US = 10**7 - 1, (1 << 31) - 1, 1 << 53
# Of a value that is part of its result: a larger one is a file.
MAX_VALUE_BYTES = 128 << 10

# agent -> runner
BIND, CALLS, ANSWER, RECALL, NUDGE = 1, 2, 3, 4, 5
# runner -> agent
HELLO, RESULTS, RETURNED, ASK, GROWN = 16, 17, 18, 19, 20

STATES = ("succeeded", "raised", "environment", "unpicklable", "too_large")
SUCCEEDED, RAISED, ENVIRONMENT, UNPICKLABLE, TOO_LARGE = range(5)
# Flags of a result: its value is a file named by digest and size; it printed to stdout, to stderr.
BLOB, STDOUT, STDERR = 1, 2, 4

Argument = bytes | tuple[str, int]


class BadFrame(ValueError):
    """What came is not what this side speaks."""


class Results(NamedTuple):
    """How calls ended, in columns. A value is packed; with the flag BLOB it is `digest size` of the file with it."""

    indices: Sequence[int]
    no: Sequence[int]
    state: Sequence[int]
    flags: Sequence[int]
    wall_us: Sequence[int]
    value: Sequence[bytes]
    error: Sequence[bytes]


def frame(kind: int, *parts: bytes) -> bytes:
    """One frame, ready to be written."""
    return b"".join((HEAD.pack(sum(map(len, parts)), kind), *parts))


def json_frame(kind: int, document: dict[str, Any], tail: bytes = b"") -> bytes:
    """A frame whose body is a JSON object, and bytes behind it."""
    text = json.dumps(document, separators=(",", ":")).encode()
    return frame(kind, _COUNT.pack(len(text)), text, tail)


def read_json(body: bytes | memoryview) -> tuple[dict[str, Any], bytes]:
    """Undo `json_frame`."""
    try:
        size = _COUNT.unpack_from(body)[0]
        document = json.loads(bytes(body[4 : 4 + size]))
    except (struct.error, ValueError) as fault:
        raise BadFrame(f"a frame's JSON cannot be read: {fault}") from None
    if not isinstance(document, dict):
        raise BadFrame("a frame's JSON is no object")
    return document, bytes(body[4 + size :])


def calls_frame(index: Sequence[int], no: Sequence[int], args: Sequence[Argument]) -> bytes:
    """Calls for a runner."""
    count = len(index)
    kinds = [type(arg) is not bytes for arg in args]
    data = [arg if type(arg) is bytes else f"{arg[0]} {arg[1]}".encode() for arg in args]
    head = struct.pack(f"<I{count}q{2 * count}I{count}B", count, *index, *no, *map(len, data), *kinds)
    return frame(CALLS, head, *data)


def read_calls(body: bytes) -> Iterator[tuple[int, int, bool, bytes]]:
    """Undo `calls_frame`: index, number of the try, whether the argument is a blob's name, the argument."""
    count = _COUNT.unpack_from(body)[0]
    form = f"<I{count}q{2 * count}I{count}B"
    columns = struct.unpack_from(form, body)[1:]
    at = struct.calcsize(form)
    for place in range(count):
        size = columns[place + 2 * count]
        yield columns[place], columns[place + count], columns[place + 3 * count] == 1, body[at : at + size]
        at += size


# How one call ended, as a runner holds it: index, no, state, flags, wall_us, value, error.
HeldResult = tuple[int, int, int, int, int, bytes, bytes]


def results_frame(held: Sequence[HeldResult]) -> bytes:
    """Results of a runner."""
    count = len(held)
    index, no, state, flags, wall_us, values, errors = zip(*held, strict=True)
    sizes = (*map(len, values), *map(len, errors))
    form = f"<I{count}q{count}I{2 * count}B{count}Q{2 * count}I"
    head = struct.pack(form, count, *index, *no, *state, *flags, *wall_us, *sizes)
    return frame(RESULTS, head, *values, *errors)


def read_results(body: bytes) -> Results:
    """Undo `results_frame`; raises BadFrame, since what a runner writes is the user's to break."""
    try:
        count = _COUNT.unpack_from(body)[0]
        form = f"<I{count}q{count}I{2 * count}B{count}Q{2 * count}I"
        columns = struct.unpack_from(form, body)[1:]
    except (struct.error, MemoryError, OverflowError) as fault:
        raise BadFrame(f"a frame of results is cut: {fault}") from None
    at = struct.calcsize(form)
    pieces = []
    for size in columns[5 * count :]:
        pieces.append(body[at : at + size])
        at += size
    index, no, state, flags, wall_us = (columns[place * count : (place + 1) * count] for place in range(5))
    if at != len(body) or (count and max(state) >= len(STATES)):
        raise BadFrame("a frame of results is damaged")
    if count and (min(index) < 0 or max(index) > MAX_INDEX or max(no) > MAX_NO or max(wall_us) > MAX_WALL_US):
        raise BadFrame("a result names a call or a time that cannot be")
    if count and max(columns[5 * count : 6 * count]) > MAX_VALUE_BYTES:
        raise BadFrame("a value is too large to be part of a result")
    return Results(index, no, state, flags, wall_us, pieces[:count], pieces[count:])


def pick(results: Results, places: Sequence[int]) -> Results:
    """Some of the results, by their places in the columns."""
    if len(places) == len(results.indices):
        return results
    return Results(
        [results.indices[place] for place in places],
        [results.no[place] for place in places],
        [results.state[place] for place in places],
        [results.flags[place] for place in places],
        [results.wall_us[place] for place in places],
        [results.value[place] for place in places],
        [results.error[place] for place in places],
    )


def returned_frame(index: Sequence[int]) -> bytes:
    """Calls that a runner gives back unbegun."""
    return frame(RETURNED, struct.pack(f"<{len(index)}q", *index))


def read_returned(body: bytes) -> tuple[int, ...]:
    """Undo `returned_frame`."""
    if len(body) % 8:
        raise BadFrame("a frame of returned calls is cut")
    index = struct.unpack(f"<{len(body) // 8}q", body)
    if index and (min(index) < 0 or max(index) > MAX_INDEX):
        raise BadFrame("a call is returned that cannot be")
    return index


def grown_frame(growth_bytes: int, littered: bool) -> bytes:
    """How much memory a runner has gained since its start, and whether processes of past calls live on."""
    return frame(GROWN, _GROWN.pack(growth_bytes, littered))


def read_grown(body: bytes) -> tuple[int, bool]:
    """Undo `grown_frame`."""
    try:
        growth, littered = _GROWN.unpack(body)
    except struct.error as fault:
        raise BadFrame(str(fault)) from None
    return growth, bool(littered)


class Reader:
    """Cuts a stream of bytes into frames; holds what is not whole yet."""

    def __init__(self, most_bytes: int = MAX_FRAME_BYTES) -> None:
        self._held, self._most_bytes = b"", most_bytes

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Kind and body of each frame that is whole now; raises BadFrame where one is longer than any may be."""
        if self._held:
            data = self._held + data
        at, end = 0, len(data)
        self._held = b""
        while end - at >= HEAD.size:
            size, kind = HEAD.unpack_from(data, at)
            if size > self._most_bytes:
                raise BadFrame(f"a frame of {size} bytes: at most {self._most_bytes} are taken")
            if end - at - HEAD.size < size:
                break
            yield kind, data[at + HEAD.size : at + HEAD.size + size]
            at += HEAD.size + size
        self._held = data[at:] if at else data
