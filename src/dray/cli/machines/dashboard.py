"""`dray ui`: the dashboard in a browser, signed in.

The address carries a code behind its #, which browsers send to nobody. It is good once and for a minute, so that what
stays in a history or a terminal's scrollback opens nothing.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from urllib.parse import urlsplit

import click

from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.client.reach.discovery import find_target


@click.command("ui", cls=HubCommand)
@click.option("--print", "only_print", is_flag=True, help="Print the address, and open no browser.")
@pass_session
def ui(session: Session, only_print: bool) -> None:
    """Open the dashboard in a browser, signed in. The address is good once, for a minute.

    Where no browser can be opened (over SSH, in a container) the address is printed: open it where the hub's address
    is reached, if need be after `ssh -L`.
    """
    made = session.hub.call("POST", "/session/code")
    parts = urlsplit(find_target(session.config).url)
    address = f"{parts.scheme}://{parts.netloc}/ui/#code={made['code']}"
    if session.json:
        session.print_json({"url": address, "expires_s": made["expires_s"]})
        return
    opened = not only_print and _has_screen() and webbrowser.open(address)
    if not opened:
        print(address)
        print(f"good once, for {made['expires_s']:g} s", file=sys.stderr)


def _has_screen() -> bool:
    """Whether a browser would have somewhere to appear: one in the terminal would show nothing of the page."""
    if sys.platform == "darwin":
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
