"""Documents of stand-ins, made whole by the product's own types: what a hub would never send cannot be tested with."""

from __future__ import annotations

from typing import Any

import msgspec

from dray.hub.http.calls import ROUTES
from dray.hub.http.routes import Router
from dray.wire.schemas.jobs import ErrorAnswer

_router = Router(ROUTES)


def whole(kind: Any, document: Any) -> Any:
    """The document with every field of its type; raises where one is missing, of another type, or unknown."""
    made = msgspec.to_builtins(msgspec.convert(document, kind))
    for place in _unknown(document, made, "$"):
        raise msgspec.ValidationError(f"{place} is no field of {getattr(kind, '__name__', kind)}")
    return made


def whole_answer(method: str, path: str, status: int, document: Any) -> Any:
    """The same for an answer of the HTTP API, by the table of its calls."""
    if status >= 400:
        return whole(ErrorAnswer, document)
    kind = answer_kind(method, path, status)
    return document if kind is None else whole(kind, document)


def answer_kind(method: str, path: str, status: int) -> Any:
    """The type of an answer; None where it is no document."""
    return _router.find(method, path.encode()).route.answers[status]


def _unknown(given: Any, made: Any, place: str) -> list[str]:
    if isinstance(given, dict) and isinstance(made, dict):
        gone = [f"{place}.{key}" for key in given if key not in made]
        inner = [_unknown(item, made[key], f"{place}.{key}") for key, item in given.items() if key in made]
        return gone + [found for many in inner for found in many]
    if isinstance(given, (list, tuple)) and isinstance(made, (list, tuple)):
        pairs = enumerate(zip(given, made, strict=True))
        return [found for at, (one, other) in pairs for found in _unknown(one, other, f"{place}[{at}]")]
    return []
