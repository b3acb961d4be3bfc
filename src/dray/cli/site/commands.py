"""Commands about the site's rules: queues, quotas, paces, the policy and the settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from dray.cli.base.invocation import DocumentCommand, HubCommand, LazyGroup, Session, pass_session

_HERE = "dray.cli.site.commands"
STDIN = "-"


@click.group(
    "queue",
    cls=LazyGroup,
    table={
        "ls": (f"{_HERE}:queue_ls", "List queues."),
        "show": (f"{_HERE}:queue_show", "Show a queue and the first of its line."),
    },
)
def queue() -> None:
    """List queues, or show one and its line."""


@click.command("ls", cls=HubCommand)
@pass_session
def queue_ls(session: Session) -> None:
    """List queues: who waits, what runs, how fast they move.

    OLDEST is how long the first of those who wait has been there; P50 and P90 how long the last starts had waited;
    STARTS/MIN and ENDS/MIN are counted over the last five minutes.
    """
    answer = session.hub.get("/queues")
    if session.json:
        session.print_json(answer)
        return
    from dray.cli.site.views import draw_queues

    print(draw_queues(answer.get("queues") or []))


@click.command("show", cls=HubCommand)
@click.argument("name")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many of the line."
)
@pass_session
def queue_show(session: Session, name: str, limit: int) -> None:
    """Show a queue and the first of its line, in the order in which they are looked at.

    Of others' jobs only admins see more than the places they leave.
    """
    from urllib.parse import quote

    document = session.hub.get(f"/queues/{quote(name, safe='')}", {"limit": limit})
    if session.json:
        session.print_json(document)
        return
    from dray.cli.site.views import draw_queue

    print(draw_queue(document))


@click.command("quota", cls=HubCommand)
@pass_session
def quota(session: Session) -> None:
    """List quotas: what each user, queue, plugin and template holds and has used.

    Over the soft budget work goes behind everybody else's, over the hard one it waits. Of other users only admins see
    anything.
    """
    answer = session.hub.get("/quotas")
    if session.json:
        session.print_json(answer)
        return
    quotas = answer.get("quotas") or []
    if not quotas:
        print("no quotas hold for you: `dray config show` prints the whole policy", file=sys.stderr)
        return
    from dray.cli.site.views import draw_quotas

    print(draw_quotas(quotas))


@click.command("pace", cls=HubCommand)
@pass_session
def pace(session: Session) -> None:
    """List paces and caps: how fast work may come in and start, how much of a kind may run."""
    answer = session.hub.get("/paces")
    if session.json:
        session.print_json(answer)
        return
    if not any(answer.get(part) for part in ("submits", "starts", "running")):
        print("nothing is paced", file=sys.stderr)
        return
    from dray.cli.site.views import draw_paces

    print(draw_paces(answer))


@click.group(
    "config",
    cls=LazyGroup,
    table={
        "show": (f"{_HERE}:config_show", "Print every value in force and where it came from."),
        "apply": (f"{_HERE}:config_apply", "Replace the hub's policy by a file's (needs admin)."),
    },
)
def config() -> None:
    """Show what holds and where it came from; apply a policy."""


@click.command("show", cls=DocumentCommand)
@click.option("--changed", is_flag=True, help="Only what is not the default.")
@pass_session
def config_show(session: Session, changed: bool) -> None:
    """Print every value in force and where it came from: the hub's settings, this client's, the policy.

    The hub's settings are shown to admins. -o yaml prints the policy alone, as a file that `dray config apply` takes.
    """
    policy = session.hub.get("/policy")
    if session.output == "yaml":
        from dray.cli.base.policy_text import write_policy

        print(write_policy(policy))
        return
    tables = {
        "hub": _hub_settings(session),
        "client": _client_settings(session),
        "policy": policy.get("values") or [],
    }
    if changed:
        tables = {
            title: [value for value in values if value["origin"] != "default"]
            for title, values in tables.items()
        }
    if session.json:
        session.print_json(
            {**{title: {"values": values} for title, values in tables.items()}}
            | {"policy": {**policy, "values": tables["policy"]}}
        )
        return
    from dray.cli.site.views import draw_values

    print(draw_values(tables))


def _hub_settings(session: Session) -> list[dict[str, Any]]:
    from dray.cli.base.hub import HubRefusal

    try:
        values: list[dict[str, Any]] = session.hub.get("/config").get("values") or []
    except HubRefusal as refusal:
        if refusal.status != 403:
            raise
        print(f"dray: {refusal.message}: they are left out", file=sys.stderr)
        return []
    return values


def _client_settings(session: Session) -> list[dict[str, Any]]:
    from dataclasses import fields

    from dray.config import tell_origin

    values = []
    for field in fields(session.config):
        if field.name == "origins":
            continue
        value = getattr(session.config, field.name)
        if field.name == "token":
            value = "(hidden)" if value else ""
        shown = str(value) if isinstance(value, Path) else value
        values.append({"name": field.name, "value": shown, "origin": tell_origin(session.config, field.name)})
    return values


@click.command("apply", cls=HubCommand)
@click.argument("file", metavar="FILE.yaml")
@click.option("--dry-run", is_flag=True, help="Only tell what would change.")
@click.option(
    "--force", is_flag=True, help="Let quotas be below what runs already: it goes on, nothing new starts."
)
@pass_session
def config_apply(session: Session, file: str, dry_run: bool, force: bool) -> int:
    """Replace the hub's policy by that of a file (`-` for stdin), whole: what the file does not say is the default.

    It holds at once and outlives restarts, until policy.yaml in the hub's home is changed.
    """
    from dray.hub.decisions.policy import read_policy_file, read_policy_text

    if file == STDIN:
        document, _ = read_policy_text(sys.stdin.read(), "stdin")
    else:
        document = read_policy_file(Path(file)).document
    query = {"dry_run": "1" if dry_run else "", "force": "1" if force else ""}
    answer = session.hub.call("PUT", "/policy", query, body=document)
    problems = answer.get("problems") or []
    if session.json:
        session.print_json(answer)
        return 1 if problems else 0
    from dray.cli.site.views import draw_changes

    changes = answer.get("changes") or []
    count = f"{len(changes)} value{'s' if len(changes) != 1 else ''}"
    if not changes:
        print("this is the policy in force: nothing changes")
    else:
        print(f"would change {count}:" if dry_run else f"changed {count}:")
        print(draw_changes(changes))
    for problem in problems:
        print(f"dray: it would be refused: {problem['where']}: {problem['what']}", file=sys.stderr)
    return 1 if problems else 0
