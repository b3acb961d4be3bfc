"""Turn what a site wrote into a `Policy`, or into every problem it has at once.

Owns the rules of the file: which names there are, what each value may be, and what only shows when entries are read
together. Knows no YAML and no state: whether jobs wait in a queue that is no longer listed is for the hub to see. The
surprising rule: an entry without a value (`fast:` and nothing after it) means its defaults, so that naming a queue is
enough to make it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dray.core.model.ids import ID_RULE, is_id
from dray.core.model.labels import is_label_name
from dray.core.model.objectives import MOST_GB, MOST_WEIGHT, WEIGHTS, Objective
from dray.core.model.policies import notifications as telling
from dray.core.model.policies import policy as rules
from dray.core.model.policies.alarms import KINDS as ALARM_KINDS
from dray.core.model.policies.alarms import AlarmRule
from dray.core.model.policies.launching import Kit, find_faults, launch_reader
from dray.core.model.policies.policy import (
    DEFAULT_QUEUE,
    EACH,
    ORDERS,
    PREEMPTION_RULES,
    RESOURCE_KINDS,
    STRATEGIES,
    VISIBILITIES,
    Policy,
)
from dray.core.model.policies.rebalancing import MODES as REBALANCE_MODES
from dray.core.model.policies.rebalancing import STRATEGIES as REBALANCED
from dray.core.model.policies.rebalancing import RebalancePolicy, quiet_problem
from dray.core.model.specs.check import MAX_PROBLEMS, MAX_SUGGESTIONS
from dray.core.model.specs.notifying import url_problem
from dray.core.model.specs.values import suggest
from dray.core.model.units import parse_bytes, parse_seconds
from dray.errors import InvalidInput, InvalidPolicy, Problem

MAX_ENTRIES = 10_000
LARGE = 10**12
# Of an hour or a GB: what is kept of money, in millionths, stays far within 64 bits.
MOST_PRICE = 10**6
_BAD = object()
Reader = Callable[[Any, str, "_Faults"], Any]


class _Faults:
    """Problems in the order of the document; no more of them than a person reads."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, where: str, what: str) -> Any:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(where or "policy", what))
        return _BAD

    def near(self, word: Any, known: Sequence[str]) -> str:
        return suggest(word, list(known)) if len(self.problems) < MAX_SUGGESTIONS else ""


def check_policy(raw: Mapping[str, Any] | None) -> Policy:
    """Give the policy that a document describes, or raise `InvalidPolicy` with every problem found."""
    faults = _Faults()
    policy = _POLICY({} if raw is None else raw, "", faults)
    if isinstance(policy, Policy):
        _check_together(policy, faults)
        for place, rule in enumerate(policy.alarms):
            if rule is not _BAD and rule.below > rule.above:
                faults.add(
                    f"alarms[{place}].below", f"must not be above `above` ({rule.above:g}): it would flutter"
                )
        if not any(problem.where.startswith("notifications") for problem in faults.problems):
            _check_notifications(policy.notifications, faults)
        if not any(problem.where.startswith("providers") for problem in faults.problems):
            _check_launchers(policy, faults)
    if faults.problems:
        first = f"{faults.problems[0].where}: {faults.problems[0].what}"
        more = f" (and {len(faults.problems) - 1} more)" if len(faults.problems) > 1 else ""
        raise InvalidPolicy(f"the policy cannot be used: {first}{more}", faults.problems)
    assert isinstance(policy, Policy)
    return policy


# --- one value ------------------------------------------------------------------------------------------------------


def _number(low: float = 0, high: float = LARGE, *, whole: bool = False, above: bool = False) -> Reader:
    def read(value: Any, where: str, faults: _Faults) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return faults.add(where, f"must be a {'whole ' if whole else ''}number, got {_quote(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            return faults.add(where, f"must be a finite number, got {value}")
        if whole and value != int(value):
            return faults.add(where, f"must be a whole number, got {_quote(value)}")
        if value < low or (above and value == low):
            least = f"more than {low:g}" if above else f"{low:g} or more"
            return faults.add(where, f"must be {least}, got {_quote(value)}")
        if value > high:
            return faults.add(where, f"must be {high:.15g} or less, got {_quote(value)}")
        return int(value) if whole else float(value)

    return read


def _span(*, above: bool = False) -> Reader:
    number = _number(above=above)

    def read(value: Any, where: str, faults: _Faults) -> Any:
        if not isinstance(value, str):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return faults.add(where, f"must be seconds, or 90s, 15m, 2h, 1d, got {_quote(value)}")
            return number(value, where, faults)
        try:
            return number(parse_seconds(value), where, faults)
        except InvalidInput as fault:
            return faults.add(where, fault.message)

    return read


def _size(value: Any, where: str, faults: _Faults) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return faults.add(where, f"must be a size such as 512G, got {_quote(value)}")
    try:
        return parse_bytes(value)
    except InvalidInput as fault:
        return faults.add(where, fault.message)


def _one_of(names: tuple[str, ...]) -> Reader:
    def read(value: Any, where: str, faults: _Faults) -> Any:
        if isinstance(value, str) and value in names:
            return value
        near = faults.near(value, names)
        return faults.add(where, f"must be one of {', '.join(names)}, got {_quote(value)}{near}")

    return read


def _flag(value: Any, where: str, faults: _Faults) -> Any:
    if isinstance(value, bool):
        return value
    return faults.add(where, f"must be true or false, got {_quote(value)}")


def _text(value: Any, where: str, faults: _Faults) -> Any:
    if not isinstance(value, str):
        return faults.add(where, f"must be text, got {_quote(value)}: put it in quotes")
    return value


def _name(*, each: bool = True) -> Reader:
    """The id of a user, queue, plugin or template; `*` stands for each of them where that makes sense."""

    def read(value: Any, where: str, faults: _Faults) -> Any:
        if _text(value, where, faults) is _BAD:
            return _BAD
        if is_id(value) or (each and value == EACH):
            return value
        hint = f", or {EACH!r} for each by itself" if each else ""
        return faults.add(where, f"must be {ID_RULE}{hint}, got {_quote(value)}")

    return read


def _label(value: Any, where: str, faults: _Faults) -> Any:
    if _text(value, where, faults) is _BAD:
        return _BAD
    name, _, rest = value.partition("=")
    if is_label_name(name) and len(rest) <= 256 and rest.isprintable():
        return value
    return faults.add(where, f"must be a label, NAME=VALUE or NAME for any value, got {_quote(value)}")


def _label_name(value: Any, where: str, faults: _Faults) -> Any:
    if _text(value, where, faults) is _BAD:
        return _BAD
    if value == "" or is_label_name(value):
        return value
    return faults.add(where, f"must be the name of a worker label, got {_quote(value)}")


def _provider_name(value: Any, where: str, faults: _Faults) -> Any:
    if isinstance(value, str) and 0 < len(value) <= 128 and value.isprintable():
        return value
    return faults.add(where, f"must be a value of the label provider, got {_quote(value)}")


def _gpu_type(value: Any, where: str, faults: _Faults) -> Any:
    if isinstance(value, str) and 0 < len(value) <= 128 and value.isprintable() and value == value.strip():
        return value
    return faults.add(where, f"must be a type of GPU as workers tell it, such as A100, got {_quote(value)}")


def _matching(problem: Callable[[Any], str]) -> Reader:
    """A text that a rule of specs has nothing against."""

    def read(value: Any, where: str, faults: _Faults) -> Any:
        fault = problem(value)
        return faults.add(where, f"{fault}, got {_quote(value)}") if fault else value

    return read


# --- groups of values -----------------------------------------------------------------------------------------------


def _group(kind: type[Any], fields: Mapping[str, Reader], title: str) -> Reader:
    """A mapping with these keys and no others, read as a struct; what is faulty in it is left out."""

    def read(value: Any, where: str, faults: _Faults) -> Any:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            return faults.add(where, f"must be keys and values, got {_quote(value)}")
        given: dict[str, Any] = {}
        bad: list[str] = []
        for key, item in value.items():
            here = _below(where, key)
            reader = fields.get(key) if isinstance(key, str) else None
            if reader is None:
                faults.add(
                    here,
                    f"is no key of {title}{faults.near(key, list(fields))}; there is {', '.join(fields)}",
                )
            elif item is not None and (got := reader(item, here, faults)) is not _BAD:
                given[key] = got
            elif item is not None:
                bad.append(key)
        missing = [name for name in _required(kind) if name not in given]
        for name in missing:
            if name not in bad:
                faults.add(_below(where, name), "is missing")
        return _BAD if missing else kind(**given)

    return read


def _listed(reader: Reader) -> Reader:
    def read(value: Any, where: str, faults: _Faults) -> Any:
        if not isinstance(value, (list, tuple)):
            return faults.add(where, f"must be a list (lines that begin with `-`), got {_quote(value)}")
        if len(value) > MAX_ENTRIES:
            return faults.add(where, f"holds {len(value)} entries, the limit is {MAX_ENTRIES}")
        return tuple(reader(item, f"{where}[{place}]", faults) for place, item in enumerate(value))

    return read


def _named(name: Reader, reader: Reader, *, filled: bool = False) -> Reader:
    """A mapping from names of the site's own to values; `filled`: a name without a value is a fault."""

    def read(value: Any, where: str, faults: _Faults) -> Any:
        if not isinstance(value, Mapping):
            return faults.add(where, f"must be names and what belongs to them, got {_quote(value)}")
        if len(value) > MAX_ENTRIES:
            return faults.add(where, f"holds {len(value)} entries, the limit is {MAX_ENTRIES}")
        found: dict[str, Any] = {}
        for key, item in value.items():
            here = _below(where, key)
            if name(key, here, faults) is _BAD:
                continue
            if item is None and filled:
                faults.add(here, "is empty")
            elif (got := reader(item, here, faults)) is not _BAD:
                found[key] = got
        return found

    return read


def _required(kind: type[Any]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def _below(where: str, key: Any) -> str:
    name = key[:64] if isinstance(key, str) else _quote(key)
    return f"{where}.{name}" if where else name


# --- the whole ------------------------------------------------------------------------------------------------------

_SPAN, _SHARE, _COUNT = _span(), _number(), _number(whole=True)
_OBJECTIVE = _group(
    Objective,
    {
        **dict.fromkeys(WEIGHTS, _number(high=MOST_WEIGHT)),
        "cheapest_in_time": _flag,
        "egress_gb": _number(high=MOST_GB),
    },
    "an objective",
)
_QUEUE = _group(
    rules.Queue,
    {
        "order": _one_of(ORDERS),
        "weight": _number(above=True),
        "ageing_s": _SPAN,
        "protect_after_s": _SPAN,
        "objective": _OBJECTIVE,
    },
    "a queue",
)
_BUDGET = _group(rules.Budget, {"soft": _SHARE, "hard": _SHARE, "per_s": _span(above=True)}, "gpu_hours")
_QUOTA = _group(
    rules.Quota,
    {
        "user": _name(),
        "queue": _name(),
        "plugin": _name(),
        "template": _name(),
        "cluster": _one_of((rules.WHOLE_CLUSTER,)),
        "gpus": _SHARE,
        "cpus": _SHARE,
        "memory": _size,
        "tasks": _COUNT,
        "jobs": _COUNT,
        "priority": _number(-(1 << 31), (1 << 31) - 1, whole=True),
        "gpu_hours": _BUDGET,
    },
    "a quota",
)
_PACE = _group(
    rules.Pace,
    {
        "queue": _name(),
        "user": _name(),
        "label": _label,
        "per_minute": _number(above=True),
        "burst": _number(1, whole=True),
    },
    "a pace",
)
_CAP = _group(rules.Cap, {"label": _label, "most": _COUNT}, "a cap")
_PACING = _group(
    rules.Pacing,
    {"submits": _listed(_PACE), "starts": _listed(_PACE), "running": _listed(_CAP)},
    "pacing",
)
_FAIR_SHARE = _group(
    rules.FairShare,
    {
        "half_life_s": _span(above=True),
        "entry_charge_s": _SPAN,
        "weights": _named(_name(each=False), _number(above=True), filled=True),
        "gpu_cost": _SHARE,
    },
    "fair_share",
)
_WEIGHTS = _group(rules.Weights, dict.fromkeys(rules.Weights.__struct_fields__, _SHARE), "placement.weights")
_PLACEMENT = _group(
    rules.PlacementPolicy,
    {"strategy": _one_of(STRATEGIES), "weights": _WEIGHTS, "spread_label": _label_name},
    "placement",
)
_LIMITS = _group(
    rules.Limits,
    {"per_job": _COUNT, "per_user": _COUNT, "cluster": _COUNT, "window_s": _span(above=True)},
    "preemption.limits",
)
_PREEMPTION = _group(
    rules.PreemptionPolicy,
    {
        "strategy": _one_of(PREEMPTION_RULES),
        "kinds": _named(_one_of(RESOURCE_KINDS), _one_of(PREEMPTION_RULES), filled=True),
        "by_tier": _flag,
        "min_run_s": _SPAN,
        "wait_s": _SPAN,
        "pressure_share": _number(0, 1),
        "fair_margin": _number(1),
        "limits": _LIMITS,
        "moves": _COUNT,
        "services": _flag,
    },
    "preemption",
)
_IDLE = _group(
    rules.IdlePolicy, {"grace_s": _SPAN, "warn_s": _SPAN, "demote_s": _SPAN, "stop_s": _SPAN}, "idle"
)
_REBALANCE = _group(
    RebalancePolicy,
    {
        **dict.fromkeys(("window_s", "min_run_s"), _SPAN),
        **dict.fromkeys(("moves", "per_user", "per_workload"), _COUNT),
        **{name: _number(0, 1) for name in ("in_flight", "high", "low")},
        "mode": _one_of(REBALANCE_MODES),
        "strategies": _listed(_one_of(REBALANCED)),
        "quiet_hours": _listed(_matching(quiet_problem)),
    },
    "rebalance",
)
_PRICE = _number(high=MOST_PRICE)
_PROVIDER = _group(
    rules.Provider,
    {
        "price_per_hour": _PRICE,
        "price_per_gpu_hour": _named(_gpu_type, _PRICE, filled=True),
        "egress_per_gb": _PRICE,
        "spot": _flag,
        "launch": launch_reader(Kit(_group, _listed, _named, _number, _span, _size, _text, _label_name)),
    },
    "a provider",
)
_TEMPLATE = _group(rules.TemplateRule, {"users": _listed(_name(each=False))}, "a template")
_SECRET, _MAIL = _matching(telling.secret_problem), _matching(telling.mail_problem)
_RECEIVERS = _listed(_name(each=False))
_RECEIVER = _group(
    telling.Receiver,
    {"webhook": _matching(url_problem), "mail": _listed(_MAIL), "command": _listed(_text), "secret": _SECRET},
    "a receiver",
)
_RULE = _group(
    telling.NotifyRule,
    {
        "on": _listed(_one_of(telling.EVENTS)),
        "to": _RECEIVERS,
        "user": _name(each=False),
        "queue": _name(each=False),
        "label": _label,
    },
    "a rule",
)
_NOTIFICATIONS = _group(
    telling.Notifications,
    {
        "receivers": _named(_name(each=False), _RECEIVER, filled=True),
        "rules": _listed(_RULE),
        "jobs": _group(
            telling.JobNotifications,
            {
                "to": _RECEIVERS,
                "webhooks": _one_of(telling.WEBHOOKS),
                "networks": _listed(_matching(telling.network_problem)),
                "mail_domains": _listed(_matching(telling.host_problem)),
                "secret": _SECRET,
            },
            "notifications.jobs",
        ),
        "smtp": _group(
            telling.Smtp,
            {
                "host": _matching(telling.host_problem),
                "port": _number(1, 65535, whole=True),
                "sender": _MAIL,
                "tls": _one_of(telling.TLS),
                "user": _text,
                "secret": _SECRET,
            },
            "notifications.smtp",
        ),
    },
    "notifications",
)
_ALARM = _group(
    AlarmRule,
    {
        "kind": _one_of(tuple(ALARM_KINDS)),
        "above": _SPAN,
        "below": _SPAN,
        "for_s": _SPAN,
        "queue": _name(each=False),
        "window_s": _span(above=True),
        "least": _COUNT,
    },
    "an alarm",
)
_POLICY = _group(
    Policy,
    {
        "queues": _named(_name(each=False), _QUEUE),
        "quotas": _listed(_QUOTA),
        "pacing": _PACING,
        "fair_share": _FAIR_SHARE,
        "placement": _PLACEMENT,
        "preemption": _PREEMPTION,
        "providers": _named(_provider_name, _PROVIDER),
        "notifications": _NOTIFICATIONS,
        "alarms": _listed(_ALARM),
        "idle": _IDLE,
        "templates": _named(_name(each=False), _TEMPLATE),
        "visibility": _one_of(VISIBILITIES),
        "rebalance": _REBALANCE,
    },
    "the policy",
)


class _Named(NamedTuple):
    """An entry of a list that is about somebody, and the names by which it may say whom."""

    where: str
    entry: Any
    choices: tuple[str, ...]


def _check_together(policy: Policy, faults: _Faults) -> None:
    """Faults that only show when values are read together; an entry that has faults of its own is left alone."""
    bad = {problem.where for problem in faults.problems}
    seen: dict[tuple[str, str, str], str] = {}
    for item in _about(policy):
        if item.entry is _BAD or any(_is_within(where, item.where) for where in bad):
            continue
        if isinstance(item.entry, rules.Quota):
            _check_quota(item.where, item.entry, faults)
        given = [(name, getattr(item.entry, name)) for name in item.choices if getattr(item.entry, name)]
        if len(given) != 1:
            has = " and ".join(name for name, _ in given) or "none of them"
            faults.add(item.where, f"must name exactly one of {', '.join(item.choices)}, and names {has}")
            continue
        ((name, value),) = given
        first = seen.setdefault((item.where.partition("[")[0], name, value), item.where)
        if first != item.where:
            faults.add(item.where, f"is about {name} {value!r} as {first} is: keep one of them")
        if name == "queue" and value != EACH and not policy.admits(value):
            known = list(dict.fromkeys([*policy.queues, DEFAULT_QUEUE]))
            near = faults.near(value, known)
            faults.add(f"{item.where}.queue", f"{value!r} is not among the queues ({', '.join(known)}){near}")


def _check_launchers(policy: Policy, faults: _Faults) -> None:
    for name, provider in policy.providers.items():
        if provider.launch is not None:
            is_priced = bool(provider.price_per_hour or provider.price_per_gpu_hour)
            for key, what in find_faults(name, provider.launch, is_priced):
                faults.add(f"{_below('providers', name)}.launch.{key}".rstrip("."), what)


def _check_notifications(told: telling.Notifications, faults: _Faults) -> None:
    ways = ("webhook", "mail", "command")
    for name, receiver in told.receivers.items():
        where = f"notifications.receivers.{name}"
        if len([way for way in ways if getattr(receiver, way)]) != 1:
            faults.add(where, f"must have exactly one of {', '.join(ways)}")
        if receiver.mail and not (told.smtp.host and told.smtp.sender):
            faults.add(where, "takes mail: give notifications.smtp a host and a sender")
        if receiver.secret and not receiver.webhook:
            faults.add(f"{where}.secret", "signs webhooks: mail and commands have none")
    named = [(f"notifications.rules[{place}]", rule.to) for place, rule in enumerate(told.rules)]
    for where, names in [*named, ("notifications.jobs", told.jobs.to)]:
        for name in names:
            if name not in told.receivers:
                near = faults.near(name, list(told.receivers))
                faults.add(f"{where}.to", f"there is no receiver {name!r}{near}")
    if told.smtp.user and (told.smtp.tls == "none" or not told.smtp.secret):
        faults.add("notifications.smtp.user", "logs in: that takes a secret, and tls other than none")
    if told.jobs.mail_domains and not (told.smtp.host and told.smtp.sender):
        faults.add(
            "notifications.jobs.mail_domains", "takes mail: give notifications.smtp a host and a sender"
        )


def _is_within(where: str, entry: str) -> bool:
    return where == entry or where.startswith(f"{entry}.")


def _about(policy: Policy) -> Iterator[_Named]:
    for place, quota in enumerate(policy.quotas):
        yield _Named(f"quotas[{place}]", quota, rules.PRINCIPALS)
    for part, paces in (("submits", policy.pacing.submits), ("starts", policy.pacing.starts)):
        for place, pace in enumerate(paces):
            yield _Named(f"pacing.{part}[{place}]", pace, ("queue", "user", "label"))
    for place, cap in enumerate(policy.pacing.running):
        yield _Named(f"pacing.running[{place}]", cap, ("label",))


def _check_quota(where: str, quota: rules.Quota, faults: _Faults) -> None:
    hours = quota.gpu_hours
    bounds = (quota.gpus, quota.cpus, quota.memory, quota.tasks, quota.jobs)
    if max(bounds) < 0 and hours is None and quota.priority is None:
        names = "gpus, cpus, memory, tasks, jobs, priority or gpu_hours"
        faults.add(where, f"limits nothing: give at least one of {names}")
    if hours is not None and not hours.soft and not hours.hard:
        faults.add(f"{where}.gpu_hours", "limits nothing: give soft, hard or both")
    if hours is not None and 0 < hours.hard < hours.soft:
        faults.add(f"{where}.gpu_hours.soft", f"must not be above hard ({hours.hard:g}), got {hours.soft:g}")


def _quote(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = "something that cannot be spelled"
    return text if len(text) <= 80 else f"{text[:77]}..."
