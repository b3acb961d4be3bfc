"""The plots of the documentation are what the committed results give, and every result has its plot on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.quality.plots import CHARTS, PLOTS, draw_all

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", CHARTS)
def test_a_plot_is_drawn_from_the_results(name: str) -> None:
    path = PLOTS / f"{name}.svg"
    assert path.read_text() == draw_all()[path], "run python -m benchmarks.quality.plots"


def test_every_plot_is_shown() -> None:
    page = (ROOT / "docs/explain/scheduling.md").read_text()
    assert all(f"](plots/{name}.svg)" in page for name in CHARTS)
