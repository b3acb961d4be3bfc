"""Replays as text and as one HTML page that needs nothing else: plots are inline SVG, drawn here.

Reads figures and ledgers, decides nothing. Given the same replays it writes the same bytes: no dates, no ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from dray.sim.traces.ledger import Ledger

WIDE, HIGH, PAD = 640, 220, 44
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#718096")
MOST_POINTS = 300
Line = tuple[str, Sequence[tuple[float, float]]]


class Replay(NamedTuple):
    """One policy's replay: its name, figures, and the ledger for plots."""

    name: str
    figures: Mapping[str, Any]
    ledger: Ledger


ROWS: tuple[tuple[str, str, str], ...] = (
    ("jobs", "jobs", "n"),
    ("unfinished", "unfinished", "n"),
    ("JCT mean", "jct_s.mean", "s"),
    ("JCT p50", "jct_s.p50", "s"),
    ("JCT p99", "jct_s.p99", "s"),
    ("queueing mean", "queueing_s.mean", "s"),
    ("queueing p99", "queueing_s.p99", "s"),
    ("bounded slowdown mean", "bounded_slowdown.mean", "x"),
    ("bounded slowdown p99", "bounded_slowdown.p99", "x"),
    ("makespan", "makespan_s", "s"),
    ("GPU utilisation", "gpu_utilisation", "%"),
    ("CPU utilisation", "cpu_utilisation", "%"),
    ("unallocated GPU while work waits", "unallocated", "%"),
    ("lost to fragmentation while work waits", "fragmentation", "%"),
    ("fairness between users", "fairness", "x"),
    ("preemptions", "preemptions", "n"),
    ("lost with a worker", "losses", "n"),
    ("deadlines", "deadlines", "n"),
    ("deadlines missed", "deadline_misses", "n"),
)


def table_rows(replays: Sequence[Replay]) -> list[list[str]]:
    """The figures side by side, a header row first."""
    rows = [["", *(replay.name for replay in replays)]]
    for title, path, unit in ROWS:
        rows.append([title, *(_spell(_find(replay.figures, path), unit) for replay in replays)])
    return rows


def draw_table(replays: Sequence[Replay]) -> str:
    """The same for a terminal."""
    rows = table_rows(replays)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = row
        cells = [
            first.ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _find(figures: Mapping[str, Any], path: str) -> float:
    value: Any = figures
    for part in path.split("."):
        value = value[part]
    return float(value)


def _spell(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.2f} %"
    if unit == "n":
        return f"{int(value):,}"
    return f"{value:,.3f}" if value < 1000 else f"{value:,.0f}"


# --- the page ---------------------------------------------------------------------------------------------------------


def draw_page(title: str, command: str, replays: Sequence[Replay]) -> str:
    """One self-contained page."""
    plots = "".join(
        f"<figure><figcaption>{escape(name)}</figcaption>{svg}</figure>" for name, svg in _plots(replays)
    )
    rows = table_rows(replays)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows[1:]
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><p><code>{escape(command)}</code></p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{_users(replays)}{plots}</body></html>\n"
    )


_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1a202c}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.2rem .8rem;border-bottom:1px solid #e2e8f0}"
    "th{text-align:left}td{text-align:right;font-variant-numeric:tabular-nums}"
    "figure{display:inline-block;margin:1rem 1rem 0 0}figcaption{font-weight:600}svg{background:#fff}"
)


def _users(replays: Sequence[Replay]) -> str:
    names: dict[str, None] = {}
    for replay in replays:
        names.update(dict.fromkeys(replay.figures["users"]))
    if len(names) < 2:
        return ""
    head = "".join(f"<th>{escape(replay.name)}</th>" for replay in replays)
    body = ""
    for name in names:
        found = [replay.figures["users"].get(name) for replay in replays]
        cells = "".join(
            f"<td>{user['bounded_slowdown']:,.2f}</td>" if user else "<td>-</td>" for user in found
        )
        body += f"<tr><th>{escape(name)}</th>{cells}</tr>"
    return (
        "<h2>Mean bounded slowdown per user</h2>"
        f"<table><thead><tr><th>user</th>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _plots(replays: Sequence[Replay]) -> list[tuple[str, str]]:
    return [
        (
            "Share of jobs done within a time (s, log)",
            _plot([_spread(replay) for replay in replays], log=True),
        ),
        ("GPUs held, share over time (h)", _plot([_over_time(replay, "gpu_share") for replay in replays])),
        ("Waiting jobs over time (h)", _plot([_over_time(replay, "waiting") for replay in replays])),
        (
            "GPUs lost to fragmentation over time (h)",
            _plot([_over_time(replay, "lost_share") for replay in replays]),
        ),
    ]


def _spread(replay: Replay) -> Line:
    columns = replay.ledger.columns()
    done = columns["ended"] >= 0
    times = np.sort((columns["ended"] - columns["arrival"])[done]) / 1000
    if not len(times):
        return replay.name, []
    places = np.unique(np.linspace(0, len(times) - 1, MOST_POINTS).astype(np.int64)).tolist()
    return replay.name, [(max(1.0, float(times[place])), (place + 1) / len(times)) for place in places]


def _over_time(replay: Replay, field: str) -> Line:
    shots = replay.ledger.shots
    step = max(1, len(shots) // MOST_POINTS)
    return replay.name, [(shot.at_ms / 3_600_000, float(getattr(shot, field))) for shot in shots[::step]]


def _plot(lines: Sequence[Line], log: bool = False) -> str:
    points = [point for _, line in lines for point in line]
    if not points:
        return "<p>nothing to draw</p>"
    across = [np.log10(x) if log else x for x, _ in points]
    low, high, top = min(across), max(across), max(y for _, y in points)
    span, top = (high - low) or 1.0, top or 1.0
    parts = [f'<svg width="{WIDE}" height="{HIGH}" viewBox="0 0 {WIDE} {HIGH}" role="img">']
    for number in range(5):
        share = number / 4
        y = HIGH - PAD - share * (HIGH - 2 * PAD)
        x = PAD + share * (WIDE - 2 * PAD)
        mark = low + share * span
        parts.append(f'<path d="M{PAD} {y:.1f}H{WIDE - PAD}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="4" y="{y + 4:.1f}" font-size="10">{top * share:.3g}</text>')
        label = f"{10**mark:.3g}" if log else f"{mark:.3g}"
        parts.append(
            f'<text x="{x:.1f}" y="{HIGH - PAD + 16}" font-size="10" text-anchor="middle">{label}</text>'
        )
    for number, (name, line) in enumerate(lines):
        parts.append(_trace(number, name, line, (low, span, top), log))
    return "".join([*parts, "</svg>"])


def _trace(
    number: int, name: str, line: Sequence[tuple[float, float]], frame: tuple[float, float, float], log: bool
) -> str:
    low, span, top = frame
    colour = COLOURS[number % len(COLOURS)]
    places = []
    for x, y in line:
        across = (np.log10(x) if log else x) - low
        places.append(
            f"{PAD + across / span * (WIDE - 2 * PAD):.1f},{HIGH - PAD - y / top * (HIGH - 2 * PAD):.1f}"
        )
    return (
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(places)}"/>'
        f'<text x="{PAD + number * 150}" y="14" font-size="11" fill="{colour}">{escape(name)}</text>'
    )
