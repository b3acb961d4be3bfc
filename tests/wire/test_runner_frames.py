"""What a runner writes is the user's to break: numbers that no hub would take are refused where they come in."""

from __future__ import annotations

import pytest

from dray.wire.local.runner_frames import (
    HEAD,
    MAX_INDEX,
    MAX_WALL_US,
    BadFrame,
    HeldResult,
    read_results,
    read_returned,
    results_frame,
    returned_frame,
)


def body_of(frame: bytes) -> bytes:
    return frame[HEAD.size :]


def test_what_is_within_bounds_comes_back() -> None:
    held: HeldResult = (MAX_INDEX, 1, 0, 0, MAX_WALL_US, b"value", b"")
    results = read_results(body_of(results_frame([held])))
    assert (results.indices, results.wall_us, results.value) == ((MAX_INDEX,), (MAX_WALL_US,), [b"value"])
    assert read_returned(body_of(returned_frame([0, MAX_INDEX]))) == (0, MAX_INDEX)


@pytest.mark.parametrize(
    "held",
    [
        (-1, 1, 0, 0, 0, b"", b""),
        (MAX_INDEX + 1, 1, 0, 0, 0, b"", b""),
        (0, 1 << 31, 0, 0, 0, b"", b""),
        (0, 1, 0, 0, MAX_WALL_US + 1, b"", b""),
    ],
)
def test_results_beyond_the_bounds_are_refused(held: HeldResult) -> None:
    with pytest.raises(BadFrame, match="cannot be"):
        read_results(body_of(results_frame([held])))


@pytest.mark.parametrize("index", [-1, MAX_INDEX + 1])
def test_calls_that_cannot_be_are_not_returned(index: int) -> None:
    with pytest.raises(BadFrame, match="cannot be"):
        read_returned(body_of(returned_frame([index])))
