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
_CALL = struct.Struct("<qIBI")
_RESULT = struct.Struct("<qIBBQII")
_COUNT = struct.Struct("<I")
_GROWN = struct.Struct("<QB")
MAX_FRAME_BYTES = 256 << 20

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

    indices: list[int]
    no: list[int]
    state: list[int]
    flags: list[int]
    wall_us: list[int]
    value: list[bytes]
    error: list[str]


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
    parts = [_COUNT.pack(len(index))]
    for one, number, arg in zip(index, no, args, strict=True):
        data = arg if isinstance(arg, bytes) else f"{arg[0]} {arg[1]}".encode()
        parts.append(_CALL.pack(one, number, 0 if data is arg else 1, len(data)))
        parts.append(data)
    return frame(CALLS, *parts)


def read_calls(body: bytes) -> Iterator[tuple[int, int, bool, bytes]]:
    """Undo `calls_frame`: index, number of the try, whether the argument is a blob's name, the argument."""
    at = _COUNT.size
    for _ in range(_COUNT.unpack_from(body)[0]):
        index, no, kind, size = _CALL.unpack_from(body, at)
        at += _CALL.size
        yield index, no, kind == 1, body[at : at + size]
        at += size


def pack_result(
    index: int, no: int, state: int, flags: int, wall_us: int, value: bytes, error: bytes = b""
) -> bytes:
    """One result, to be joined with others by `results_frame`."""
    return _RESULT.pack(index, no, state, flags, wall_us, len(value), len(error)) + value + error


def results_frame(packed: Sequence[bytes]) -> bytes:
    """Results of a runner."""
    return frame(RESULTS, _COUNT.pack(len(packed)), *packed)


def read_results(body: bytes) -> Results:
    """Undo `results_frame`; raises BadFrame, since what a runner writes is the user's to break."""
    read = Results([], [], [], [], [], [], [])
    indices, numbers, states, all_flags, walls, values, errors = read
    at = _COUNT.size
    try:
        for _ in range(_COUNT.unpack_from(body)[0]):
            index, no, state, flags, wall_us, size, words = _RESULT.unpack_from(body, at)
            at += _RESULT.size
            indices.append(index)
            numbers.append(no)
            states.append(state)
            all_flags.append(flags)
            walls.append(wall_us)
            values.append(body[at : at + size])
            at += size
            errors.append(body[at : at + words].decode(errors="replace") if words else "")
            at += words
    except struct.error as fault:
        raise BadFrame(f"a frame of results is cut: {fault}") from None
    if at != len(body) or (states and max(states) >= len(STATES)):
        raise BadFrame("a frame of results is damaged")
    return read


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
    return struct.unpack(f"<{len(body) // 8}q", body)


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

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Kind and body of each frame that is whole now; raises BadFrame where one is longer than any may be."""
        if self._held:
            data = self._held + data
        at, end = 0, len(data)
        self._held = b""
        while end - at >= HEAD.size:
            size, kind = HEAD.unpack_from(data, at)
            if size > MAX_FRAME_BYTES:
                raise BadFrame(f"a frame of {size} bytes: at most {MAX_FRAME_BYTES} are taken")
            if end - at - HEAD.size < size:
                break
            yield kind, data[at + HEAD.size : at + HEAD.size + size]
            at += HEAD.size + size
        self._held = data[at:] if at else data
