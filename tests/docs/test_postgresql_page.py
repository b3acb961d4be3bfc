"""The commands of the page about PostgreSQL, with a real server behind the address that it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/operations/postgresql.md"
SHOWN = "postgres://dray:PASSWORD@db.example.org/dray"


def test_the_commands_of_the_page(play: Callable[[str], tuple[int, list[str]]], database: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert SHOWN in text
    run, wrong = play(text.replace(SHOWN, database))
    assert (wrong, run > 5) == ([], True)
