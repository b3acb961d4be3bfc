"""How a service is asked whether it lives and whether it is ready: what a sound check is, and what short forms mean.

A plain check says both: it is not ready while the check fails, and does not live any more after `unhealthy_after`
failures in a row. `liveness` and `readiness` may be given apart, as checks or as texts: `/path` asks by HTTP, `tcp`
connects, anything else is a command of the shell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dray.core.model.ids import EVERYBODY, is_id
from dray.core.model.specs.ports import read_port
from dray.core.model.specs.spec import MAX_REPLICAS, HealthCheck, HealthProbe
from dray.core.model.specs.values import quote, texts_fault
from dray.errors import Problem

# No blank, nothing that ends a line: it becomes a part of a request.
PATH = re.compile(r"/[!-~]{0,2047}")
_WAYS = ("http", "tcp", "command")
# What a port is called that a check needs, and the job has not named.
UNNAMED = "http"
MAX_SHARED = 1000


class Checkup(NamedTuple):
    """One check and what it decides: after how many failures in a row it is not ready, and does not live; 0: never."""

    check: HealthProbe
    unready_after: int
    dead_after: int


def checkups(health: HealthCheck) -> list[Checkup]:
    """What is to be checked, and what follows."""
    readiness, liveness = _read(health.readiness, health), _read(health.liveness, health)
    if readiness is None and liveness is None:
        plain = HealthProbe(**{name: getattr(health, name) for name in HealthProbe.__struct_fields__})
        return [Checkup(plain, plain.threshold, health.unhealthy_after)] if way_of(plain) else []
    if readiness is None or liveness is None:
        only = readiness or liveness
        assert only is not None  # one of the two is there
        dead_after = 0 if liveness is None else _patience(health.liveness, health)
        return [Checkup(only, only.threshold, dead_after)]
    return [
        Checkup(readiness, readiness.threshold, 0),
        Checkup(liveness, 0, _patience(health.liveness, health)),
    ]


def _patience(given: str | HealthProbe, health: HealthCheck) -> int:
    told = given.threshold if isinstance(given, HealthProbe) else 1
    return told if told > 1 else health.unhealthy_after


def _read(given: str | HealthProbe, health: HealthCheck) -> HealthProbe | None:
    if isinstance(given, HealthProbe):
        return given
    if not given:
        return None
    if given.startswith("/"):
        return HealthProbe(http=given, interval_s=health.interval_secs)
    if given == "tcp":
        return HealthProbe(tcp=True, interval_s=health.interval_secs)
    return HealthProbe(command=["/bin/sh", "-c", given], interval_s=health.interval_secs)


def member_health(health: HealthCheck | None, rank: int) -> HealthCheck | None:
    """What is checked of one member of a group: of the first all of it; of the others, which nobody calls, what is a
    command, and not what asks a port.
    """
    if health is None or rank == 0:
        return health
    if way_of(health):
        return health if way_of(health) == "command" else None
    kept = {
        name: given
        for name in ("readiness", "liveness")
        if (probe := _read(given := getattr(health, name), health)) is not None and way_of(probe) == "command"
    }
    if not kept:
        return None
    return msgspec.structs.replace(health, **({"readiness": "", "liveness": ""} | kept))


def way_of(check: HealthProbe | HealthCheck) -> str:
    """By which of the ways it asks; empty where it names none."""
    return next((name for name in _WAYS if getattr(check, name)), "")


def port_names(ports: Sequence[str], health: HealthCheck | None) -> list[str]:
    """The ports of a job by their names; where it names none and a check needs one, that."""
    if ports or health is None:
        return [read_port(text).name for text in ports]
    return [UNNAMED] if any(way_of(one.check) in ("http", "tcp") for one in checkups(health)) else []


def service_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """Faults of a job as a service: of its check, and of how it goes on."""
    fault = health_problem(raw["health_check"], raw.get("ports") or ()) if raw.get("health_check") else ""
    return [*([Problem("health_check", fault)] if fault else []), *_replica_problems(raw)]


def share_problem(value: Any) -> str:
    """Why a list of those whom a service is shared with cannot be accepted; empty where it can."""
    if fault := texts_fault(value):
        return fault
    if len(value) > MAX_SHARED:
        return f"names {len(value)} users, the limit is {MAX_SHARED}: share it with everybody ({EVERYBODY!r})"
    bad = next((item for item in value if item != EVERYBODY and not is_id(item)), None)
    return (
        "" if bad is None else f"names users, or everybody ({EVERYBODY!r}): {quote(bad)} is no name of a user"
    )


def _replica_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """Replicas are a service's alone, and one that starts again whenever it ends cannot start once only."""
    several, always = (raw.get("replicas") or 1) > 1, (raw.get("restart") or "always") == "always"
    if (raw.get("type") or "batch") != "service":
        what = "is for a service (type: service): a batch job has an array, and retries"
        asked = {
            "replicas": several,
            "restart": raw.get("restart") == "always",
            "share": bool(raw.get("share")),
            "update": bool(raw.get("update")),
        }
        return [Problem(field, what) for field, given in asked.items() if given]
    if raw.get("array"):
        return [Problem("replicas", "does not go with an array: drop one of them")] if several else []
    if (raw.get("node_count") or 1) > 1 and several and not always:
        what = "are groups of several nodes here, which start again whenever they end: drop restart: never"
        return [Problem("replicas", what)]
    tasks = (raw.get("replicas") or 1) * (raw.get("node_count") or 1)
    if tasks > MAX_REPLICAS:
        return [Problem("replicas", f"times node_count is {tasks}, the most is {MAX_REPLICAS}")]
    what = "a service starts again whenever it ends: add restart: never, or drop it"
    once = [Problem("at_most_once", what)] if raw.get("at_most_once") and always else []
    rules = raw.get("update") or {}
    stuck = rules.get("max_surge", 1) == 0 and not rules.get("max_unavailable")
    what = "may start none before and stop none before: give max_surge or max_unavailable 1 or more"
    return [*once, *([Problem("update", what)] if stuck else [])]


def health_problem(raw: Mapping[str, Any], ports: Sequence[str]) -> str:
    """Why a check makes no sense as a whole; its fields are sound by themselves. Empty where it does."""
    given = {name: value for name, value in raw.items() if value not in (None, "", [], False)}
    apart = [name for name in ("liveness", "readiness") if name in given]
    plain = [name for name in _WAYS if name in given]
    if apart and plain:
        return f"gives {plain[0]} beside {apart[0]}: give one check for both, or one for each"
    for name, check in [(name, given[name]) for name in apart] + ([("", given)] if plain else []):
        if isinstance(check, Mapping):
            if fault := _fault(check, ports):
                return f"{name + ': ' if name else ''}{fault}"
        elif check.startswith("/") and PATH.fullmatch(check) is None:
            return f"{name}: must be a path without blanks, got {check[:64]!r}"
    return ""


def _fault(check: Mapping[str, Any], ports: Sequence[str]) -> str:
    ways = [name for name in _WAYS if check.get(name)]
    if len(ways) != 1:
        return f"must say one of {', '.join(_WAYS)}, got {' and '.join(ways) or 'none of them'}"
    if ways == ["http"] and PATH.fullmatch(check["http"]) is None:
        return f"http must be a path that begins with / and has no blanks, got {check['http'][:64]!r}"
    names = [read_port(text).name for text in ports]
    if check.get("port") and check["port"] not in names:
        return (
            f"port {check['port']!r} is not among the ports of the job: {', '.join(names) or 'it names none'}"
        )
    return ""


def complete_health(raw: Mapping[str, Any]) -> HealthCheck:
    """As the spec has it; equal ones have equal bytes, whether numbers were written as 5 or 5.0."""
    return msgspec.convert(_strip(raw, HealthCheck()), HealthCheck)


def _strip(raw: Mapping[str, Any], defaults: HealthCheck | HealthProbe) -> dict[str, Any]:
    """What is not as it would be anyway: only that is written."""
    given = {name: value for name, value in raw.items() if value not in (None, getattr(defaults, name))}
    return {
        name: _strip(value, HealthProbe()) if isinstance(value, Mapping) else value
        for name, value in given.items()
    }
