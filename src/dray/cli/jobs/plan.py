"""The command `plan`: what would become of a job if it were submitted now. Nothing is submitted."""

from __future__ import annotations

from typing import Any

import click

from dray.cli.asks.flags import job_options, name_flags, template_options
from dray.cli.asks.submission import Submission, SubmitCommand, prepare
from dray.cli.base.hub import HubRefusal
from dray.cli.base.invocation import Session, pass_session
from dray.cli.jobs.jobs import ETA_S


@click.command("plan", cls=SubmitCommand)
@template_options
@job_options
@click.option(
    "--compare",
    metavar="STRATEGY,...",
    help="Instead of a job: what all that waits would come to under these (greedy, foresight, min_cost, genetic, ...).",
)
@click.option("--eta", is_flag=True, help="Also estimate its start; takes some seconds.")
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="FILE.yaml | SCRIPT [ARGS]... | -- COMMAND [ARGS]..."
)
@pass_session
def plan(session: Session, words: tuple[str, ...], compare: str | None, eta: bool, **flags: Any) -> None:
    """Run the real scheduler dry: where a job would go and why there, whom it would stop, or when it could start.

    \b
      dray plan -G 4 --gpu-type A100 -- python train.py
      dray plan jobs.yaml
      dray plan --compare greedy,foresight,min_cost,genetic
    """
    if compare is not None:
        _compare(session, compare)
        return
    submission = prepare(click.get_current_context(), words, flags)
    answers = [_ask(session, submission, spec, eta) for spec in submission.specs]
    if session.json:
        session.print_json(answers[0] if len(answers) == 1 else {"plans": answers})
        return
    from dray.cli.jobs.reason_views import draw_plan

    names = [str(spec.get("id") or spec.get("name") or "job") for spec in submission.specs]
    print("\n\n".join(draw_plan(name, answer) for name, answer in zip(names, answers, strict=True)))


def _compare(session: Session, names: str) -> None:
    answer = session.hub.get("/advice/placements", {"strategies": names})
    if session.json:
        session.print_json(answer)
        return
    from dray.cli.jobs.reason_views import draw_comparison

    print(draw_comparison(answer))


@click.command("rank", cls=SubmitCommand)
@template_options
@job_options
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="FILE.yaml | SCRIPT [ARGS]... | -- COMMAND [ARGS]..."
)
@pass_session
def rank(session: Session, words: tuple[str, ...], **flags: Any) -> None:
    """Rank providers and their cards for a job: what it would cost there and how long it would take.

    RUN and P90 (nine of ten are over by then) are learnt from jobs of its name, else what it expects, else its time
    limit, else an hour; MONEY is for the whole job, with what losses are likely to add. Nothing is submitted.

    \b
      dray provider rank -G 1 --deadline +8h --objective cheapest_in_time -- python train.py
    """
    submission = prepare(click.get_current_context(), words, flags)
    answers = [_post(session, submission, "/providers/rank", spec) for spec in submission.specs]
    if session.json:
        session.print_json(answers[0] if len(answers) == 1 else {"rankings": answers})
        return
    from dray.cli.jobs.reason_views import draw_choices

    for answer in answers:
        weights = ", ".join(f"{name} {value:g}" for name, value in answer["weights"].items() if value)
        print(draw_choices(answer["choices"]) if answer["choices"] else "no worker could take it")
        print(f"Weighed: {weights or 'nothing of this: see --objective'}.")


def _ask(session: Session, submission: Submission, spec: dict[str, Any], eta: bool) -> dict[str, Any]:
    query = {"eta_s": ETA_S} if eta else None
    return _post(session, submission, "/plan", spec, query, ETA_S if eta else 0)


def _post(
    session: Session,
    submission: Submission,
    path: str,
    spec: dict[str, Any],
    query: dict[str, Any] | None = None,
    extra_s: float = 0,
) -> dict[str, Any]:
    try:
        return dict(session.hub.call("POST", path, query, body=spec, extra_s=extra_s))
    except HubRefusal as refusal:
        if submission.asks is not None:
            refusal.problems = tuple(name_flags(list(refusal.problems), submission.asks))
        raise
