"""Sizes, times and array ranges as people write them, parsed to integers.

Nonsense is an error that quotes it. `--vram` and `*_gb` speak of 10⁹ bytes so that an "80 GB" card satisfies 80G;
every other size counts in powers of 1024.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from dray.errors import InvalidInput

# How long a batch job may run that does not say, and anything at most.
DEFAULT_RUNTIME_S = 24 * 3600
MAX_RUNTIME_S = 168 * 3600

GB = 10**9
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgtp])(?:i?b)?|b)?\s*", re.IGNORECASE)
# Bounded digits: Python refuses whole numbers of thousands of them, and floats of hundreds are infinite.
_CLOCK = re.compile(r"(?:([0-9]{1,12})-)?([0-9]{1,12})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")
_SPAN = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,40})?)\s*(ms|s|m|h|d)")
_SPAN_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]{1,9})?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ARRAY = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?(?::([0-9]{1,18}))?(?:%([0-9]{1,18}))?")
_GPUS = re.compile(r"(?:(.+):)?([0-9]{1,9}(?:\.[0-9]{1,9})?)", re.DOTALL)
MAX_BYTES = 1 << 62
MAX_LISTED = 100_000
DAYS_BEFORE_1970 = 719_162


def parse_bytes(text: str | int, base: int = 1024) -> int:
    """Read "8g", "16gb", "512m", "16GiB" or a bare number of bytes."""
    if isinstance(text, int):
        value = text
    else:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise InvalidInput(
                f"{_quote(text)} is not a size: write a number with k, m, g or t, such as 512m or 16g"
            )
        number, power = match.group(1), _POWER[(match.group(2) or "").lower()]
        if len(number) > 40:
            raise InvalidInput(f"{_quote(text)} is out of range for a size: 0 to {MAX_BYTES} bytes")
        value = int(number) * base**power if number.isdigit() else round(float(number) * base**power)
    if not 0 <= value <= MAX_BYTES:
        raise InvalidInput(f"{_quote(text)} is out of range for a size: 0 to {MAX_BYTES} bytes")
    return value


def parse_minutes(text: str) -> int:
    """Read a time limit in seconds: minutes, MM:SS, HH:MM:SS, or D-HH[:MM[:SS]]; also 90s, 15m, 2h, 1d."""
    span = _SPAN.fullmatch(text.strip().lower())
    if span is not None:
        return max(1, round(float(span.group(1)) * _SPAN_S[span.group(2)]))
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{_quote(text)} is not a time: write minutes, [D-]HH:MM:SS, or 90s, 15m, 2h, 1d")
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    if days is not None:
        hours, minutes, seconds = first or 0, second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first or 0, second or 0, third
    else:
        hours, minutes, seconds = 0, first or 0, second or 0
    return (days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def parse_seconds(text: str | float) -> float:
    """Read a span in seconds: a bare number, or 90s, 15m, 2h, 1d."""
    span = _SPAN.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if span is not None:
        return float(span.group(1)) * _SPAN_S[span.group(2)]
    try:
        value = float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise InvalidInput(f"{_quote(text)} is not a span of time: write seconds, or 90s, 15m, 2h, 1d")
    return value


def parse_moment(text: str) -> int:
    """Read a moment as RFC 3339 spells it, in milliseconds of wall time."""
    match = _MOMENT.fullmatch(text)
    at_ms = _moment_ms(match) if match is not None else None
    if at_ms is None:
        raise InvalidInput(
            f"{_quote(text)} is not a moment: write it as RFC 3339 does, with its offset, such as "
            "2030-01-31T18:00:00Z"
        )
    return at_ms


def _moment_ms(match: re.Match[str]) -> int | None:
    """Count from the civil calendar: core may not import anything that can read a clock."""
    year, month, day, hour, minute, second = (int(match.group(number)) for number in range(1, 7))
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    most = _MONTH_DAYS[month - 1] + (month == 2 and leap) if 1 <= month <= 12 else 0
    offset_h, offset_m = int(match.group(9) or 0), int(match.group(10) or 0)
    if not (year and 1 <= day <= most and hour < 24 and minute < 60 and second < 60):
        return None
    if offset_h > 23 or offset_m > 59:
        return None
    past = year - 1
    days = 365 * past + past // 4 - past // 100 + past // 400
    days += sum(_MONTH_DAYS[: month - 1]) + (month > 2 and leap) + day - 1 - DAYS_BEFORE_1970
    sign = -1 if match.group(8) == "-" else 1
    minutes = (days * 24 + hour) * 60 + minute - sign * (offset_h * 60 + offset_m)
    return (minutes * 60 + second) * 1000 + round(float(match.group(7) or 0) * 1000)


class ArrayRange(NamedTuple):
    """`0-9:2%3` read: first and last index, step, and how many may run at once (0: no cap).

    `indices` is a list such as `1,3,5-9` in its shortest form, and empty for what one range can say.
    """

    first: int
    last: int
    step: int
    limit: int
    indices: str = ""


def parse_array(text: str) -> ArrayRange:
    """Read Slurm's `-a`: N, A-B, A-B:STEP, or several of them with commas; with %LIMIT at the end."""
    listed, mark, limit = text.strip().partition("%")
    if "," in listed:
        indices = spread_indices(listed)
        if mark and not (limit.isascii() and limit.isdigit() and len(limit) <= 18):
            raise InvalidInput(f"{_quote(text)} is no list of array indices: a number must follow %")
        short = join_indices(indices)
        if "," not in short:
            return parse_array(f"{short}%{int(limit or 0)}")
        return ArrayRange(0, 0, 1, int(limit or 0), short)
    match = _ARRAY.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{_quote(text)} is not an array range: write 0-9, 0-99:2 or 0-99%8")
    first = int(match.group(1))
    last = int(match.group(2)) if match.group(2) else first
    step = int(match.group(3)) if match.group(3) else 1
    if last < first or step < 1:
        raise InvalidInput(
            f"array range {_quote(text)} is empty: the last index must not be below the first, the step at least 1"
        )
    return ArrayRange(first, last, step, int(match.group(4)) if match.group(4) else 0)


@lru_cache(maxsize=64)
def spread_indices(text: str) -> tuple[int, ...]:
    """Every index of a list such as `1,3,5-9`, in order, each once."""
    found: set[int] = set()
    for part in text.split(","):
        match = _ARRAY.fullmatch(part.strip())
        if match is None or match.group(4):
            raise InvalidInput(f"{_quote(text)} is no list of array indices: write 1,3,5-9 or 1,3,5-9%2")
        some = parse_array(part)
        if len(found) + (some.last - some.first) // some.step > MAX_LISTED:
            raise InvalidInput(
                f"{_quote(text[:80])} lists more than {MAX_LISTED:,} indices: use one range, or several jobs"
            )
        found.update(range(some.first, some.last + 1, some.step))
    return tuple(sorted(found))


def join_indices(indices: Sequence[int]) -> str:
    """Indices in order as the shortest list of them: `1,3,5-9`."""
    parts: list[str] = []
    first = 0
    for place, index in enumerate(indices):
        if place + 1 == len(indices) or indices[place + 1] != index + 1:
            parts.append(str(index) if place == first else f"{indices[first]}-{index}")
            first = place + 1
    return ",".join(parts)


class GpuAsk(NamedTuple):
    """`A100:2` read: a type (empty: any) and a count. `milli` is the share of one card where less was asked for."""

    type: str
    number: int
    milli: int = 0


def parse_gpus(text: str) -> GpuAsk:
    """Read `-G [TYPE:]N`; N is a number of whole cards, or a share of a single one such as 0.5."""
    match = _GPUS.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{_quote(text)} is not a GPU ask: write a number, or TYPE:NUMBER such as A100:2")
    kind, number = match.group(1) or "", match.group(2)
    if number.isdigit():
        return GpuAsk(kind, int(number))
    milli = round(float(number) * 1000)
    if milli % 1000 == 0 and milli:
        return GpuAsk(kind, milli // 1000)
    if milli > 1000:
        whole = milli // 1000
        raise InvalidInput(
            f"{_quote(text)} asks for parts of several cards: a task shares one card (such as 0.5), or has whole ones "
            f"({whole} or {whole + 1})"
        )
    if not milli:
        raise InvalidInput(f"{_quote(text)} is too small a share: 0.001 of a card is the least")
    return GpuAsk(kind, 1, milli)


def format_bytes(value: int) -> str:
    """Write a size for people: the largest power of 1024 that leaves at least 1."""
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if value >= 1024**power:
            return f"{value / 1024**power:.3g}{letter}"
    return f"{value}B"


def format_vram(value: float) -> str:
    """Memory of cards as `--vram` counts it: 80G is 80·10⁹ bytes, and an "80 GB" card has it."""
    return f"{value / GB:.4g}G"


def format_seconds(value: float) -> str:
    """Write a span for people with at most two units."""
    if value < 10:
        return f"{value:.2g} s" if value < 1 else f"{value:.1f} s"
    seconds = round(value)
    if seconds < 120:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 120:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def _quote(given: str | float) -> str:
    """Quote what was given, cut to what a person reads; Python refuses to spell huge whole numbers."""
    if isinstance(given, str):
        return repr(given[:80])
    if isinstance(given, int) and abs(given) >= 1 << 128:
        return "a number of too many digits"
    return repr(given)


def parse_retries(text: str) -> int | dict[str, int | str]:
    """Read a number of tries, or rules: `oom=bigger,node=elsewhere,code=2`. What a rule may say is not judged here."""
    if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text):
        return int(text)
    rules: dict[str, int | str] = {}
    for part in text.split(","):
        name, equals, said = (word.strip() for word in part.partition("="))
        if not name or not equals or not said or name in rules:
            raise InvalidInput(
                f"{text!r} is neither a number of tries nor rules: oom=bigger,node=elsewhere,code=2"
            )
        rules[name] = int(said) if name == "code" and said.isdecimal() else said
    return rules


_OBJECTIVES = ("cost", "performance", "reliability", "latency", "egress_gb")


def parse_objective(text: str) -> dict[str, float | bool]:
    """Read what matters: `cost=3,reliability=1`, or `cheapest_in_time`. How much is too much is not judged here."""
    found: dict[str, float | bool] = {}
    for part in text.split(","):
        name, has, value = (piece.strip() for piece in part.partition("="))
        if name == "cheapest_in_time" and not has:
            found[name] = True
        elif name in _OBJECTIVES and re.fullmatch(r"\d{1,12}(\.\d{1,12})?", value):
            found[name] = float(value)
        else:
            forms = f"{', '.join(f'{one}=N' for one in _OBJECTIVES)}, cheapest_in_time"
            raise InvalidInput(
                f"{part.strip()!r} is no objective: there are {forms}, each with a number for N"
            )
    return found
