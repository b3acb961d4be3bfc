"""Documents that come in lists and are opened one by one: a frame may hold millions of values, a step must not.

What one document may hold is bounded before it is opened, in bytes and in values, since a byte of input may become a
hundred of memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from dray.errors import TooLarge

DOCUMENT_BYTES = 2 << 20
DOCUMENT_VALUES = 100_000
LIST_VALUES = 1_500_000
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Packed(Sequence[Any]):
    """A list whose members are opened when they are looked at, by `read`."""

    def __init__(self, members: Sequence[msgspec.Raw], read: Callable[[msgspec.Raw], Any]) -> None:
        self._members, self._read = members, read

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, place: Any) -> Any:
        return self._read(self._members[place])

    def __iter__(self) -> Iterator[Any]:
        return map(self._read, self._members)


def count_values(text: bytes) -> int:
    """How many values a JSON document can hold at most: one for each comma and bracket outside of texts."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


def check_values(text: bytes, most: int = DOCUMENT_VALUES) -> None:
    """Refuse a JSON document of too many values before it is opened; commas inside texts do not count."""
    if count_values(text) > most and count_values(_TEXT.sub(b"", text)) > most:
        raise TooLarge(f"the document holds more than {most} values, the limit: send it in several parts")


def check_bytes(document: msgspec.Raw | bytes, most: int = DOCUMENT_BYTES) -> None:
    """Refuse one document of too many bytes."""
    if len(document) > most:
        raise TooLarge(f"one document takes {len(document)} bytes, the limit is {most}")
