"""The commands `snapshot ...`: what is in the folder that a job runs in, and getting it back."""

from __future__ import annotations

import os
from typing import Any

import click

from dray.cli.base.hub import job_path
from dray.cli.base.invocation import HubCommand, LazyGroup, Session, pass_session
from dray.cli.base.outage import say
from dray.cli.base.render import Column, clean, draw_pairs, draw_table, has_colour, terminal_width
from dray.core.model.units import format_bytes

_HERE = "dray.cli.site.snapshots"
_COLUMNS = (Column("SIZE", right=True), Column("SHA-256"), Column("FILE", least=12))
_LIST = (
    Column("SNAPSHOT"),
    Column("SHA-256"),
    Column("JOBS", right=True),
    Column("NOT ENDED", right=True),
    Column("NEWEST JOB", least=8),
    Column("USER"),
)
SHOWN = 50
PAGE_JOBS, MOST_JOBS = 500, 100_000


@click.group(
    "snapshot",
    cls=LazyGroup,
    table={
        "ls": (f"{_HERE}:snapshot_ls", "List the snapshots that jobs run in."),
        "show": (f"{_HERE}:snapshot_show", "Show what is in the snapshot of a job."),
        "get": (f"{_HERE}:snapshot_get", "Write the snapshot of a job into a folder."),
    },
)
def snapshot() -> None:
    """Show snapshots, and get them back. A snapshot is there for as long as a job that uses it."""


@click.command("ls", cls=HubCommand)
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST_JOBS),
    default=1000,
    show_default=True,
    help="Look at so many jobs, the newest first.",
)
@pass_session
def snapshot_ls(session: Session, jobs: int) -> None:
    """List the snapshots that jobs run in, those of the newest jobs first. One goes with the last job that uses it."""
    found: dict[str, list[dict[str, Any]]] = {}
    seen, cursor = 0, ""
    while seen < jobs:
        asked = {"limit": min(PAGE_JOBS, jobs - seen), **({"cursor": cursor} if cursor else {})}
        page = session.hub.get("/jobs", asked)
        listed = page.get("jobs") or []
        for job in listed:
            named = str((job.get("spec") or {}).get("snapshot_id") or "")
            if named:
                found.setdefault(named, []).append(job)
        seen, cursor = seen + len(listed), str(page.get("next_cursor") or "")
        if not cursor or not listed:
            break
    documents = [_describe(named, users) for named, users in found.items()]
    if session.json:
        session.print_json({"snapshots": documents, "jobs_seen": seen, "more": bool(cursor)})
        return
    rows = [
        [
            one["id"][:17],
            one["sha"][:12] or "-",
            str(one["jobs"]),
            str(one["waiting"]),
            one["newest"],
            one["user"],
        ]
        for one in documents
    ]
    print(draw_table(_LIST, rows, terminal_width(), has_colour()))
    if cursor:
        say(f"of the {seen:,} newest jobs; --jobs looks at more")


def _describe(named: str, users: list[dict[str, Any]]) -> dict[str, Any]:
    newest = users[0]
    return {
        "id": named,
        "sha": str((newest.get("spec") or {}).get("snapshot_sha") or ""),
        "jobs": len(users),
        "waiting": sum(job.get("state") in ("pending", "running") for job in users),
        "newest": newest["id"],
        "user": newest.get("user") or "",
        "submitted_at": newest.get("submitted_at"),
    }


def _settle(session: Session, name: str) -> str:
    """The id of a snapshot, given by itself or by a job that runs in it."""
    if name.startswith("snap-"):
        return name
    named = str((session.hub.get(job_path(name)).get("spec") or {}).get("snapshot_id") or "")
    if not named:
        raise click.UsageError(f"job {name} has no snapshot: it runs in a folder of its worker")
    return named


@click.command("show", cls=HubCommand)
@click.option("--all", "-a", "everything", is_flag=True, help="All files, however many.")
@click.argument("name", metavar="JOB | ID")
@pass_session
def snapshot_show(session: Session, name: str, everything: bool) -> None:
    """Show what is in a snapshot, the largest files first."""
    from dray.client.reach.discovery import find_target
    from dray.client.reach.fetching import fetch_manifest

    snapshot_id = _settle(session, name)
    manifest = fetch_manifest(lambda: find_target(session.config), snapshot_id)
    files = sorted(manifest.files, key=lambda file: (-file.size, file.path))
    listed: list[dict[str, Any]] = [
        {"path": file.path, "bytes": file.size, "sha256": file.sha.hex(), "executable": file.runs}
        for file in files
    ]
    if session.json:
        document = {"id": snapshot_id, "sha": manifest.sha, "bytes": manifest.size, "files": listed}
        session.print_json(document | {"links": dict(manifest.links), "empty_folders": manifest.folders})
        return
    pairs = [
        ("snapshot", snapshot_id),
        ("sha", manifest.sha),
        ("size", f"{format_bytes(manifest.size)} in {len(files)} files, {len(manifest.chunks)} chunks"),
    ]
    print(draw_pairs(pairs))
    shown = listed if everything else listed[:SHOWN]
    rows = [[format_bytes(one["bytes"]), one["sha256"][:12], clean(one["path"])] for one in shown]
    print(draw_table(_COLUMNS, rows, terminal_width(), has_colour()))
    if len(shown) < len(listed):
        say(f"{len(listed) - len(shown)} smaller files are not shown (-a shows all)")


@click.command("get", cls=HubCommand)
@click.argument("name", metavar="JOB | ID")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@pass_session
def snapshot_get(session: Session, name: str, folder: str) -> None:
    """Write a snapshot into a new folder: the very bytes that a job ran in."""
    from dray.client.reach.discovery import find_target
    from dray.client.reach.fetching import fetch_tree

    manifest = fetch_tree(
        lambda: find_target(session.config), _settle(session, name), os.path.abspath(folder)
    )
    if session.json:
        session.print_json(
            {"folder": os.path.abspath(folder), "sha": manifest.sha, "files": len(manifest.files)}
        )
    else:
        say(f"{len(manifest.files)} files, {format_bytes(manifest.size)}, are in {folder}")
