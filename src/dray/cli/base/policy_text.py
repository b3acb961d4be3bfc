"""Policies as people write them: spans and sizes with their units, and the whole as YAML with remarks.

Writes only what `dray.hub.decisions.policy` reads back to the same policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_SPANS = (("d", 86400), ("h", 3600), ("m", 60))
_SIZES = (("t", 1 << 40), ("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10))
_SPAN = re.compile(r"[0-9]+[dhms]")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def spell_value(name: str, value: Any) -> str:
    """Write one value for a person; the unit is the name's."""
    last = name.rpartition(".")[2]
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(spell_value(name, item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if isinstance(value, (int, float)):
        if last.endswith("_s"):
            return _in_units(value, _SPANS, "s")
        if "bytes" in last:
            return _in_units(value, _SIZES, "")
        return f"{value:g}" if isinstance(value, float) else str(value)
    return str(value)


def _in_units(value: float, units: tuple[tuple[str, int], ...], rest: str) -> str:
    for letter, size in units:
        if value and value % size == 0:
            return f"{int(value / size)}{letter}"
    if not value:
        return "0"
    return f"{int(value) if float(value).is_integer() else value}{rest}"


def write_policy(answer: Mapping[str, Any]) -> str:
    """The policy in force as YAML, each value that somebody chose with where it came from."""
    values = answer.get("values") or []
    whole = next((item["origin"] for item in values if item["origin"] != "default"), "default")
    marks = {item["name"]: str(answer.get("origin")) for item in values if item["origin"] != "default"}
    return "\n".join([f"# {whole}", *_write(answer.get("policy") or {}, "", "", marks)])


def _write(value: Any, where: str, indent: str, marks: Mapping[str, str]) -> Iterator[str]:
    for key, item in value.items():
        here = f"{where}.{key}" if where else key
        if isinstance(item, Mapping) and item:
            yield f"{indent}{_word(key)}:"
            yield from _write(item, here, f"{indent}  ", marks)
        elif isinstance(item, list) and item:
            yield f"{indent}{_word(key)}:"
            for place, entry in enumerate(item):
                first, *more = _write(entry, f"{here}[{place}]", f"{indent}    ", marks)
                yield f"{indent}  - {first.lstrip()}"
                yield from more
        else:
            remark = f"  # {marks[here]}" if here in marks else ""
            yield f"{indent}{_word(key)}: {_scalar(key, item)}{remark}"


def _scalar(key: str, item: Any) -> str:
    if isinstance(item, (int, float)) and not isinstance(item, bool) and key.endswith("_s"):
        text = spell_value(key, item)
        return text if _SPAN.fullmatch(text) else json.dumps(item)
    return _word(item) if isinstance(item, str) else json.dumps(item)


def _word(text: str) -> str:
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)
