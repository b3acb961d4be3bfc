"""The keys of flags and job files, above those that Python shares, as the fields of a spec.

Parses and never judges: whether the fields make a job is the business of `core.model.specs.check`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from dray.core.model.specs import asks as shared
from dray.core.model.specs.asks import Asks, Reader, as_text, listed, named, read_queue_timeout, read_time
from dray.core.model.units import parse_seconds
from dray.errors import InvalidInput, InvalidSpec, Problem


class JobFileError(InvalidSpec):
    """A file of jobs with problems: a mistake in what was typed, like a wrong flag."""

    code = "invalid_job_file"
    exit_code = 2


def refuse_file(name: str, problems: list[Problem]) -> JobFileError:
    """The error that tells every problem of a file."""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return JobFileError(f"{name} has {count}, nothing was submitted", problems)


def _deadline(value: Any) -> dict[str, Any]:
    text = as_text(value)
    if not text.startswith("+"):
        return {"deadline": text}
    moment = datetime.now(UTC) + timedelta(seconds=parse_seconds(text[1:]))
    return {"deadline": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}


def _argv(field: str) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, str):
            return {field: value}
        try:
            # Split as a shell would, never given to one: what the user wants a shell for, the user writes `sh -c`.
            return {field: shlex.split(value)}
        except ValueError as error:
            raise InvalidInput(f"{value!r} cannot be split into words: {error}") from None

    return read


READERS: dict[str, Reader] = {
    **shared.READERS,
    "time": read_time,
    "queue_timeout": read_queue_timeout,
    "deadline": _deadline,
    "after": listed("after"),
    "kind": named("type"),
    "command": _argv("command"),
    "prolog": _argv("prolog"),
    "epilog": _argv("epilog"),
}
FIELD_OF = {
    **shared.FIELD_OF,
    "time": "max_runtime_s",
    "queue_timeout": "scheduling_timeout_s",
    "kind": "type",
}


def read_asks(given: Mapping[str, Any]) -> Asks:
    """Read every key; a key that is no friendly form passes through as a field of the spec.

    A job by a template asks for the cores that the template says.
    """
    asks = Asks({}, {}, [])
    for key, value in given.items():
        asks.read(key, FIELD_OF.get(key, key), READERS.get(key, named(key)), value)
    asks.divide_gpus()
    if not {"cpu_milli", "min_cpu_cores", "template"} & set(asks.sources):
        asks.spec["cpu_milli"] = 1000
    return asks


def overlay(given: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Let flags win over a file: a flag replaces every spelling of its field, maps are merged."""
    result = dict(given)
    for key, value in flags.items():
        known = result.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            result[key] = {**known, **value}
            continue
        field = FIELD_OF.get(key, key)
        for other in [name for name in result if FIELD_OF.get(name, name) == field]:
            del result[other]
        result[key] = value
    return result


def read_changes(given: Mapping[str, Any], nodes: int = 1) -> Asks:
    """Read what shall differ from a job that is there: what is not named stays, so nothing is filled in."""
    asks = read_asks({**given, "node_count": nodes} if nodes > 1 else given)
    if nodes > 1:
        del asks.spec["node_count"], asks.sources["node_count"]
    if "cpu_milli" not in asks.sources:
        asks.spec.pop("cpu_milli", None)
    return asks
