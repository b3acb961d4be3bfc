"""Small JSON bodies read as their types, and the header that says which request is a repetition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from dray.core.model.specs.check import MAX_PROBLEMS
from dray.core.model.specs.values import suggest
from dray.errors import InvalidInput, Problem

_UNSCOPED = r"\$(?:\.|\[)?"
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    type(None): "empty or null",
}
ONCE = ("Idempotency-Key",)
_KEY = re.compile(r"[\x20-\x7e]{1,128}")
T = TypeVar("T", bound=msgspec.Struct)


def read_struct(kind: type[T], document: Any) -> T:
    """Read a small body as its type; a field it does not have is an error with a suggestion."""
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object and is {name_kind(document)}")
    known = [field.name for field in msgspec.structs.fields(kind)]
    problems = [
        Problem(name[:64], f"is no field of this body{suggest(name, known)}; it takes {', '.join(known)}")
        for name in list(document)[:MAX_PROBLEMS]
        if name not in known
    ]
    if not problems:
        # JSON has one kind of number: 3.0 is as whole as 3.
        document = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in document.items()
        }
        try:
            return msgspec.convert(document, kind)
        except msgspec.ValidationError as fault:
            what, _, where = str(fault).partition(" - at `")
            problems = [Problem(re.sub(_UNSCOPED, "", where.rstrip("`"), count=1), what)]
    raise InvalidInput(f"{problems[0].where}: {problems[0].what}".lstrip(": "), problems)


def name_kind(value: Any) -> str:
    """What a JSON document is, in words."""
    return _KINDS.get(type(value), "a number")


def read_key(headers: Mapping[bytes, bytes]) -> str:
    """The key under which a request may be repeated; empty where it has none."""
    given = headers.get(b"idempotency-key")
    if given is None:
        return ""
    key = given.decode("latin-1")
    if _KEY.fullmatch(key) is None:
        what = "must be 1 to 128 printable ASCII characters"
        raise InvalidInput(f"Idempotency-Key {what}", [Problem("Idempotency-Key", what)])
    return key
