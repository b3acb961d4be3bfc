"""Which templates there are: those that the hub keeps, and those that come with dray.

A stored one shadows a built-in one of the same name; the built-in one stays reachable as version 0. Reads the state and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import TemplateRecord, TemplateVersion
from dray.core.model.specs.values import quote, suggest
from dray.core.model.templates.rendering import combine
from dray.core.model.templates.template import (
    NAME_RULE,
    TEMPLATE_NAME,
    Template,
    check_template,
    digest_of,
    unpack_template,
)
from dray.errors import InvalidInput, InvalidSpec, NotFound, Problem

BUILT_IN = 0
_FOLDER = Path(__file__).parent / "builtin"


class Found(NamedTuple):
    """One version of a template; `BUILT_IN` is the version of one that comes with dray."""

    template: Template
    version: int
    digest: str
    user: str = ""
    at_ms: int = 0


@lru_cache(maxsize=1)
def built_in() -> Mapping[str, Found]:
    """The templates that come with dray, by name."""
    found = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        template = check_template(yaml.safe_load(path.read_text()))
        found[template.name] = Found(template, BUILT_IN, digest_of(template))
    return found


def stored(state: State) -> dict[str, TemplateRecord]:
    """The templates that the hub keeps, removed ones included."""
    return {
        key: record
        for (kind, key), record in state.ledger.items()
        if kind == "template" and isinstance(record, TemplateRecord)
    }


def record_of(state: State, name: str) -> TemplateRecord | None:
    """What the hub keeps under a name, be it the history of a template that was removed."""
    record = state.ledger.get(("template", name))
    return record if isinstance(record, TemplateRecord) else None


def open_version(version: TemplateVersion) -> Found:
    """A stored version, read."""
    return Found(
        unpack_template(version.document), version.version, version.digest, version.user, version.at_ms
    )


def newest(state: State) -> list[Found]:
    """The version of each template that its bare name means, by name."""
    found = dict(built_in())
    for name, record in stored(state).items():
        if not record.removed_at_ms:
            found[name] = open_version(record.versions[-1])
    return [found[name] for name in sorted(found)]


def find(state: State, text: Any) -> Found:
    """The template behind NAME or NAME@VERSION; raises what says why there is none."""
    name, mark, number = text.partition("@") if isinstance(text, str) else ("", "", "")
    if TEMPLATE_NAME.fullmatch(name) is None or (mark and not (number.isascii() and number.isdigit())):
        raise InvalidInput(
            f"a template is named NAME or NAME@VERSION, with a NAME of {NAME_RULE}, got {quote(text)}"
        )
    record = record_of(state, name)
    # Those from before a removal are history.
    kept = [] if record is None else [version for version in record.versions if version.document]
    if number:
        wanted = int(number[:18])
        version = next((one for one in kept if one.version == wanted), None)
        if version is not None:
            return open_version(version)
        if wanted == BUILT_IN and name in built_in():
            return built_in()[name]
    elif kept:
        return open_version(kept[-1])
    elif name in built_in():
        return built_in()[name]
    raise NotFound(_absence(state, name, number, kept))


def _absence(state: State, name: str, number: str, kept: list[TemplateVersion]) -> str:
    if kept or (number and name in built_in()):
        versions = [*([BUILT_IN] if name in built_in() else []), *(one.version for one in kept)]
        return f"template {name!r} has no version {number[:18]}: there is {', '.join(map(str, versions))}"
    known = [found.template.name for found in newest(state)]
    return f"there is no template {name!r}{suggest(name, known)}; `dray template ls` lists them"


def expand(state: State, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a job that names a template: rendered, with what was given beside it."""
    try:
        found = find(state, raw["template"])
    except (InvalidInput, NotFound) as fault:
        raise InvalidSpec(f"template: {fault.message}", [Problem("template", fault.message)]) from None
    try:
        return combine(found.template, found.version, found.digest, raw)
    except InvalidInput as fault:
        raise InvalidSpec(fault.message, fault.problems) from None
