"""The commands `launch`: workers that launchers of the policy start through what a site already has."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from dray.cli.base.invocation import HubCommand, LazyGroup, Session, pass_session
from dray.cli.base.render import (
    Column,
    clean,
    draw_pairs,
    draw_table,
    has_colour,
    local_time,
    tell_money,
    terminal_width,
)

_HERE = "dray.cli.machines.launches"
Document = Mapping[str, Any]
_LAUNCHERS = (
    Column("LAUNCHER", least=8, cosy=24),
    Column("BY"),
    Column("HERE", right=True),
    Column("COMING", right=True),
    Column("GOING", right=True),
    Column("MIN-MOST", right=True),
    Column("TODAY", drop=1, right=True),
    Column("NOTE", least=10, cosy=60),
)
_LAUNCHES = (
    Column("LAUNCH", least=10, cosy=32),
    Column("STATE"),
    Column("TASKS", right=True),
    Column("ASKED", drop=2),
    Column("HANDLE", drop=1, least=6, cosy=20),
    Column("WHY", least=10, cosy=60),
)


@click.group(
    "launch",
    cls=LazyGroup,
    table={
        "ls": (f"{_HERE}:launch_ls", "List launchers and the workers that they start."),
        "show": (f"{_HERE}:launch_show", "Show a launch."),
        "start": (f"{_HERE}:launch_start", "Ask a launcher for workers."),
        "stop": (f"{_HERE}:launch_stop", "Let a launch go; what runs there ends first."),
    },
)
def launch() -> None:
    """Start workers through what a site already has: Slurm, Kubernetes, ssh or a command.

    Launchers are in the policy, as `launch` of a provider. They start workers by themselves when work has waited.
    """


@click.command("ls", cls=HubCommand)
@click.option("--all", "everything", is_flag=True, help="Also launches that are over.")
@click.argument("launcher", required=False)
@pass_session
def launch_ls(session: Session, launcher: str | None, everything: bool) -> None:
    """List launchers and the workers that they start, of one launcher or of all.

    TODAY is what its workers have cost since midnight (UTC); NOTE says why it starts no more now.
    """
    query = {"launcher": launcher, "all": "true" if everything else None}
    answer = session.hub.get("/launches", query)
    if session.json:
        session.print_json(answer)
        return
    if not answer["launchers"]:
        print("no launchers: give a provider of the policy a `launch` (`dray config apply`)", file=sys.stderr)
        return
    print(
        draw_table(
            _LAUNCHERS, [_launcher_row(one) for one in answer["launchers"]], terminal_width(), has_colour()
        )
    )
    if answer["launches"]:
        print()
        print(
            draw_table(
                _LAUNCHES, [_launch_row(one) for one in answer["launches"]], terminal_width(), has_colour()
            )
        )
    for one in answer.get("strangers") or []:
        where = f"{clean(str(one['launcher']))} names {clean(str(one['id']))} ({clean(str(one['handle']))})"
        print(f"{where}, a machine that no launch of this hub is known by: it is left alone", file=sys.stderr)


def _launcher_row(one: Document) -> list[str]:
    budget = f"/{tell_money(one['budget_per_day'])}" if one["budget_per_day"] else ""
    return [
        clean(str(one["name"])),
        str(one["way"] or "-"),
        str(one["joined"]),
        str(one["coming"]),
        str(one["ending"]),
        f"{one['min']}-{one['most']}",
        f"{tell_money(one['spent_today'])}{budget}",
        clean(str(one["note"] or "")),
    ]


def _launch_row(one: Document) -> list[str]:
    why = " ".join(
        clean(str(text)) for text in (one["why"], f"({one['said']})" if one["said"] else "") if text
    )
    return [
        clean(str(one["id"])),
        str(one["state"]),
        str(one["tasks"]),
        local_time(one["asked_at"]) or "",
        clean(str(one["handle"] or "")),
        why,
    ]


@click.command("show", cls=HubCommand)
@click.argument("launch_id", metavar="LAUNCH")
@pass_session
def launch_show(session: Session, launch_id: str) -> None:
    """Show a launch: for whom it was asked, what the site says, when it came and went."""
    _print(session, session.hub.get(f"/launches/{quote(launch_id, safe='')}"))


def _print(session: Session, one: Document) -> None:
    if session.json:
        session.print_json(one)
        return
    pairs = [
        ("launch", one["id"]),
        ("launcher", one["launcher"]),
        ("state", one["state"]),
        ("why", one["why"]),
        ("for job", one["job_id"]),
        ("asked by", one["user"]),
        ("handle", one["handle"]),
        ("site says", one["said"]),
        ("tasks", str(one["tasks"]) if one["worker"] else ""),
        ("asked", local_time(one["asked_at"])),
        ("started", local_time(one["started_at"])),
        ("joined", local_time(one["joined_at"])),
        ("over", local_time(one["ended_at"])),
        ("price/h", tell_money(one["price_per_hour"]) if one["price_per_hour"] else ""),
    ]
    print(draw_pairs([(name, clean(str(text))) for name, text in pairs if text]))


@click.command("start", cls=HubCommand)
@click.option("--count", type=click.IntRange(1, 64), default=1, show_default=True, help="So many workers.")
@click.argument("launcher")
@pass_session
def launch_start(session: Session, launcher: str, count: int) -> None:
    """Ask a launcher for workers, whoever waits; within its bounds and budget (needs admin)."""
    answer = session.hub.call("POST", "/launches", body={"launcher": launcher, "count": count})
    if session.json:
        session.print_json(answer)
        return
    for one in answer["launches"]:
        print(f"{one['id']}: {one['state']}")


@click.command("stop", cls=HubCommand)
@click.argument("launch_ids", metavar="LAUNCH", nargs=-1, required=True)
@pass_session
def launch_stop(session: Session, launch_ids: tuple[str, ...]) -> None:
    """Let launches go: at once before a worker has joined, else once it holds nothing any more (needs admin)."""
    found = [session.hub.call("POST", f"/launches/{quote(one, safe='')}/stop") for one in launch_ids]
    if session.json:
        session.print_json(found[0] if len(found) == 1 else {"launches": found})
        return
    for one in found:
        tasks = one["tasks"]
        rest = f", {tasks} task{'s' if tasks != 1 else ''} still running" if tasks and one["worker"] else ""
        print(f"{one['id']}: {one['state']}{rest}")
