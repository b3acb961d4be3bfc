"""The commands `serve` and those of `service`: ls, show, scale, update, share, restart, stop and more. A service goes
by its name or its id.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import click

from dray.cli.asks.flags import job_options, template_options
from dray.cli.asks.submission import SubmitCommand, prepare, read_update, send
from dray.cli.base.invocation import HubCommand, LazyGroup, Session, pass_session
from dray.cli.base.outage import say
from dray.cli.follow.commands import logs
from dray.client.reach.discovery import find_target
from dray.core.model.specs.asks import spell_users

_HERE = "dray.cli.services.commands"


@click.command("serve", cls=SubmitCommand)
@job_options
@template_options
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="FILE.yaml | SCRIPT [ARGS]... | -- COMMAND [ARGS]..."
)
@pass_session
def serve(session: Session, words: tuple[str, ...], **flags: Any) -> None:
    """Start a service: a command that goes on, and is started again whenever it ends. Prints its id.

    \b
      dray serve -J web --replicas 2 -- python -m http.server 8000
      dray serve --template tensorboard -p logdir=runs
      dray service show web
      dray service stop web

    It runs until `dray service stop`, in the slots that workers have for services (`--service-slots`).
    """
    if flags.get("type") == "batch":
        raise click.UsageError("serve starts services: `dray submit` takes batch jobs")
    submission = prepare(click.get_current_context(), words, {**flags, "type": "service"})
    for spec in submission.specs:
        if spec.get("template"):
            _check_template(session, str(spec["template"]))
            # It says itself what it makes.
            del spec["type"]
    jobs = send(session.hub, submission, exists="refuse")
    if session.json:
        session.print_json(jobs[0] if len(jobs) == 1 else {"jobs": jobs})
        return
    for job in jobs:
        print(job.get("id", ""))
        if job.get("reason"):
            say(f"it waits: {job['reason']}")


def _check_template(session: Session, template: str) -> None:
    """Refuse a template that makes something else than a service."""
    name, _, version = template.partition("@")
    query = {"version": version} if version else {}
    found = session.hub.get(f"/templates/{quote(name, safe='')}", query)
    if found["kind"] != "service":
        raise click.UsageError(
            f"template {template} makes a {found['kind']}: `dray submit --template` takes it"
        )


@click.group(
    "service",
    cls=LazyGroup,
    table={
        "ls": (f"{_HERE}:service_ls", "List services."),
        "show": (f"{_HERE}:service_show", "Show a service and each of its replicas."),
        "scale": (f"{_HERE}:service_scale", "Give a service another number of replicas."),
        "update": (
            f"{_HERE}:service_update",
            "Replace the replicas of a service by those of a new revision.",
        ),
        "rollback": (f"{_HERE}:service_rollback", "Go back to an earlier revision of a service."),
        "history": (f"{_HERE}:service_history", "List the revisions of a service, and what came of each."),
        "restart": (f"{_HERE}:service_restart", "Restart all replicas of a service, or one."),
        "share": (f"{_HERE}:service_share", "Let other users reach a service."),
        "unshare": (f"{_HERE}:service_unshare", "Let users reach a service no longer."),
        "stop": (f"{_HERE}:service_stop", "Stop services."),
        "logs": (f"{_HERE}:service_logs", "Print the output of a service, or of one replica."),
        "open": (f"{_HERE}:service_open", "Print a link by which a browser gets in to a service."),
        "endpoints": (f"{_HERE}:service_endpoints", "List where the ready replicas of a service answer."),
    },
    elsewhere={"list": "ls", "rm": "stop", "delete": "stop"},
)
def service() -> None:
    """List and show services; scale, update, restart and stop them. `dray serve` starts one."""


def service_path(name: str, rest: str = "") -> str:
    service_name, index = split_replica(name)
    if index is not None:
        raise click.UsageError(f"{name} is one replica, and this takes a service: write {service_name}")
    return f"/services/{quote(name, safe='')}{rest}"


def split_replica(name: str) -> tuple[str, int | None]:
    """A service, and the replica that `NAME/INDEX` names."""
    service_name, slash, index = name.rpartition("/")
    return (service_name, int(index)) if slash and index.isdigit() else (name, None)


@click.command("ls", cls=HubCommand)
@pass_session
def service_ls(session: Session) -> None:
    """List the services that run, the oldest first."""
    answer = session.hub.get("/services")
    if session.json:
        session.print_json(answer)
    elif not answer["services"]:
        print("no services: start one with `dray serve -- COMMAND`", file=sys.stderr)
    else:
        from dray.cli.services.views import draw_services

        print(draw_services(answer["services"]))


@click.command("show", cls=HubCommand)
@click.argument("name")
@pass_session
def service_show(session: Session, name: str) -> None:
    """Show a service: each replica, how it is, and why one is not ready."""
    _print_service(session, session.hub.get(service_path(name)))


def _print_service(session: Session, document: Mapping[str, Any]) -> None:
    if session.json:
        session.print_json(document)
        return
    from dray.cli.services.views import draw_service

    print(draw_service(document))


def _told(session: Session, document: Mapping[str, Any], words: str) -> None:
    if session.json:
        session.print_json(document)
    else:
        print(f"{document['name'] or document['id']}: {document.get('note') or words}")


@click.command("scale", cls=HubCommand)
@click.argument("name")
@click.argument("replicas", type=click.IntRange(0))
@pass_session
def service_scale(session: Session, name: str, replicas: int) -> None:
    """Give a service another number of replicas; of too many, those that are not ready go first."""
    document = session.hub.call("POST", service_path(name, "/scale"), body={"replicas": replicas})
    _told(
        session, document, f"{replicas} replica{'' if replicas == 1 else 's'}, {document['ready']} ready now"
    )


@click.command("restart", cls=HubCommand)
@click.argument("name", metavar="NAME[/INDEX]")
@click.option("--at-once", is_flag=True, help="Stop all replicas, then start them again.")
@pass_session
def service_restart(session: Session, name: str, at_once: bool) -> None:
    """Start the replicas of a service anew, each stopped once another is ready; or one (NAME/INDEX), at once.

    Of a replica of several nodes all members start again, whichever is named.
    """
    service_name, index = split_replica(name)
    asked = {"replica": index, "at_once": at_once}
    document = session.hub.call("POST", service_path(service_name, "/restart"), body=asked)
    words = "restarting"
    if index is None and not at_once:
        words = "restarting, one replica after the other"
    elif index is not None and document["nodes"] > 1:
        words = f"restarting group {index // document['nodes']}, which {name} is of"
    _told(session, document, words)


@click.command("update", cls=HubCommand)
@job_options
@click.argument("service_name", metavar="NAME")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[FILE.yaml | -- COMMAND [ARGS]...]")
@click.option(
    "-f", "--file", "file", type=click.Path(dir_okay=False), metavar="FILE", help="A job file: all of it."
)
@pass_session
def service_update(
    session: Session, service_name: str, words: tuple[str, ...], file: str | None, **flags: Any
) -> None:
    """Let a service run by a new revision of its spec. Replicas are replaced one by one, start then stop.

    \b
      dray service update web -- python server.py --model new
      dray service update web --env LEVEL=2 --mem 8G
      dray service update web web.yaml

    Flags change what they name, variables one by one; a job file says all of it. A revision that does not get ready
    is rolled back by itself. Another number of replicas alone is a change of size.
    """
    body = read_update(
        click.get_current_context(), session.hub, service_path(service_name), words, file, flags
    )
    document = session.hub.call("POST", service_path(service_name, "/update"), body=body)
    begun = any(one["current"] and not one["outcome"] for one in document["revisions"])
    size = f"{document['replicas']} replicas, {document['ready']} ready now"
    _told(session, document, f"updating to revision {document['revision']}" if begun else size)


@click.command("rollback", cls=HubCommand)
@click.argument("name")
@click.option(
    "--to", type=click.IntRange(1), metavar="N", help="Revision to go back to.  [default: the last whole one]"
)
@pass_session
def service_rollback(session: Session, name: str, to: int | None) -> None:
    """Give the update of a service up; or, where none is under way, go back to an earlier revision."""
    document = session.hub.call("POST", service_path(name, "/rollback"), body={"to": to})
    _told(session, document, "rolling back")


@click.command("history", cls=HubCommand)
@click.argument("name")
@pass_session
def service_history(session: Session, name: str) -> None:
    """List the last ten revisions of a service: how each came, and what came of it."""
    document = session.hub.get(service_path(name))
    if session.json:
        session.print_json({"revisions": document["revisions"]})
        return
    from dray.cli.services.views import draw_revisions

    print(draw_revisions(document["revisions"]))


@click.command("share", cls=HubCommand)
@click.argument("name")
@click.argument("users", nargs=-1, required=True, metavar="USER...|everybody")
@pass_session
def service_share(session: Session, name: str, users: tuple[str, ...]) -> None:
    """Let other users reach a service: forward to it, open it, send it requests. They can change nothing about it.

    They find it as NAME@OWNER, or by its id.
    """
    _change_share(session, name, {"add": spell_users(users)})


@click.command("unshare", cls=HubCommand)
@click.argument("name")
@click.argument("users", nargs=-1, metavar="[USER...|everybody]")
@pass_session
def service_unshare(session: Session, name: str, users: tuple[str, ...]) -> None:
    """Let users reach a service no longer, or nobody else where none is named. Their connections to it end."""
    removed = spell_users(users) or session.hub.get(service_path(name))["share"]
    _change_share(session, name, {"remove": removed})


def _change_share(session: Session, name: str, change: Mapping[str, Any]) -> None:
    document = session.hub.call("POST", service_path(name, "/share"), body=change)
    from dray.cli.jobs.job_views import tell_share

    _told(session, document, f"shared with {tell_share(document['share']) or 'nobody'}")


@click.command("stop", cls=HubCommand)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--grace", "grace_s", type=click.FloatRange(0), metavar="SECONDS", help="Between TERM and KILL."
)
@pass_session
def service_stop(session: Session, names: tuple[str, ...], grace_s: float | None) -> None:
    """Stop services: every process of theirs ends."""
    stopped = [
        session.hub.call(
            "POST", service_path(name, "/stop"), body={"grace_s": grace_s} if grace_s is not None else {}
        )
        for name in names
    ]
    if session.json:
        session.print_json(stopped[0] if len(stopped) == 1 else {"services": stopped})
        return
    for document in stopped:
        _told(session, document, "stopped")


@click.command("logs", cls=HubCommand)
@click.argument("name", metavar="NAME[/INDEX]")
@click.option("-f", "--follow", is_flag=True, help="Go on until the service is stopped.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@pass_session
def service_logs(session: Session, name: str, **options: Any) -> int:
    """Print the output of a service, each line under the index of its replica, or of one replica (NAME/INDEX)."""
    service_name, index = split_replica(name)
    job_id = session.hub.get(service_path(service_name))["id"]
    wanted = job_id if index is None else f"{job_id}/{index}"
    asked = {"attempt": None, "stream": None, "failed": False, **options}
    code: int = click.get_current_context().invoke(logs, job=wanted, **asked)
    return code


@click.command("endpoints", cls=HubCommand)
@click.argument("name")
@pass_session
def service_endpoints(session: Session, name: str) -> None:
    """List the ready replicas of a service: worker, address and ports."""
    document = session.hub.get(service_path(name, "/endpoints"))
    if session.json:
        session.print_json(document)
    elif not document["endpoints"]:
        print(f"no replica of {name} is ready: `dray service show {name}` tells why", file=sys.stderr)
    else:
        from dray.cli.services.views import draw_endpoints

        print(draw_endpoints(document["endpoints"]))


@click.command("open", cls=HubCommand)
@click.argument("name")
@pass_session
def service_open(session: Session, name: str) -> None:
    """Print a link by which a browser gets in to a service, through the hub. It is good once, for five minutes.

    The browser then has a cookie for that service alone, for twelve hours.
    """
    document = session.hub.call("POST", service_path(name, "/link"))
    parts = urlsplit(find_target(session.config).url)
    port = f":{parts.port}" if parts.port else ""
    host = f"{document['host']}{port}" if document["host"] else parts.netloc
    url = f"{parts.scheme}://{host}{document['path']}"
    if session.json:
        session.print_json({**document, "url": url})
    else:
        print(url)
