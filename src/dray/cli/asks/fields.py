"""What people write (`cpus: 2`, `-G A100:2`, `time: 1:30:00`) turned into the fields of a spec.

Flags and job files share this table, so that both mean the same. It parses and never judges: whether the fields make
a job is the business of `core.model.specs.check`. The surprising rule: `gpus` is the total of the job and is divided by
`nodes`, while the spec's `gpu_count` is what each task gets.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from dray.core.model.units import (
    parse_array,
    parse_bytes,
    parse_gpus,
    parse_minutes,
    parse_retries,
    parse_seconds,
)
from dray.errors import InvalidInput, InvalidSpec, Problem

Reader = Callable[[Any], dict[str, Any]]


class Asks(NamedTuple):
    """A spec as far as it could be read, which key each field came from, and what could not be read."""

    spec: dict[str, Any]
    sources: dict[str, str]
    problems: list[Problem]


class JobFileError(InvalidSpec):
    """A file of jobs with problems: a mistake in what was typed, like a wrong flag."""

    code = "invalid_job_file"
    exit_code = 2


def refuse_file(name: str, problems: list[Problem]) -> JobFileError:
    """The error that tells every problem of a file."""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return JobFileError(f"{name} has {count}, nothing was submitted", problems)


def _cpus(value: Any) -> dict[str, Any]:
    try:
        cores = float(value)
        milli = round(cores * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{value!r} is not a number of cores: write 1, 2 or 0.5") from None
    if cores < 0:
        raise InvalidInput(f"must be 0 or more, got {value}")
    if cores > 0 and milli == 0:
        raise InvalidInput(f"must be 0.001 or more (or 0), got {value}")
    return {"cpu_milli": milli}


def _memory(value: Any) -> dict[str, Any]:
    return {"memory_bytes": parse_bytes(_as_text(value))}


def _vram(value: Any) -> dict[str, Any]:
    return {"vram_per_gpu_bytes": parse_bytes(_as_text(value), base=1000)}


def _gpus(value: Any) -> dict[str, Any]:
    ask = parse_gpus(_as_text(value))
    fields = {"gpu_count": ask.number, "gpu_type": ask.type, "gpu_milli": ask.milli}
    return {name: value for name, value in fields.items() if value or name == "gpu_count"}


def _time(value: Any) -> dict[str, Any]:
    limit_s = parse_minutes(_as_text(value))
    if limit_s <= 0:
        raise InvalidInput(f"must be more than 0, got {value}")
    return {"max_runtime_s": limit_s}


def _queue_timeout(value: Any) -> dict[str, Any]:
    return {"scheduling_timeout_s": parse_seconds(_as_text(value))}


def _array(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"array": dict(value)}
    array = parse_array(_as_text(value))
    if array.indices:
        return {"array": {"indices": array.indices, "limit": array.limit}}
    return {"array": {"first": array.first, "last": array.last, "step": array.step, "limit": array.limit}}


def _device(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"device": dict(value)}
    kind, _, variant = _as_text(value).partition(":")
    return {"device": {"kind": kind, **({"variant": variant} if variant else {})}}


def _deadline(value: Any) -> dict[str, Any]:
    text = _as_text(value)
    if not text.startswith("+"):
        return {"deadline": text}
    moment = datetime.now(UTC) + timedelta(seconds=parse_seconds(text[1:]))
    return {"deadline": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}


def _retries(value: Any) -> dict[str, Any]:
    return {"retries": parse_retries(value) if isinstance(value, str) else value}


def _listed(field: str) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, str):
            return {field: value}
        return {field: [part.strip() for part in value.split(",") if part.strip()]}

    return read


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


def _conditions(field: str) -> Reader:
    return lambda value: {field: [value] if isinstance(value, str) else value}


def _renamed(field: str) -> Reader:
    return lambda value: {field: value}


READERS: dict[str, Reader] = {
    "cpus": _cpus,
    "mem": _memory,
    "memory": _memory,
    "gpus": _gpus,
    "gpus_per_node": _gpus,
    "vram": _vram,
    "nodes": _renamed("node_count"),
    "time": _time,
    "queue_timeout": _queue_timeout,
    "backend": _renamed("gpu_backend"),
    "tier": _renamed("job_tier"),
    "user": _renamed("user_id"),
    "array": _array,
    "deadline": _deadline,
    "retries": _retries,
    "after": _listed("after"),
    "notify": _listed("notify"),
    "notify_to": _listed("notify_to"),
    "device": _device,
    "command": _argv("command"),
    "prolog": _argv("prolog"),
    "epilog": _argv("epilog"),
    "require": _conditions("require"),
    "prefer": _conditions("prefer"),
}
FIELD_OF = {
    "cpus": "cpu_milli",
    "mem": "memory_bytes",
    "memory": "memory_bytes",
    "gpus": "gpu_count",
    "gpus_per_node": "gpu_count",
    "vram": "vram_per_gpu_bytes",
    "nodes": "node_count",
    "time": "max_runtime_s",
    "queue_timeout": "scheduling_timeout_s",
    "backend": "gpu_backend",
    "tier": "job_tier",
    "user": "user_id",
}


def read_asks(given: Mapping[str, Any]) -> Asks:
    """Read every key; a key that is no friendly form passes through as a field of the spec."""
    asks = Asks({}, {}, [])
    for key, value in given.items():
        try:
            fields = READERS.get(key, _renamed(key))(value)
        except InvalidInput as error:
            asks.problems.append(Problem(key, error.message))
            # The field was meant, so that its absence must not be a problem of its own.
            asks.sources.setdefault(FIELD_OF.get(key, key), key)
            continue
        for field, part in fields.items():
            other = asks.sources.get(field)
            if other is not None:
                asks.problems.append(Problem(key, f"says the same as {other!r}: give one of them"))
                continue
            asks.spec[field] = part
            asks.sources[field] = key
    divide_gpus(asks)
    if not {"cpu_milli", "min_cpu_cores"} & set(asks.sources):
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


def divide_gpus(asks: Asks) -> None:
    """Give each task its part of the cards that the whole job asks for."""
    nodes, total = asks.spec.get("node_count", 1), asks.spec.get("gpu_count")
    if asks.sources.get("gpu_count") != "gpus" or not isinstance(total, int):
        return
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes <= 1:
        return
    if total % nodes:
        what = f"{total} GPUs in all do not divide by {nodes} nodes: ask for {_near(total, nodes)}"
        asks.problems.append(Problem("gpus", what))
        return
    asks.spec["gpu_count"] = total // nodes


def _near(total: int, nodes: int) -> str:
    below, above = total // nodes * nodes, (total // nodes + 1) * nodes
    return f"{below} or {above}" if below else str(above)


def _as_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidInput(f"must be text or a number, got {value!r}")
    return str(value)
