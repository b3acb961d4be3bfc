"""`dray move`: to order that work goes elsewhere, and to list, show, watch and call off moves."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from dray.cli.base.completion import complete_job, complete_worker
from dray.cli.base.hub import job_path
from dray.cli.base.invocation import HubCommand, LazyGroup, Session, pass_session
from dray.cli.jobs.jobs import change_each, split_id
from dray.cli.moves.views import draw_move, draw_moves, tell_ordered, tell_step

_HERE = "dray.cli.moves.commands"
_LOOK_S = 1.0


class MoveGroup(LazyGroup):
    """Whatever is none of its commands is a job that is to be moved."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first and first not in self.table and first not in ("-h", "--help"):
            args = ["job", *args]
        return super().parse_args(ctx, args)


@click.group(
    "move",
    cls=MoveGroup,
    table={
        "job": (f"{_HERE}:move_job", "Move what runs of a job; `dray move ID` for short."),
        "ls": (f"{_HERE}:move_ls", "List moves that are under way."),
        "show": (f"{_HERE}:move_show", "Show how far a move is, or what it came to."),
        "watch": (f"{_HERE}:move_watch", "Follow moves until they have ended."),
        "cancel": (f"{_HERE}:move_cancel", "Call a move off for which nobody was asked to stop yet."),
    },
)
def move() -> None:
    """Move work that runs to another worker: `dray move JOB [--to WORKER]`.

    The place it goes to is kept first, then it is asked to stop, and it starts again there from what it has saved.
    Where it cannot start there it goes back to its old place, which is kept until it has run elsewhere for a while.
    """


@click.command("job", cls=HubCommand)
@click.argument("jobs", nargs=-1, required=True, metavar="ID[/INDEX]...", shell_complete=complete_job)
@click.option("--to", metavar="WORKER", default="", shell_complete=complete_worker, help="To this worker.")
@pass_session
def move_job(session: Session, jobs: tuple[str, ...], to: str) -> int:
    """Move what runs of jobs, or single tasks (ID/INDEX), to another worker: the best one unless --to names it."""

    def ask(job_id: str, index: int) -> Mapping[str, Any]:
        body: dict[str, Any] = {"to": to} | ({"task": index} if index >= 0 else {})
        answer: Mapping[str, Any] = session.hub.call("POST", job_path(job_id, "/move"), body=body)
        return answer

    return change_each(session, jobs, ask, tell_ordered)


@click.command("ls", cls=HubCommand)
@click.option("--all", "everything", is_flag=True, help="Also those that have ended.")
@click.option("--job", metavar="ID", help="Only those of this job.")
@click.option(
    "--cause",
    type=click.Choice(["room", "performance", "cost", "spread", "evacuate", "person"]),
    help="Only those for this cause.",
)
@click.option(
    "-n", "--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="At most this many."
)
@pass_session
def move_ls(session: Session, everything: bool, job: str | None, cause: str | None, limit: int) -> None:
    """List moves that are under way, newest first: what goes from where to where, why, and how far it is."""
    query: dict[str, Any] = {"limit": limit, "job": split_id(job)[0] if job else "", "cause": cause or ""}
    answer = session.hub.get("/moves", query | ({"all": "1"} if everything else {}))
    if session.json:
        session.print_json(answer)
    elif not answer["moves"]:
        said = "no moves yet" if everything else "nothing is being moved; --all lists what was"
        print(said, file=sys.stderr)
    else:
        print(draw_moves(answer["moves"]))


@click.command("show", cls=HubCommand)
@click.argument("move_id", metavar="MOVE")
@pass_session
def move_show(session: Session, move_id: str) -> None:
    """Show how far a move is, or what it came to: what was foretold of it, and what it has won."""
    document = session.hub.get(_path(move_id))
    if session.json:
        session.print_json(document)
        return
    print(draw_move(document))


@click.command("watch", cls=HubCommand)
@click.argument("move_id", metavar="[MOVE]", required=False)
@pass_session
def move_watch(session: Session, move_id: str | None) -> int:
    """Follow a move, or all that are under way, until they have ended; exits with 1 where one came to nothing."""
    told: dict[tuple[str, int], str] = {}
    watched: list[str] = [move_id] if move_id else [one["id"] for one in session.hub.get("/moves")["moves"]]
    if not watched:
        print("nothing is being moved", file=sys.stderr)
        return 0
    ended: dict[str, Mapping[str, Any]] = {}
    while len(ended) < len(watched):
        for name in watched:
            if name in ended:
                continue
            document = session.hub.get(_path(name))
            for place, task in enumerate(document["tasks"]):
                if told.get((name, place)) != task["stage"]:
                    told[name, place] = task["stage"]
                    if not session.json:
                        print(tell_step(document, task), flush=True)
            if document["status"] != "open":
                ended[name] = document
        if len(ended) < len(watched):
            time.sleep(_LOOK_S)
    if session.json:
        session.print_json({"moves": [ended[name] for name in watched]})
    return 0 if all(one["status"] == "done" for one in ended.values()) else 1


@click.command("cancel", cls=HubCommand)
@click.argument("move_id", metavar="MOVE")
@pass_session
def move_cancel(session: Session, move_id: str) -> None:
    """Call a move off for which nobody was asked to stop yet; what was asked to stop goes on to its new place."""
    document = session.hub.call("POST", f"{_path(move_id)}/cancel")
    if session.json:
        session.print_json(document)
    else:
        print(f"{move_id}: called off; what it was to move stays where it is")


def _path(move_id: str) -> str:
    return f"/moves/{quote(move_id, safe='')}"
