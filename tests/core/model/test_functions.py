"""What a job that runs a function may not ask for."""

from __future__ import annotations

import pytest

from dray.core.model.specs.check import check_spec
from dray.errors import InvalidSpec


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"node_count": 2}, "node_count"),
        ({"type": "service"}, "type"),
        ({"overlap": "fenced"}, "overlap"),
        ({"command": ["true"]}, "function"),
    ],
)
def test_calls_share_processes(more: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        check_spec({"function": b"f", **more})
    assert where in [problem.where for problem in refused.value.problems]


def test_a_plain_function_is_accepted() -> None:
    assert check_spec({"function": b"f", "at_most_once": True}).losses == 0
