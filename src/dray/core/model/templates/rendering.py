"""Filling a template in: values for its parameters in, the fields of a job out.

One pass: what a value holds is never looked at again. `beside` says what may be given next to a template without
weakening it: what it sets stays, what it asks of machines is its own, and conditions may only be added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dray.core.model.specs.asks import Asks, named
from dray.core.model.specs.check import FIELDS
from dray.core.model.specs.spec import JobSpec, Rendered
from dray.core.model.specs.values import quote
from dray.core.model.templates.parameters import Parameter, Value, read_values, spell
from dray.core.model.templates.spelling import FIELD_OF, READERS
from dray.core.model.templates.template import KINDS, PLACE, Place, Template, spell_place
from dray.errors import InvalidSpec, Problem

# What a job has of its own, beside any template; of maps the names that the template does not have.
BESIDE = frozenset(
    "id user_id name labels env metadata queue priority after hold deadline workdir require prefer notify notify_to"
    " scheduling_timeout_s expected_runtime_s params replicas restart share uses".split()
)
_MERGED = ("labels", "env", "metadata")
_ADDED = ("require", "prefer")
_TEXT_TYPES = (str, list[str], dict[str, str])
_TEXT_FIELDS = {field.name for field in msgspec.structs.fields(JobSpec) if field.type in _TEXT_TYPES}
_CONDITION_TEXT = re.compile(r"[A-Za-z0-9._/:-]*")


def render(template: Template, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Value]]:
    """The fields of the job that a template and these values make, and every value with its default filled in."""
    values = read_values(template.params, given)
    filled = _Filling(template, values)
    written = {key: filled.fill(item, (key,)) for key, item in template.spec.items()}
    asks = Asks({}, {}, filled.problems)
    for key, value in written.items():
        if value is not None:
            asks.read(key, FIELD_OF.get(key, key), READERS.get(key, named(key)), value)
    asks.divide_gpus()
    if asks.problems:
        problems = [
            Problem(p.where if p.where.startswith("spec") else f"spec.{p.where}", p.what)
            for p in asks.problems
        ]
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}", problems)
    if not {"cpu_milli", "min_cpu_cores"} & set(asks.spec):
        asks.spec["cpu_milli"] = 1000
    return asks.spec | {"type": KINDS[template.kind]}, values


def combine(template: Template, version: int, digest: str, beside: Mapping[str, Any]) -> dict[str, Any]:
    """The raw spec of a job by a template: what it renders to, and what was given beside it."""
    params = beside.get("params") or {}
    if not isinstance(params, Mapping):
        raise InvalidSpec("params: must map names to values", [Problem("params", "must map names to values")])
    spec, values = render(template, params)
    opened = {FIELD_OF.get(name, name) for name in template.open}
    kept = sorted((set(spec) & BESIDE) - opened)
    problems: list[Problem] = []
    for field, value in beside.items():
        if field in ("params", "template") or value is None:
            continue
        if fault := _fault_beside(template, spec, opened, field, value):
            problems.append(Problem(field, fault))
        elif field in _ADDED and isinstance(value, list) and field not in opened:
            spec[field] = [*spec.get(field, []), *value]
        elif field in _MERGED and isinstance(value, Mapping):
            spec[field] = {**spec.get(field, {}), **value}
        else:
            spec[field] = value
    if problems:
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}", problems)
    spec.setdefault("name", template.name)
    use = {"digest": digest, "kept": kept, "open": sorted(opened)}
    return spec | {"template": f"{template.name}@{version}", "params": values, "rendered": use}


def edit_fault(use: Rendered, field: str) -> str:
    """Why a field of a job by a template cannot be changed; empty where it can be."""
    if field in use.open or (field in BESIDE and field not in use.kept):
        return ""
    return "was set by the job's template, which does not leave it open: submit another job"


def _fault_beside(
    template: Template, spec: Mapping[str, Any], opened: set[str], field: str, value: Any
) -> str:
    if field in opened:
        return ""
    if field not in FIELDS or field in ("rendered", "function"):
        return "is not a field of a job that goes with a template"
    if field not in BESIDE:
        may = f"; it has the parameters {', '.join(template.params)}" if template.params else ""
        return f"is for the template {template.name} to say, which does not leave it open{may}"
    if field in _ADDED or field not in spec:
        return ""
    if field not in _MERGED:
        return f"is set by the template {template.name} to {quote(spec[field])}, which does not leave it open"
    taken = [key for key in value if key in spec[field]] if isinstance(value, Mapping) else []
    where = f"{taken[0]} " if taken else ""
    return f"{where}is set by the template {template.name}, which does not leave it open" if taken else ""


class _Filling:
    """One pass over a spec; collects what cannot stand where it would."""

    def __init__(self, template: Template, values: Mapping[str, Value]) -> None:
        self._params, self._values = template.params, values
        self.problems: list[Problem] = []

    def fill(self, value: Any, place: Place) -> Any:
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, list):
            return [self.fill(item, (*place, number)) for number, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {key: self.fill(item, (*place, key)) for key, item in value.items()}
        return value

    def _text(self, text: str, place: Place) -> Any:
        whole = PLACE.fullmatch(text)
        if whole is not None and whole.group(1) is not None and not _is_text(place):
            name = whole.group(1)
            return _as_typed(self._params[name], self._values[name], place)
        return PLACE.sub(lambda match: self._piece(match, text, place), text)

    def _piece(self, match: re.Match[str], text: str, place: Place) -> str:
        name = match.group(1)
        if name is None:
            return "${"
        spelled = spell(self._values[name])
        if place[0] in _ADDED and match.group() != text and _CONDITION_TEXT.fullmatch(spelled) is None:
            what = (
                f"{quote(text)} is a condition on workers, and {name} would change its meaning: letters, digits and "
                f"._/:- may stand in it, got {quote(spelled)}"
            )
            self.problems.append(Problem(spell_place(place), what))
        return spelled


def _as_typed(parameter: Parameter, value: Value, place: Place) -> Any:
    # A bare number under `time` means minutes, as on the command line.
    if parameter.type == "duration" and len(place) == 1 and place[0] in READERS:
        return f"{spell(value)}s"
    return value


def _is_text(place: Place) -> bool:
    """Whether what stands here is text by the type of its field, which may be that of an alternative."""
    field = place[2] if place[0] == "variants" and len(place) > 2 else place[0]
    return field in _TEXT_FIELDS
