"""Being at the terminal of a task: from its start, through whatever starts of it there are, to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from dray.cli.base.exit_codes import CUT_OFF, SIGNALLED, has_ended
from dray.cli.base.invocation import Session, abandon_stdout
from dray.cli.base.outage import Outage, say
from dray.cli.follow.following import job_exit_code, look, wait_for_job
from dray.cli.follow.progress import StatusLine
from dray.cli.follow.remote import Left, run_remote
from dray.cli.follow.terminal import RawTerminal, read_size
from dray.client.reach.discovery import find_target
from dray.errors import HubUnavailable, Unreachable
from dray.wire.streams.frames import TaskTarget
from dray.wire.streams.parcels import Ended

LOOK_S = 0.2
# For how long the hub may not have heard yet of what its worker knows already.
NEWS_S = 2.0


class _Runs(Exception):
    """It does, at last."""


def attend(session: Session, outage: Outage, job: Mapping[str, Any], task: str) -> int:
    """Be there until the job ends or the person leaves; gives the exit code."""
    status, told = StatusLine(), False

    def watch(document: Mapping[str, Any]) -> float:
        status.note(document)
        if document.get("state") == "running":
            raise _Runs
        return LOOK_S

    while not has_ended(job):
        try:
            with contextlib.suppress(_Runs):
                job = wait_for_job(session.hub, outage, str(job["id"]), watch)
                continue
        finally:
            status.clear()
        try:
            rows, columns = read_size()
            show(session, TaskTarget(task, rows=rows, columns=columns), True, True)
        except Left as left:
            say(f"left: {task} goes on, `dray attach {task}` comes back")
            return code_of(left)
        except HubUnavailable as fault:
            say(f"the connection was cut ({fault.message}): {task} goes on, `dray attach {task}` comes back")
            return CUT_OFF
        except Unreachable as fault:
            job = look(session.hub, outage, str(job["id"]), NEWS_S)
            if not told and not has_ended(job):
                told = True
                say(f"the terminal of {task} cannot be reached now, trying again: {fault.message}")
        else:
            job = look(session.hub, outage, str(job["id"]), NEWS_S)
    return job_exit_code(session.hub, outage, job)


def show(session: Session, asked: TaskTarget, interactive: bool, tty: bool) -> Ended:
    """Lend this terminal, or these pipes, to what is asked for, until it ends."""
    stdin = sys.__stdin__.fileno() if interactive and sys.__stdin__ is not None else None
    raw = RawTerminal(stdin) if tty and stdin is not None and os.isatty(stdin) else None
    return asyncio.run(run_remote(find_target(session.config), asked, stdin, raw, tty))


def code_of(left: Left) -> int:
    """What a command exits with that was told to leave."""
    if left.number == signal.SIGPIPE:
        abandon_stdout()
    return SIGNALLED + left.number if left.number else 0
