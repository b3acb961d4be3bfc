"""Commands that list: ps and tasks. What does not fit is said, never left out in silence."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click

from dray.cli.base.completion import STATES, complete_job, complete_state
from dray.cli.base.exit_codes import ENDED, UNSUCCESSFUL
from dray.cli.base.hub import Hub, job_path
from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.jobs.jobs import split_id
from dray.errors import InvalidInput

RECENT_S = 600.0
DEFAULT_LIMIT = 100
_PAGE = 200
MANY = 1 << 62


class Listed(NamedTuple):
    """A part of a list; `next` is the cursor of what comes behind it, empty where that was all.

    `total`: how many there are, None where the hub would have to look at each.
    """

    items: list[dict[str, Any]]
    next: str
    total: int | None = None


class Span(NamedTuple):
    """Only what was submitted between these two."""

    since: datetime | None
    until: datetime | None

    def holds(self, job: Mapping[str, Any]) -> bool:
        at = datetime.fromisoformat(str(job["submitted_at"]))
        return not ((self.since and at < self.since) or (self.until and at >= self.until))

    def is_before(self, job: Mapping[str, Any]) -> bool:
        """Whether nothing behind this one can be meant: lists have the newest first."""
        return self.since is not None and datetime.fromisoformat(str(job["submitted_at"])) < self.since


ANY_TIME = Span(None, None)


@click.command("ps", cls=HubCommand)
@click.option(
    "-a", "--all", "everything", is_flag=True, help="All jobs there are, however long ago they ended."
)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only jobs in this state; may be repeated.",
    shell_complete=complete_state,
)
@click.option("--failed", is_flag=True, help="Only jobs that ended without success, however long ago.")
@click.option("--user", metavar="NAME", help="Only jobs of this user.")
@click.option("--queue", metavar="NAME", help="Only jobs in this queue.")
@click.option("--name", metavar="TEXT", help="Only jobs of this name.")
@click.option("--workload", metavar="ID", help="Only jobs of this workload.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only jobs with this label.")
@click.option(
    "--since", metavar="WHEN", help="Only jobs submitted since then: 2h, 3d, 2026-11-15, 2026-11-15T09:00."
)
@click.option("--until", metavar="WHEN", help="Only jobs submitted before then.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    help=f"At most this many jobs.  [default: {DEFAULT_LIMIT}, with -a no limit]",
)
@click.option("-q", "--quiet", is_flag=True, help="Only their ids, one per line.")
@click.option("--time", "times", is_flag=True, help="Times of day instead of how long ago.")
@pass_session
def ps(session: Session, states: tuple[str, ...], quiet: bool, times: bool, **given: Any) -> None:
    """List jobs, newest first: those that live, and those that ended in the last 10 minutes."""
    everything, limit, failed = given.pop("everything"), given.pop("limit"), given.pop("failed")
    span = Span(_read_when(given.pop("since")), _read_when(given.pop("until")))
    query = {name: value for name, value in given.items() if value and name != "labels"}
    if given["labels"]:
        query["label"] = list(given["labels"])
    wanted = [*_read_states(states), *(UNSUCCESSFUL if failed else ())]
    most = limit or (MANY if everything else DEFAULT_LIMIT)
    if everything or wanted or span != ANY_TIME:
        # What is all listed, or cut by time as well, cannot be counted or counts itself.
        counted = {"count": "true"} if most < MANY and span == ANY_TIME else {}
        listed = _page_jobs(session.hub, {**query, **counted, "state": ",".join(wanted)}, most, span)
    else:
        listed = _select_lively(session.hub, query, most)
    if session.json:
        session.print_json({"jobs": listed.items, "next": listed.next or None, "total": listed.total})
    elif quiet:
        print("\n".join(job["id"] for job in listed.items), end="\n" if listed.items else "")
    elif not listed.items:
        lively = not (everything or wanted or span != ANY_TIME)
        scope = " that live or ended in the last 10 minutes (-a shows all)" if lively else ""
        print(f"no jobs{scope}", file=sys.stderr)
    else:
        from dray.cli.jobs.job_views import draw_jobs

        print(draw_jobs(listed.items, times=times))
    if listed.next:
        of = "jobs shown, there are more" if listed.total is None else f"of {listed.total:,} jobs shown"
        print(f"{len(listed.items)} {of}: -n {2 * most} or --all", file=sys.stderr)


def _read_states(given: tuple[str, ...]) -> list[str]:
    states = [word.strip() for text in given for word in text.split(",") if word.strip()]
    for state in states:
        if state not in STATES:
            raise click.UsageError(f"{state!r} is not a state of a job: there is {', '.join(STATES)}")
    return states


def _read_when(text: str | None) -> datetime | None:
    """A moment as people write it: how long ago, or a date with or without a time, in their own zone."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        pass
    from dray.core.model.units import parse_seconds

    try:
        return datetime.now(UTC) - timedelta(seconds=parse_seconds(text))
    except (InvalidInput, OverflowError):
        raise click.UsageError(
            f"{text!r} is no time: write how long ago (30m, 2h, 3d) or a date (2026-11-15, 2026-11-15T09:00)"
        ) from None


def _select_lively(hub: Hub, query: Mapping[str, Any], most: int) -> Listed:
    """What runs is all there, however old; what waits and what ended lately fill the rest."""
    running = _page_jobs(hub, {**query, "state": "running"}, MANY).items
    left = max(0, most - len(running))
    waiting = _page_jobs(hub, {**query, "state": "pending", "count": "true"}, left)
    ended = _page_jobs(hub, {**query, "state": ",".join(ENDED)}, min(left, _PAGE)).items
    recent = [job for job in ended if _ended_lately(job)]
    found = sorted([*waiting.items, *recent], key=_newest, reverse=True)[:left]
    cut = waiting.next or ("more" if len(waiting.items) + len(recent) > left else "")
    total = None if waiting.total is None else len(running) + waiting.total + len(recent)
    return Listed(sorted([*running, *found], key=_newest, reverse=True), cut, total)


def _newest(job: Mapping[str, Any]) -> str:
    return str(job.get("submitted_at") or "")


def _page_jobs(hub: Hub, query: Mapping[str, Any], most: int, span: Span = ANY_TIME) -> Listed:
    asked: dict[str, Any] = {**query, "limit": min(max(most, 1), _PAGE)}
    found: list[dict[str, Any]] = []
    total = None
    while True:
        page = hub.get("/jobs", asked)
        cursor, total = page.get("next_cursor") or "", total or page.get("total")
        asked.pop("count", None)
        for job in page.get("jobs") or []:
            if span.is_before(job):
                return Listed(found, "")
            if not span.holds(job):
                continue
            if len(found) == most:
                return Listed(found, cursor or "more", total)
            found.append(job)
        if not cursor or len(found) >= most:
            return Listed(found, cursor, total if cursor or span != ANY_TIME else len(found))
        asked["cursor"] = cursor


def _ended_lately(job: Mapping[str, Any]) -> bool:
    from dray.cli.base.render import read_time

    ended = read_time(job.get("ended_at"))
    return ended is not None and (datetime.now(UTC) - ended).total_seconds() <= RECENT_S


@click.command("tasks", cls=HubCommand)
@click.argument("job", shell_complete=complete_job)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only tasks in this state; may be repeated.",
    shell_complete=complete_state,
)
@click.option("--failed", is_flag=True, help="Only tasks that ended without success.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most this many tasks."
)
@click.option("-a", "--all", "everything", is_flag=True, help="All of them, however many.")
@click.option(
    "-q", "--quiet", is_flag=True, help="Only their ids, one per line: `dray logs ID/INDEX` takes one."
)
@pass_session
def tasks(
    session: Session,
    job: str,
    states: tuple[str, ...],
    failed: bool,
    limit: int,
    everything: bool,
    quiet: bool,
) -> None:
    """List the tasks of a job in order: state, how each ended, where it ran and for how long."""
    job_id, index = split_id(job)
    if index >= 0:
        raise click.UsageError(f"{job} is one task already: `dray show {job}` tells all of it")
    wanted = [*_read_states(states), *(UNSUCCESSFUL if failed else ())]
    listed = page_tasks(session.hub, job_id, wanted, MANY if everything else limit)
    if session.json:
        session.print_json({"tasks": listed.items, "next": listed.next or None})
    elif quiet:
        print("\n".join(task["id"] for task in listed.items), end="\n" if listed.items else "")
    elif not listed.items:
        print(f"no task of {job_id}{' is ' + ' or '.join(wanted) if wanted else ''}", file=sys.stderr)
    else:
        from dray.cli.jobs.job_views import draw_tasks

        print(draw_tasks(listed.items))
    if listed.next:
        print(f"{len(listed.items)} tasks shown, there are more: -n {2 * limit} or --all", file=sys.stderr)


def page_tasks(hub: Hub, job_id: str, states: list[str], most: int) -> Listed:
    """A page may be short, or empty, and not the last: whoever looks for few among many is answered in steps."""
    asked: dict[str, Any] = {"state": ",".join(states)}
    found: list[dict[str, Any]] = []
    cursor = ""
    while len(found) < most:
        page = hub.get(
            job_path(job_id, "/tasks"), {**asked, "limit": min(most - len(found), _PAGE), "cursor": cursor}
        )
        found += page.get("tasks") or []
        cursor = page.get("next_cursor") or ""
        if not cursor:
            break
    return Listed(found, cursor)
