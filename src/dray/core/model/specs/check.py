"""Turn what a user wrote into a complete `JobSpec`, or into every problem it has at once.

Field by field by table: a decoder that stops at the first fault would make people fix a file one error at a time.
Unknown fields are faults here (with a suggestion); on the worker wire they are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dray.core.model.capability import BACKENDS
from dray.core.model.ids import ID_RULE, is_id
from dray.core.model.labels import condition_problem
from dray.core.model.objectives import MOST_GB, MOST_WEIGHT, WEIGHTS, Objective
from dray.core.model.specs.dependency import needs_problem, read_need, uses_problem
from dray.core.model.specs.health import complete_health, service_problems, share_problem
from dray.core.model.specs.notifying import events_problem, targets_problem
from dray.core.model.specs.ports import ports_problem
from dray.core.model.specs.spec import (
    ANY_TYPE,
    BIGGER,
    DEVICE_KINDS,
    ELSEWHERE,
    MAX_COMMAND_BYTES,
    MAX_FUNCTION_BYTES,
    MAX_NODES,
    MAX_REPLICAS,
    MAX_TASKS,
    OVERLAPS,
    POOLS,
    RESTARTS,
    TIERS,
    ArraySpec,
    DeviceAsk,
    JobSpec,
    Rendered,
    Retries,
    UpdateRules,
)
from dray.core.model.specs.values import (
    MAX_ITEMS,
    has_more_than,
    plain_fault,
    quote,
    quote_name,
    suggest,
    text_fault,
    texts_fault,
)
from dray.core.model.specs.variants import (
    VARIANT_FIELDS,
    complete_variants,
    laid_problems,
    list_problems,
)
from dray.core.model.units import parse_array, parse_moment, spread_indices
from dray.errors import InvalidInput, InvalidSpec, Problem

INT32 = 2**31 - 1
LARGE = 2**53
MIN_LEASE_S = 40
MAX_CONDITIONS = 256
# What a submit may fill the hub's memory with, beside command, env, function and the lists of `values`.
MAX_LABELS, MAX_LABEL = 256, 1024
MAX_METADATA_VALUES, MAX_METADATA_BYTES = 10_000, 256 * 1024
# Beyond these nobody reads on, and a peer could make the hub search for near misses for minutes.
MAX_PROBLEMS = 200
MAX_SUGGESTIONS = 20
Check = Callable[[Any], str]
_CARD_ASKS = ("gpu_count", "gpu_type", "min_vram_gb", "vram_per_gpu_bytes", "gpu_milli")
FLOATS = frozenset(field.name for field in msgspec.structs.fields(JobSpec) if field.type is float)


def _number(low: float, high: float, whole: bool) -> Check:
    def check(value: Any) -> str:
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return f"must be a {'whole ' if whole else ''}number, got {quote(value)}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"must be a finite number, got {value}"
        if value < low:
            return f"must be {low:g} or more, got {quote(value)}"
        return f"must be {high:.15g} or less, got {quote(value)}" if value > high else ""

    return check


def _text(limit: int = 4096) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str):
            return f"must be text, got {quote(value)}"
        if len(value) > limit:
            return f"must be at most {limit} characters, got {len(value)}"
        return text_fault(value)

    return check


def _one_of(names: tuple[str, ...], empty: bool = False) -> Check:
    def check(value: Any) -> str:
        if (empty and value == "") or value in names:
            return ""
        return f"must be one of {', '.join(names)}, got {quote(value)}{suggest(value, names)}"

    return check


def _id(value: Any) -> str:
    if not isinstance(value, str):
        return f"must be text, got {quote(value)}"
    return "" if value == "" or is_id(value) else f"must be {ID_RULE}, got {quote(value)}"


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else f"must be true or false, got {quote(value)}"


def _argv(value: Any) -> str:
    fault = texts_fault(value)
    return fault or ("the program to run (item 0) is empty" if value and not value[0] else "")


def _text_map(value: Any) -> str:
    if not isinstance(value, dict):
        return f"must map names to texts, got {quote(value)}"
    if len(value) > MAX_ITEMS:
        return f"holds {len(value)} names, the limit is {MAX_ITEMS}"
    for key, item in value.items():
        if not isinstance(key, str) or not key or text_fault(key):
            return f"has a bad name {quote(key)}"
        if not isinstance(item, str):
            return f"{key} must be text, got {quote(item)}"
        if fault := text_fault(item):
            return f"{key} {fault}"
    return ""


def _labels(value: Any) -> str:
    if fault := _text_map(value):
        return fault
    if len(value) > MAX_LABELS:
        return f"holds {len(value)} labels, the limit is {MAX_LABELS}"
    long = next((key for key, item in value.items() if len(key) > 256 or len(item) > MAX_LABEL), None)
    what = f"names have at most 256 characters and their texts {MAX_LABEL}"
    return "" if long is None else f"{quote(long)} is too long: {what}"


def _program(value: Any) -> str:
    if fault := _argv(value):
        return fault
    size = sum(len(part.encode()) + 1 for part in value)
    return (
        f"takes {size} bytes, the limit is {MAX_COMMAND_BYTES}: put it into a file"
        if size > MAX_COMMAND_BYTES
        else ""
    )


def _env(value: Any) -> str:
    fault = _text_map(value)
    bad = "" if fault else next((key for key in value if "=" in key), "")
    return f"has a name with '=' in it: {bad!r}" if bad else fault


def _amounts(value: Any) -> str:
    if not isinstance(value, dict):
        return f"must map names to whole numbers, got {quote(value)}"
    check = _number(0, LARGE, whole=True)
    for key, item in value.items():
        if not isinstance(key, str) or not is_id(key):
            return f"has a bad name {quote(key)}: {ID_RULE}"
        if fault := check(item):
            return f"{key} {fault}"
    return ""


def _document(value: Any) -> str:
    return "" if isinstance(value, dict) else f"must be an object, got {quote(value)}"


def _metadata(value: Any) -> str:
    if fault := _document(value):
        return fault
    if has_more_than(value, MAX_METADATA_VALUES):
        return f"holds more than {MAX_METADATA_VALUES} values, the limit"
    if fault := plain_fault(value):
        return fault
    size = len(msgspec.msgpack.encode(value))
    return f"takes {size} bytes, the limit is {MAX_METADATA_BYTES}" if size > MAX_METADATA_BYTES else ""


def _conditions(value: Any) -> str:
    fault = texts_fault(value)
    if not fault and len(value) > MAX_CONDITIONS:
        return f"holds {len(value)} conditions, the limit is {MAX_CONDITIONS}"
    if not fault and (long := next((item for item in value if len(item) > MAX_LABEL + 300), "")):
        return f"condition {quote(long)} is longer than any label"
    return fault or next((problem for item in value if (problem := condition_problem(item))), "")


def _blob(value: Any) -> str:
    return (
        ""
        if isinstance(value, bytes)
        else f"must be bytes (only over the client channel), got {quote(value)}"
    )


def _cards(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return f"must be whole cards, got {value:g}: a share of one card is asked for by gpu_milli, 1 to 999"
    return _number(0, 65536, whole=True)(value)


def _moment(value: Any) -> str:
    if fault := _text(64)(value):
        return fault
    try:
        parse_moment(value or "1970-01-01T00:00:00Z")
    except InvalidInput as error:
        return error.message
    return ""


def _retries(value: Any) -> str:
    return "" if isinstance(value, dict) else _TRIES(value)


def _objects(value: Any) -> str:
    return "" if isinstance(value, list) else f"must be a list of objects, got {quote(value)}"


def _indices(value: Any) -> str:
    if fault := _text(1 << 20)(value):
        return fault
    try:
        spread_indices(value) if value else ()
    except InvalidInput as error:
        return error.message
    return ""


_TRIES = _number(0, 10**6, whole=True)
_RETRIES: dict[str, Check] = {
    "code": _TRIES,
    "oom": _one_of((BIGGER,), empty=True),
    "node": _one_of((ELSEWHERE,), empty=True),
}
_ARRAY: dict[str, Check] = {
    "first": _number(0, LARGE, whole=True),
    "last": _number(-1, LARGE, whole=True),
    "step": _number(1, LARGE, whole=True),
    "limit": _number(0, MAX_TASKS, whole=True),
    "open": _flag,
    "indices": _indices,
}
_DEVICE: dict[str, Check] = {
    "kind": _one_of(DEVICE_KINDS),
    "variant": _text(128),
    "count": _number(0, 1024, whole=True),
}
_PROBE: dict[str, Check] = {
    "http": _text(2048),
    "tcp": _flag,
    "command": _program,
    "port": _text(32),
    "interval_s": _number(0.1, 86400, whole=False),
    "timeout_s": _number(0.1, 600, whole=False),
    "threshold": _number(1, 1000, whole=True),
    "start_period_s": _number(0, 86400, whole=False),
}


def _probe(value: Any) -> str:
    if not isinstance(value, dict):
        return _text()(value)
    fault = next(iter(_field_problems(value, _PROBE, "", "a check")), None)
    return "" if fault is None else f"{fault.where} {fault.what}"


_HEALTH: dict[str, Check] = {
    "liveness": _probe,
    "readiness": _probe,
    "interval_secs": _number(0.1, 86400, whole=False),
    **_PROBE,
    "unhealthy_after": _number(1, 1000, whole=True),
}
_UPDATE: dict[str, Check] = {
    **dict.fromkeys(("max_surge", "max_unavailable"), _number(0, MAX_REPLICAS, whole=True)),
    **dict.fromkeys(("ready_timeout_s", "settle_s", "drain_s"), _number(0, 86400, whole=False)),
}
_NESTED: dict[str, dict[str, Check]] = {
    "array": _ARRAY,
    "device": _DEVICE,
    "health_check": _HEALTH,
    "retries": _RETRIES,
    "update": _UPDATE,
    "objective": {
        **dict.fromkeys(WEIGHTS, _number(0, MOST_WEIGHT, whole=False)),
        "cheapest_in_time": _flag,
        "egress_gb": _number(0, MOST_GB, whole=False),
    },
}
FIELDS: dict[str, Check] = {
    "id": _id,
    "type": _one_of(POOLS),
    "job_tier": _one_of(tuple(TIERS), empty=True),
    "slot_pool": _one_of(POOLS, empty=True),
    "user_id": _id,
    "gpu_count": _cards,
    "gpu_type": _text(128),
    "gpu_backend": _one_of(BACKENDS, empty=True),
    "min_vram_gb": _number(0, 10**9, whole=False),
    "min_cpu_cores": _number(0, 10**6, whole=False),
    "node_count": _number(0, MAX_NODES, whole=True),
    "max_runtime_hours": _number(0, 10**9, whole=False),
    "command": _argv,
    "env": _env,
    "prolog": _program,
    "epilog": _program,
    "snapshot_id": _text(4096),
    "snapshot_sha": _text(256),
    "health_check": _document,
    "metadata": _metadata,
    "name": _text(256),
    "max_runtime_s": _number(0, 10**12, whole=False),
    "cpu_milli": _number(0, 10**9, whole=True),
    "memory_bytes": _number(0, 2**60, whole=True),
    "gpu_milli": _number(0, 1000, whole=True),
    "vram_per_gpu_bytes": _number(0, 2**60, whole=True),
    "device": _document,
    "resources": _amounts,
    "labels": _labels,
    "require": _conditions,
    "prefer": _conditions,
    "priority": _number(-INT32 - 1, INT32, whole=True),
    "queue": _id,
    "workload": _id,
    "plugin": _id,
    "expected_runtime_s": _number(0, 10**12, whole=False),
    "deadline": _moment,
    "scheduling_timeout_s": _number(0, 10**10, whole=False),
    "retries": _retries,
    "losses": _number(0, 10**6, whole=True),
    "at_most_once": _flag,
    "overlap": _one_of(OVERLAPS),
    "lost_after_s": _number(0, 10**9, whole=False),
    "array": _document,
    "workdir": _text(),
    "checkpoint": _text(),
    "function": _blob,
    "variants": _objects,
    "after": needs_problem,
    "hold": _flag,
    "mixed_backends": _flag,
    "notify": events_problem,
    "notify_to": targets_problem,
    "template": _text(128),
    "params": _metadata,
    "rendered": _document,
    "ports": ports_problem,
    "replicas": _number(1, MAX_REPLICAS, whole=True),
    "restart": _one_of(RESTARTS),
    "interactive": _flag,
    "share": share_problem,
    "uses": uses_problem,
    "update": _document,
    "objective": _document,
    "environment": _text(4096),
}
_STRUCTS = (
    *(("array", ArraySpec), ("device", DeviceAsk), ("rendered", Rendered), ("update", UpdateRules)),
    ("objective", Objective),
)
_VARIANT: dict[str, Check] = {name: FIELDS[name] for name in VARIANT_FIELDS}


def check_spec(raw: Mapping[str, Any]) -> JobSpec:
    """Give the complete spec, or raise `InvalidSpec` with every problem found."""
    variants = raw.get("variants")
    problems = [*_field_problems(raw, FIELDS, ""), *_nested_problems(raw)]
    if isinstance(variants, list):
        problems += _variant_problems(variants)
    if not problems:
        problems = _joint_problems(raw) if not variants else laid_problems(raw, variants, _laid_problems)
    _refuse(problems)
    spec = _complete({name: value for name, value in raw.items() if name != "variants"})
    if not variants:
        return spec
    made, problems = complete_variants(raw, spec, variants, _complete)
    _refuse(problems)
    return msgspec.structs.replace(spec, variants=made)


def _refuse(problems: list[Problem]) -> None:
    if problems:
        first = f"{problems[0].where}: {problems[0].what}"
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"the job cannot be accepted: {first}{more}", problems)


def _variant_problems(variants: list[Any]) -> list[Problem]:
    problems = list_problems(variants)
    for number, variant in enumerate(variants):
        if isinstance(variant, dict):
            prefix = f"variants[{number}]."
            problems += _field_problems(variant, _VARIANT, prefix, "an alternative")
            device = variant.get("device")
            if isinstance(device, dict):
                problems += _field_problems(device, _DEVICE, f"{prefix}device.")
        if len(problems) >= MAX_PROBLEMS:
            break
    return problems


def _field_problems(
    raw: Mapping[str, Any], fields: Mapping[str, Check], prefix: str, what: str = "a job"
) -> list[Problem]:
    problems: list[Problem] = []
    for field, value in raw.items():
        if len(problems) == MAX_PROBLEMS:
            break
        check = fields.get(field)
        if check is None:
            near = suggest(field, list(fields)) if len(problems) < MAX_SUGGESTIONS else ""
            problems.append(Problem(f"{prefix}{quote_name(field)}", f"is not a field of {what}{near}"))
        elif value is not None and (fault := check(value)):
            problems.append(Problem(f"{prefix}{field}", fault))
    return problems


def _nested_problems(raw: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for field, fields in _NESTED.items():
        value = raw.get(field)
        if isinstance(value, dict):
            problems += _field_problems(value, fields, f"{field}.")
    return problems


def asks_for(raw: Mapping[str, Any], name: str) -> bool:
    """Whether a field asks something of cards: a type that says "any" is one that was left out."""
    value = raw.get(name)
    return bool(value) and not (name == "gpu_type" and str(value).lower() == ANY_TYPE)


def _laid_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """Faults of a job as one of its alternatives makes it: that one could never be chosen."""
    card_ask = next((name for name in _CARD_ASKS if asks_for(raw, name)), "")
    if raw.get("gpu_backend") != "cpu" or not card_ask:
        return _joint_problems(raw)
    what = f"is cpu, but {card_ask} asks for {quote(raw[card_ask])}"
    return [*_joint_problems(raw), Problem("gpu_backend", what)]


def _joint_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """Faults that only show when fields are read together; each field by itself is sound here."""
    problems = []
    command, function = raw.get("command") or [], raw.get("function") or b""
    if not command and not function:
        problems.append(Problem("command", "is empty: give the program to run and its arguments"))
    if command and function:
        problems.append(Problem("function", "a job runs either a command or a function, not both"))
    if function:
        problems += _function_problems(raw, function)
    size = sum(len(part.encode()) + 1 for part in command)
    size += sum(len(key.encode()) + len(value.encode()) + 2 for key, value in (raw.get("env") or {}).items())
    if size > MAX_COMMAND_BYTES:
        problems.append(
            Problem(
                "command", f"command and env together take {size} bytes, the limit is {MAX_COMMAND_BYTES}"
            )
        )
    cards = raw.get("gpu_count") or (raw.get("device") or {}).get("count") or 1
    if (raw.get("gpu_milli") or 0) % 1000 and cards > 1:
        problems.append(
            Problem("gpu_milli", "a share of a card goes with one card: drop gpu_milli or set gpu_count to 1")
        )
    if raw.get("device") and (raw["device"].get("kind") == "cpu") and (raw.get("gpu_count") or 0) > 0:
        problems.append(Problem("device.kind", f"is cpu, but gpu_count asks for {raw['gpu_count']}"))
    if raw.get("id") and raw["id"] in [read_need(text).job_id for text in raw.get("after") or ()]:
        problems.append(Problem("after", f"job {raw['id']} would wait for itself"))
    if raw.get("name") and raw["name"] in (raw.get("uses") or ()) and raw.get("type") == "service":
        problems.append(Problem("uses", f"service {raw['name']} would wait for itself"))
    if raw.get("notify_to") and not raw.get("notify"):
        problems.append(Problem("notify", "is empty, and notify_to names somebody: say of what to tell them"))
    if raw.get("overlap") == "fenced" and 0 < (raw.get("lost_after_s") or 0) < MIN_LEASE_S:
        what = f"must be {MIN_LEASE_S} or more with overlap fenced, or heartbeats come too late to renew the lease"
        problems.append(Problem("lost_after_s", what))
    problems += _array_problems(raw)
    problems += service_problems(raw)
    return problems


def _function_problems(raw: Mapping[str, Any], function: bytes) -> list[Problem]:
    """Calls of a function share warm processes, one after the other: what needs a process of its own is a command."""
    problems = []
    if len(function) > MAX_FUNCTION_BYTES:
        what = (
            f"takes {len(function)} bytes, the limit is {MAX_FUNCTION_BYTES}: a larger one travels as a blob"
        )
        problems.append(Problem("function", what))
    if (raw.get("node_count") or 1) > 1:
        problems.append(Problem("node_count", "a function runs on one node: start a gang by a command"))
    if (raw.get("type") or "batch") != "batch":
        problems.append(Problem("type", "a function ends: start a service by a command"))
    if raw.get("overlap") == "fenced":
        what = "calls of a function cannot be fenced: use at_most_once, or a command"
        problems.append(Problem("overlap", what))
    retries = raw.get("retries")
    if isinstance(retries, dict) and (retries.get("oom") or retries.get("node")):
        what = "of a function are a number: oom and node are rules for a command, which has an attempt of its own"
        problems.append(Problem("retries", what))
    what = "goes with a command: a function is called in a process that is there"
    problems += [Problem(field, what) for field in ("prolog", "epilog", "ports") if raw.get(field)]
    return problems


def _array_problems(raw: Mapping[str, Any]) -> list[Problem]:
    array = raw.get("array")
    if array is None:
        return []
    given = {key: value for key, value in array.items() if value is not None}
    spec = ArraySpec(**given)
    if spec.indices and (spec.first, spec.last, spec.step, spec.open) != (0, 0, 1, False):
        return [
            Problem("array.indices", "stands in place of first, last, step and open: give one or the other")
        ]
    if (raw.get("node_count") or 1) > 1:
        return [Problem("array", "an array of gangs is not possible: drop node_count or array")]
    if spec.count == 0 and not spec.open:
        return [Problem("array.last", f"must not be below first ({spec.first}), got {spec.last}")]
    if spec.count > MAX_TASKS:
        return [Problem("array", f"holds {spec.count} tasks, the limit is {MAX_TASKS}")]
    return []


def _complete(raw: Mapping[str, Any]) -> JobSpec:
    given = {field: value for field, value in raw.items() if value is not None and value != ""}
    for field in [field for field in given if field in FLOATS]:
        # 16 and 16.0 are one ask, and 0 is the default: equal specs must have equal bytes.
        given[field] = float(given[field]) or 0
    tier = given.setdefault("job_tier", "data_processing")
    given.setdefault("priority", TIERS[tier].priority)
    given.setdefault("slot_pool", given.get("type", "batch"))
    given["node_count"] = max(1, given.get("node_count", 1))
    for field, kind in _STRUCTS:
        if field in given:
            given[field] = _nested(kind, given[field])
    if "health_check" in given:
        given["health_check"] = complete_health(given["health_check"])
    device = given.get("device")
    if device is not None and device.kind != "cpu" and not given.get("gpu_count"):
        given["gpu_count"] = max(1, device.count)
    if not given.get("gpu_count") and any(asks_for(given, name) for name in _CARD_ASKS):
        given["gpu_count"] = 1
    if given.get("gpu_milli") == 1000:
        del given["gpu_milli"]
    if given.get("type", "batch") != "service":
        # There is nothing that it could mean: equal specs must have equal bytes.
        given.pop("restart", None)
    if "share" in given:
        given["share"] = sorted(set(given["share"]))
    if "after" in given:
        given["after"] = [str(read_need(text)) for text in given["after"]]
    if given.get("at_most_once"):
        given["retries"] = given["losses"] = 0
    if isinstance(given.get("retries"), dict):
        rules = _nested(Retries, given["retries"])
        given["retries"] = rules if rules.oom or rules.node else rules.code
    return JobSpec(**given)


def _nested(kind: Callable[..., Any], raw: Mapping[str, Any]) -> Any:
    defaults = kind()
    given = {key: value for key, value in raw.items() if value not in (None, getattr(defaults, key))}
    if "indices" in given:
        # However it was written: equal lists must have equal bytes, and what a range can say is one.
        listed = parse_array(given["indices"])
        given = {"limit": given.get("limit", 0)} | {
            name: value for name, value in listed._asdict().items() if name != "limit"
        }
    return kind(**given)
