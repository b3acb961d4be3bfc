"""A hub's refusal, turned back into the class it came from: read alike by client, command line and agent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from dray import errors
from dray.errors import DrayError


def read_error(document: Any) -> DrayError:
    """Turn the documented error shape back into the class it came from."""
    code, message = str(document["code"]), str(document["message"])
    problems = [
        errors.Problem(str(item["where"]), str(item["what"])) for item in document.get("problems") or ()
    ]
    kind = _by_code(errors.DrayError.__subclasses__(), code)
    if kind is not None and issubclass(kind, errors.TooManyRequests):
        return kind(message, float(document.get("retry_after_s") or 1.0))
    if kind is not None and issubclass(kind, errors.NotLeader):
        return kind(message, str(document.get("leader") or ""))
    refusal = (kind or DrayError)(message, problems)
    refusal.code = code
    return refusal


def read_refusal(body: bytes | bytearray | None) -> DrayError | None:
    """Read the body of an answer that is none; None where no dray hub wrote it."""
    try:
        return read_error(json.loads(body or b"")["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _by_code(kinds: Iterable[type[DrayError]], code: str) -> type[DrayError] | None:
    for kind in kinds:
        if kind.__module__ == errors.__name__ and kind.code == code:
            return kind
        if found := _by_code(kind.__subclasses__(), code):
            return found
    return None
