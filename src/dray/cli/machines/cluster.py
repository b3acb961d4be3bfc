"""Commands about workers, tokens and the hub itself."""

from __future__ import annotations

import sys
from typing import Any

import click

from dray.cli.base.completion import complete_worker
from dray.cli.base.hub import HubRefusal, worker_path
from dray.cli.base.invocation import HubCommand, LazyGroup, Session, pass_session
from dray.client.reach.discovery import read_hub_file
from dray.errors import DrayError, HubUnavailable, InvalidInput, SharedAccount

_HERE = "dray.cli.machines.cluster"
_DAEMONS = "dray.cli.machines.up_and_down"
_OWN = "dray.cli.machines.own_service"
SCOPES = ("admin", "submit", "read", "worker", "join")


@click.group(
    "worker",
    cls=LazyGroup,
    table={
        "start": (f"{_DAEMONS}:worker_start", "Run an agent: make this machine a worker."),
        "install": (f"{_OWN}:worker_install", "Make an agent a service of this host."),
        "uninstall": (f"{_OWN}:worker_uninstall", "Remove that service."),
        "status": (f"{_OWN}:worker_status", "Say whether an agent is a service of this host, and runs."),
        "ls": (f"{_HERE}:worker_ls", "List workers."),
        "show": (f"{_HERE}:worker_show", "Show a worker, its cards and what runs there."),
        "drain": (f"{_HERE}:worker_drain", "Give a worker no new work; what runs there goes on."),
        "resume": (f"{_HERE}:worker_resume", "Give a drained worker work again."),
        "label": (f"{_HERE}:worker_label", "Give a worker labels that jobs can ask for."),
        "rm": (f"{_HERE}:worker_rm", "Forget a worker that is gone for good."),
        "detect": (f"{_DAEMONS}:worker_detect", "Show what an agent would offer from this machine."),
    },
    elsewhere={"cordon": "drain", "uncordon": "resume", "undrain": "resume", "remove": "rm", "delete": "rm"},
)
def worker() -> None:
    """Start, list and show workers; drain, label and remove them."""


@click.command("ls", cls=HubCommand)
@click.option("--backend", metavar="NAME", help="Only workers with this backend.")
@click.option("--all", "everything", is_flag=True, help="Also those that have been away for more than a day.")
@pass_session
def worker_ls(session: Session, backend: str | None, everything: bool) -> None:
    """List workers; those that have been away for more than a day are left out."""
    answer = session.hub.get("/workers", {"backend": backend, "all": "true" if everything else None})
    if session.json:
        session.print_json(answer)
        return
    workers = answer.get("workers") or []
    stale = answer.get("stale") or 0
    if not workers and not stale:
        print("no workers: start one with `dray worker start`", file=sys.stderr)
        return
    from dray.cli.machines.views import draw_workers

    if workers:
        print(draw_workers(workers))
    if stale:
        print(
            f"{stale} not listed: away for more than a day (`dray worker ls --all`, `dray worker rm`)",
            file=sys.stderr,
        )


@click.command("show", cls=HubCommand)
@click.argument("name", shell_complete=complete_worker)
@pass_session
def worker_show(session: Session, name: str) -> None:
    """Show a worker, its cards and what runs there."""
    _print_worker(session, session.hub.get(worker_path(name)))


def _print_worker(session: Session, document: dict[str, Any]) -> None:
    if session.json:
        session.print_json(document)
        return
    from dray.cli.machines.views import draw_worker

    print(draw_worker(document))


@click.command("drain", cls=HubCommand)
@click.argument("names", nargs=-1, required=True, shell_complete=complete_worker)
@click.option("--reason", metavar="TEXT", help="Why; `worker ls` and `why` tell it.")
@click.option(
    "--until",
    metavar="TIME",
    help="Give it work again by itself then: a span such as 2h, or a moment such as 2030-01-31T18:00:00Z.",
)
@click.option("--stop", is_flag=True, help="Have what runs there stopped and queued again.")
@click.option(
    "--ends",
    metavar="TIME",
    help="Their machines are taken away then (a spot notice): what runs there is stopped in time to save.",
)
@click.option(
    "--move", is_flag=True, help="Have what runs there moved elsewhere, each as there is room for it."
)
@click.option("--dry-run", is_flag=True, help="Only say what that would do.")
@pass_session
def worker_drain(
    session: Session,
    names: tuple[str, ...],
    reason: str | None,
    until: str | None,
    stop: bool,
    ends: str | None,
    move: bool,
    dry_run: bool,
) -> None:
    """Give workers no new work; what runs there goes on, unless --stop or --move. Slurm's drain, Kubernetes' cordon.

    With --move each task is asked to stop once its place elsewhere is kept, and starts again there from what it has
    saved; gangs go whole, services start a replica elsewhere first. `dray move ls` tells how far each is.
    """
    if stop and move:
        raise click.UsageError(
            "what runs there is either stopped and queued again or moved: give one of --stop and --move"
        )
    body = {"reason": reason or "", "until": until or ""} | ({"stop": True} if stop else {})
    body |= {"ends": ends} if ends else {}
    body |= {"move": True} if move else {}
    _change_workers(session, names, "drain?dry_run=1" if dry_run else "drain", body)


@click.command("resume", cls=HubCommand)
@click.argument("names", nargs=-1, required=True, shell_complete=complete_worker)
@pass_session
def worker_resume(session: Session, names: tuple[str, ...]) -> None:
    """Give drained workers work again."""
    _change_workers(session, names, "resume", {})


@click.command("label", cls=HubCommand)
@click.argument("name", shell_complete=complete_worker)
@click.argument("labels", nargs=-1, required=True, metavar="K=V|K-...")
@pass_session
def worker_label(session: Session, name: str, labels: tuple[str, ...]) -> None:
    """Give a worker labels, which jobs ask for with --require; K- takes a given one back.

    They come before those that the machine has by itself, and stay when its agent is started again.
    """
    wanted: dict[str, str | None] = {}
    for text in labels:
        key, mark, value = text.partition("=")
        if not mark and not key.endswith("-"):
            raise InvalidInput(f"{text!r} is not a label: write K=V to give one, K- to take it back")
        wanted[key if mark else key[:-1]] = value if mark else None
    document = session.hub.call("PATCH", worker_path(name), body={"labels": wanted})
    if session.json:
        session.print_json(document)
        return
    from dray.cli.machines.views import tell_labels

    print(f"{document.get('id')}: {tell_labels(document)}")


@click.command("rm", cls=HubCommand)
@click.argument("names", nargs=-1, required=True, shell_complete=complete_worker)
@click.option("--force", is_flag=True, help="Give up what it may still run: the machine must be off.")
@pass_session
def worker_rm(session: Session, names: tuple[str, ...], force: bool) -> None:
    """Forget workers that are gone for good; one that is connected must be stopped first."""
    query = {"force": "true"} if force else None
    removed = [session.hub.call("DELETE", worker_path(name), query) for name in names]
    if session.json:
        session.print_json(removed[0] if len(removed) == 1 else {"workers": removed})
        return
    for document in removed:
        token = document.get("token")
        back = f"; it may join again until its token ends (`dray token revoke {token}`)" if token else ""
        print(f"{document.get('id')}: removed{back}")


def _change_workers(session: Session, names: tuple[str, ...], verb: str, body: dict[str, Any]) -> None:
    documents = [session.hub.call("POST", worker_path(name, f"/{verb}"), body=body) for name in names]
    if session.json:
        session.print_json(documents[0] if len(documents) == 1 else {"workers": documents})
        return
    for document in documents:
        if preview := document.get("preview"):
            print(f"{document.get('id')}: {preview['sentence']}")
            continue
        active = document.get("active_jobs") or 0
        rest = (
            f", {active} task{'s' if active != 1 else ''} still running" if verb == "drain" and active else ""
        )
        print(
            f"{document.get('id')}: {'draining' if document.get('draining') else document.get('status')}{rest}"
        )


@click.group(
    "token",
    cls=LazyGroup,
    table={
        "create": (f"{_HERE}:token_create", "Make a token; it is shown this once."),
        "ls": (f"{_HERE}:token_ls", "List tokens."),
        "revoke": (f"{_HERE}:token_revoke", "Make a token invalid."),
    },
)
def token() -> None:
    """Create, list and revoke tokens (needs admin)."""


@click.command("create", cls=HubCommand)
@click.option("--user", metavar="NAME", help="Whose token it is.  [default: yours]")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(SCOPES), help="What it may do; may be repeated."
)
@click.option(
    "--expires", metavar="TIME", help="Valid for this long, such as 30d.  [default: for ever; join: 24h]"
)
@click.option(
    "--worker", metavar="ID", help="For this worker alone; the token that it had so far is revoked."
)
@click.option(
    "--shared-account",
    is_flag=True,
    help="Yes to workers that run tasks of several users in one account, where they can read and stop each other's.",
)
@pass_session
def token_create(
    session: Session,
    user: str | None,
    scopes: tuple[str, ...],
    expires: str | None,
    worker: str | None,
    shared_account: bool,
) -> None:
    """Make a token and print it: the hub keeps only its hash and cannot show it again.

    For the scope join it prints the line that makes another machine a worker; each one that it is pasted into gets a
    token of its own.
    """
    from dray.core.model.units import parse_seconds

    body: dict[str, Any] = {"scopes": list(scopes) or (["worker"] if worker else ["submit", "read"])}
    if worker:
        body["worker"] = worker
    if user:
        body["user"] = user
    if expires:
        body["expires_s"] = parse_seconds(expires)
    if shared_account:
        body["shared_account"] = True
    try:
        document = session.hub.call("POST", "/tokens", body=body)
    except HubRefusal as fault:
        asked = sys.stdin.isatty() and sys.stderr.isatty() and not session.json
        if fault.code != SharedAccount.code or not asked:
            raise
        click.confirm(f"{fault.message}\nMake it?", abort=True, err=True)
        document = session.hub.call("POST", "/tokens", body={**body, "shared_account": True})
    if session.json:
        session.print_json(document)
        return
    print(document.get("join") or document.get("token", ""))
    print(
        f"token {document.get('id')} for {document.get('user')}, scopes {', '.join(document.get('scopes') or [])}"
        f"{until(document)}; it is not shown again",
        file=sys.stderr,
    )


def until(document: dict[str, Any]) -> str:
    from dray.cli.base.render import local_time

    at = local_time(document.get("expires_at"))
    return f", valid until {at}" if at else ""


@click.command("ls", cls=HubCommand)
@pass_session
def token_ls(session: Session) -> None:
    """List tokens, without the tokens themselves."""
    answer = session.hub.get("/tokens")
    if session.json:
        session.print_json(answer)
        return
    from dray.cli.machines.views import draw_tokens

    print(draw_tokens(answer.get("tokens") or []))


@click.command("revoke", cls=HubCommand)
@click.argument("token_id", metavar="ID")
@pass_session
def token_revoke(session: Session, token_id: str) -> None:
    """Make a token invalid from now on."""
    from urllib.parse import quote

    document = session.hub.call("DELETE", f"/tokens/{quote(token_id, safe='')}")
    if session.json:
        session.print_json(document)
    else:
        print(f"token {document.get('id', token_id)} is revoked")


@click.command("doctor", cls=HubCommand)
@click.option("--eta", is_flag=True, help="Show how good start-time estimates were instead.")
@pass_session
def doctor(session: Session, eta: bool) -> int:
    """Check this machine's way to the hub, then the hub's own invariants (needs admin).

    Where no hub answers, the files in its home are looked at instead.
    """
    if eta:
        return _judge_estimates(session)
    local: list[dict[str, Any]] = []
    try:
        if not session.json:
            local = _check_locally(session)
        answer = session.hub.get("/doctor")
    except HubUnavailable as away:
        if session.config.hub:
            raise
        from dray.config import load_hub
        from dray.hub.examination import examine_home

        local = [{"name": "hub", "ok": False, "detail": away.message}]
        answer = examine_home(session.home, load_hub(session.home, {}).store)
    answer = {**answer, "ok": bool(answer.get("ok")) and all(check["ok"] for check in local)}
    answer["checks"] = [*local, *(answer.get("checks") or [])]
    if session.json:
        session.print_json(answer)
    else:
        from dray.cli.machines.views import draw_checks

        print(draw_checks(answer))
    return 0 if answer["ok"] else 1


def _judge_estimates(session: Session) -> int:
    answer = session.hub.get("/estimates")
    if session.json:
        session.print_json(answer)
    else:
        from dray.cli.jobs.reason_views import draw_estimates

        print(draw_estimates(answer))
    return 0


def _check_locally(session: Session) -> list[dict[str, Any]]:
    from dray.client.reach.discovery import find_target

    checks = []
    target = find_target(session.config)
    source = "given by hand" if session.config.hub else str(session.home / "hub.json")
    checks.append({"name": "address", "ok": True, "detail": f"{target.url} ({source})"})
    path = session.home / "token"
    if path.exists() and not session.config.token:
        open_to_others = path.stat().st_mode & 0o077
        detail = f"{path} may be read by others: chmod 600 it" if open_to_others else f"{path}, mode 0600"
        checks.append({"name": "token file", "ok": not open_to_others, "detail": detail})
    return checks


@click.command("version", cls=HubCommand)
@click.option("--check", is_flag=True, help="Hold the hub and the agents of its workers against each other.")
@pass_session
def version(session: Session, check: bool) -> int:
    """Print the version of dray, and of the hub if one answers.

    With --check also those of its workers' agents; exit code 1 where the hub is older than one of them, or one of them
    is more than one minor version behind it.
    """
    from dray import __version__

    if check:
        return _check_versions(session, __version__)

    hub: dict[str, Any] | None = None
    try:
        if session.config.hub or read_hub_file(session.home):
            hub = session.hub.get("/hub")
    except DrayError as error:
        print(f"dray: {error.message} ({error.code})", file=sys.stderr)
    if session.json:
        session.print_json({"version": __version__, "hub": hub})
        return 0
    print(f"dray {__version__}")
    if hub is not None:
        print(f"hub  {hub.get('version')} (epoch {hub.get('epoch')}, since {hub.get('started_at')})")
    return 0


def _check_versions(session: Session, own: str) -> int:
    hub = session.hub.get("/hub")
    workers = session.hub.get("/workers").get("workers") or []
    found: dict[str, list[str]] = {}
    for one in workers:
        if one.get("status") != "offline":
            found.setdefault(str(one.get("version") or ""), []).append(str(one.get("id")))
    theirs = str(hub.get("version"))
    agents = [
        {"version": name, "workers": len(ids), "first": min(ids), "note": judge_agent(theirs, name)}
        for name, ids in sorted(found.items())
    ]
    is_ok = not any(one["note"] for one in agents)
    if session.json:
        session.print_json({"version": own, "hub": theirs, "agents": agents, "ok": is_ok})
        return 0 if is_ok else 1
    print(f"dray {own}\nhub  {theirs}")
    for one in agents:
        note = f": {one['note']} ({one['first']})" if one["note"] else ""
        print(f"agents {one['version'] or 'that do not say'}: {one['workers']}{note}")
    return 0 if is_ok else 1


def judge_agent(hub: str, agent: str) -> str:
    """What is wrong with an agent of a version at a hub of another; nothing where the hub serves it."""
    theirs, own = _minor(agent), _minor(hub)
    if theirs is None or own is None:
        return "" if agent else "older than those that say their version: upgrade them"
    if theirs > own:
        return f"newer than the hub ({hub}): upgrade the hub first"
    if theirs < (own[0], own[1] - 1):
        return "more than one minor version behind the hub: upgrade them"
    return ""


def _minor(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])
