"""Conditions on worker labels, as `require` and `prefer` write them: `k=v`, `k!=v`, `k`, `!k`."""

from __future__ import annotations

import re
from collections.abc import Mapping

LABEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]*"
_CONDITION = re.compile(rf"(!?)({LABEL_NAME})(?:(!?=)(.*))?")


def is_label_name(text: str) -> bool:
    """Tell whether a label may have this name where rules speak of it."""
    return len(text) <= 256 and re.fullmatch(LABEL_NAME, text) is not None


def condition_problem(condition: str) -> str:
    """Say what is wrong with a condition; empty where it is sound."""
    match = _CONDITION.fullmatch(condition)
    if match is None or (match.group(1) and match.group(3)):
        return f"condition {condition!r} is not k=v, k!=v, k or !k"
    return ""


def label_of(condition: str) -> str:
    """The label that a sound condition speaks of."""
    match = _CONDITION.fullmatch(condition)
    return match.group(2) if match is not None else condition


def holds(condition: str, labels: Mapping[str, str]) -> bool:
    """Tell whether a sound condition is met by a worker's labels."""
    match = _CONDITION.fullmatch(condition)
    if match is None:
        return False
    negated, key, operator, value = match.groups()
    if operator is None:
        return (key in labels) != bool(negated)
    return (labels.get(key) == value) == (operator == "=")
