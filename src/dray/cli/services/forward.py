"""The command `forward`: a port of this machine that leads to a service, or to a task with ports, wherever it runs."""

from __future__ import annotations

import asyncio
import signal
from typing import Any
from urllib.parse import quote

import click

from dray.cli.base.hub import HubRefusal
from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.base.outage import say
from dray.cli.services.commands import service_path, split_replica
from dray.client.reach.discovery import find_target
from dray.client.reach.forwarding import HERE, Forward
from dray.errors import InvalidInput, NotFound

NOT_FOUND = 404


@click.command("forward", cls=HubCommand)
@click.argument("name", metavar="SERVICE|TASK")
@click.argument("port", default="", metavar="[[LOCAL:]PORT]")
@pass_session
def forward(session: Session, name: str, port: str) -> int:
    """Open a port on this machine that leads to a service, or to a task that has ports. Prints where; Ctrl-C ends it.

    \b
      dray forward web                 the first port of web, at any free port here
      dray forward web 8080:http       its port `http`, at 8080 here
      dray forward train-7 tensorboard

    SERVICE is a name or an id, SERVICE/INDEX one replica of it. PORT is a port's name or number. Each connection goes
    to the replica with the fewest; where one does not answer, another is taken and that is said. Of a replica of
    several nodes rank 0 answers; SERVICE/INDEX leads to any one member. Workers need not be reachable for this: they
    dial out.
    """
    local, _, wanted = port.rpartition(":")
    chosen = _read_local(local)
    _look_up(session, name)
    opened = Forward(lambda: find_target(session.config), name, wanted, say)
    asyncio.run(opened.knock())
    _bind(opened, chosen, int(wanted) if wanted.isdecimal() and not local else 0)
    if session.json:
        session.print_json({"address": HERE, "port": opened.port, "to": name, "name": wanted})
    else:
        print(f"{HERE}:{opened.port} leads to {name}{f' {wanted}' if wanted else ''}", flush=True)
    asyncio.run(_serve(opened))
    return 0


async def _serve(opened: Forward) -> None:
    serving = asyncio.ensure_future(opened.serve())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    await asyncio.wait([serving])


def _read_local(text: str) -> int:
    if not text:
        return 0
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise click.UsageError(f"{text!r} is no port of this machine: write LOCAL:PORT, as in 8080:http")
    return int(text)


def _bind(opened: Forward, chosen: int, same: int) -> None:
    """Take the port that was asked for; else the same number as there, if it is free here."""
    try:
        opened.bind(chosen or same)
    except (OSError, OverflowError) as fault:
        if chosen:
            raise InvalidInput(f"port {chosen} of this machine cannot be had: {fault}") from None
        opened.bind(0)


def _look_up(session: Session, name: str) -> None:
    """Fail at once where there is nothing of that name; what is not ready yet may become so."""
    service, index = split_replica(name)
    try:
        found: dict[str, Any] = session.hub.get(service_path(service, "/endpoints"))
        if index is not None:
            _look_up_replica(session, service, index)
        if not found["endpoints"]:
            say(f"no replica of {service} is ready yet: `dray service show {service}` tells why")
    except HubRefusal as refusal:
        if refusal.status != NOT_FOUND:
            raise
        session.hub.get(f"/jobs/{quote(name.partition('/')[0], safe='')}")


def _look_up_replica(session: Session, service: str, index: int) -> None:
    """Whoever a service is shared with is not told of its replicas, and hears at the first connection."""
    rows = session.hub.get(service_path(service))["replica_list"]
    known = [row["index"] for row in rows]
    if known and index not in known:
        listed = ", ".join(map(str, known))
        raise NotFound(
            f"service {service} has no replica {index}: it has {listed} (`dray service show {service}`)"
        )
