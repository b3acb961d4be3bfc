"""How usage looks: hours of cards and cores, and a question mark where nobody could look."""

from __future__ import annotations

from typing import Any

from dray.cli.site.usage import draw_usage


def entry(name: str, seen: float, used: float | None) -> dict[str, Any]:
    gpus = {"asked": 500.4, "held": 40.0, "measured": seen, "used": used}
    return {
        "name": name,
        "attempts": 3,
        "gpu_hours": gpus,
        "core_hours": {"asked": 8, "held": 4, "used": 1.25},
    }


def test_what_nobody_measured_is_a_question_mark_and_not_a_zero() -> None:
    total = entry("", 20.0, 5.0)
    text = draw_usage({"by": "user", "usage": [entry("ana", 20.0, 5.0), entry("", 0, None)], "total": total})
    head, ana, unknown, whole = (line.split() for line in text.splitlines())
    assert head[0] == "USER"
    assert ana == ["ana", "500", "40.00", "20.00", "5.00", "25%", "8.00", "4.00", "1.25", "3"]
    assert unknown == ["-", "500", "40.00", "0.00", "?", "?", "8.00", "4.00", "1.25", "3"]
    assert whole[0] == "all"


def test_money_is_told_where_anything_has_a_price() -> None:
    named = [entry("ana", 20.0, 5.0) | {"money": 1234.5}, entry("bob", 0, None) | {"money": 0.25}]
    text = draw_usage({"by": "user", "usage": named, "total": entry("", 20.0, 5.0) | {"money": 1234.75}})
    assert [line.split()[1] for line in text.splitlines()] == ["MONEY", "1,234", "0.25", "1,235"]
