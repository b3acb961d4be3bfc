"""The commands `workload ...`: campaigns of jobs made, filled, switched, looked at and put away."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from dray.cli.asks.fields import read_changes
from dray.cli.base.exit_codes import INTERRUPTED, TIME_LIMIT
from dray.cli.base.invocation import HubCommand, LazyGroup, Session, pass_session
from dray.cli.base.outage import say

_HERE = "dray.cli.workloads.commands"
_POLL_S = 30.0


@click.group(
    "workload",
    cls=LazyGroup,
    table={
        "create": (f"{_HERE}:create", "Make a workload, by its name or from a file."),
        "add": (f"{_HERE}:add", "Submit the jobs of a file to a workload."),
        "ls": (f"{_HERE}:ls", "List workloads."),
        "show": (f"{_HERE}:show", "Show a workload: state, counts, purse, verdict."),
        "start": (f"{_HERE}:start", "Let its tasks start; also after a pause."),
        "pause": (f"{_HERE}:pause", "Start nothing more of it."),
        "scale": (f"{_HERE}:scale", "Change how many of its tasks run at once."),
        "spread": (f"{_HERE}:spread", "Change how its tasks lie on the cluster."),
        "set": (f"{_HERE}:set_workload", "Change its purse, deadline, priority and more."),
        "why": (f"{_HERE}:why", "Say what keeps the rest of it waiting."),
        "forecast": (f"{_HERE}:forecast", "Say when it ends, and whether it meets its deadline."),
        "results": (f"{_HERE}:results", "Print what ended, each task once."),
        "where": (f"{_HERE}:where", "Show where its tasks run, against where they should."),
        "retry": (f"{_HERE}:retry", "Submit again what failed of it."),
        "attach": (f"{_HERE}:attach", "Put jobs that are there into it, or take them out."),
        "seal": (f"{_HERE}:seal", "Take no more jobs: it ends when its last one has."),
        "wait": (f"{_HERE}:wait", "Wait for its end, exit 0 where it succeeded."),
        "cancel": (f"{_HERE}:cancel", "Stop all of it."),
        "archive": (f"{_HERE}:archive", "Put an ended workload away."),
        "rm": (f"{_HERE}:rm", "Forget a workload that has ended."),
    },
)
def workload() -> None:
    """Campaigns of jobs with one switch, one purse and one verdict."""


def path_of(name: str, rest: str = "") -> str:
    """The path of a workload; an id is data, so it is quoted whatever it holds."""
    return f"/workloads/{quote(name, safe='')}{rest}"


def terms_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags of what is said of a workload."""
    for option in reversed(
        (
            click.option("--title", metavar="TEXT", help="What it is about."),
            click.option(
                "--width", type=click.IntRange(0), metavar="N", help="So many tasks at once; 0: no bound."
            ),
            click.option(
                "--gpu-hours", type=float, metavar="N", help="Purse: so many GPU-hours; 0: no bound."
            ),
            click.option("--money", type=float, metavar="N", help="Purse: so much money; 0: no bound."),
            click.option(
                "--when-spent",
                type=click.Choice(["hold", "stop", "tell"]),
                help="Start nothing more, stop what runs as well, or only tell.  [default: hold]",
            ),
            click.option("--deadline", metavar="WHEN", help="2030-01-31T18:00:00Z, or +8h from now."),
            click.option(
                "--failures", metavar="SHARE", help="Which share of its tasks may fail: 5%.  [default: 0]"
            ),
            click.option("--priority", type=int, metavar="N", help="Of its jobs that say none; higher wins."),
            click.option("--queue", metavar="NAME", help="Of its jobs that say none."),
            click.option("--label", "labels", multiple=True, metavar="K=V", help="Of it and all its jobs."),
            click.option(
                "--member", "members", multiple=True, metavar="USER", help="Who else may add to it."
            ),
        )
    ):
        command = option(command)
    return command


def read_terms(given: Mapping[str, Any]) -> dict[str, Any]:
    """Flags as the fields of a workload; only those that were given."""
    from dray.cli.workloads.files import read_share

    terms = {
        name: given[name] for name in ("title", "width", "priority", "queue") if given.get(name) is not None
    }
    budget = {
        name: given[name] for name in ("gpu_hours", "money", "when_spent") if given.get(name) is not None
    }
    if budget:
        terms["budget"] = budget
    if given.get("deadline") is not None:
        terms |= (
            read_changes({"deadline": given["deadline"]}).spec if given["deadline"] else {"deadline": None}
        )
    if given.get("failures") is not None:
        terms["failures"] = read_share(given["failures"])
        if isinstance(terms["failures"], str):
            raise click.UsageError(f"--failures {given['failures']!r} is no share: write 5% or 0.05")
    if given.get("labels"):
        terms["labels"] = dict(_label(text) for text in given["labels"])
    if given.get("members"):
        terms["members"] = list(given["members"])
    return terms


def _label(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise click.UsageError(f"--label {text!r} is not KEY=VALUE")
    return name, value


def _tell(session: Session, document: Mapping[str, Any], word: str = "") -> None:
    """What came of a change, in a line; the document with -o json."""
    if session.json:
        session.print_json(document)
        return
    note = document.get("note") or ""
    print(f"{document['id']}: {word or document['state']}{f' ({note})' if note else ''}")


@click.command("create", cls=HubCommand)
@click.argument("what", metavar="FILE.yaml | NAME")
@click.option("--start", is_flag=True, help="Let its tasks start at once; else it is a draft.")
@click.option("--seal", is_flag=True, help="The jobs of the file are all there will be.")
@click.option("--dry-run", is_flag=True, help="Only check it; nothing is made.")
@terms_options
@pass_session
def create(session: Session, what: str, start: bool, seal: bool, dry_run: bool, **flags: Any) -> None:
    """Make a workload, and print its id.

    \b
      dray workload create sweep --width 64 --gpu-hours 1200 --deadline +3d
      dray workload create campaign.yaml --start

    A file is a job file with a head: `workload: NAME`, then `deadline`, `budget`, `width`, `failures`, `distribution`,
    `objective`, `defaults` and `jobs`. The same again makes nothing twice.
    """
    terms, name, jobs = read_terms(flags), what, list[dict[str, Any]]()
    if what.endswith((".yaml", ".yml")):
        from dray.cli.workloads.files import load_workload

        found = load_workload(Path(what), {})
        name, jobs = found.name, found.jobs
        terms = found.terms | terms
    body = {"id": name, **terms, "jobs": jobs, "start": start, "seal": seal}
    made = session.hub.call("POST", "/workloads", {"dry_run": "true"} if dry_run else None, body)
    if session.json:
        session.print_json(made)
        return
    if dry_run:
        say(f"{name}: sound, nothing was made")
        return
    print(made["id"])
    jobs_made = len(made["submitted"])
    if not made["created"]:
        say(f"{name} was there already: it is {made['state']}")
    elif made["state"] == "draft":
        say(f"{name} is a draft with {jobs_made} jobs: dray workload start {name}")


@click.command("add", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@click.argument("files", nargs=-1, required=True, metavar="FILE.yaml...")
@click.option("--seal", is_flag=True, help="They are the last ones.")
@click.option("--key", metavar="TEXT", help="The same key again adds nothing twice.")
@pass_session
def add(session: Session, name: str, files: tuple[str, ...], seal: bool, key: str | None) -> None:
    """Submit the jobs of files to a workload, and print their ids. `dray submit --workload` adds one command."""
    from dray.cli.asks.jobfile import load_jobs
    from dray.cli.workloads.files import is_workload_file, load_workload

    jobs: list[dict[str, Any]] = []
    for file in files:
        path = Path(file)
        jobs += load_workload(path, {}, name).jobs if is_workload_file(path) else load_jobs(path, {})
    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    query = {"seal": "true"} if seal else None
    done = session.hub.call("POST", path_of(name, "/jobs"), query, jobs, headers)
    if session.json:
        session.print_json(done)
        return
    for job in done["jobs"]:
        print(job["id"])


@click.command("ls", cls=HubCommand)
@click.option("-a", "--all", "everything", is_flag=True, help="Also archived ones.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only those in this state.")
@click.option("--user", metavar="NAME", help="Only those of this user.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only those with this label.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many."
)
@pass_session
def ls(
    session: Session,
    everything: bool,
    states: tuple[str, ...],
    user: str | None,
    labels: tuple[str, ...],
    limit: int,
) -> None:
    """List workloads, newest first."""
    query: dict[str, Any] = {"all": "true"} if everything else {}
    query |= {"state": ",".join(states)} if states else {}
    query |= {"user": user} if user else {}
    query |= {"label": list(labels)} if labels else {}
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None and len(found) < limit:
        asked = {**query, "limit": min(1000, limit - len(found)), **({"cursor": cursor} if cursor else {})}
        page = session.hub.get("/workloads", asked)
        found += page["workloads"]
        cursor = page["next_cursor"]
    if session.json:
        session.print_json({"workloads": found, "next_cursor": cursor})
        return
    if not found:
        print("no workloads", file=sys.stderr)
        return
    from dray.cli.workloads.views import draw_workloads

    print(draw_workloads(found))
    if cursor is not None:
        say(f"{len(found)} shown, there are more: -n {2 * limit}")


@click.command("show", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@pass_session
def show(session: Session, name: str) -> None:
    """Show a workload on one screen: state, counts, purse, deadline, verdict."""
    found = session.hub.get(path_of(name))
    if session.json:
        session.print_json(found)
        return
    from dray.cli.workloads.views import draw_workload

    print(draw_workload(found))


def _verb(word: str, about: str) -> Any:
    @click.command(word, cls=HubCommand, help=about)
    @click.argument("name", metavar="WORKLOAD")
    @pass_session
    def act(session: Session, name: str) -> None:
        _tell(session, session.hub.call("POST", path_of(name, f"/{word}")))

    return act


start = _verb("start", "Let the tasks of a workload start; also after a pause.")
seal = _verb("seal", "Take no more jobs: it ends when its last one has.")
archive = _verb("archive", "Put an ended workload away: it is no more in lists, and kept.")


@click.command("pause", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@click.option("--stop", is_flag=True, help="Stop what runs as well; it is queued again.")
@pass_session
def pause(session: Session, name: str, stop: bool) -> None:
    """Start nothing more of a workload, from this moment on. What runs goes on, or is stopped with --stop."""
    _tell(session, session.hub.call("POST", path_of(name, "/pause"), body={"stop": stop}))


@click.command("scale", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@click.argument("width", type=click.IntRange(0), metavar="N")
@pass_session
def scale(session: Session, name: str, width: int) -> None:
    """Run at most N tasks of a workload at once; 0 takes the bound away. What runs already goes on."""
    done = session.hub.call("POST", path_of(name, "/scale"), body={"width": width})
    _tell(session, done, f"width {width}" if width else "no width")


@click.command("spread", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@click.argument("mode", type=click.Choice(["site", "pack", "spread", "capacity", "shares"]))
@click.option("--by", metavar="LABEL", help="Over the values of this worker label.  [default: over workers]")
@click.option(
    "--share", "shares", multiple=True, metavar="VALUE=N", help="With shares: how much of it lies there."
)
@click.option(
    "--max-skew", type=click.IntRange(0), metavar="N", help="So many tasks it may be off.  [default: 1]"
)
@click.option("--required", is_flag=True, help="Wait rather than be off by more.")
@pass_session
def spread(
    session: Session,
    name: str,
    mode: str,
    by: str | None,
    shares: tuple[str, ...],
    max_skew: int | None,
    required: bool,
) -> None:
    """Change how the tasks of a workload lie on the cluster; it holds for what starts from now on."""
    body: dict[str, Any] = {"mode": mode, "required": required, "by": by or ""}
    if shares:
        try:
            body["shares"] = {key: float(value) for key, value in map(_label, shares)}
        except ValueError:
            raise click.UsageError("--share is VALUE=NUMBER, such as lab=0.7") from None
    if max_skew is not None:
        body["max_skew"] = max_skew
    _tell(session, session.hub.call("POST", path_of(name, "/spread"), body=body), mode)


@click.command("set", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@terms_options
@pass_session
def set_workload(session: Session, name: str, **flags: Any) -> None:
    """Change what is said of a workload. Its jobs that wait and said nothing of their own follow."""
    changes = read_terms(flags)
    if not changes:
        raise click.UsageError("nothing is to be changed: give at least one flag")
    _tell(session, session.hub.call("PATCH", path_of(name), body=changes), "changed")


@click.command("attach", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--detach", is_flag=True, help="Take them out instead.")
@pass_session
def attach(session: Session, name: str, jobs: tuple[str, ...], detach: bool) -> int:
    """Put jobs that are there already into a workload, or take them out."""
    done = session.hub.call(
        "POST", path_of(name, "/attach"), body={"detach" if detach else "attach": list(jobs)}
    )
    if session.json:
        session.print_json(done)
    else:
        print(f"{done['changed']} of {len(jobs)} jobs {'taken out of' if detach else 'put into'} {name}")
        for job, why in done["unchanged"].items():
            say(f"{job}: {why}")
    return 1 if done["unchanged"] else 0


@click.command("wait", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@click.option("--timeout", metavar="TIME", help="Give up after so long, and exit with 124; it goes on.")
@pass_session
def wait(session: Session, name: str, timeout: str | None) -> int:
    """Wait until a workload has ended: it is sealed and its last task has ended. Exits 0 where it succeeded."""
    import time

    from dray.core.model.units import parse_seconds

    until = None if timeout is None else time.monotonic() + parse_seconds(timeout)
    try:
        while True:
            left = _POLL_S if until is None else max(0.0, min(_POLL_S, until - time.monotonic()))
            found = session.hub.get(path_of(name), {"wait_s": left} if left else {}, extra_s=left)
            if found["ended_at"] or (until is not None and time.monotonic() >= until):
                break
    except KeyboardInterrupt:
        say(f"no longer waiting: {name} goes on")
        return INTERRUPTED
    if session.json:
        session.print_json(found)
    if not found["ended_at"]:
        sealed = "" if found["sealed"] else f" (it is not sealed: dray workload seal {name})"
        say(f"{name} has not ended after {timeout}: it is {found['state']}{sealed}")
        return TIME_LIMIT
    if not session.json:
        print(f"{name}: {found['state']}")
    return 0 if found["state"] in ("succeeded", "archived") else 1


@click.command("cancel", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@click.option("--grace", metavar="TIME", help="How long what runs has to end.  [default: that of its tier]")
@pass_session
def cancel(session: Session, name: str, grace: str | None) -> None:
    """Stop all of a workload: what waits never starts, what runs is asked to end."""
    from dray.core.model.units import parse_seconds

    body = {} if grace is None else {"grace_s": parse_seconds(grace)}
    _tell(session, session.hub.call("POST", path_of(name, "/cancel"), body=body))


@click.command("rm", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@pass_session
def rm(session: Session, name: str) -> None:
    """Forget a workload that has ended. Its jobs stay as long as other jobs do."""
    session.hub.call("POST", path_of(name, "/archive"))
    done = session.hub.call("DELETE", path_of(name))
    if session.json:
        session.print_json(done)
    else:
        print(f"{name}: removed")


@click.command("why", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@pass_session
def why(session: Session, name: str) -> None:
    """Say what keeps the rest of a workload waiting, the largest part first. `dray why JOB` says it of one job."""
    found = session.hub.get(path_of(name, "/why"))
    if session.json:
        session.print_json(found)
        return
    health = session.hub.get(path_of(name, "/health"))
    print(f"{name}: {health['verdict']}, {found['summary']}")
    groups = [f"{one['tasks']:,} tasks, as {one['first']}: {one['reason']}" for one in found["groups"]]
    for line in (*health["reasons"], *groups):
        print(f"  - {line}")


@click.command("forecast", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@pass_session
def forecast(session: Session, name: str) -> None:
    """Say when a workload ends if as much of it goes side by side as now, and whether it meets its deadline."""
    found = session.hub.get(path_of(name, "/forecast"))
    if session.json:
        session.print_json(found)
        return
    from dray.cli.base.render import local_time, short_span

    if not found["left"]:
        print(f"{name}: nothing is left to be done")
        return
    if found["p50_s"] is None:
        print(f"{name}: {found['left']:,} tasks are left, and nothing tells how long they take")
        return
    print(
        f"{name}: {found['left']:,} tasks are left, {found['side_by_side']} at once: ends in "
        f"~{short_span(found['p50_s'])} (p90 {short_span(found['p90_s'])}), about {local_time(found['ends_p50'])}"
    )
    if found["meets_deadline"] is not None:
        print(
            f"{found['meets_deadline']:.0%} of the forecasts meet the deadline, {local_time(found['deadline'])}"
        )


@click.command("results", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@click.option(
    "--after", metavar="ID", help="Only what ended behind this one: the last line of stderr says it."
)
@click.option("-f", "--follow", is_flag=True, help="Go on until it has ended.")
@pass_session
def results(session: Session, name: str, after: str | None, follow: bool) -> int:
    """Print what ended of a workload, each task once, in the order in which that was recorded."""
    position = after or ""
    found: dict[str, Any] = {"results": [], "done": False}
    try:
        while True:
            wait_s = _POLL_S if follow else 0.0
            query = {"after": position, "wait_s": wait_s or None}
            found = session.hub.get(
                path_of(name, "/results"), {k: v for k, v in query.items() if v}, extra_s=wait_s
            )
            position = found["next"]
            for one in found["results"]:
                _print_result(session, one)
            if (found["done"] and not found["results"]) or not (follow or found["results"]):
                break
    except KeyboardInterrupt:
        say(f"go on with --after {position}")
        return INTERRUPTED
    if not session.json:
        say(f"go on with --after {position}")
    return 0


def _print_result(session: Session, one: Mapping[str, Any]) -> None:
    if session.json:
        session.print_json(one)
    elif one["task"]:
        code = "" if one["exit_code"] is None else f" (exit {one['exit_code']})"
        print(f"{one['task']} {one['state']}{code}", flush=True)
    else:
        counts = ", ".join(f"{count} {word}" for word, count in one["calls"].items())
        print(f"{one['job']} {counts}", flush=True)


@click.command("where", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@click.option("--by", metavar="LABEL", help="By the values of this worker label.")
@pass_session
def where(session: Session, name: str, by: str | None) -> None:
    """Show where the tasks of a workload run, against where they should."""
    found = session.hub.get(path_of(name, "/distribution"), {"by": by} if by else {})
    if session.json:
        session.print_json(found)
        return
    from dray.cli.workloads.views import draw_parts

    print(draw_parts(found))


@click.command("retry", cls=HubCommand)
@click.argument("name", metavar="WORKLOAD")
@pass_session
def retry(session: Session, name: str) -> None:
    """Submit again what failed of a workload, each task once, also where it is sealed or has ended."""
    done = session.hub.call("POST", path_of(name, "/retry"))
    if session.json:
        session.print_json(done)
        return
    print(f"{name}: {done['tasks']:,} tasks run again, as {len(done['jobs'])} jobs")
    for job, reason in done["left_out"].items():
        say(f"{job}: {reason}")
