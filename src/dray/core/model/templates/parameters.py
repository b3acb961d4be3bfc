"""The parameters of a template: their types, what may be given for each, and how a value is spelled inside a text.

Values come typed (JSON, Python) or as text (`-p NAME=TEXT`), and both mean the same. A text value is data: what a shell
or another template would expand is refused unless the parameter's own pattern lets it through.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from dray.core.model.specs.asks import as_text
from dray.core.model.specs.values import quote, suggest, text_fault
from dray.core.model.units import parse_bytes, parse_seconds
from dray.errors import InvalidInput, Problem

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_TEXT = 4096
# A pattern is matched by a machine that tries again: so many repeats over so long a text stay quick, whatever it says.
MAX_REPEATS, MAX_MATCHED = 3, 256
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}
_EXPANDED = ("${", "$(", "`")
_REPEAT = re.compile(r"[*+]|\{[0-9]*,\}")
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
Value = str | int | float | bool


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One parameter; without a default it must be given. `min` and `max` bound a value, of a text its length."""

    type: str = "string"
    default: Value | None = None
    min: Value | None = None
    max: Value | None = None
    choices: list[str] = []
    pattern: str = ""
    multiline: bool = False
    help: str = ""


class _Kind(NamedTuple):
    """A type: what it is called, how a value is read, and how one is spelled in words for people."""

    noun: str
    read: Callable[[Any], Value]


def _read_whole(given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, str) and _WHOLE.fullmatch(given.strip()):
        return int(given)
    raise InvalidInput("no whole number")


def _read_float(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise InvalidInput("no number")
    try:
        value = float(given)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput("no finite number")
    return value


def _read_flag(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    if isinstance(given, str) and given.strip().lower() in _FLAGS:
        return _FLAGS[given.strip().lower()]
    raise InvalidInput("neither true nor false")


def _read_span(given: Any) -> float:
    seconds = parse_seconds(as_text(given))
    return int(seconds) if seconds.is_integer() else seconds


KINDS: dict[str, _Kind] = {
    "string": _Kind("text", as_text),
    "int": _Kind("a whole number", _read_whole),
    "float": _Kind("a number", _read_float),
    "bool": _Kind("true or false", _read_flag),
    "choice": _Kind("one of", as_text),
    "size": _Kind("a size such as 512m or 16g", lambda given: parse_bytes(as_text(given))),
    "duration": _Kind("a span of time such as 90s, 15m or 2h", _read_span),
}
_UNBOUNDED = ("bool", "choice")


def describe(parameter: Parameter) -> str:
    """What may be given, in words."""
    if parameter.type == "choice":
        return f"one of {', '.join(parameter.choices)}"
    words = KINDS[parameter.type].noun
    low, high = parameter.min, parameter.max
    if parameter.type == "string":
        bounds = f" of {low or 0} to {_longest(parameter)} characters"
        lines = "" if parameter.multiline else " in one line"
        return f"{words}{bounds}{lines}{f' that matches {parameter.pattern}' if parameter.pattern else ''}"
    if low is not None and high is not None:
        return f"{words} from {low} to {high}"
    if low is not None:
        return f"{words}, {low} or more"
    return f"{words}, {high} or less" if high is not None else words


def read_value(parameter: Parameter, given: Any) -> Value:
    """The value that was given; raises `InvalidInput` that says what is allowed."""
    try:
        value = KINDS[parameter.type].read(given)
    except InvalidInput:
        raise InvalidInput(f"must be {describe(parameter)}, got {quote(given)}") from None
    if parameter.type == "choice" and value not in parameter.choices:
        raise InvalidInput(f"must be {describe(parameter)}, got {quote(given)}")
    if isinstance(value, str):
        fault = _text_problem(parameter, value)
    else:
        fault = "" if _is_between(parameter, value) else f"must be {describe(parameter)}, got {quote(given)}"
    if fault:
        raise InvalidInput(fault)
    return value


def _is_between(parameter: Parameter, value: Value) -> bool:
    """Bounds are written as values are: `max: 16g`."""
    low, high = (_bound(parameter, bound) for bound in (parameter.min, parameter.max))
    return (low is None or low <= float(value)) and (high is None or float(value) <= high)


def _bound(parameter: Parameter, bound: Value | None) -> float | None:
    if bound is None:
        return None
    return float(_read_whole(bound) if parameter.type == "string" else KINDS[parameter.type].read(bound))


def _longest(parameter: Parameter) -> int:
    most = MAX_MATCHED if parameter.pattern else MAX_TEXT
    return most if parameter.max is None else min(most, int(parameter.max))


def _text_problem(parameter: Parameter, value: str) -> str:
    if fault := text_fault(value):
        return f"{fault}, got {quote(value)}"
    low = _bound(parameter, parameter.min) if parameter.type == "string" else None
    if len(value) > _longest(parameter) or len(value) < (low or 0):
        return f"must be {describe(parameter)}, got {len(value)} characters"
    allowed = "\n\t" if parameter.multiline else ""
    if odd := next((sign for sign in value if not sign.isprintable() and sign not in allowed), ""):
        return f"must be {describe(parameter)}, got {quote(value)}: the character {odd!r} is not allowed"
    if parameter.pattern:
        matches = re.fullmatch(parameter.pattern, value) is not None
        return "" if matches else f"must be {describe(parameter)}, got {quote(value)}"
    if mark := next((mark for mark in _EXPANDED if mark in value), ""):
        return (
            f"must be plain text without {mark}, which nothing here expands, got {quote(value)}: where it is meant "
            "literally, the template gives the parameter a pattern that allows it"
        )
    return ""


def spell(value: Value) -> str:
    """A value inside a text: bytes, seconds and numbers in digits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def pattern_problem(pattern: str) -> str:
    """What is wrong with a pattern: it must compile, and be such that no text takes long to match."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}"
    bare = _ESCAPE_OR_CLASS.sub("x", pattern)
    if re.search(r"\)[*+?{]", bare) or "(?" in bare.replace("(?:", "(") or re.search(r"\\[1-9]", pattern):
        return (
            "must be simple: no repeated groups, look-arounds or back-references; list what may stand where"
        )
    if len(_REPEAT.findall(bare)) > MAX_REPEATS:
        return f"repeats without end more than {MAX_REPEATS} times: bound some of them, such as {{1,20}}"
    return ""


def parameter_problems(parameter: Parameter) -> list[tuple[str, str]]:
    """What is wrong with a parameter by itself: (field, fault)."""
    if parameter.type not in KINDS:
        return [("type", f"must be one of {', '.join(KINDS)}, got {quote(parameter.type)}")]
    found: list[tuple[str, str]] = []
    if (parameter.type == "choice") != bool(parameter.choices):
        found.append(("choices", "goes with the type choice, which needs at least one"))
    if parameter.type != "string":
        found += [
            (field, "goes with the type string")
            for field in ("pattern", "multiline")
            if getattr(parameter, field)
        ]
    if parameter.pattern and (fault := pattern_problem(parameter.pattern)):
        return [*found, ("pattern", fault)]
    for field in ("min", "max"):
        bound = getattr(parameter, field)
        if bound is None:
            continue
        if parameter.type in _UNBOUNDED:
            found.append((field, f"has no meaning for the type {parameter.type}"))
            continue
        try:
            _bound(parameter, bound)
        except InvalidInput:
            found.append((field, f"must be written as a value is, got {quote(bound)}"))
    if not found and parameter.min is not None and parameter.max is not None:
        low, high = _bound(parameter, parameter.min), _bound(parameter, parameter.max)
        if low is not None and high is not None and low > high:
            found.append(("min", f"is above max: {parameter.min}, {parameter.max}"))
    if not found and parameter.default is not None:
        try:
            read_value(parameter, parameter.default)
        except InvalidInput as fault:
            found.append(("default", fault.message))
    return found


def read_values(parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, Value]:
    """Every parameter's value: what was given, else its default. Raises `InvalidInput` with every problem."""
    known = ", ".join(parameters) or "none"
    problems = [
        Problem(
            f"params.{str(name)[:64]}",
            f"is not a parameter of the template{suggest(name, list(parameters))}; it has {known}",
        )
        for name in given
        if name not in parameters
    ]
    values: dict[str, Value] = {}
    for name, parameter in parameters.items():
        wanted = given.get(name)
        if wanted is None:
            wanted = parameter.default
        if wanted is None:
            problems.append(Problem(f"params.{name}", f"is missing: give {describe(parameter)}"))
            continue
        try:
            values[name] = read_value(parameter, wanted)
        except InvalidInput as fault:
            problems.append(Problem(f"params.{name}", fault.message))
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidInput(f"{problems[0].where} {problems[0].what}{more}", problems[:200])
    return values
