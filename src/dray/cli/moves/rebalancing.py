"""`dray rebalance`: what would be better off elsewhere, a plan carried out, what moves have come to."""

from __future__ import annotations

import sys
from typing import Any

import click

from dray.cli.base.invocation import HubCommand, LazyGroup, Session, pass_session
from dray.cli.moves.views import draw_plan, draw_standing, tell_ordered

_HERE = "dray.cli.moves.rebalancing"
_CAUSE = click.option(
    "--cause",
    type=click.Choice(["performance", "cost"]),
    help="By this strategy alone; all of the policy by default.",
)


@click.group(
    "rebalance",
    cls=LazyGroup,
    table={
        "plan": (f"{_HERE}:rebalance_plan", "Tell what would be moved and why; nothing is."),
        "start": (f"{_HERE}:rebalance_start", "Carry out a plan that was looked at."),
        "ls": (f"{_HERE}:rebalance_ls", "Show whether work is moved by itself, and what moves have come to."),
        "show": ("dray.cli.moves.commands:move_show", "Show how far a move is, or what it came to."),
        "stop": (f"{_HERE}:rebalance_stop", "Call off moves for which nobody was asked to stop yet."),
    },
)
def rebalance() -> None:
    """Move work that runs to where it gains: faster cards, idle room that costs less.

    By itself only where the policy says `rebalance: {mode: on}`; a plan can be made and started at any time.
    """


@click.command("plan", cls=HubCommand)
@_CAUSE
@pass_session
def rebalance_plan(session: Session, cause: str | None) -> None:
    """Tell what would be better off elsewhere, what that wins and costs, and what is not worth it. Nothing is moved."""
    answer = session.hub.get("/rebalance/plan", {"cause": cause or ""})
    if session.json:
        session.print_json(answer)
        return
    if not answer["proposals"]:
        print("nothing would be better off elsewhere", file=sys.stderr)
        return
    print(draw_plan(answer), flush=True)
    if answer["chosen"]:
        named = f" --cause {cause}" if cause else ""
        print(f"to do it: dray rebalance start --etag {answer['etag']}{named}", file=sys.stderr)


@click.command("start", cls=HubCommand)
@click.option(
    "--etag", required=True, metavar="ETAG", help="The plan that was looked at, as `plan` names it."
)
@_CAUSE
@pass_session
def rebalance_start(session: Session, etag: str, cause: str | None) -> None:
    """Carry out a plan, if it still comes to the same; `dray move watch` follows what is moved."""
    body: dict[str, Any] = {"etag": etag} | ({"cause": cause} if cause else {})
    answer = session.hub.call("POST", "/rebalance/start", body=body)
    if session.json:
        session.print_json(answer)
    else:
        print(tell_ordered(answer))


@click.command("ls", cls=HubCommand)
@pass_session
def rebalance_ls(session: Session) -> None:
    """Show whether work is moved by itself, how much there is to gain, and what moves have come to."""
    answer = session.hub.get("/rebalance")
    if session.json:
        session.print_json(answer)
    else:
        print(draw_standing(answer))


@click.command("stop", cls=HubCommand)
@pass_session
def rebalance_stop(session: Session) -> None:
    """Call off all moves that strategies have decided, as far as nobody was asked to stop yet."""
    answer = session.hub.call("POST", "/rebalance/stop")
    if session.json:
        session.print_json(answer)
        return
    count = len(answer["moves"])
    print(
        f"{count or 'no'} move{'' if count == 1 else 's'} called off; what was asked to stop goes on to its place"
    )
