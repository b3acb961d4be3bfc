"""What people write of a job (`cpus: 2`, `-G A100:2`, `memory="8g"`) turned into the fields of its spec.

Flags, job files and Python share this table, so that all of them mean the same; what only one of them knows is in its
own. It parses and never judges: whether the fields make a job is the business of `specs.check`. The surprising rule:
`gpus` is the total of the job and is divided by `nodes`, while the spec's `gpu_count` is what each task gets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dray.core.model.ids import EVERYBODY
from dray.core.model.units import (
    parse_array,
    parse_bytes,
    parse_gpus,
    parse_minutes,
    parse_objective,
    parse_retries,
    parse_seconds,
)
from dray.errors import InvalidInput, Problem

# So ids of snapshots begin, that stand where a folder may.
PREFIX, ENVIRONMENT_PREFIX = "snap-", "env-"
Reader = Callable[[Any], dict[str, Any]]


class Asks(NamedTuple):
    """A spec as far as it could be read, which key each field came from, and what could not be read."""

    spec: dict[str, Any]
    sources: dict[str, str]
    problems: list[Problem]

    def read(self, where: str, field: str, reader: Reader, value: Any) -> None:
        """Take one key in, spelled `where`; `field` is what it means, whether or not it can be read."""
        try:
            fields = reader(value)
        except InvalidInput as fault:
            self.problems.append(Problem(where, fault.message))
            # The field was meant, so that its absence must not be a problem of its own.
            self.sources.setdefault(field, where)
            return
        for name, part in fields.items():
            known, other = self.spec.get(name), self.sources.get(name)
            if name == "resources" and isinstance(known, dict) and isinstance(part, dict):
                self.spec[name] = {**known, **part}
            elif other is not None:
                self.problems.append(Problem(where, f"says the same as '{other}': give one of them"))
            else:
                self.spec[name], self.sources[name] = part, where

    def divide_gpus(self, totals: Collection[str] = ("gpus",)) -> None:
        """Give each task its part of the cards that the whole job asks for; `totals`: the keys that mean them all."""
        nodes, total = self.spec.get("node_count", 1), self.spec.get("gpu_count")
        if self.sources.get("gpu_count") not in totals or not isinstance(total, int):
            return
        if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes <= 1:
            return
        if total % nodes:
            below, above = total // nodes * nodes, (total // nodes + 1) * nodes
            near = f"{below} or {above}" if below else str(above)
            what = (
                f"{total} GPUs in all do not divide by {nodes} nodes: ask for {near}, or give gpus_per_node"
            )
            self.problems.append(Problem("gpus", what))
            return
        self.spec["gpu_count"] = total // nodes


def as_text(value: Any) -> str:
    """What may be written with or without quotes."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidInput(f"must be text or a number, got {value!r}")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def named(field: str) -> Reader:
    """A field as it stands, under another name."""
    return lambda value: {field: value}


def listed(field: str) -> Reader:
    """One text or several, in one text with commas or as a list."""

    def read(value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            return {field: [part.strip() for part in value.split(",") if part.strip()]}
        return {field: _as_list(value)}

    return read


def texts(field: str) -> Reader:
    """One text, which may hold commas, or a list of them."""
    return lambda value: {field: [value] if isinstance(value, str) else _as_list(value)}


def _share(value: Any) -> dict[str, Any]:
    """Whom a service is shared with; `everybody` is a word for people."""
    named_users = listed("share")(value)["share"]
    if not isinstance(named_users, list):
        return {"share": named_users}
    return {"share": spell_users(named_users)}


def spell_users(users: Sequence[Any]) -> list[Any]:
    """Users as a spec names them."""
    return [EVERYBODY if user == "everybody" else user for user in users]


def _as_list(value: Any) -> Any:
    many = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return list(value) if many else value


def read_array(value: Any) -> dict[str, Any]:
    """Which tasks there are, as Slurm spells it, or as the spec has it."""
    if isinstance(value, Mapping):
        return {"array": dict(value)}
    array = parse_array(as_text(value))
    if array.indices:
        return {"array": {"indices": array.indices, "limit": array.limit}}
    return {"array": {"first": array.first, "last": array.last, "step": array.step, "limit": array.limit}}


def read_time(value: Any) -> dict[str, Any]:
    """A time limit, in minutes where it has no unit."""
    limit_s = parse_minutes(as_text(value))
    if limit_s <= 0:
        raise InvalidInput(f"must be more than 0, got {value}")
    return {"max_runtime_s": limit_s}


def read_queue_timeout(value: Any) -> dict[str, Any]:
    """How long a job may wait, in seconds where it has no unit."""
    return {"scheduling_timeout_s": parse_seconds(as_text(value))}


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
    return {"memory_bytes": parse_bytes(as_text(value))}


def _vram(value: Any) -> dict[str, Any]:
    return {"vram_per_gpu_bytes": parse_bytes(as_text(value), base=1000)}


def _gpus(value: Any) -> dict[str, Any]:
    ask = parse_gpus(as_text(value))
    fields = {"gpu_count": ask.number, "gpu_type": ask.type, "gpu_milli": ask.milli}
    return {name: value for name, value in fields.items() if value or name == "gpu_count"}


def _device(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"device": dict(value)}
    kind, _, variant = as_text(value).partition(":")
    return {"device": {"kind": kind, **({"variant": variant} if variant else {})}}


def _retries(value: Any) -> dict[str, Any]:
    return {"retries": parse_retries(value) if isinstance(value, str) else value}


# How a spec names a folder that is to be sent along, before it is.
FOLDER = "folder:"


def _snapshot(value: Any) -> dict[str, Any]:
    folder = as_text(value)
    if not folder:
        raise InvalidInput("names no folder: write . for this one")
    return {"snapshot_id": folder if folder.startswith(PREFIX) else FOLDER + folder}


def _objective(value: Any) -> dict[str, Any]:
    return {"objective": parse_objective(value) if isinstance(value, str) else value}


# And an environment, by the files that it is made of.
ENVIRONMENT = "files:"
_ENVIRONMENT_KEYS = ("requirements", "lock", "pyproject", "conda")
# An image is named and not brought: whoever runs it fetches it himself.
CONTAINER = "container:"
_IMAGE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._:/@+~-]{0,511}")


def _environment(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        if value.startswith(ENVIRONMENT_PREFIX):
            return {"environment": value}
        kind = _KINDS.get(value.rpartition("/")[2], "requirements")
        value = {"container": value.removeprefix(CONTAINER)} if value.startswith(CONTAINER) else {kind: value}
    if not isinstance(value, Mapping):
        raise InvalidInput(
            "must be the path of a file, container: and an image, or python: and one of requirements:, lock:, "
            "pyproject: and conda:"
        )
    given = {str(key): as_text(item) for key, item in value.items() if item is not None}
    if "container" in given:
        return {"environment": _container(given)}
    if unknown := sorted({*given} - {"python", *_ENVIRONMENT_KEYS}):
        raise InvalidInput(f"{unknown[0]!r} is none of container, python, {', '.join(_ENVIRONMENT_KEYS)}")
    if sum(key in given for key in _ENVIRONMENT_KEYS) > 1 or not given:
        raise InvalidInput(
            f"needs one of {', '.join(_ENVIRONMENT_KEYS)}, a path each, and may say python: 3.12"
        )
    return {"environment": ENVIRONMENT + json.dumps(given, sort_keys=True)}


_KINDS = {
    "uv.lock": "lock",
    "pyproject.toml": "pyproject",
    "environment.yml": "conda",
    "environment.yaml": "conda",
}


def _container(given: Mapping[str, str]) -> str:
    if len(given) > 1:
        raise InvalidInput("container: stands alone: what is needed is in the image")
    named_by = CONTAINER + given["container"]
    if not image_of(named_by):
        raise InvalidInput(
            f"{given['container'][:80]!r} is no name of an image: write python:3.12, "
            "registry.example/team/image@sha256:…, or for apptainer the path of a .sif"
        )
    return named_by


def image_of(environment: str) -> str:
    """The image that an environment is; empty where it is none, or has a name that none can have."""
    image = environment.removeprefix(CONTAINER)
    return image if image != environment and _IMAGE.fullmatch(image) else ""


def label_for(spec: Mapping[str, Any]) -> str:
    """The label by which workers say that they can make the environment of a spec; empty where it needs none."""
    if image_of(str(spec.get("environment") or "")):
        return "containers"
    files = environment_of(spec)
    return "" if not files else "conda" if '"conda"' in files else "environments=uv"


def environment_of(spec: Mapping[str, Any]) -> str:
    """The files of the environment that a spec names, and that are yet to be sent, as they were spelled."""
    named_by = spec.get("environment")
    found = isinstance(named_by, str) and named_by.startswith(ENVIRONMENT)
    return str(named_by).removeprefix(ENVIRONMENT) if found else ""


def is_to_bring(spec: Mapping[str, Any]) -> bool:
    """Whether a spec names anything that is yet to be sent."""
    return bool(folder_of(spec) or label_for(spec))


def folder_of(spec: Mapping[str, Any]) -> str:
    """The folder that a spec names, and that is yet to be sent; empty where there is none."""
    named_by = spec.get("snapshot_id")
    found = isinstance(named_by, str) and named_by.startswith(FOLDER)
    return str(named_by).removeprefix(FOLDER) if found else ""


AMOUNTS: dict[str, Reader] = {
    "cpus": _cores,
    "mem": _memory,
    "memory": _memory,
    "gpus": _gpus,
    "gpus_per_node": _gpus,
    "vram": _vram,
}
READERS: dict[str, Reader] = {
    **AMOUNTS,
    "nodes": named("node_count"),
    "backend": named("gpu_backend"),
    "tier": named("job_tier"),
    "user": named("user_id"),
    "array": read_array,
    "device": _device,
    "retries": _retries,
    "objective": _objective,
    "notify": listed("notify"),
    "notify_to": listed("notify_to"),
    "require": texts("require"),
    "port": listed("ports"),
    "ports": listed("ports"),
    "prefer": texts("prefer"),
    "share": _share,
    "uses": listed("uses"),
    "snapshot": _snapshot,
    "environment": _environment,
}
FIELD_OF = {
    "cpus": "cpu_milli",
    "mem": "memory_bytes",
    "memory": "memory_bytes",
    "gpus": "gpu_count",
    "gpus_per_node": "gpu_count",
    "vram": "vram_per_gpu_bytes",
    "nodes": "node_count",
    "backend": "gpu_backend",
    "tier": "job_tier",
    "user": "user_id",
    "port": "ports",
    "snapshot": "snapshot_id",
}
