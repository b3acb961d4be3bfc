"""Being at the terminal of a task: from its start, through whatever starts of it there are, to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

from dray.cli.base.exit_codes import CUT_OFF, SIGNALLED, exit_code, has_ended
from dray.cli.base.invocation import Session, abandon_stdout
from dray.cli.base.outage import Outage, say
from dray.cli.follow.following import look
from dray.cli.follow.progress import StatusLine
from dray.cli.follow.remote import Left, run_remote
from dray.cli.follow.terminal import RawTerminal, read_size
from dray.cli.jobs.jobs import find_task
from dray.client.reach.discovery import find_target
from dray.errors import HubUnavailable, NotFound, Overloaded, Unreachable
from dray.wire.streams.frames import TaskTarget
from dray.wire.streams.parcels import Ended

LOOK_S = 0.2
# For how long the hub may not have heard yet of what its worker knows already.
NEWS_S = 2.0


def attend(session: Session, outage: Outage, job_id: str, index: int) -> int:
    """Be at the terminal of a job's one task, or of one of several, until it ends or the person leaves; gives the exit
    code.
    """
    status, told, task = StatusLine(), False, job_id if index < 0 else f"{job_id}/{index}"

    def look_again(wait_s: float) -> dict[str, Any]:
        if index < 0:
            return look(session.hub, outage, job_id, wait_s)
        time.sleep(wait_s)
        return dict(outage.ride_out(lambda: find_task(session.hub, job_id, index)))

    document = look_again(0)
    while not has_ended(document):
        if document.get("state") != "running":
            status.note(document)
            time.sleep(LOOK_S)
            document = look_again(0)
            continue
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
        except (Unreachable, NotFound, Overloaded) as fault:
            document = look_again(NEWS_S)
            if not told and not has_ended(document):
                told = True
                say(f"the terminal of {task} cannot be reached now, trying again: {fault.message}")
        else:
            document = look_again(NEWS_S if index < 0 else LOOK_S)
    status.clear()
    return exit_code(document)


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
