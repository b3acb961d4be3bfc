"""Commands that ask the hub something which takes a while: what if, and what further workers would have brought.

Each begins a study, shows how far it is, and calls it off where it is broken off with Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.base.render import Column, clean, draw_table, has_colour, local_time, terminal_width
from dray.core.model.units import format_seconds, parse_seconds
from dray.errors import DrayError, InvalidInput

Document = Mapping[str, Any]
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
LOOK_S = 1.0
_BAR = 30
_SINCE = click.option(
    "--since", default="14d", show_default=True, metavar="WHEN", help="How far back: a span, or a moment."
)
_DETACH = click.option(
    "--detach", is_flag=True, help="Print the id of the study and do not wait for its end."
)


@click.command("whatif", cls=HubCommand)
@click.option("--policy", type=_FILE, metavar="FILE", help="Another policy.")
@click.option("--drain", multiple=True, metavar="WORKER", help="This worker gets nothing new; may repeat.")
@click.option("--more", multiple=True, metavar="WORKER[=N]", help="N more workers like this one; may repeat.")
@click.option("--job", "jobs", multiple=True, type=_FILE, metavar="FILE", help="A job file, not submitted.")
@click.option("--ahead", default="6h", show_default=True, metavar="SPAN", help="How far GPUs held are told.")
@_DETACH
@pass_session
def whatif(session: Session, **given: Any) -> None:
    """Say when what waits would start under another policy, without some workers, with more, or beside further jobs.

    \b
      dray whatif --policy fair.yaml
      dray whatif --drain gpu-17
      dray whatif --more gpu-17=2

    The hub runs its scheduler forward twice, as it is and as it would be, in a process beside it. Nothing is changed.
    """
    from dray.cli.asks.jobfile import load_jobs
    from dray.hub.decisions.policy import read_policy_file

    body: dict[str, Any] = {
        "drain": list(given["drain"]),
        "more": [_read_more(text) for text in given["more"]],
        "jobs": [job for path in given["jobs"] for job in load_jobs(path, {})],
        "horizon_s": parse_seconds(given["ahead"]),
    }
    if given["policy"] is not None:
        body["policy"] = read_policy_file(given["policy"]).document
    elif not (body["drain"] or body["more"] or body["jobs"]):
        raise click.UsageError("what if what? Name a policy, workers to drain, more workers, or jobs")
    _study(session, "/whatif", body, given["detach"], draw_contrast)


@click.command("capacity", cls=HubCommand)
@_SINCE
@click.option("--count", "counts", multiple=True, type=int, help="How many of each kind; 1 and 2 by default.")
@_DETACH
@pass_session
def capacity(session: Session, since: str, counts: Sequence[int], detach: bool) -> None:
    """Say what one more worker of each kind would have brought, by replaying what the hub remembers.

    What was advised is kept, and judged here once such workers have come.
    """
    _study(session, "/capacity", {"since": since, "counts": list(counts) or [1, 2]}, detach, draw_capacity)


def _read_more(text: str) -> dict[str, Any]:
    name, _, number = text.rpartition("=")
    if not name:
        return {"like": text, "count": 1}
    if not number.isdigit() or not int(number):
        raise InvalidInput(f"--more {text}: write WORKER=N, where N is how many")
    return {"like": name, "count": int(number)}


def _study(session: Session, path: str, body: Document, detach: bool, draw: Any) -> None:
    begun = session.hub.call("POST", path, body=body)
    if detach:
        session.print_json(begun) if session.json else print(begun["id"])
        return
    try:
        study = _follow(session, begun)
    except KeyboardInterrupt:
        session.hub.call("DELETE", f"/studies/{begun['id']}")
        raise
    if study["state"] != "done":
        raise DrayError(f"study {study['id']} {study['state']}: {clean(study['error'])}".rstrip(": "))
    session.print_json(study) if session.json else print(draw(study["answer"]))


def _follow(session: Session, study: Document) -> Document:
    live = sys.stderr.isatty()
    while study["state"] in ("waiting", "running"):
        if live:
            full = round(_BAR * study["progress"])
            bar = f"[{'#' * full}{'.' * (_BAR - full)}] {study['state']} {clean(study['doing'])}"
            sys.stderr.write(f"\r\x1b[K{bar}")
            sys.stderr.flush()
        study = session.hub.get(f"/studies/{study['id']}", {"wait_s": LOOK_S}, LOOK_S)
    if live:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
    return study


def _wait(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _table(columns: Sequence[Column], rows: list[list[str]]) -> str:
    return draw_table(tuple(columns), rows, terminal_width(), has_colour())


def draw_contrast(answer: Document) -> str:
    """Today beside then."""
    sides = [("today", answer["today"]), ("then", answer["then"])]
    columns = (
        Column(""),
        Column("WAITING", right=True),
        Column("NOBODY KNOWS", right=True),
        Column("STARTS P50", right=True),
        Column("P90", right=True),
        Column("GPUS", right=True),
        Column("HELD", right=True),
    )
    rows = [
        [
            name,
            f"{side['tasks']:,}",
            f"{side['unknown']:,}",
            _wait(side["wait_p50_s"]),
            _wait(side["wait_p90_s"]),
            str(side["gpus"]),
            "-" if side["held_share"] is None else f"{side['held_share']:.0%}",
        ]
        for name, side in sides
    ]
    blocks = [clean(answer["headline"]), _table(columns, rows)]
    users = (Column("USER", least=6), Column("TASKS", right=True), Column("TODAY", right=True),
             Column("THEN", right=True))  # fmt: skip
    if answer["users"]:
        found = [
            [clean(one["user"]), f"{one['tasks']:,}", _wait(one["today_p50_s"]), _wait(one["then_p50_s"])]
            for one in answer["users"]
        ]
        blocks.append(_table(users, found))
    jobs = (Column("JOB"), Column("NAME", least=6), Column("USER", drop=1), Column("TODAY", right=True),
            Column("THEN", right=True))  # fmt: skip
    shown = [
        [one["id"], clean(one["name"]), clean(one["user"]), _starts(one["today"]), _starts(one["then"])]
        for one in answer["jobs"][:12]
    ]
    shown += [
        ["new", clean(one["name"]), clean(one["user"]), "-", _starts(one["then"])] for one in answer["new"]
    ]
    if shown:
        blocks.append(_table(jobs, shown))
    return "\n\n".join(blocks)


def _starts(start: Document | None) -> str:
    return "nobody knows" if start is None else format_seconds(start["p50_s"])


def draw_capacity(answer: Document) -> str:
    """What each option would have brought, what it assumes, and what became of earlier advice."""
    base = answer["replays"][0]
    columns = (
        Column("WORKERS"),
        Column("LIKE", drop=1),
        Column("GPUS", right=True, drop=2),
        Column("WAIT P50", right=True),
        Column("P90", right=True),
        Column("MEAN", right=True, drop=3),
        Column("GPUS HELD", right=True, drop=4),
    )
    rows = [_capacity_row("as it was", "", "", base)]
    rows += [
        _capacity_row(
            f"+{one['count']} {clean(one['kind'])}", clean(one["like"]), str(one["gpus"]), one["figures"]
        )
        for one in answer["options"]
    ]
    since = f"{base['jobs']:,} tasks since {local_time(answer['since'])}, replayed:"
    blocks = [clean(answer["headline"]), f"{since}\n{_table(columns, rows)}"]
    blocks.append("It assumes:\n" + "\n".join(f"  - {clean(one)}" for one in answer["assumes"]))
    if answer["earlier"]:
        told = [f"  - {local_time(one['at'])}: {clean(one['message'])}" for one in answer["earlier"]]
        blocks.append("Advised before:\n" + "\n".join(told))
    return "\n\n".join(blocks)


def _capacity_row(name: str, like: str, gpus: str, figures: Document) -> list[str]:
    waits = [_wait(figures[key]) for key in ("wait_p50_s", "wait_p90_s", "wait_mean_s")]
    return [name, like, gpus, *waits, f"{figures['gpu_utilisation']:.0%}"]
