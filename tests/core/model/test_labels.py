"""Conditions on worker labels."""

from __future__ import annotations

import pytest

from dray.core.model.labels import condition_problem, holds

LABELS = {"zone": "a", "disk": "", "team/owner": "x=y"}


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ("zone=a", True),
        ("zone=b", False),
        ("zone!=b", True),
        ("zone!=a", False),
        ("zone", True),
        ("!zone", False),
        ("spot", False),
        ("!spot", True),
        ("spot=1", False),
        ("spot!=1", True),
        ("disk=", True),
        ("disk", True),
        ("team/owner=x=y", True),
        ("ZONE=a", False),
        ("zone==", False),
    ],
)
def test_conditions(condition: str, met: bool) -> None:
    assert condition_problem(condition) == ""
    assert holds(condition, LABELS) is met


@pytest.mark.parametrize("condition", ["", "=a", "!", "!zone=a", " zone=a", "a b", "zone=a\nb"])
def test_what_is_no_condition(condition: str) -> None:
    assert repr(condition) in condition_problem(condition)
