"""The command about preemptions: who was stopped for whom, by which rule, and what became of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from dray.cli.base.hub import Hub, HubRefusal
from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.jobs.jobs import split_id

_PAGE = 200


@click.command("preemptions", cls=HubCommand)
@click.argument("receipt", required=False)
@click.option("--job", metavar="ID", help="Only those that this job made or suffered.")
@click.option("--user", metavar="NAME", help="Only those that this user's jobs made or suffered.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="At most this many, newest first.",
)
@click.option(
    "--window", metavar="TIME", default="1d", show_default=True, help="How far back the sums below reach."
)
@pass_session
def preemptions(
    session: Session, receipt: str | None, job: str | None, user: str | None, limit: int, window: str
) -> None:
    """List preemptions, newest first, or show the receipt of one: who, which rule, what was lost, when it comes back.

    Work is stopped only for work that stands strictly above it. In a queue of order `priority` that is an explicit
    higher --priority (higher wins); a tier alone preempts only where the policy says `by_tier`. Of others' jobs you see
    whose the preemptor is; admins see everything.
    """
    if receipt is not None:
        if job or user:
            raise click.UsageError("name a receipt, or filter with --job and --user: not both")
        _show_receipt(session, receipt)
        return
    query = {"job": split_id(job)[0] if job else "", "user": user or "", "window_s": _read_window(window)}
    answer = list_receipts(session.hub, query, limit)
    if session.json:
        session.print_json(answer)
        return
    if not answer["preemptions"]:
        print("no preemptions: nobody was stopped for other work", file=sys.stderr)
        return
    from dray.cli.jobs.preemption_views import draw_receipts

    print(draw_receipts(answer))
    if answer.get("next_cursor"):
        print(f"the newest {limit}; -n shows more", file=sys.stderr)


def _show_receipt(session: Session, receipt: str) -> None:
    from urllib.parse import quote

    document = session.hub.get(f"/preemptions/{quote(receipt, safe='')}")
    if session.json:
        session.print_json(document)
        return
    from dray.cli.jobs.preemption_views import draw_receipt

    print(draw_receipt(document))


def _read_window(text: str) -> float:
    from dray.core.model.units import parse_seconds

    return parse_seconds(text)


def list_receipts(hub: Hub, query: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """So many receipts, in as many pages as it takes."""
    asked: dict[str, Any] = {**query, "limit": min(limit, _PAGE)}
    answer: dict[str, Any] = hub.get("/preemptions", asked)
    found = list(answer.get("preemptions") or [])
    while answer.get("next_cursor") and len(found) < limit:
        asked |= {"cursor": answer["next_cursor"], "limit": min(limit - len(found), _PAGE)}
        page = hub.get("/preemptions", asked)
        found += page.get("preemptions") or []
        answer["next_cursor"] = page.get("next_cursor")
    return {**answer, "preemptions": found}


def receipts_of(hub: Hub, job_id: str) -> list[dict[str, Any]]:
    """The newest receipts that touched a job; none where the hub does not know the word."""
    try:
        found: list[dict[str, Any]] = hub.get("/preemptions", {"job": job_id, "limit": _PAGE})["preemptions"]
    except HubRefusal:
        return []
    return found
