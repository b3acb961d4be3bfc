"""The command `mcp`: this cluster as tools for a program that works for people."""

from __future__ import annotations

import asyncio
import importlib.util
import sys

import click

from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.errors import DrayError


class MissingSdk(DrayError):
    """The SDK of the protocol is not installed here."""

    code = "missing_extra"


@click.command("mcp", cls=HubCommand)
@click.option(
    "--read-only", is_flag=True, help="Offer nothing that changes anything, whatever the token may."
)
@pass_session
def mcp(session: Session, read_only: bool) -> None:
    """Serve the cluster as tools over the Model Context Protocol, on standard input and output.

    For agents and editors that speak it: they start this command themselves. Tools that change anything are offered
    only to a token that may, and do nothing unless they are told dry_run=false.
    """
    if importlib.util.find_spec("mcp") is None or importlib.util.find_spec("mcp_types") is None:
        raise MissingSdk(
            "dray mcp needs the SDK of the protocol, which is not installed here: pip install 'dray[mcp]'"
        )
    from dray.cli.assistants.server import serve

    if sys.stdin.isatty():
        print("dray mcp: waiting for a program on standard input; Ctrl-C ends it", file=sys.stderr)
    asyncio.run(serve(session.hub, read_only))
