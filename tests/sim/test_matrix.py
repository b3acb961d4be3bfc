"""The failure matrix of the reliability page names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explain" / "reliability.md"
NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def matrix_rows() -> list[str]:
    text = PAGE.read_text(encoding="utf-8").partition("## The failure matrix")[2]
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


ROWS = matrix_rows()


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_every_row_names_tests_that_can_be_collected(row):
    named = NAME.findall(row)
    assert named, "a row without a test"
    assert row.count("`") == 2 * len(named), "a name that is no test"
    for path, test in named:
        assert test in collectable(ROOT / path), f"{path} has no {test}"


def collectable(path: Path) -> set[str]:
    """The functions that pytest would collect at the top of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_matrix_is_the_whole_one():
    outcomes = " ".join(ROWS)
    for subject in (
        "submit answer",
        "unaccepted",
        "ack lost",
        "one-way loss",
        "two hubs",
        "backup",
        "clock jumps",
        "gang half placed",
    ):
        assert subject in outcomes
    assert len(ROWS) >= 16
