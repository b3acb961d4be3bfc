"""The `dray` command: a table of commands, and the one place where errors become messages and exit codes.

Nothing but click and the table is imported until a command is chosen: `dray ps` must feel instant.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Any

import click

from dray import __version__
from dray.cli.base.invocation import (
    LazyGroup,
    Session,
    abandon_stdout,
    asks_for_json,
    connection_options,
    print_error,
)
from dray.errors import DrayError

_JOBS = "dray.cli.jobs.jobs"
_LISTING = "dray.cli.jobs.listing"
_CONTROL = "dray.cli.jobs.control"
_FOLLOW = "dray.cli.follow.commands"
_CLUSTER = "dray.cli.machines.cluster"
_DAEMONS = "dray.cli.machines.up_and_down"
_SITE = "dray.cli.site.commands"
_PAST = "dray.cli.site.past"
_SERVICES = "dray.cli.services.commands"
_STUDIES = "dray.cli.site.studies"
COMMANDS = {
    "up": (f"{_DAEMONS}:up", "Start a hub and a worker on this machine."),
    "down": (f"{_DAEMONS}:down", "Stop the hub and the agent of this home."),
    "hub": (f"{_DAEMONS}:hub", "Run a hub alone."),
    "worker": (f"{_CLUSTER}:worker", "Start, list, show, drain and resume workers."),
    "launch": (
        "dray.cli.machines.launches:launch",
        "Start workers through Slurm, Kubernetes, ssh or a command.",
    ),
    "submit": ("dray.cli.jobs.submit:submit", "Submit a command or a job file and return at once."),
    "run": (f"{_FOLLOW}:run", "Submit a command, show its output, exit with its exit code."),
    "serve": (f"{_SERVICES}:serve", "Start a service: a command that goes on until it is stopped."),
    "service": (f"{_SERVICES}:service", "List, show, scale, restart and stop services."),
    "workload": (
        "dray.cli.workloads.commands:workload",
        "Campaigns of jobs: one switch, one purse, one verdict.",
    ),
    "forward": ("dray.cli.services.forward:forward", "Open a port here that leads to a service or a task."),
    "map": ("dray.cli.jobs.map:map_items", "Run a command once per item, as one array."),
    "status": ("dray.cli.machines.status:status", "Say in a few lines how the cluster stands."),
    "top": ("dray.cli.machines.top:top", "Watch workers, who holds what, and what waits, live."),
    "ui": ("dray.cli.machines.dashboard:ui", "Open the dashboard in a browser, signed in."),
    "ps": (f"{_LISTING}:ps", "List jobs."),
    "tasks": (f"{_LISTING}:tasks", "List the tasks of a job."),
    "show": (f"{_JOBS}:show", "Show a job or a task with all its attempts."),
    "result": ("dray.cli.jobs.result:result", "Print what a call of a function gave."),
    "logs": (f"{_FOLLOW}:logs", "Print the output of a job or a task."),
    "exec": ("dray.cli.follow.exec:exec_command", "Run a command beside a task that runs."),
    "attach": ("dray.cli.follow.exec:attach", "Go to the terminal of a task of `dray run -it`."),
    "wait": (f"{_FOLLOW}:wait", "Wait for jobs to end, exit with their exit code."),
    "cancel": (f"{_JOBS}:cancel", "Cancel jobs or tasks."),
    "hold": (f"{_CONTROL}:hold", "Keep jobs from starting until they are released."),
    "release": (f"{_CONTROL}:release", "Let held jobs start."),
    "move": ("dray.cli.moves.commands:move", "Move work that runs to another worker, and follow it."),
    "rebalance": (
        "dray.cli.moves.rebalancing:rebalance",
        "Tell what would be better off elsewhere, and move it.",
    ),
    "requeue": (f"{_CONTROL}:requeue", "Stop what runs of jobs or tasks and queue it again."),
    "set": (f"{_CONTROL}:set_job", "Change a job that waits: priority, queue, resources and more."),
    "why": (f"{_JOBS}:why", "Say why a job does not run, and what would start it."),
    "plan": ("dray.cli.jobs.plan:plan", "Say where a job would run and when; nothing is submitted."),
    "events": (f"{_FOLLOW}:events", "Print what happened, or what happens now."),
    "queue": (f"{_SITE}:queue", "List queues, or show one and its line."),
    "quota": (f"{_SITE}:quota", "List quotas and what is used of them."),
    "pace": (f"{_SITE}:pace", "List paces and caps and how they stand."),
    "preemptions": (
        "dray.cli.jobs.preemptions:preemptions",
        "List who was stopped for whom, or show the receipt.",
    ),
    "provider": (
        "dray.cli.site.providers:provider",
        "List and show providers: what they cost and how it goes there.",
    ),
    "history": (f"{_PAST}:history", "Show how the cluster stood, as lines."),
    "failures": (f"{_PAST}:failures", "Show what failed, in groups, and whose fault it was."),
    "timeline": (f"{_PAST}:timeline", "Show who had, has and gets which card when."),
    "users": (f"{_PAST}:users", "Show who holds what and who waits how long."),
    "usage": ("dray.cli.site.usage:usage", "Show GPU-hours asked for, held and used, and idle GPUs."),
    "advise": (
        "dray.cli.site.advise:advise",
        "Say what a job could do better, which demand to expect, which workers would help.",
    ),
    "alarms": ("dray.cli.site.notifications:alarms", "List what is wrong now."),
    "notifications": (
        "dray.cli.site.notifications:notifications",
        "List who was told of what, and how that ended.",
    ),
    "config": (f"{_SITE}:config", "Show what holds and where it came from; apply a policy."),
    "whatif": (f"{_STUDIES}:whatif", "Say when work would start under another policy, or with more workers."),
    "sim": ("dray.cli.site.sim:sim", "Replay a trace or this hub's history under other policies."),
    "store": ("dray.cli.site.store:store", "Carry the store to a database, or back."),
    "template": ("dray.cli.site.templates:template", "List, show, render, add and remove templates."),
    "mcp": (
        "dray.cli.assistants.commands:mcp",
        "Serve the cluster as tools to an agent (Model Context Protocol).",
    ),
    "snapshot": ("dray.cli.site.snapshots:snapshot", "Show the folders that jobs run in, and get them back."),
    "token": (f"{_CLUSTER}:token", "Create, list and revoke tokens."),
    "doctor": (f"{_CLUSTER}:doctor", "Check the hub and this machine's way to it."),
    "completion": ("dray.cli.base.completion:completion", "Print the script for completion in your shell."),
    "man": ("dray.cli.base.man_pages:man", "Write manual pages."),
    "version": (f"{_CLUSTER}:version", "Print the version of dray and of the hub."),
}
# What people call them who come from Slurm, or from other tools.
ELSEWHERE = {
    "ls": "ps",
    "list": "ps",
    "jobs": "ps",
    "kill": "cancel",
    "log": "logs",
    "workers": "worker ls",
    "nodes": "worker ls",
    "services": "service ls",
    "sbatch": "submit",
    "srun": "run",
    "squeue": "ps",
    "sacct": "ps --all",
    "scancel": "cancel",
    "sinfo": "worker ls",
    "scontrol": "show",
    "salloc": "run",
    "sprio": "why",
    "sshare": "quota",
}
ROOT_HELP = """dray hauls machine-learning work to the machine that can carry it.

Start with `dray up`, then `dray run -- python train.py`.
"""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    elsewhere=ELSEWHERE,
    name="dray",
    help=ROOT_HELP,
    params=connection_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="dray", message="%(prog)s %(version)s")
def cli() -> None:
    """Only holds the commands together."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and give its exit code; nothing dray raises on purpose ends in a traceback."""
    if "_DRAY_COMPLETE" in os.environ:
        cli.main(argv, prog_name="dray")
    session, words = Session(), list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Where both go into one pipe or file, what was printed first comes first, whatever stderr says in between.
        sys.stdout.reconfigure(line_buffering=True)
    try:
        # Not through click's own main, which would turn a reader that leaves into exit code 1.
        with cli.make_context("dray", list(words), obj=session) as context:
            result: Any = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        if session.json or asks_for_json(words):
            print_error("usage", error.format_message().strip())
        else:
            error.show()
        return error.exit_code
    except DrayError as error:
        return session.report(error)
    except (click.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read the output has seen enough, as in `dray ps | head`.
        abandon_stdout()
        return 128 + signal.SIGPIPE
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
