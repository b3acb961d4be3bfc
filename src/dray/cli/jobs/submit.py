"""The command `submit`: send jobs and return at once, their ids on stdout and nothing else there."""

from __future__ import annotations

import sys
from typing import Any

import click

from dray.cli.asks.flags import job_options, template_options
from dray.cli.asks.submission import Submission, SubmitCommand, prepare, repeat, send, send_as_new
from dray.cli.base.hub import HubRefusal
from dray.cli.base.invocation import Session, pass_session
from dray.cli.base.outage import say
from dray.errors import Problem


def _send(session: Session, submission: Submission, exists: str) -> list[dict[str, Any]]:
    try:
        return send(session.hub, submission, exists=exists)
    except HubRefusal as refusal:
        if refusal.code == "conflict" and " exists since " in refusal.message:
            hint = (
                "--if-absent leaves it as it is, --new submits under another id, --replace cancels it as well"
            )
            refusal.problems = (*refusal.problems, Problem("", hint))
        raise


@click.command("submit", cls=SubmitCommand)
@click.option("--from", "from_job", metavar="ID", help="Submit a job of before again; flags change it.")
@click.option(
    "--if-absent", "absent", is_flag=True, help="Leave a job as it is that exists under the id, and say so."
)
@click.option(
    "--new", is_flag=True, help="Where the id is taken, submit as ID.2, ID.3 …; so inside a file as well."
)
@click.option("--replace", is_flag=True, help="As --new, and cancel what lives under the id so far.")
@template_options
@job_options
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="FILE.yaml | SCRIPT [ARGS]... | -- COMMAND [ARGS]..."
)
@pass_session
def submit(
    session: Session,
    words: tuple[str, ...],
    from_job: str | None,
    absent: bool,
    new: bool,
    replace: bool,
    **flags: Any,
) -> None:
    """Submit a command, the jobs of a file, or a script with #SBATCH lines, and print the id of each.

    \b
      dray submit -G 1 -t 2h -- python train.py --lr 3e-4
      dray submit -a 0-99%8 -- python evaluate.py
      dray submit jobs.yaml --priority 5
      dray submit -t 2h train.sh 3e-4
      dray submit --after ok:ID -- python evaluate.py
      dray submit --from ID --mem 32g
      dray submit --template torchrun -p gpus=2 -p script=train.py

    An id that is taken is refused (exit 2) with what exists under it since when, and how it differs.
    """
    context = click.get_current_context()
    if from_job is not None:
        submission = repeat(context, session.hub, from_job, words, flags)
    else:
        submission = prepare(context, words, flags)
    if absent + new + replace > 1:
        raise click.UsageError("--if-absent, --new and --replace exclude each other")
    if new or replace:
        jobs = send_as_new(session.hub, submission, replace)
    else:
        jobs = _send(session, submission, "keep" if absent else "refuse")
    if session.json:
        session.print_json(jobs[0] if len(jobs) == 1 else {"jobs": jobs})
        return
    for job in jobs:
        print(job.get("id", ""))
        for word in filter(None, (job.get("note"), job.get("learned"))):
            say(f"{job['id']}: {word}")
    if len(jobs) == 1 and sys.stdout.isatty() and jobs[0].get("reason"):
        say(f"it waits: {jobs[0]['reason']}")
