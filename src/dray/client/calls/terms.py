"""What a Python caller writes (`cpus=2, gpus="A100:2", memory="8g"`) turned into the fields of a spec.

Parses and never judges: whether the fields make a job is decided by the hub. Every keyword that cannot be read is
reported at once. The surprising rule: names of the spec itself pass through untouched, so that whatever the hub
learns can be asked for before this table does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dray.core.model.specs import asks as shared
from dray.core.model.specs.asks import Asks, Reader, as_text, named, read_array
from dray.core.model.specs.check import FIELDS
from dray.core.model.specs.values import suggest
from dray.core.model.units import parse_minutes, parse_seconds
from dray.errors import InvalidInput, InvalidSpec, Problem
from dray.functions.serving import pack_service

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")
# The keys that mean the cards of the whole job.
TOTALS = ("gpus", "gpu", "resources['gpus']", "resources['gpu']")


def build_spec(command: Sequence[str] | Mapping[str, Any] | None, terms: Mapping[str, Any]) -> dict[str, Any]:
    """Make a spec of a command, of a spec as it stands, or of a template among the keywords, and of the keywords."""
    given = dict(terms)
    if command is None and not given.get("template"):
        raise InvalidInput("nothing is to be run: give a function, a command, a spec, or template='NAME'")
    resources = given.pop("resources", None)
    if resources is not None and not isinstance(resources, Mapping):
        raise InvalidSpec(f"resources must map names to amounts, got {resources!r}")
    words = {} if command is None else dict(command) if isinstance(command, Mapping) else None
    asks = Asks({"command": _words(command)} if words is None else words, {}, [])
    spec, problems = asks.spec, asks.problems
    for key, value in given.items():
        if value is None:
            continue
        if key in READERS or key in FIELDS:
            asks.read(key, _FIELD_OF.get(key, key), READERS.get(key, named(key)), value)
        else:
            known = suggest(key, [*READERS, *FIELDS])
            problems.append(Problem(key, f"is not a keyword of submit{known}"))
    for name, value in (resources or {}).items():
        reader = AMOUNTS.get(name) or _custom(name)
        asks.read(f"resources[{name!r}]", _FIELD_OF.get(name, "resources"), reader, value)
    asks.divide_gpus(TOTALS)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}{more}", problems)
    if not isinstance(command, Mapping):
        _settle_surroundings(spec)
        if not {"cpu_milli", "min_cpu_cores", "template"} & set(spec):
            spec["cpu_milli"] = 1000
    return spec


def build_service(work: Any, terms: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a service by a command, a function or a template."""
    given = {name: value for name, value in terms.items() if value is not None}
    if callable(work):
        work, own = pack_service(work, given.get("env") or {})
        given["env"] = {**(given.get("env") or {}), **own}
        given.setdefault("name", work[-1].rpartition(".")[2].strip("<>"))
        if not {"ports", "port"} & set(given):
            given["ports"] = ["http"]
    if not given.get("template"):
        given["type"] = "service"
    return build_spec(work, given)


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


def _words(command: Any) -> list[str]:
    if isinstance(command, str) or not isinstance(command, Sequence):
        raise InvalidSpec(
            f"a command is a list of words, such as ['python', 'train.py'], got {command!r}; for a shell write "
            "['sh', '-c', '...']"
        )
    return [str(word) if isinstance(word, os.PathLike) else word for word in command]


def _settle_surroundings(spec: dict[str, Any]) -> None:
    """The folder and a few variables of the caller travel along; what the job says itself wins."""
    if not spec.get("snapshot_id"):
        spec["workdir"] = os.path.abspath(spec.get("workdir") or os.getcwd())
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if os.environ.get(name)}
    spec["env"] = {**kept, **(spec.get("env") or {})}


def _time_limit(value: Any) -> dict[str, Any]:
    text = as_text(value)
    limit_s = parse_seconds(text) if not isinstance(value, str) or text.isdigit() else parse_minutes(text)
    if limit_s <= 0:
        raise InvalidInput(f"must be more than 0 seconds, got {value!r}")
    return {"max_runtime_s": limit_s}


def _timeout(value: Any) -> dict[str, Any]:
    return {"scheduling_timeout_s": parse_seconds(as_text(value))}


def _array(value: Any) -> dict[str, Any]:
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
    return read_array(value)


def _text_map(field: str) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise InvalidInput(f"must map names to texts, got {value!r}")
        return {field: {str(name): str(item) for name, item in value.items()}}

    return read


def _workdir(value: Any) -> dict[str, Any]:
    return {"workdir": os.fspath(value)}


def _custom(name: str) -> Reader:
    return lambda value: {"resources": {name: value}}


AMOUNTS: dict[str, Reader] = {
    **shared.AMOUNTS,
    "cpu": shared.AMOUNTS["cpus"],
    "gpu": shared.AMOUNTS["gpus"],
}
READERS: dict[str, Reader] = {
    **shared.READERS,
    **AMOUNTS,
    "time_limit": _time_limit,
    "scheduling_timeout": _timeout,
    "scheduling_timeout_seconds": _timeout,
    "array": _array,
    "after": _after,
    "env": _text_map("env"),
    "labels": _text_map("labels"),
    "workdir": _workdir,
    "snapshot": lambda value: shared.READERS["snapshot"](os.fspath(value)),
}
_FIELD_OF: dict[str, str] = {
    **shared.FIELD_OF,
    "cpu": "cpu_milli",
    "gpu": "gpu_count",
    "time_limit": "max_runtime_s",
    "scheduling_timeout": "scheduling_timeout_s",
    "scheduling_timeout_seconds": "scheduling_timeout_s",
}
