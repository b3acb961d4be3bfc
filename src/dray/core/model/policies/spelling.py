"""Spell a policy back: as the document it could be read from, value by value, and as what differs between two.

Owns no rule of its own. Every value is spelled, defaults too: people who look at a policy want to see what holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from dray.core.model.objectives import Objective
from dray.core.model.policies import notifications
from dray.core.model.policies import policy as rules
from dray.core.model.policies.alarms import AlarmRule
from dray.core.model.policies.launching import KubernetesSite, Launch, Offered, SlurmSite
from dray.core.model.policies.policy import Policy


class Value(NamedTuple):
    """One value of a policy in force; `default` is what it would be if nobody had said anything."""

    name: str
    value: Any
    default: Any

    @property
    def given(self) -> bool:
        """Whether the site has chosen it."""
        return bool(self.value != self.default)


def policy_document(policy: Policy) -> dict[str, Any]:
    """Spell a policy with every value in it, so that `check_policy` reads the same one back."""
    document: dict[str, Any] = _spell(policy)
    return document


def list_values(policy: Policy) -> list[Value]:
    """Every value in force by its place in the document; an entry of the site's own has no default as a whole."""
    return list(_walk("", _spell(policy), _spell(Policy())))


def compare_policies(old: Policy, new: Policy) -> list[tuple[str, Any, Any]]:
    """What differs: (place, value before, value after), None where there is none.

    An empty list is told by the entries that come or go, not by itself.
    """
    before = {item.name: item.value for item in list_values(old) if item.value not in ([], {})}
    after = {item.name: item.value for item in list_values(new) if item.value not in ([], {})}
    names = [*before, *(name for name in after if name not in before)]
    return [
        (name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    ]


def _spell(item: Any) -> Any:
    if isinstance(item, msgspec.Struct):
        shown = {name: getattr(item, name) for name in item.__struct_fields__}
        absent = [name for name, value in shown.items() if _is_absent(item, name, value)]
        return {name: _spell(value) for name, value in shown.items() if name not in absent}
    if isinstance(item, Mapping):
        return {name: _spell(value) for name, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [_spell(value) for value in item]
    return int(item) if isinstance(item, float) and item.is_integer() else item


def _is_absent(item: msgspec.Struct, name: str, value: Any) -> bool:
    """Whether a value means "nothing said" and has no spelling of its own."""
    if isinstance(item, rules.Quota):
        return value in ("", None) or (name in _BOUNDS and value < 0)
    if isinstance(item, Objective):
        return value is None
    if isinstance(item, rules.Queue):
        return name == "objective" and value is None
    if isinstance(item, AlarmRule):
        return value == "" or (name == "below" and value < 0)
    if isinstance(item, notifications.Receiver):
        return not value
    if isinstance(item, rules.Provider):
        return value is None
    if isinstance(item, Launch | Offered | SlurmSite | KubernetesSite):
        return value in ("", None, (), {}) or (value == 0 and name in _UNSAID)
    return isinstance(item, rules.Pace | notifications.NotifyRule) and value == ""


_UNSAID = ("memory", "vram", "slots", "life_s", "budget_per_day")
_BOUNDS = ("gpus", "cpus", "memory", "tasks", "jobs")
# What an entry of the site's own would hold if it said nothing more than its name.
_ENTRIES: dict[str, Any] = {
    "queues": rules.Queue(),
    "providers": rules.Provider(),
    "templates": rules.TemplateRule(),
    "quotas": rules.Quota(),
    "pacing.submits": rules.Pace(),
    "pacing.starts": rules.Pace(),
    "alarms": AlarmRule(kind="", above=0),
    "notifications.receivers": notifications.Receiver(),
    "notifications.rules": notifications.NotifyRule(on=(), to=()),
}


def _walk(where: str, document: Any, default: Any) -> Iterator[Value]:
    if where.endswith("].gpu_hours"):
        default = _spell(rules.Budget())
    if isinstance(document, dict) and document:
        entry = _spell(_ENTRIES[where]) if where in _ENTRIES else None
        for name, item in document.items():
            known = entry if entry is not None else default.get(name) if isinstance(default, dict) else None
            yield from _walk(_below(where, name), item, known)
    elif isinstance(document, list) and document:
        entry = _spell(_ENTRIES[where]) if where in _ENTRIES else None
        for place, item in enumerate(document):
            yield from _walk(f"{where}[{place}]", item, entry)
    else:
        yield Value(where, document, default)


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
