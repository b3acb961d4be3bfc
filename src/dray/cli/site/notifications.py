"""The commands about alarms and notifications: what is wrong, who was told of what, and how that ended."""

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
    span_between,
    terminal_width,
)

STATES = ("waiting", "sent", "failed", "dropped")
_PAGE = 200
_COLUMNS = (
    Column("WHEN"),
    Column("EVENT"),
    Column("JOB", least=6, cosy=12),
    Column("TO", least=8, cosy=20),
    Column("STATE"),
    Column("TRIES", drop=2, right=True),
    Column("DETAIL", least=10, drop=1, cosy=30),
)


@click.command("alarms", cls=HubCommand)
@pass_session
def alarms(session: Session) -> None:
    """List what is wrong now, by the alarms of the policy, longest first; one that is over is in `dray events`."""
    answer = session.hub.get("/alarms")
    if session.json:
        session.print_json(answer)
        return
    if not answer["alarms"]:
        print("no alarm is raised: `dray config show` lists the rules", file=sys.stderr)
        return
    columns = (
        Column("SINCE", right=True),
        Column("KIND"),
        Column("ABOUT", least=8),
        Column("TEXT", least=20),
    )
    rows = [
        [span_between(one["since"], None), one["kind"], clean(one["subject"]), clean(one["text"])]
        for one in answer["alarms"]
    ]
    print(draw_table(columns, rows, terminal_width(), has_colour()))


@click.command("notifications", cls=HubCommand)
@click.argument("job", required=False)
@click.option("--state", type=click.Choice(STATES), multiple=True, help="Only these states; may repeat.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most this many."
)
@pass_session
def notifications(session: Session, job: str | None, state: tuple[str, ...], limit: int) -> None:
    """List who was told of what, newest first: of JOB, or of all your jobs; admins see everything.

    What is `waiting` with tries behind it is tried again, for a day. Each has an id that its receiver was given too:
    one that is told twice has the same.
    """
    query: dict[str, Any] = {"job": job or "", "state": ",".join(state), "limit": min(limit, _PAGE)}
    answer: dict[str, Any] = session.hub.get("/notifications", query)
    found = list(answer["notifications"])
    while answer.get("next_cursor") and len(found) < limit:
        query |= {"cursor": answer["next_cursor"], "limit": min(limit - len(found), _PAGE)}
        answer = session.hub.get("/notifications", query)
        found += answer["notifications"]
    if session.json:
        session.print_json({"notifications": found, "next_cursor": answer.get("next_cursor")})
        return
    if not found:
        print("nobody was told of anything: `dray submit --notify` asks for it", file=sys.stderr)
        return
    print(draw_notifications(found))
    if answer.get("next_cursor"):
        print(f"the newest {limit}; -n shows more", file=sys.stderr)


def draw_notifications(found: Sequence[Mapping[str, Any]]) -> str:
    """The table."""
    rows = [
        [
            local_time(one["at"]),
            one["event"],
            one["job_id"] or "-",
            clean(one["to"]),
            one["state"],
            str(one["tries"]),
            clean(one["detail"]),
        ]
        for one in found
    ]
    return draw_table(_COLUMNS, rows, terminal_width(), has_colour())
