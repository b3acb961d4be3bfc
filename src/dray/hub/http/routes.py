"""What a call of the HTTP API is: an operation with its method, path, parameters and body, and how a request finds it.

One `Route` serves the router, the gate (scopes), the reader of parameters and the OpenAPI document, so that none
of them can disagree. Knows nothing about what the calls do. A table of this size is walked segment by segment on
the raw path: a slash that was percent-encoded stays inside its segment, where it can only be a wrong id.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from dray.core.model.ids import ID_PATTERN, ID_RULE, NAME_RULE, is_id, is_name
from dray.core.model.specs.values import suggest
from dray.errors import DrayError, InvalidInput, NotFound, Problem
from dray.hub.operations.operation import Operation

API = "/api/v1"
MAX_QUERY_FIELDS = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FLAGS = {"1": True, "true": True, "0": False, "false": False}


class MethodNotAllowed(DrayError):
    """The path is there, but not for this method; `allow` lists those it is there for."""

    code = "method_not_allowed"

    def __init__(self, message: str, allow: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allow = allow


class Param(NamedTuple):
    """One query parameter. `kind` is text, whole, number or flag; `many` may repeat and holds commas between values."""

    name: str
    about: str
    kind: str = "text"
    default: Any = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    low: float | None = None
    high: float | None = None
    many: bool = False
    max_length: int = 256

    def read(self, text: str) -> Any:
        """Turn the text of one value into its kind, or raise ValueError with what is wrong with it."""
        if self.kind == "flag":
            if text.lower() not in _FLAGS:
                raise ValueError(f"must be 1 or 0, got {text[:64]!r}")
            return _FLAGS[text.lower()]
        if self.kind == "text":
            return self._read_text(text)
        return self._read_number(text)

    def schema(self) -> dict[str, Any]:
        """Spell the kind as a JSON schema."""
        if self.kind == "flag":
            one: dict[str, Any] = {"type": "string", "enum": list(_FLAGS)}
        elif self.kind == "text":
            one = {"type": "string", "minLength": 1, "maxLength": self.max_length}
            if self.choices:
                one = {"type": "string", "enum": list(self.choices)}
            else:
                one["pattern"] = f"^(?:{self.pattern})$" if self.pattern else r"^[^\x00-\x1f\x7f]*$"
        else:
            one = {"type": "integer" if self.kind == "whole" else "number"}
            one.update({"minimum": self.low} if self.low is not None else {})
            one.update({"maximum": self.high} if self.high is not None else {})
        return {"type": "array", "items": one} if self.many else one

    def _read_text(self, text: str) -> str:
        if self.choices and text not in self.choices:
            near = suggest(text, self.choices)
            raise ValueError(f"must be one of {', '.join(self.choices)}, got {text[:64]!r}{near}")
        if not text:
            raise ValueError("is empty: leave it out instead")
        if len(text) > self.max_length or _CONTROL.search(text):
            raise ValueError(f"must be at most {self.max_length} characters, without control characters")
        if self.pattern and re.fullmatch(self.pattern, text) is None:
            raise ValueError(f"has not the form {self.pattern}, got {text[:64]!r}")
        return text

    def _read_number(self, text: str) -> float | int:
        try:
            if len(text) > 32 or not text.isascii() or "_" in text:
                raise ValueError(text)
            value = int(text) if self.kind == "whole" else float(text)
        except ValueError:
            raise ValueError(f"must be a {self.kind} number, got {text[:64]!r}") from None
        if not math.isfinite(value):
            raise ValueError(f"must be a finite number, got {text[:64]!r}")
        if self.low is not None and value < self.low:
            raise ValueError(f"must be {self.low:g} or more, got {value:g}")
        if self.high is not None and value > self.high:
            raise ValueError(f"must be {self.high:g} or less, got {value:g}")
        return value


class Request(msgspec.Struct):
    """One request that the gate has let in, read as its route describes it."""

    scope: Mapping[str, Any]
    receive: Callable[[], Awaitable[Mapping[str, Any]]]
    headers: Mapping[bytes, bytes]
    caller: Any
    path: dict[str, str]
    query: dict[str, Any]
    body: Any = None


class Route(NamedTuple):
    """One operation over HTTP: where it is found, and how it is spelled.

    `read` makes what is asked from a `Request`, by default from the fields of path and query; `write` makes the reply
    from what was answered, by default a document. `body` is the type of the JSON document; `list_body`: its members are
    read one by one; `raw_body`: bytes of any number come by `Request.receive`. `waits` names the field of what is asked
    that says how long the answer may take. `most_bytes`: of a body that strangers may send.
    """

    method: str
    path: str
    operation: Operation
    params: tuple[Param, ...] = ()
    read: Callable[[Request], Any] | None = None
    write: Callable[[Any], Any] | None = None
    body: Any = None
    body_optional: bool = False
    statuses: tuple[int, ...] = (200,)
    media: str = "application/json"
    headers: tuple[str, ...] = ()
    raw_body: bool = False
    list_body: bool = False
    waits: str = ""
    most_bytes: int = 0

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def about(self) -> str:
        return self.operation.about

    @property
    def scopes(self) -> tuple[str, ...]:
        return self.operation.scopes

    @property
    def answers(self) -> Mapping[int, Any]:
        """The types of its answers by their status."""
        return dict.fromkeys(self.statuses, self.operation.answer)

    def ask(self, request: Request) -> Any:
        """What is asked."""
        if self.read is not None:
            return self.read(request)
        return self.operation.ask(**request.path, **request.query)


class Match(NamedTuple):
    """A route and the ids that its path held."""

    route: Route
    path: dict[str, str]


class _Node:
    __slots__ = ("children", "inner", "methods", "name")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.methods: dict[str, Route] = {}
        self.inner: _Node | None = None
        self.name = ""


class Router:
    """Finds routes by their path; a fixed segment goes before an id."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for segment in route.path.split("/")[1:]:
                node = _descend(node, segment)
            node.methods[route.method] = route

    def find(self, method: str, raw_path: bytes) -> Match:
        """Give the route of a request, or raise NotFound or MethodNotAllowed."""
        node: _Node | None = self._root
        held: dict[str, str] = {}
        for segment in _segments(raw_path):
            assert node is not None
            following = node.children.get(segment)
            if following is None and (following := node.inner) is not None:
                held[following.name] = segment
            node = following
            if node is None:
                break
        if node is None or not node.methods:
            shown = raw_path.decode("latin-1")[:128]
            raise NotFound(
                f"this version of dray has no call {method[:16]} {shown}: /openapi.json lists all of them"
            )
        route = node.methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allow = tuple(sorted({*node.methods, *(["HEAD"] if "GET" in node.methods else [])}))
            raise MethodNotAllowed(
                f"this version of dray has no {method[:16]} of this path: it answers {', '.join(allow)}",
                allow,
            )
        _check_ids(held)
        return Match(route, held)


def read_query(raw: bytes, params: tuple[Param, ...]) -> dict[str, Any]:
    """Read the query string as the route's parameters, or raise InvalidInput with every problem."""
    values: dict[str, Any] = {param.name: () if param.many else param.default for param in params}
    if not raw:
        return values
    known = {param.name: param for param in params}
    problems = []
    seen = set()
    for name, text in _pairs(raw):
        param = known.get(name)
        if param is None:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            what = f"is no parameter of this call{suggest(name, list(known))}; {takes}"
            problems.append(Problem(name[:64], what))
            continue
        if name in seen and not param.many:
            problems.append(Problem(name, "came twice: give it once"))
            continue
        seen.add(name)
        try:
            if param.many:
                texts = text.split(",") if param.choices else (text,)
                values[name] = (*values[name], *(param.read(part) for part in texts))
            else:
                values[name] = param.read(text)
        except ValueError as fault:
            problems.append(Problem(name, str(fault)))
    if problems:
        raise InvalidInput(f"{problems[0].where}: {problems[0].what}", problems)
    return values


def id_schema() -> dict[str, Any]:
    """Spell the rule of ids as a JSON schema."""
    return {"type": "string", "pattern": f"^{ID_PATTERN}$"}


def _descend(node: _Node, segment: str) -> _Node:
    if not segment.startswith("{"):
        return node.children.setdefault(segment, _Node())
    if node.inner is None:
        node.inner = _Node()
        node.inner.name = segment[1:-1]
    return node.inner


def _segments(raw_path: bytes) -> list[str]:
    text = raw_path.decode("latin-1")
    if "%" not in text:
        return text.split("/")[1:]
    try:
        return [unquote(segment, errors="strict") for segment in text.split("/")[1:]]
    except UnicodeDecodeError:
        raise InvalidInput("the path is not UTF-8 once it is percent-decoded") from None


def _check_ids(held: Mapping[str, str]) -> None:
    for name, value in held.items():
        if not (is_name(value) if name == "name" else is_id(value)):
            what, rule = ("name", NAME_RULE) if name == "name" else ("id", ID_RULE)
            raise InvalidInput(
                f"{value[:64]!r} in the path is no {what}: one is {rule}", [Problem(name, f"must be {rule}")]
            )


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=False,
            errors="strict",
            max_num_fields=MAX_QUERY_FIELDS,
        )
    except UnicodeError:
        raise InvalidInput("the query is not UTF-8 once it is percent-decoded") from None
    except ValueError:
        raise InvalidInput(f"the query has more than {MAX_QUERY_FIELDS} parameters") from None
