"""Commands about what was and what will be: minutes of the cluster, what failed, who has which card when, and users."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.base.render import (
    Column,
    clean,
    draw_table,
    has_colour,
    local_time,
    short_span,
    terminal_width,
)

_STEPS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_SHOWN = (
    "gpus_held",
    "idle_while_waiting",
    "used_share",
    "waiting",
    "running",
    "starts",
    "failures",
    "wait_p90_s",
)
# A bar by how it ended or is: text, so that nothing is told by colour alone.
_MARKS = {
    "succeeded": "=",
    "failed": "x",
    "killed": "-",
    "preempted": "!",
    "lost": "?",
    "runs": "#",
    "kept": "o",
}
_FORESEEN, _FREE, _NOW = ".", " ", "|"
_SINCE = click.option(
    "--since", default="24h", show_default=True, metavar="WHEN", help="A span back, or a moment."
)


@click.command("history", cls=HubCommand)
@_SINCE
@click.option("--until", metavar="WHEN", help="As --since; now by default.")
@click.option("--series", metavar="NAME,...", help="Which; `--series all` for every one.")
@pass_session
def history(session: Session, since: str, until: str | None, series: str | None) -> None:
    """Show how the cluster stood: a line for each series, oldest on the left, gaps where no hub looked."""
    asked = None if series == "all" else series or ",".join(_SHOWN)
    answer = session.hub.get("/history", {"from": since, "to": until, "series": asked})
    if session.json:
        session.print_json(answer)
        return
    columns = (Column("SERIES"), Column("LEAST", right=True), Column("MOST", right=True), Column("LAST", right=True),
               Column(f"{local_time(answer['from'])} …"))  # fmt: skip
    rows = []
    for name, values in answer["series"].items():
        known = [value for value in values if value is not None]
        told = [f"{value:.6g}" for value in (min(known), max(known), known[-1])] if known else ["-"] * 3
        rows.append([name, *told, draw_line(values)])
    print(draw_table(columns, rows, terminal_width(), has_colour()))
    if answer["failures"]:
        print(
            "failed: "
            + ", ".join(f"{count} {clean(name) or '?'}" for name, count in answer["failures"].items())
        )


def draw_line(values: Sequence[float | None], width: int = _WIDTH) -> str:
    """A series in as many characters as fit, each the most of its part; a dot where nothing is known."""
    most = max((value for value in values if value is not None), default=0) or 1
    each = max(1, -(-len(values) // width))
    parts = [values[first : first + each] for first in range(0, len(values), each)]
    tops = [max((value for value in part if value is not None), default=None) for part in parts]
    return "".join("·" if top is None else _STEPS[min(7, int(8 * top / most))] for top in tops)


@click.command("failures", cls=HubCommand)
@_SINCE
@click.option("--until", metavar="WHEN", help="As --since; now by default.")
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(("error", "class", "job", "worker", "user", "queue")),
    help="What failures of a group have in common beside their verdict.  [default: error, job]",
)
@click.option(
    "-n", "--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="At most this many."
)
@pass_session
def failures(session: Session, since: str, until: str | None, by: tuple[str, ...], limit: int) -> None:
    """Show what failed, in groups: how often, whose fault, and an example of each."""
    asked = {"from": since, "to": until, "by": ",".join(by) or None, "limit": limit}
    answer = session.hub.get("/failures", asked)
    if session.json:
        session.print_json(answer)
        return
    print(answer["headline"])
    for group in answer["groups"]:
        example = group["example"] or {}
        where = ", ".join(f"{clean(name)} {count}" for name, count in group["workers"].items())
        names = ", ".join(map(clean, group["names"])) or "-"
        print(f"\n{group['count']:>6}  {group['verdict']['title']} (the fault of: {group['fault']})  {names}")
        print(f"        {clean(group['error']) or group['exit_class']}")
        print(f"        on {where}; {draw_line(group['bins'], len(group['bins']))}")
        if verdict := example.get("verdict"):
            print(f"        as {clean(example['task_id'])}: {clean(verdict['step'])}")
    if answer["others"]:
        print(
            "\nof others: " + ", ".join(f"{clean(name)} {count}" for name, count in answer["others"].items())
        )


@click.command("timeline", cls=HubCommand)
@click.option("--since", default="6h", show_default=True, metavar="WHEN", help="A span back, or a moment.")
@click.option("--until", metavar="WHEN", help="A moment, a week ahead at most.  [default: six hours ahead]")
@click.option("--worker", "workers", multiple=True, metavar="NAME", help="Only this worker; may be repeated.")
@click.option("--kind", metavar="GPU", help="Only workers with this type of GPU, or cpu.")
@click.option("--job", metavar="ID", help="Only workers that this job is or was on.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 64), default=20, show_default=True, help="At most this many."
)
@pass_session
def timeline(
    session: Session, since: str, until: str | None, workers: tuple[str, ...], kind: str | None, job: str | None,
    limit: int,
) -> None:  # fmt: skip
    """Show who had, has and gets which card when; what is foreseen is one possible future.

    \b
      = ran to its end   x failed   - stopped   ! preempted   ? lost with its worker
      # runs, to its limit   o kept for somebody   . foreseen   | now
    """
    asked = {
        "from": since,
        "to": until,
        "worker": list(workers) or None,
        "kind": kind,
        "job": job,
        "limit": limit,
    }
    answer = session.hub.get("/timeline", asked)
    if session.json:
        session.print_json(answer)
        return
    print(answer["headline"])
    print(f"{local_time(answer['from'])} … {local_time(answer['to'])}")
    for row in answer["rows"]:
        print(f"{clean(row['worker'])}  {clean(row['kind'])}")
        for card in range(row["cards"]) or (-1,):
            print(f"  {'' if card < 0 else card:>3} {draw_bars(answer, row['bars'], card)}")


def draw_bars(
    answer: Mapping[str, Any], bars: Sequence[Sequence[Any]], card: int, width: int = _WIDTH
) -> str:
    """The bars of one card in so many characters."""
    from dray.core.model.units import parse_moment

    since, until = parse_moment(answer["from"]), parse_moment(answer["to"])
    cells = [_FREE] * width

    def place(at_ms: int) -> int:
        return max(0, min(width - 1, (at_ms - since) * width // max(1, until - since)))

    for on, begin, end, state, *_ in sorted(bars, key=lambda bar: bar[1]):
        if on == card:
            for at in range(place(begin), place(end or until) + 1):
                cells[at] = _MARKS.get(state, _FORESEEN)
    now = place(answer["now_ms"])
    return "".join([*cells[:now], _NOW, *cells[now:]])


@click.command("users", cls=HubCommand)
@pass_session
def users(session: Session) -> None:
    """Show who holds what, against their share, and who waits how long."""
    answer = session.hub.get("/users")
    if session.json:
        session.print_json(answer)
        return
    print(answer["headline"], file=sys.stderr)
    columns = (
        Column("USER", least=6),
        Column("GPUS", right=True),
        Column("RUNS", right=True),
        Column("OF SHARE", right=True),
        Column("WAITS", right=True),
        Column("OLDEST", right=True),
        Column("P50", drop=2, right=True),
        Column("P90", drop=2, right=True),
        Column("STOPPED", drop=3, right=True),
        Column("LOST", drop=3, right=True),
    )
    print(draw_table(columns, [_draw_user(row) for row in answer["users"]], terminal_width(), has_colour()))


def _draw_user(row: Mapping[str, Any]) -> list[str]:
    more = f" ({row['users']})" if row["users"] > 1 else ""
    times = "-" if row["times_share"] is None else f"{row['times_share']:.1f} ×"
    waits = [_span(row[name]) for name in ("oldest_wait_s", "wait_p50_s", "wait_p90_s")]
    lost = _span(row["lost_s"] or None)
    counts = [f"{row['gpus_held']:g}", str(row["running"]), times, str(row["waiting"])]
    return [clean(row["user"]) + more, *counts, *waits, str(row["stopped"]), lost]


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else short_span(seconds)
