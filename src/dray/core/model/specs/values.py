"""Values as people write them: spelled back to them, and whether a program or JSON could take them."""

from __future__ import annotations

import difflib
import math
from typing import Any

MAX_DEPTH = 32
MAX_ITEMS = 65_536
# Beyond these a peer could make the hub search for near misses for minutes.
MAX_SUGGEST_LENGTH = 64


def quote(value: Any) -> str:
    """Spell a value for whoever wrote it, in 80 characters at most."""
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to spell whole numbers of thousands of digits.
        text = "a number of thousands of digits"
    except RecursionError:
        text = "something nested too deep"
    return text if len(text) <= 80 else f"{text[:77]}..."


def quote_name(field: Any) -> str:
    """Spell the name of a field back, however long it is."""
    return field[:MAX_SUGGEST_LENGTH] if isinstance(field, str) else quote(field)


def suggest(word: Any, known: tuple[str, ...] | list[str]) -> str:
    """Give `; did you mean X?` for a near miss, else nothing."""
    if not isinstance(word, str) or len(word) > MAX_SUGGEST_LENGTH:
        return ""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def text_fault(value: str) -> str:
    """What is wrong with a text that is to be given to a program; empty where it is sound."""
    if "\0" in value:
        return "holds a NUL character, which no program can be given"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is not valid UTF-8"
    return ""


def texts_fault(value: Any) -> str:
    """What is wrong with a list of texts; empty where it is one."""
    if not isinstance(value, list):
        return f"must be a list of texts, got {quote(value)}"
    if len(value) > MAX_ITEMS:
        return f"holds {len(value)} texts, the limit is {MAX_ITEMS}"
    for position, item in enumerate(value):
        if not isinstance(item, str):
            return f"item {position} must be text, got {quote(item)}"
        if fault := text_fault(item):
            return f"item {position} {fault}"
    return ""


def plain_fault(value: Any, depth: int = 0) -> str:
    """Whether a value packs and travels as JSON: the hub keeps `metadata` without knowing what it means."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        return text_fault(value)
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**64 else f"holds {quote(value)}, which does not fit into 64 bits"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"holds {value}, which JSON cannot spell"
    if depth >= MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    if isinstance(value, list):
        return next((fault for item in value if (fault := plain_fault(item, depth + 1))), "")
    if isinstance(value, dict):
        if bad := next((key for key in value if not isinstance(key, str) or text_fault(key)), None):
            return f"has a bad name {quote(bad)}"
        return next((fault for item in value.values() if (fault := plain_fault(item, depth + 1))), "")
    return f"holds {quote(value)}, which is not a JSON value"


def has_more_than(value: Any, most: int) -> bool:
    """Whether a document holds more values than that; looks at no more of them."""
    count, front = 1, [value]
    while front and count <= most:
        item = front.pop()
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        count += len(inner)
        if count <= most:
            front.extend(inner)
    return count > most
