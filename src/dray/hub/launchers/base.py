"""What a launcher asks of a site: start one machine, end one, say which there are. One small interface for all ways.

A site knows a machine by a handle of its own, and each way gives its machines the id of their launch as a name, so that
a hub that comes back finds what it asked for. The surprising rule: who cannot say whether a machine was started says so
(`unsure`), and nobody starts it again: better one machine too few than one that nobody knows of.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from dray.core.model.policies.launching import Launch

PREFIX = "dray-"


class SiteFault(Exception):
    """A site did not do what it was asked. `unsure`: it may have done it all the same."""

    def __init__(self, message: str, unsure: bool = False) -> None:
        super().__init__(message)
        self.message, self.unsure = message, unsure


class Order(NamedTuple):
    """One worker that is to be started: its id, its launcher, the words that start its agent, the token among them."""

    id: str
    launcher: str
    launch: Launch
    join: tuple[str, ...]

    @property
    def script(self) -> str:
        """The same for a shell on another machine: in the foreground, in a home of its own."""
        return (
            "#!/bin/sh\n"
            f'export DRAY_HOME="${{TMPDIR:-/tmp}}/{PREFIX}{self.id}"\n'
            'umask 077 && mkdir -p "$DRAY_HOME" || exit 1\n'
            f"exec {shlex.join(self.join)}\n"
        )


class Machine(NamedTuple):
    """A machine that a site knows of: for which launch, by which handle, and how the site says that it is."""

    id: str
    handle: str
    said: str = ""


class Site(Protocol):
    """One way to start machines."""

    async def start(self, order: Order) -> str:
        """Start a machine, and give the site's handle for it, if there is one."""

    async def end(self, launch_id: str, handle: str) -> None:
        """End a machine; one that is gone already is no fault."""

    async def machines(self) -> list[Machine] | None:
        """All machines that were started for launches of this launcher's name; None where the site cannot say."""


Spoken = Mapping[str, str]
