"""Commands that lend this terminal to another machine: `exec`, a process beside a task, and `attach`, the task itself.

The surprising rule: Ctrl-C is a key like any other in both, and goes there. What leaves is Enter ~ . as in ssh: a
process beside a task is hung up by that, a task goes on.
"""

from __future__ import annotations

import os

import click

from dray.cli.base.completion import complete_job
from dray.cli.base.exit_codes import CUT_OFF, INTERRUPTED, NOT_RUN, is_numbered
from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.base.outage import Outage, say
from dray.cli.follow.attending import attend, code_of, show
from dray.cli.follow.commands import follow_output
from dray.cli.follow.following import look
from dray.cli.follow.remote import Left
from dray.cli.follow.terminal import read_size
from dray.cli.jobs.jobs import ask_named, split_id
from dray.errors import DrayError, HubUnavailable
from dray.wire.streams.frames import TaskTarget

SHELL = ("sh",)


@click.command("exec", cls=HubCommand)
@click.argument("task", metavar="TASK", shell_complete=complete_job)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARGS]...]")
@click.option("-i", "--interactive", is_flag=True, help="Send this command's input there.  [default: none]")
@click.option("-t", "--tty", is_flag=True, help="Give it a terminal, of the size of this one.")
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable beside those of the task.")
@pass_session
def exec_command(
    session: Session, task: str, command: tuple[str, ...], interactive: bool, tty: bool, env: tuple[str, ...]
) -> int:
    """Run a command beside a task that runs: in its environment, folder, memory limit and account, on its machine.

    \b
    dray exec 3f1c9a2e07b4 -- nvidia-smi
    dray exec -it web/0 -- bash         a shell beside replica 0 of the service web

    TASK is a job, one of its tasks (ID/INDEX), or a replica of a service (NAME/INDEX), of several nodes one member.
    Without a COMMAND it is sh. The command ends with the task, and its end ends nothing else. With -it, Enter ~ .
    leaves and hangs it up.

    \b
    Exit codes: the command's own; 125 it was not started; 126 not executable;
    127 not found; 128+n ended by signal n; 255 the connection was cut.
    """
    variables = dict(_read_variable(text) for text in env)
    if tty:
        variables.setdefault("TERM", os.environ.get("TERM", "xterm"))
    rows, columns = read_size()
    asked = TaskTarget(task, list(command or SHELL), variables, tty, rows, columns)
    try:
        ended = show(session, asked, interactive, tty)
    except Left as left:
        if not left.number:
            say("left: what ran there was hung up")
        return code_of(left)
    except HubUnavailable as fault:
        say(f"the connection was cut, and with it what ran: {fault.message}")
        return CUT_OFF
    except DrayError as fault:
        return session.report(fault, NOT_RUN)
    if ended.error:
        say(ended.error)
    return ended.code


@click.command("attach", cls=HubCommand)
@click.argument("task", metavar="TASK", shell_complete=complete_job)
@pass_session
def attach(session: Session, task: str) -> int:
    """Go to the terminal of a task that was started with `dray run -it`, and leave it with Enter ~ . as it is.

    TASK is a job, one of its tasks (ID/INDEX), or a replica of a service (NAME/INDEX). Exits as the job did, where it
    ends meanwhile; with 0 where it goes on. Of a task without a terminal the output is followed, as with `dray logs
    -f`.
    """
    _, index = split_id(task)
    outage = Outage(session.config.away_s, f"{task} goes on")
    job_id, job = ask_named(session.hub, task, lambda found: look(session.hub, outage, found))
    if not (job.get("spec") or {}).get("interactive"):
        say(f"{task} was not started with `dray run -it` and has no terminal: this is its output")
        return follow_output(session, job_id, index)
    if index < 0 and is_numbered(job):
        raise click.UsageError(f"{task} has several tasks: say which, as {task}/0")
    try:
        return attend(session, outage, job_id, index)
    except KeyboardInterrupt:
        return INTERRUPTED
    except HubUnavailable as fault:
        return session.report(fault, NOT_RUN)


def _read_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{text!r} is no variable: write NAME=VALUE")
    return name, value
