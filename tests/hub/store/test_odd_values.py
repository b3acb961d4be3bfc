"""Values that no row can hold: brought within bounds, so that they stop neither the rows nor the next start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.hub.store.sqlite.store import SqliteStore


@pytest.mark.parametrize(
    "odd", [{"max_rss_bytes": 1 << 70}, {"ended_at_ms": 10**21}, {"error": "\ud800"}, {"exit_code": 1 << 64}]
)
def test_a_value_that_no_row_can_hold_is_brought_within_bounds(
    tmp_path: Path, odd: dict[str, Any], make: Any, open_sqlite: Callable[..., SqliteStore]
) -> None:
    store = open_sqlite()
    store.begin_epoch()
    store.commit(make.turn(1))
    rows = [make.attempt("1-1", "j1", **odd), make.attempt("1-2", "j1")]
    store.project(make.projection(1, jobs=[make.row(1)], attempts=rows))
    assert [attempt.uid for attempt in store.find_attempts("j1")] == ["1-1", "1-2"]
    assert len(store.set_aside) == 1
    assert "attempts" in store.set_aside[0]
