"""The quality results as plots for the documentation: plain SVG files, drawn from the committed JSON.

python -m benchmarks.quality.plots

Given the same results it writes the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.quality import muri, openb

ROOT = Path(__file__).parents[2]
RESULTS, PLOTS = ROOT / "benchmarks/results/quality", ROOT / "docs/explain/plots"
WIDE, HIGH, LEFT, BOTTOM, TOP = 720, 260, 48, 36, 50
NARROW = 17
COLOURS = ("#a0aec0", "#6b46c1", "#c05621", "#2b6cb0", "#63b3ed", "#2f855a", "#68d391")
Values = Mapping[tuple[str, str], float]


class Chart(NamedTuple):
    """Bars in groups. `values` and `marks` (a line across a bar: what was published) by group and series."""

    title: str
    groups: Sequence[str]
    series: Sequence[str]
    values: Values
    marks: Values = MappingProxyType({})
    log: bool = False


def draw(chart: Chart) -> str:
    """One chart as an SVG document."""
    numbers = [*chart.values.values(), *chart.marks.values()]
    top = max(numbers) * 1.08
    low = min(1.0, *numbers) if chart.log else 0.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{HIGH}" font-family="sans-serif" role="img">',
        f'<rect width="{WIDE}" height="{HIGH}" fill="#fff"/>',
        f'<text x="{LEFT}" y="16" font-size="12" font-weight="600">{escape(chart.title)}</text>',
    ]
    parts += _names(chart)
    parts += _scale(low, top, chart.log)
    across = (WIDE - LEFT - 10) / len(chart.groups)
    wide = across * 0.8 / len(chart.series)
    for place, group in enumerate(chart.groups):
        middle = LEFT + across * (place + 0.5)
        parts.append(
            f'<text x="{middle:.1f}" y="{HIGH - BOTTOM + 18}" font-size="11" text-anchor="middle">'
            f"{escape(group)}</text>"
        )
        for number, name in enumerate(chart.series):
            x = LEFT + across * (place + 0.1) + wide * number
            parts += _bar(chart, (group, name), (x, wide * 0.9, COLOURS[number % len(COLOURS)]), (low, top))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(
    chart: Chart, key: tuple[str, str], shape: tuple[float, float, str], span: tuple[float, float]
) -> list[str]:
    x, wide, colour = shape
    found: list[str] = []
    if key in chart.values:
        value = chart.values[key]
        y = _height(value, *span, chart.log)
        found.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{HIGH - BOTTOM - y:.1f}" fill="{colour}"/>'
        )
        # Above the line of what was published, and no wider than the bar.
        above = min(y, _height(chart.marks.get(key, value), *span, chart.log)) - 3
        words = f"{value:.{3 if wide > NARROW else 2}g}"
        found.append(
            f'<text x="{x + wide / 2:.1f}" y="{above:.1f}" font-size="8" text-anchor="middle">{words}</text>'
        )
    if key in chart.marks:
        y = _height(chart.marks[key], *span, chart.log)
        found.append(f'<path d="M{x - 1:.1f} {y:.1f}h{wide + 2:.1f}" stroke="#1a202c" stroke-width="2"/>')
    return found


def _height(value: float, low: float, top: float, log: bool) -> float:
    share = math.log(value / low) / math.log(top / low) if log else (value - low) / (top - low)
    return HIGH - BOTTOM - share * (HIGH - BOTTOM - TOP)


def _names(chart: Chart) -> list[str]:
    found, x = [], float(LEFT)
    for number, name in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        found.append(f'<rect x="{x:.1f}" y="24" width="9" height="9" fill="{colour}"/>')
        found.append(f'<text x="{x + 13:.1f}" y="32" font-size="10">{escape(name)}</text>')
        x += 24 + 5.7 * len(name)
    if chart.marks:
        found.append(f'<path d="M{x:.1f} 29h12" stroke="#1a202c" stroke-width="2"/>')
        found.append(f'<text x="{x + 16:.1f}" y="32" font-size="10">published</text>')
    return found


def _scale(low: float, top: float, log: bool) -> list[str]:
    found = []
    for step in range(5):
        value = low * (top / low) ** (step / 4) if log else low + (top - low) * step / 4
        y = _height(value, low, top, log)
        found.append(f'<path d="M{LEFT} {y:.1f}H{WIDE - 10}" stroke="#e2e8f0"/>')
        found.append(
            f'<text x="{LEFT - 5}" y="{y + 4:.1f}" font-size="10" text-anchor="end">{value:.3g}</text>'
        )
    return found


# --- what is drawn ----------------------------------------------------------------------------------------------------


def _means(
    runs: Sequence[Mapping[str, Any]], keys: tuple[str, str], figure: str
) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        sums.setdefault((str(run[keys[0]]), str(run[keys[1]])), []).append(float(run[figure]))
    return {key: sum(found) / len(found) for key, found in sums.items()}


def _placement(runs: list[dict[str, Any]]) -> Chart:
    values = _means(runs, ("variant", "strategy"), "unallocated")
    rules = [rule for rule in openb.RULES if all((variant, rule) in values for variant in openb.VARIANTS)]
    marks = {(variant, rule): openb.published_of(variant, rule) for variant, rule in values}
    return Chart("GPUs left unallocated when all were asked for, %", openb.VARIANTS, rules, values, marks)


def _order(runs: list[dict[str, Any]]) -> Chart:
    product = [run for run in runs if run["rule"] in muri.POLICIES]
    values = {
        (run["trace"], run["rule"]): run["jct_ks"] / muri.PUBLISHED[run["rule"]][run["trace"]]
        for run in product
    }
    marks = dict.fromkeys(values, 1.0)
    return Chart(
        "Mean completion time on Philly against the published one",
        muri.TRACES,
        list(muri.POLICIES),
        values,
        marks,
    )


def _backfill(runs: list[dict[str, Any]]) -> Chart:
    values = _means(runs, ("load", "rule"), "slowdown")
    loads = sorted({group for group, _ in values})
    return Chart(
        "Mean bounded slowdown by load, 256 processors (log)",
        loads,
        ("fcfs", "skip", "easy"),
        values,
        log=True,
    )


def _deadlines(runs: list[dict[str, Any]]) -> Chart:
    own = [run for run in runs if not run.get("seed")]
    values = {(f"{run['nodes']}x8", run["rule"]): 100 * run["share"] for run in own}
    clusters = list(dict.fromkeys(group for group, _ in values))
    return Chart("Deadlines missed, %, by size of the cluster", clusters, ("fifo", "sjf", "edf"), values)


def _fairness(runs: list[dict[str, Any]]) -> Chart:
    values = _means(runs, ("load", "rule"), "ratio")
    loads = sorted({group for group, _ in values})
    return Chart(
        "What a burst of 1,000 jobs costs the worst other tenant: slowdown with / without, by load",
        loads,
        ("fifo", "fair_share"),
        values,
    )


CHARTS = {
    "q1": _placement,
    "q2": _order,
    "backfill": _backfill,
    "deadlines": _deadlines,
    "fairness": _fairness,
}


def draw_all() -> dict[Path, str]:
    """Every plot there are results for, by its file."""
    found = {}
    for name, make in CHARTS.items():
        runs = json.loads((RESULTS / f"{name}.json").read_text())["runs"]
        found[PLOTS / f"{name}.svg"] = draw(make(runs))
    return found


if __name__ == "__main__":
    PLOTS.mkdir(parents=True, exist_ok=True)
    for path, text in draw_all().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
