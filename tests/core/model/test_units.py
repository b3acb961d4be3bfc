"""Sizes, times, ranges and GPU asks as people write them."""

from __future__ import annotations

import math

import pytest

from dray.core.model.units import (
    ArrayRange,
    GpuAsk,
    format_bytes,
    format_seconds,
    parse_array,
    parse_bytes,
    parse_gpus,
    parse_minutes,
    parse_seconds,
)
from dray.errors import InvalidInput

K, M, G, T = 1024, 1024**2, 1024**3, 1024**4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8g", 8 * G),
        ("16gb", 16 * G),
        ("512m", 512 * M),
        ("16GiB", 16 * G),
        ("16Gb", 16 * G),
        ("1t", T),
        ("4K", 4 * K),
        ("1.5g", 3 * G // 2),
        (" 2 g ", 2 * G),
        ("1024", 1024),
        ("12b", 12),
        ("0", 0),
        (7, 7),
    ],
)
def test_sizes(text: str | int, value: int) -> None:
    assert parse_bytes(text) == value


def test_vram_counts_in_powers_of_ten() -> None:
    assert parse_bytes("80G", base=1000) == 80 * 10**9


@pytest.mark.parametrize(
    "text", ["", "g", "8x", "8 gigs", "-8g", "1e9", "0x10", "8g8", "nan", "1..5g", "8ig", "٣g"]
)
def test_nonsense_sizes_are_quoted(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_bytes(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize("text", ["5000000000t", -1, "9" * 50, "9" * 400 + ".5g", 2**63])
def test_absurd_sizes_are_out_of_range(text: str | int) -> None:
    with pytest.raises(InvalidInput, match="out of range"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("90:30", 5430),
        ("2:00:00", 7200),
        ("1-0", 86400),
        ("1-12", 129600),
        ("2-03:04:05", 2 * 86400 + 3 * 3600 + 4 * 60 + 5),
        ("1-02:30", 86400 + 9000),
        ("90s", 90),
        ("15m", 900),
        ("1.5h", 5400),
        ("1d", 86400),
        ("1ms", 1),
    ],
)
def test_time_limits(text: str, seconds: int) -> None:
    assert parse_minutes(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "1:2:3:4", "1-", "5 minutes", "1:", "nan"])
def test_nonsense_times_are_quoted(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_minutes(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), (3, 3), ("2m", 120), ("250ms", 0.25)]
)
def test_spans(text: str | int, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-1", "1e999", math.nan, math.inf, -1, 10**400])
def test_nonsense_spans(text: str | float) -> None:
    with pytest.raises(InvalidInput, match="not a span"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", ArrayRange(5, 5, 1, 0)),
        ("0-9", ArrayRange(0, 9, 1, 0)),
        ("0-99:2", ArrayRange(0, 99, 2, 0)),
        ("0-99%8", ArrayRange(0, 99, 1, 8)),
        ("10-20:5%2", ArrayRange(10, 20, 5, 2)),
        ("1,3,5-9%4", ArrayRange(0, 0, 1, 4, "1,3,5-9")),
        ("9,5-8,1,6-7,3", ArrayRange(0, 0, 1, 0, "1,3,5-9")),
        ("0-8:4,6", ArrayRange(0, 0, 1, 0, "0,4,6,8")),
        ("4-6,1-3%2", ArrayRange(1, 6, 1, 2)),
    ],
)
def test_arrays(text: str, value: ArrayRange) -> None:
    assert parse_array(text) == value


@pytest.mark.parametrize(
    "text", ["", "a", "5-1", "0-9:0", "1,", "1,,2", "1,2%x", "1%2,3", "0-100000,7", "-3", "0-9%", "0--9"]
)
def test_nonsense_arrays_are_quoted(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_array(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("text", "value"), [("2", GpuAsk("", 2)), ("A100:2", GpuAsk("A100", 2)), ("a:b:1", GpuAsk("a:b", 1))]
)
def test_gpus(text: str, value: GpuAsk) -> None:
    assert parse_gpus(text) == value


@pytest.mark.parametrize("text", ["", ":2", "A100", "A100:", "two", "-1", "1.5", "²"])
def test_nonsense_gpus_are_quoted(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_gpus(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0B"), (1023, "1023B"), (K, "1K"), (3 * G // 2, "1.5G"), (T, "1T")]
)
def test_sizes_for_people(value: int, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.25 s"),
        (1, "1.0 s"),
        (9.96, "10.0 s"),
        (42, "42 s"),
        (120, "2 min"),
        (125, "2 min 5 s"),
        (7200, "2 h"),
        (9000, "2 h 30 min"),
        (48 * 3600, "2 d"),
        (50 * 3600, "2 d 2 h"),
    ],
)
def test_spans_for_people(value: float, text: str) -> None:
    assert format_seconds(value) == text
