"""The command `submit`: send jobs and return at once, their ids on stdout and nothing else there."""

from __future__ import annotations

import sys
from typing import Any

import click

from dray.cli.asks.flags import job_options
from dray.cli.asks.submission import SubmitCommand, prepare, repeat, send
from dray.cli.base.invocation import Session, pass_session
from dray.cli.base.outage import say


@click.command("submit", cls=SubmitCommand)
@click.option("--from", "from_job", metavar="ID", help="Submit a job of before again; flags change it.")
@job_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="FILE.yaml | -- COMMAND [ARGS]...")
@pass_session
def submit(session: Session, words: tuple[str, ...], from_job: str | None, **flags: Any) -> None:
    """Submit a command, or the jobs of a file, and print the id of each.

    \b
      dray submit -G 1 -t 2h -- python train.py --lr 3e-4
      dray submit -a 0-99%8 -- python evaluate.py
      dray submit jobs.yaml --priority 5
      dray submit --after ok:ID -- python evaluate.py
      dray submit --from ID --mem 32g
    """
    context = click.get_current_context()
    if from_job is not None:
        submission = repeat(context, session.hub, from_job, words, flags)
    else:
        submission = prepare(context, words, flags)
    jobs = send(session.hub, submission)
    if session.json:
        session.print_json(jobs[0] if len(jobs) == 1 else {"jobs": jobs})
        return
    for job in jobs:
        print(job.get("id", ""))
    if len(jobs) == 1 and sys.stdout.isatty() and jobs[0].get("reason"):
        say(f"it waits: {jobs[0]['reason']}")
