"""Commands that start and stop processes: up, down, hub, worker start, worker detect.

`up` starts hub and agent at the same moment: the agent asks for the hub until it is there, which is quicker than
starting them in turn. Stopping either does not stop tasks, and the messages say so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from dray.cli.base.hub import Hub
from dray.cli.base.invocation import AgentCommand, HomeCommand, HubCommand, HubGroup, Session, pass_session
from dray.cli.base.outage import say
from dray.cli.jobs.jobs import request_cancel
from dray.cli.machines.daemons import (
    DaemonFailed,
    end_child,
    log_path,
    make_folder,
    read_tail,
    start_daemon,
    stop_daemon,
    wait_for_hub,
)
from dray.cli.machines.views import tell_cards
from dray.client.reach.discovery import read_hub_file
from dray.config import PAIR_SERVICE_SLOTS, ClientConfig, default_worker_name, load_agent, load_hub
from dray.errors import DrayError, InvalidInput
from dray.presence import Holder, find_holder

WORKER_S = 1.5
CANCEL_S = 900.0
_POLL_S = 0.02
Process = subprocess.Popen[bytes]


_HUBS = "dray.cli.machines.hubs"
STORE_HELP = (
    "Database that keeps the store, postgres://USER@HOST/NAME; its password belongs in DRAY_STORE, in config.toml or "
    "in the file that PGPASSFILE names.  [default: a file in the home]"
)

FILES_HELP = (
    "Folder that all hubs of the site mount, for output and large values.  "
    "[default: the database of the store, else the home]"
)


REDIS_HELP = (
    "Redis to write a live view to, for other programs: redis://HOST/DB, or rediss:// with TLS; its password belongs "
    "in DRAY_REDIS or in config.toml.  [default: none]"
)


def refuse_password(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Every user of the machine can read the words of a command."""
    from dray.hub.addresses import read_address

    try:
        refused = bool(value) and read_address(value or "").has_password
    except ValueError:
        # Whoever uses it says what is wrong with it.
        refused = False
    if refused:
        name = str(option.name)
        instead = ", or leave it to the file that PGPASSFILE names" if name == "store" else ""
        raise InvalidInput(
            f"--{name}: a password in a command is seen by every user of the machine. Set DRAY_{name.upper()} to the "
            f"whole address, or `{name}` under [hub] in config.toml{instead}"
        )
    return value


@click.group(
    "hub",
    cls=HubGroup,
    invoke_without_command=True,
    table={
        "ls": (f"{_HUBS}:hub_ls", "List the hub that leads and those that stand by."),
        "status": (f"{_HUBS}:hub_status", "Say whether this hub leads or stands by, since when and why."),
        "resign": (f"{_HUBS}:hub_resign", "Hand over to a hub that stands by (needs admin)."),
        "install": ("dray.cli.machines.own_service:hub_install", "Make a hub a service of this host."),
        "uninstall": ("dray.cli.machines.own_service:hub_uninstall", "Remove that service."),
    },
)
@click.option(
    "--host",
    metavar="ADDR",
    help="Address to listen on; beyond this machine needs TLS.  [default: 127.0.0.1]",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes any free one.  [default: 7373]"
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    help="Port to answer gRPC on as well; 0 takes any free one.  [default: none]",
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Certificate, with its chain.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Key of the certificate.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="Further names clients may use for it."
)
@click.option("--store", metavar="URL", callback=refuse_password, help=STORE_HELP)
@click.option("--files", metavar="DIR", type=click.Path(file_okay=False), help=FILES_HELP)
@click.option("--redis", metavar="URL", callback=refuse_password, help=REDIS_HELP)
@click.option("--log-json/--log-text", default=None, help="Form of the log.  [default: json]")
@click.option(
    "--log-file",
    type=click.Path(dir_okay=False),
    help="Write the log, and all that is printed, to this file; it is rotated at 10M.",
)
@click.pass_context
def hub(context: click.Context, /, **flags: Any) -> int:
    """Run a hub in the foreground; it stops cleanly on SIGTERM, and tasks keep running.

    Several hubs on one database (--store) are one site: one leads, the others stand by. The commands below ask them.
    """
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    if context.invoked_subcommand is not None:
        if given:
            context.fail(
                f"--{min(given).replace('_', '-')} is for running a hub: `dray hub` without a command"
            )
        return 0
    session = context.ensure_object(Session)
    config = load_hub(session.home, given)
    from dray.hub.app import run_hub

    return run_hub(config)


@click.command("start", cls=AgentCommand)
@click.option("--name", metavar="ID", help="Name of the worker.  [default: the host's name]")
@click.option("--slots", type=click.IntRange(0), help="Batch tasks at once.  [default: the usable cores]")
@click.option("--service-slots", type=click.IntRange(0), help="Services at once.  [default: 0]")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Label of the worker; may be repeated.")
@click.option(
    "--resource",
    "resources",
    multiple=True,
    metavar="NAME=N",
    help="So many of a thing by name, for jobs that ask for it; may be repeated.",
)
@click.option("--backend", metavar="NAME", help="Offer this backend only: nvidia, metal, vulkan or cpu.")
@click.option(
    "--allow-software-vulkan", is_flag=True, default=None, help="Offer Vulkan devices that are no cards."
)
@click.option(
    "--fake",
    metavar="OFFER",
    help="Pretend to be another machine, to learn or to try things out: gpus=4,type=A100,vram=80G,cpus=64,memory=512G "
    "or a part of it (also backend=NAME). Tasks are real processes here and see no card; the worker's name begins "
    "with fake-.",
)
@click.option(
    "--ends-at",
    metavar="TIME",
    help="When this machine is taken away: a span such as 4h, or a moment such as 2030-01-31T18:00:00Z.  "
    "[default: the end of Slurm's allocation]",
)
@click.option("--count", type=click.IntRange(1), help="With --fake: so many machines of the kind.")
@click.option(
    "--task-user",
    "task_users",
    multiple=True,
    metavar="[USER=]NAME",
    help="Run tasks as this user of the machine, or only those of the dray user USER; may be repeated (needs root).",
)
@click.option(
    "--address",
    metavar="HOST",
    help="Where others reach this machine: members of a gang, users of a service.  [default: found out]",
)
@click.option(
    "--ports",
    metavar="A-B",
    help="Range from which tasks get the ports they ask for.  [default: 20000-29999]",
)
@click.option(
    "--log-file",
    type=click.Path(dir_okay=False),
    help="Write the log, and all that is printed, to this file; it is rotated at 10M.",
)
@pass_session
def worker_start(
    session: Session,
    labels: tuple[str, ...],
    resources: tuple[str, ...],
    task_users: tuple[str, ...],
    **flags: Any,
) -> int:
    """Run an agent in the foreground: this machine becomes a worker of the hub.

    A token is kept in the home and taken out of the process list; `--token -` reads it from stdin, DRAY_WORKER_TOKEN
    and `token` in the table [worker] of config.toml stand for it too.
    """
    given: dict[str, Any] = {name: value for name, value in session.flags.items() if name != "home"}
    given.update({name: value for name, value in flags.items() if value is not None})
    if labels:
        given["labels"] = read_labels(labels)
    if resources:
        given["resources"] = read_amounts(resources)
    if task_users:
        given["task_users"] = read_task_users(task_users)
    if given.get("token") == "-":
        given["token"] = sys.stdin.readline().strip()
    config = load_agent(session.home, given)
    from dray.agent.fake import list_machines

    machines = list_machines(config) if config.fake else [config]
    if given.get("token"):
        hide_token([each.folder / "worker" for each in machines], str(given["token"]))
    from dray.agent.app import run_agent

    return run_agent(config)


def hide_token(folders: Sequence[Path], token: str) -> None:
    """Keep a token out of the process list, which every user of the machine can read: leave it in a file and start
    anew.
    """
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(folder / "token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{token}\n")
    words, kept = sys.argv[1:], []
    while words:
        word = words.pop(0)
        if word == "--token" and words:
            words.pop(0)
        elif not word.startswith("--token="):
            kept.append(word)
    if len(kept) < len(sys.argv) - 1:
        os.execv(sys.executable, [sys.executable, "-P", "-m", "dray.cli.main", *kept])


def read_labels(texts: tuple[str, ...]) -> dict[str, str]:
    """Read `--label K=V` flags."""
    pairs = [text.partition("=") for text in texts]
    for key, mark, value in pairs:
        if not key or not mark:
            raise InvalidInput(f"{key}{mark}{value!r} is not a label: write K=V")
    return {key: value for key, _, value in pairs}


def read_task_users(texts: tuple[str, ...]) -> dict[str, str]:
    """Read `--task-user [USER=]NAME` flags; without a user it is everybody's, `*`."""
    pairs = [text.rpartition("=") for text in texts]
    for user, mark, name in pairs:
        if not name or (mark and not user):
            raise InvalidInput(f"{user + mark + name!r} names no account: write NAME, or USER=NAME")
    return {user or "*": name for user, _, name in pairs}


def read_amounts(texts: tuple[str, ...]) -> dict[str, int]:
    """Read `--resource NAME=N` flags."""
    pairs = [text.partition("=") for text in texts]
    for name, mark, amount in pairs:
        if not name or not (amount.isascii() and amount.isdigit()):
            raise InvalidInput(
                f"{name + mark + amount!r} is not a resource: write NAME=N, N a whole number from 0"
            )
    return {name: int(amount) for name, _, amount in pairs}


@click.command("detect", cls=HubCommand)
@pass_session
def worker_detect(session: Session) -> None:
    """Show what an agent would offer from this machine, and what it could not see."""
    import msgspec

    from dray.agent.detect import detect

    found = detect()
    document: dict[str, Any] = {
        "capability": msgspec.to_builtins(found.capability),
        "devices": msgspec.to_builtins(found.devices),
        "usable_cores": found.usable_cores,
        "labels": dict(found.labels),
        "notes": list(found.notes),
    }
    if session.json:
        session.print_json(document)
        return
    from dray.cli.machines.views import draw_machine

    print(draw_machine(document))


def _up_arguments(flags: dict[str, Any]) -> tuple[list[str], list[str]]:
    hub_flags = [] if flags["port"] is None else ["--port", str(flags["port"])]
    for name in ("store", "files", "redis"):
        hub_flags += [f"--{name}", flags[name]] if flags[name] else []
    agent_flags = [] if flags["slots"] is None else ["--slots", str(flags["slots"])]
    agent_flags += ["--service-slots", str(flags["service_slots"])]
    for name in ("name", "backend"):
        if flags[name]:
            agent_flags += [f"--{name}", flags[name]]
    for label in flags["labels"]:
        agent_flags += ["--label", label]
    return hub_flags, agent_flags


@click.command("up", cls=HomeCommand)
@click.option(
    "-d", "--detach", is_flag=True, help="Leave hub and worker in the background; `dray down` stops them."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of the hub; 0 takes any free one.  [default: 7373]"
)
@click.option("--slots", type=click.IntRange(0), help="Tasks at once.  [default: the usable cores]")
@click.option(
    "--service-slots",
    type=click.IntRange(0),
    default=PAIR_SERVICE_SLOTS,
    show_default=True,
    help="Services at once.",
)
@click.option("--name", metavar="ID", help="Name of the worker.  [default: the host's name]")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Label of the worker; may be repeated.")
@click.option("--backend", metavar="NAME", help="Offer this backend only: nvidia, metal, vulkan or cpu.")
@click.option("--store", metavar="URL", callback=refuse_password, help=STORE_HELP)
@click.option("--files", metavar="DIR", type=click.Path(file_okay=False), help=FILES_HELP)
@click.option("--redis", metavar="URL", callback=refuse_password, help=REDIS_HELP)
@pass_session
def up(session: Session, detach: bool, **flags: Any) -> int:
    """Start a hub and a worker on this machine; in the foreground with a live view, Ctrl-C stops both."""
    home = session.home
    load_hub(home, {name: flags[name] for name in ("store", "files", "redis")})
    read_labels(flags["labels"])
    hub_flags, agent_flags = _up_arguments(flags)
    running = find_holder(home, "hub")
    if running is not None and not detach:
        url = read_hub_file(home).get("url")
        raise DaemonFailed(
            f"a hub already runs here: {url} ({running.words}); `dray ps` uses it, `dray down` stops it"
        )
    make_folder(home, home)
    to_file = detach or sys.stderr.isatty()
    hub_process = None if running is not None else start_daemon(home, "hub", hub_flags, to_file)
    # In the background an agent that outlived its hub is left alone too: it comes back to the hub by itself.
    has_agent = (running is not None or detach) and find_holder(home, "agent") is not None
    agent_process = None if has_agent else start_daemon(home, "agent", agent_flags, to_file)
    try:
        note = read_hub_file(home) if hub_process is None else wait_for_hub(home, hub_process)
    except DrayError:
        if agent_process is not None:
            end_child(agent_process)
        raise
    if hub_process is None or detach:
        return _report_up(
            session, note, running is not None, flags["name"] or default_worker_name(), agent_process
        )
    from dray.cli.machines.live_view import watch_over

    assert agent_process is not None  # an agent is left alone only in the background, or beside a hub
    return watch_over(home, str(note.get("url")), hub_process, agent_process)


def _report_up(
    session: Session, note: dict[str, Any], was_running: bool, name: str, agent: Process | None
) -> int:
    """Tell what is there now; an agent that died at once is a failure, though the hub stays."""
    seen = _wait_for_worker(Hub(ClientConfig(home=session.home)), name, agent)
    died = agent is not None and agent.poll() is not None
    if session.json:
        document = {"url": note.get("url"), "home": str(session.home), "hub_pid": note.get("pid")}
        holder = find_holder(session.home, "agent")
        agent_pid = holder.pid if holder is not None else 0
        session.print_json(
            {**document, "agent_pid": agent_pid, "already_running": was_running, "worker": seen}
        )
        return int(died)
    print(
        f"hub     {note.get('url')} (process {note.get('pid')}{', was running already' if was_running else ''})"
    )
    if seen is not None:
        cards = tell_cards(seen)
        batch, services = (seen["slots"][f"{pool}_total"] for pool in ("batch", "service"))
        more = [f"{services} for services"] * bool(services) + [cards] * (cards != "-")
        print(f"worker  {seen['id']}: {', '.join([f'{batch} slots', *more])}")
    elif not died:
        print(f"worker  {name} is still starting: `dray worker ls` tells")
    print(f"logs    {log_path(session.home, 'hub').parent}")
    with contextlib.suppress(DrayError):
        for line in Hub(ClientConfig(home=session.home)).get("/hub").get("shared_accounts") or []:
            print(f"note    {line}")
    if died:
        say(f"the worker ended at once, the hub goes on{read_tail(session.home, 'agent')}")
    return int(died)


def _wait_for_worker(hub: Hub, name: str, agent: Process | None) -> dict[str, Any] | None:
    """The worker of this home once the hub knows it; None if it takes longer than one would like to wait."""
    deadline = time.monotonic() + WORKER_S
    while time.monotonic() < deadline and (agent is None or agent.poll() is None):
        with contextlib.suppress(DrayError):
            for worker in hub.get("/workers").get("workers") or []:
                if worker.get("id") == name and worker.get("status") in ("ready", "busy"):
                    return dict(worker)
        if agent is None:
            return None
        time.sleep(_POLL_S)
    return None


@click.command("down", cls=HomeCommand)
@click.option("--tasks", is_flag=True, help="Cancel what runs first; without it tasks outlive hub and agent.")
@pass_session
def down(session: Session, tasks: bool) -> int:
    """Stop the agent and the hub of this home; tasks go on unless --tasks is given."""
    home = session.home
    found = _find_daemons(home)
    if not found:
        if session.json:
            session.print_json({"stopped": {}, "home": str(home)})
        else:
            print(f"nothing runs here (looked in {home})")
        return 0
    still = _deal_with_tasks(home, tasks) if any(daemon.role == "hub" for daemon in found) else []
    stopped, failed = {}, 0
    for name, folder, role, holder in found:
        if stop_daemon(folder, role):
            stopped[name] = holder.pid
            if not session.json:
                print(f"{name} stopped ({holder.words})")
        else:
            failed = 1
            say(tell_unstopped(folder, role, holder))
    if session.json:
        session.print_json({"stopped": stopped, "home": str(home), "still_running": still})
    elif still:
        print(f"{len(still)} job{'s' if len(still) > 1 else ''} still running: {tell_jobs(still)}")
        print("`dray up` takes them up again; `dray down --tasks` would have cancelled them")
    return failed


class _Daemon(NamedTuple):
    name: str
    folder: Path
    role: str
    holder: Holder


def _find_daemons(home: Path) -> list[_Daemon]:
    """What runs with a home, in the order in which it is to be stopped; fake machines of one process are one."""
    places = [("agent", home, "agent")]
    places += [(lock.parent.name, lock.parent, "agent") for lock in sorted(home.glob("fake/*/agent.lock"))]
    places.append(("hub", home, "hub"))
    found: dict[int, _Daemon] = {}
    for name, folder, role in places:
        holder = find_holder(folder, role)
        if holder is not None:
            found.setdefault(holder.pid or -len(found) - 1, _Daemon(name, folder, role, holder))
    return list(found.values())


def tell_unstopped(home: Path, role: str, holder: Holder) -> str:
    if not holder.pid:
        return f"the {role} of {home} runs on ({holder.words}): stop it where it was started"
    return f"the {role} ({holder.words}) has not ended yet; look into {log_path(home, role)}"


def tell_jobs(ids: list[str]) -> str:
    return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")


def list_running(home: Path) -> list[str]:
    """Ids of what runs now, as far as the hub of this home can tell; empty where it cannot."""
    try:
        page = Hub(ClientConfig(home=home, timeout_s=5.0)).get("/jobs", {"state": "running", "limit": 200})
    except DrayError:
        return []
    return [str(job["id"]) for job in page.get("jobs") or []]


def _deal_with_tasks(home: Path, cancel: bool) -> list[str]:
    running = list_running(home)
    if not cancel or not running:
        return running
    hub = Hub(ClientConfig(home=home))
    say(f"cancelling {tell_jobs(running)}; Ctrl-C leaves them to end by themselves")
    deadline = time.monotonic() + CANCEL_S
    try:
        for job_id in running:
            request_cancel(hub, job_id)
        while (running := list_running(home)) and time.monotonic() < deadline:
            time.sleep(0.2)
    except KeyboardInterrupt:
        say("not waiting any longer")
    return running
