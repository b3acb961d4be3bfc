"""The command about waste: what was asked for, held and used, and which cards are held and idle now."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.base.render import (
    Column,
    clean,
    draw_table,
    has_colour,
    short_span,
    tell_money,
    terminal_width,
)
from dray.core.model.units import format_vram, parse_seconds
from dray.errors import InvalidInput

BY = ("user", "queue", "plugin", "template", "name", "job")
_UNKNOWN = "?"


@click.command("usage", cls=HubCommand)
@click.option(
    "--by", type=click.Choice(BY), default="user", show_default=True, help="By what it is summed up."
)
@click.option(
    "--since", default="7d", show_default=True, metavar="SPAN", help="How far back it reaches: 12h, 7d."
)
@click.option("--idle", is_flag=True, help="List the GPUs that are held and idle now instead, longest first.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most this many."
)
@pass_session
def usage(session: Session, by: str, since: str, idle: bool, limit: int) -> None:
    """Show GPU-hours and core-hours: asked for, held and used.

    ASKED is what the time limits would have allowed, HELD is run time times cards, USED the part of it in which they
    were busy. A ? stands where nobody could look; SEEN is how much of HELD was looked at. Admins see everybody.
    """
    if idle:
        answer = session.hub.get("/usage/idle", {"limit": limit})
    else:
        try:
            window_s = parse_seconds(since)
        except InvalidInput as fault:
            raise click.UsageError(f"--since: {fault}") from None
        answer = session.hub.get("/usage", {"by": by, "window_s": window_s, "limit": limit})
    if session.json:
        session.print_json(answer)
    elif idle:
        _print_idle(answer)
    else:
        print(draw_usage(answer))
        if answer["left_out"]:
            print(f"and {answer['left_out']} more; -n shows them", file=sys.stderr)


def draw_usage(answer: Mapping[str, Any]) -> str:
    """The table, all together last."""
    columns: tuple[Column, ...] = (
        Column(str(answer["by"]).upper(), least=6, cosy=16),
        Column("GPUH ASKED", drop=3, right=True),
        Column("HELD", right=True),
        Column("SEEN", drop=2, right=True),
        Column("USED", right=True),
        Column("OF HELD", right=True),
        Column("COREH ASKED", drop=3, right=True),
        Column("HELD", right=True),
        Column("USED", right=True),
        Column("TRIES", drop=1, right=True),
    )
    rows = [_draw_row(clean(one["name"]) or "-", one) for one in answer["usage"]]
    rows.append(_draw_row("all", answer["total"]))
    if answer["total"].get("money"):
        # Where nothing has a price nobody is told of any.
        columns = (*columns[:1], Column("MONEY", right=True), *columns[1:])
        money = [tell_money(one.get("money", 0)) for one in (*answer["usage"], answer["total"])]
        rows = [[row[0], spent, *row[1:]] for row, spent in zip(rows, money, strict=True)]
    return draw_table(columns, rows, terminal_width(), has_colour())


def _draw_row(name: str, one: Mapping[str, Any]) -> list[str]:
    gpus, cores = one["gpu_hours"], one["core_hours"]
    share = gpus["used"] / gpus["measured"] if gpus["measured"] else None
    used = _UNKNOWN if gpus["used"] is None else _hours(gpus["used"])
    told = "-" if not gpus["held"] else _UNKNOWN if share is None else f"{share:.0%}"
    cards = [_hours(gpus["asked"]), _hours(gpus["held"]), _hours(gpus["measured"]), used, told]
    return [name, *cards, *(_hours(cores[kind]) for kind in ("asked", "held", "used")), str(one["attempts"])]


def _hours(hours: float) -> str:
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.2f}"


def _print_idle(answer: Mapping[str, Any]) -> None:
    if not answer["idle"]:
        print("no GPU is held and idle, as far as workers can look at theirs", file=sys.stderr)
        return
    columns = (
        Column("IDLE", right=True),
        Column("WORKER", least=8),
        Column("GPU", right=True),
        Column("TYPE", drop=2),
        Column("MEMORY", drop=1, right=True),
        Column("USER", least=6),
        Column("JOB", least=8),
        Column("NAME", drop=3, least=6),
    )
    rows = [
        [
            short_span(one["idle_s"]),
            clean(one["worker"]),
            str(one["gpu"]),
            clean(one["gpu_type"]) or "-",
            format_vram(one["memory_bytes"]),
            clean(one["user"]),
            clean(one["task_id"]),
            clean(one["name"]) or "-",
        ]
        for one in answer["idle"]
    ]
    print(draw_table(columns, rows, terminal_width(), has_colour()))
