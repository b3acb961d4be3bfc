"""The table of all results, made from the JSON documents and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.figures import Figure, Report, spell_number

HEAD = ("what", "dray", "floors in the same run", "ratio", "bar", "verdict", "command")
INTRO = """# Benchmark results

Made by `python -m benchmarks` from the JSON documents beside this file; do not edit. Every figure of dray is durable
(SQLite, `synchronous=FULL`). A value is the median of the runs named beside it, or of one run where none are named;
"open" means that a floor could not be measured here. What a run was disturbed by is not in here: look at the load.
"""


def read_reports(folder: Path, order: Iterable[str]) -> list[Report]:
    """The documents of the catalogue, in its order; soak and fuzz leave reports of another form beside them."""
    decoder = msgspec.json.Decoder(Report)
    paths = [folder / f"{name}.json" for name in order]
    return [decoder.decode(path.read_bytes()) for path in paths if path.exists()]


def write_table(folder: Path, order: Iterable[str]) -> None:
    """Write `README.md` of the results."""
    reports = read_reports(folder, order)
    rows = [_row(report, figure) for report in reports for figure in report.figures.values()]
    parts = [INTRO, _markdown(rows), _notes(reports), _machines(reports)]
    (folder / "README.md").write_text("\n".join(parts))


def render_rows(report: Report) -> str:
    """One benchmark's figures for the terminal."""
    lines = []
    for figure in report.figures.values():
        cells = _row(report, figure)
        mark = {"pass": "ok  ", "miss": "MISS", "open": "open"}.get(cells[5], "    ")
        floors = f"   [{cells[2]}; ratio {cells[3]}]" if figure.floors else ""
        bar = f"   (bar {cells[4]})" if figure.bars else ""
        lines.append(f"  {mark} {cells[0]}: {cells[1]}{floors}{bar}")
        if figure.note:
            lines.append(f"       {figure.note}")
    return "\n".join(lines)


def _row(report: Report, figure: Figure) -> tuple[str, ...]:
    ratios = figure.ratios()
    return (
        figure.what,
        f"{spell_number(figure.value)} {figure.unit}".strip()
        + (f" ({len(figure.runs)} runs)" if figure.runs else ""),
        ", ".join(f"{name} {spell_number(value)}" for name, value in figure.floors.items()),
        ", ".join(f"{name} {spell_number(ratio)}" for name, ratio in ratios.items()),
        ", ".join(bar.spell() for bar in figure.bars),
        figure.verdict(),
        f"`{report.command}`",
    )


def _markdown(rows: list[tuple[str, ...]]) -> str:
    lines = [HEAD, tuple("---" for _ in HEAD), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _notes(reports: list[Report]) -> str:
    noted = [figure for report in reports for figure in report.figures.values() if figure.note]
    listed = "\n".join(f"- **{figure.what}**: {figure.note}" for figure in noted)
    return f"## Notes\n\n{listed}\n" if noted else ""


def _machines(reports: list[Report]) -> str:
    """Runs on the same machine share a line; the load differs from run to run and is listed apart."""
    lines: dict[str, list[str]] = {}
    for report in reports:
        facts: dict[str, Any] = dict(report.machine)
        load, revision = facts.pop("load_1m", "?"), facts.pop("revision", "unknown")
        fsync, fdatasync = facts.pop("fsync_p50_us", "?"), facts.pop("fdatasync_p50_us", "?")
        spelled = ", ".join(f"{name} {value}" for name, value in facts.items())
        size = " (quick sizes)" if report.quick else ""
        disk = f"fsync p50 {fsync} µs, fdatasync {fdatasync} µs"
        told = f"- {report.name}{size}: {report.began_at}, revision {revision}, load {load}, {disk}"
        lines.setdefault(spelled, []).append(told)
    told = "\n\n".join(f"{spelled}\n\n" + "\n".join(runs) for spelled, runs in lines.items())
    return f"## Machine\n\n{told}\n" if lines else ""
