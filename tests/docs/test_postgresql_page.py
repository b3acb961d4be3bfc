"""The commands of the pages about PostgreSQL, with a real server behind the address that they show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs/operations"
SHOWN = "postgres://dray:PASSWORD@db.example.org/dray"


@pytest.mark.parametrize("page", ["postgresql", "several-hubs"])
def test_the_commands_of_the_page(
    page: str, play: Callable[[str], tuple[int, list[str]]], database: str
) -> None:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    assert SHOWN in text
    run, wrong = play(text.replace(SHOWN, database))
    assert (wrong, run > 5) == ([], True)
