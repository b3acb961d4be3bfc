"""What a Python caller writes (`cpus=2, gpus="A100:2", memory="8g"`) turned into the fields of a spec.

Parses and never judges: whether the fields make a job is decided by the hub. Every keyword that cannot be read is
reported at once. The surprising rule: names of the spec itself pass through untouched, so that whatever the hub
learns can be asked for before this table does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dray.core.model.specs.check import FIELDS, suggest
from dray.core.model.units import (
    parse_array,
    parse_bytes,
    parse_gpus,
    parse_minutes,
    parse_retries,
    parse_seconds,
)
from dray.errors import InvalidInput, InvalidSpec, Problem

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")
Reader = Callable[[Any], dict[str, Any]]


def build_spec(command: Sequence[str] | Mapping[str, Any], terms: Mapping[str, Any]) -> dict[str, Any]:
    """Make a spec of a command, or of a spec as it stands, and of keywords."""
    given = dict(terms)
    resources = given.pop("resources", None)
    if resources is not None and not isinstance(resources, Mapping):
        raise InvalidSpec(f"resources must map names to amounts, got {resources!r}")
    problems: list[Problem] = []
    spec: dict[str, Any] = dict(command) if isinstance(command, Mapping) else {"command": _words(command)}
    sources: dict[str, str] = {}
    for key, value in given.items():
        if value is not None:
            reader = READERS.get(key) or (_field(key) if key in FIELDS else None)
            _read(spec, sources, problems, key, key, reader, value)
    for key, value in (resources or {}).items():
        _read(spec, sources, problems, f"resources[{key!r}]", key, AMOUNTS.get(key, _custom(key)), value)
    _divide_gpus(spec, sources, problems)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}{more}", problems)
    if not isinstance(command, Mapping):
        _settle_surroundings(spec)
        if not {"cpu_milli", "min_cpu_cores"} & set(spec):
            spec["cpu_milli"] = 1000
    return spec


def build_changes(terms: Mapping[str, Any], nodes: int = 1) -> dict[str, Any]:
    """Read keywords as changes to a job that is there: what is not named stays, None means the default again."""
    base = {"node_count": nodes} if nodes > 1 else {}
    changes = build_spec(base, {key: value for key, value in terms.items() if value is not None})
    if "nodes" not in terms:
        changes.pop("node_count", None)
    emptied = {key for key, value in terms.items() if value is None}
    return changes | {_FIELD_OF.get(key, key): None for key in sorted(emptied)}


def _after(value: Any) -> dict[str, Any]:
    """Conditions on other jobs: ids, or `ok:ID`, `any:ID`, `fail:ID`; a job's handle stands for its success."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else [value]
    return {"after": [item.strip() if isinstance(item, str) else getattr(item, "id", item) for item in items]}


def _read(
    spec: dict[str, Any],
    sources: dict[str, str],
    problems: list[Problem],
    where: str,
    key: str,
    reader: Reader | None,
    value: Any,
) -> None:
    if reader is None:
        known = [*READERS, *FIELDS]
        problems.append(Problem(where, f"is not a keyword of submit{suggest(key, known)}"))
        return
    try:
        fields = reader(value)
    except InvalidInput as fault:
        problems.append(Problem(where, fault.message))
        return
    for field, part in fields.items():
        if field == "resources" and isinstance(spec.get(field), dict):
            spec[field] = {**spec[field], **part}
        elif field in sources:
            problems.append(Problem(where, f"says the same as {sources[field]}: give one of them"))
        else:
            spec[field], sources[field] = part, where


def _words(command: Any) -> list[str]:
    if isinstance(command, str) or not isinstance(command, Sequence):
        raise InvalidSpec(
            f"a command is a list of words, such as ['python', 'train.py'], got {command!r}; for a shell write "
            "['sh', '-c', '...']"
        )
    return [str(word) if isinstance(word, os.PathLike) else word for word in command]


def _settle_surroundings(spec: dict[str, Any]) -> None:
    """The folder and a few variables of the caller travel along; what the job says itself wins."""
    spec["workdir"] = os.path.abspath(spec.get("workdir") or os.getcwd())
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if os.environ.get(name)}
    spec["env"] = {**kept, **(spec.get("env") or {})}


def _cores(value: Any) -> dict[str, Any]:
    try:
        cores = float(value)
        milli = round(cores * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{value!r} is not a number of cores: write 1, 2 or 0.5") from None
    if cores < 0 or (cores > 0 and milli == 0):
        raise InvalidInput(f"must be 0, or 0.001 and more, got {value!r}")
    return {"cpu_milli": milli}


def _memory(value: Any) -> dict[str, Any]:
    return {"memory_bytes": parse_bytes(_size(value))}


def _vram(value: Any) -> dict[str, Any]:
    return {"vram_per_gpu_bytes": parse_bytes(_size(value), base=1000)}


def _gpus(value: Any) -> dict[str, Any]:
    ask = parse_gpus(str(_plain(value)))
    fields = {"gpu_count": ask.number, "gpu_type": ask.type, "gpu_milli": ask.milli}
    return {name: value for name, value in fields.items() if value or name == "gpu_count"}


def _time_limit(value: Any) -> dict[str, Any]:
    plain = _plain(value)
    limit_s = parse_minutes(plain) if isinstance(plain, str) and not plain.isdigit() else parse_seconds(plain)
    if limit_s <= 0:
        raise InvalidInput(f"must be more than 0 seconds, got {value!r}")
    return {"max_runtime_s": limit_s}


def _retries(value: Any) -> dict[str, Any]:
    return {"retries": parse_retries(value) if isinstance(value, str) else value}


def _timeout(value: Any) -> dict[str, Any]:
    return {"scheduling_timeout_s": parse_seconds(_plain(value))}


def _array(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"array": dict(value)}
    if isinstance(value, range):
        if not value or value.step < 1:
            raise InvalidInput(f"{value!r} is empty or counts down: give a range that counts up")
        return {"array": {"first": value.start, "last": value[-1], "step": value.step}}
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise InvalidInput(f"must be 1 or more tasks, got {value}")
        return {"array": {"first": 0, "last": value - 1}}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        value = ",".join(str(index) for index in value)
    given = parse_array(str(_plain(value)))._asdict()
    return {"array": {name: part for name, part in given.items() if part != ""}}


def _device(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"device": dict(value)}
    kind, _, variant = str(_plain(value)).partition(":")
    return {"device": {"kind": kind, **({"variant": variant} if variant else {})}}


def _listed(field: str) -> Reader:
    """One text or several, in one text with commas or as a list."""

    def read(value: Any) -> dict[str, Any]:
        items = value.split(",") if isinstance(value, str) else value
        many = isinstance(items, Sequence) and not isinstance(items, str | bytes)
        return {field: [item.strip() if isinstance(item, str) else item for item in items] if many else value}

    return read


def _texts(field: str) -> Reader:
    return lambda value: {field: [value] if isinstance(value, str) else list(value)}


def _text_map(field: str) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise InvalidInput(f"must map names to texts, got {value!r}")
        return {field: {str(name): str(item) for name, item in value.items()}}

    return read


def _workdir(value: Any) -> dict[str, Any]:
    return {"workdir": os.fspath(value)}


def _field(field: str) -> Reader:
    return lambda value: {field: value}


def _custom(name: str) -> Reader:
    return lambda value: {"resources": {name: value}}


def _plain(value: Any) -> str | int | float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidInput(f"must be text or a number, got {value!r}")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _size(value: Any) -> str | int:
    plain = _plain(value)
    return str(plain) if isinstance(plain, float) else plain


AMOUNTS: dict[str, Reader] = {
    "cpu": _cores,
    "cpus": _cores,
    "mem": _memory,
    "memory": _memory,
    "gpu": _gpus,
    "gpus": _gpus,
    "gpus_per_node": _gpus,
    "vram": _vram,
}
READERS: dict[str, Reader] = {
    **AMOUNTS,
    "nodes": _field("node_count"),
    "backend": _field("gpu_backend"),
    "tier": _field("job_tier"),
    "user": _field("user_id"),
    "time_limit": _time_limit,
    "scheduling_timeout": _timeout,
    "scheduling_timeout_seconds": _timeout,
    "array": _array,
    "retries": _retries,
    "after": _after,
    "device": _device,
    "require": _texts("require"),
    "prefer": _texts("prefer"),
    "notify": _listed("notify"),
    "notify_to": _listed("notify_to"),
    "env": _text_map("env"),
    "labels": _text_map("labels"),
    "workdir": _workdir,
}


_FIELD_OF = {
    "cpu": "cpu_milli",
    "cpus": "cpu_milli",
    "mem": "memory_bytes",
    "memory": "memory_bytes",
    "gpu": "gpu_count",
    "gpus": "gpu_count",
    "gpus_per_node": "gpu_count",
    "vram": "vram_per_gpu_bytes",
    "backend": "gpu_backend",
    "tier": "job_tier",
    "time_limit": "max_runtime_s",
    "nodes": "node_count",
    "scheduling_timeout": "scheduling_timeout_s",
    "scheduling_timeout_seconds": "scheduling_timeout_s",
}


def _divide_gpus(spec: dict[str, Any], sources: dict[str, str], problems: list[Problem]) -> None:
    """`gpus` is the job's total, the spec's `gpu_count` what each task gets."""
    nodes, total = spec.get("node_count", 1), spec.get("gpu_count")
    by_total = sources.get("gpu_count") in ("gpus", "gpu", "resources['gpus']", "resources['gpu']")
    if not by_total or not isinstance(total, int) or not isinstance(nodes, int) or nodes <= 1:
        return
    if total % nodes:
        problems.append(
            Problem("gpus", f"{total} in all do not divide by {nodes} nodes: give gpus_per_node instead")
        )
    else:
        spec["gpu_count"] = total // nodes
