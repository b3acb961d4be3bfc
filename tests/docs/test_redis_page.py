"""The commands and the program of the page about Redis, with a real server behind the address that it shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.valkey import Valkey

PAGE = Path(__file__).resolve().parents[2] / "docs/operations/redis.md"
SHOWN = "redis://:PASSWORD@cache.example.org:6379/0"


def test_the_commands_of_the_page(play: Callable[[str], tuple[int, list[str]]], valkey: Valkey) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert SHOWN in text
    program = re.compile(r"```python\n(.*?)```", re.DOTALL)
    saved = program.sub(lambda found: f"```sh\ncat > view.py <<'END'\n{found[1]}END\n```", text)
    assert saved != text
    run, wrong = play(saved.replace(SHOWN, valkey.url))
    assert (wrong, run > 6) == ([], True)
