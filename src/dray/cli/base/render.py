"""Tables and spans of time as text, fitted to the terminal; piped output is aligned and never cut.

Knows nothing about jobs. A table is drawn here and not by a library, because that would cost more time than the whole
question to the hub. Text from others is shown without its control characters: a job's name must not be able to steer
the terminal of whoever lists it.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import click

_GAP = "  "
_COLOURS = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "killed": "magenta",
    "worker_failed": "red",
    "unschedulable": "red",
    "pending": "yellow",
    "ready": "green",
    "busy": "cyan",
    "offline": "red",
    "ok": "green",
    "FAILED": "red",
    "full": "yellow",
    "over soft": "yellow",
    "over": "red",
    "over hard": "red",
    "open": "yellow",
    "served": "green",
    "rolled back": "magenta",
    "lapsed": "magenta",
}


class Column(NamedTuple):
    """A column and how it gives way on a narrow terminal.

    `least` is how narrow it may become (0: never narrower than its text), `cosy` how narrow without harm. A higher
    `drop` is left out earlier, and first of all where every cell says `dull`.
    """

    title: str
    least: int = 0
    drop: int = 0
    right: bool = False
    cosy: int = 0
    dull: str = "-"


def terminal_width() -> int | None:
    """The width to fit, or None where the output goes to a file or another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def has_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def clean(text: str) -> str:
    """Make text from others safe to print on one line."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "·" for letter in text)


def text_width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def shorten(text: str, width: int) -> str:
    """Cut to `width` columns, the last of them an ellipsis."""
    if text_width(text) <= width:
        return text
    kept = ""
    for letter in text:
        if text_width(kept) + text_width(letter) > width - 1:
            break
        kept += letter
    return f"{kept}…"


def draw_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None, colour: bool = False
) -> str:
    """Draw rows under their titles; with a width, narrow what may be narrowed and drop what may be dropped."""
    cells = [[clean(cell) for cell in row] for row in rows]
    shown, widths = _fit(columns, cells, width)
    chosen = [columns[i] for i in shown]
    lines = [_draw_row([column.title for column in chosen], widths, chosen, False)]
    lines += [_draw_row([row[i] for i in shown], widths, chosen, colour) for row in cells]
    return "\n".join(lines)


def _fit(columns: Sequence[Column], cells: list[list[str]], width: int | None) -> tuple[list[int], list[int]]:
    """Which columns to show, and how wide: comfort goes first, then dull columns, then words, then columns."""
    natural = [
        max([text_width(column.title), *(text_width(row[i]) for row in cells)])
        for i, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    if width is None:
        return shown, natural
    cosy = [
        min(wide, column.cosy) if column.cosy else wide for wide, column in zip(natural, columns, strict=True)
    ]
    least = [
        min(wide, column.least) if column.least else wide
        for wide, column in zip(natural, columns, strict=True)
    ]
    dull = [
        i for i, column in enumerate(columns) if column.drop and all(row[i] == column.dull for row in cells)
    ]
    spare = sorted((i for i in shown if columns[i].drop and i not in dull), key=lambda i: -columns[i].drop)
    for drop in (None, *sorted(dull, key=lambda i: -columns[i].drop)):
        shown = [i for i in shown if i != drop]
        if widths := _narrow([natural[i] for i in shown], [cosy[i] for i in shown], width):
            return shown, widths
    for drop in (None, *spare):
        shown = [i for i in shown if i != drop]
        for floor in (cosy, least):
            if widths := _narrow([natural[i] for i in shown], [floor[i] for i in shown], width):
                return shown, widths
    return shown, [least[i] for i in shown]


def _narrow(widths: list[int], floor: list[int], width: int) -> list[int] | None:
    """Take what is too much from the widest columns, down to their floor; None where even that is too wide."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    if sum(floor) + len(_GAP) * (len(floor) - 1) > width:
        return None
    widths = list(widths)
    for _ in range(excess):
        widest = max((i for i in range(len(widths)) if widths[i] > floor[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _draw_row(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column], colour: bool) -> str:
    parts = []
    for cell, width, column in zip(cells, widths, columns, strict=True):
        text = shorten(cell, width)
        pad = " " * (width - text_width(text))
        shade = _COLOURS.get(cell) if colour else None
        text = click.style(text, fg=shade) if shade else text
        parts.append(f"{pad}{text}" if column.right else f"{text}{pad}")
    return _GAP.join(parts).rstrip()


def paint(word: str) -> str:
    """Colour one state word, on a terminal only."""
    shade = _COLOURS.get(word)
    return click.style(word, fg=shade) if shade and has_colour() else word


def draw_pairs(pairs: Iterable[tuple[str, str]], indent: int = 0) -> str:
    """`name  value` lines, without those that have nothing to say."""
    kept = [(name, value) for name, value in pairs if value]
    wide = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{' ' * indent}{name:<{wide}}  {value}" for name, value in kept)


def read_time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def span_between(start: str | None, end: str | None, now: datetime | None = None) -> str:
    """A short span between two times of the API; an open end means until now; empty where it never began."""
    seconds = seconds_between(start, end, now)
    return "" if seconds is None else short_span(seconds)


def seconds_between(start: str | None, end: str | None, now: datetime | None = None) -> float | None:
    """The same as a number; None where it never began."""
    began = read_time(start)
    if began is None:
        return None
    return ((read_time(end) or now or datetime.now(UTC)) - began).total_seconds()


def short_span(seconds: float) -> str:
    """4s, 3m12s, 2h05m, 4d03h: at most six characters for a column."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def local_time(text: str | None) -> str:
    """A time of the API in the reader's own zone."""
    when = read_time(text)
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S") if when else ""


def tell_money(money: float) -> str:
    """A sum, in no currency: the price list says which."""
    return (
        f"{money:,.0f}"
        if money >= 1000
        else f"{money:.2f}"
        if money >= 0.995 or not money
        else f"{money:.3g}"
    )
