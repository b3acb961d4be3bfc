"""Commands about many jobs at once: which are meant, how many that are, and a yes before anything happens to them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from dray.cli.base.completion import complete_state
from dray.cli.base.invocation import Session

# The hub works through hundreds of thousands in turns: nobody is to give up on it half way.
PATIENCE_S = 600.0
_FILTERS = ("states", "user", "queue", "name", "labels", "everything")
_DONE = {"cancel": "cancelled", "hold": "held", "release": "released", "requeue": "queued again"}


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags that say which jobs are meant, where no ids are given."""
    options = (
        click.option(
            "--state",
            "states",
            multiple=True,
            metavar="STATE",
            help="All that are pending, or running.",
            shell_complete=complete_state,
        ),
        click.option(
            "--label", "labels", multiple=True, metavar="K=V", help="All with this label; may be repeated."
        ),
        click.option("--name", metavar="GLOB", help="All of this name; * and ? stand for anything."),
        click.option("--queue", metavar="NAME", help="All in this queue."),
        click.option("--user", metavar="NAME", help="All of this user."),
        click.option("--all", "everything", is_flag=True, help="All that live; of an admin: everybody's."),
        click.option("--dry-run", is_flag=True, help="Only say how many that are."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask before changing many."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def selects(given: Mapping[str, Any], jobs: tuple[str, ...]) -> bool:
    """Whether jobs are chosen by what they are; ids and filters together mean neither."""
    chosen = any(given[name] for name in _FILTERS)
    if chosen and jobs:
        raise click.UsageError("give ids, or say by flags which jobs are meant: not both")
    if not chosen and not jobs:
        raise click.UsageError(
            "give ids, or say which jobs are meant: --state, --label, --name, --queue, --user or --all"
        )
    return chosen


def act_on_selected(session: Session, action: str, given: Mapping[str, Any], **more: Any) -> int:
    """Count what is meant, ask for a yes, and have the hub do it in one go."""
    ask = _read_ask(action, given) | more
    counted = _ask_hub(session, {**ask, "dry_run": True})
    if given["dry_run"] or not counted["count"]:
        return _tell(session, counted)
    if not given["yes"]:
        _confirm(counted)
    return _tell(session, _ask_hub(session, ask))


def _ask_hub(session: Session, ask: Mapping[str, Any]) -> dict[str, Any]:
    return dict(session.hub.call("POST", "/jobs:act", body=ask, extra_s=PATIENCE_S))


def _read_ask(action: str, given: Mapping[str, Any]) -> dict[str, Any]:
    labels = {}
    for text in given["labels"]:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise click.UsageError(f"--label must be K=V, got {text!r}")
        labels[name] = value
    states = [word.strip() for text in given["states"] for word in text.split(",") if word.strip()]
    plain = {name: given[name] for name in ("user", "queue", "name") if given[name]}
    return {"action": action, "states": states, "labels": labels, "all": given["everything"], **plain}


def _confirm(counted: Mapping[str, Any]) -> None:
    question = f"{counted['action']} {_spell(counted)}?"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{question} Say -y: there is no terminal to ask on")
    if not click.confirm(question, err=True):
        raise click.Abort


def _spell(counted: Mapping[str, Any]) -> str:
    """`12 jobs (10 pending, 2 running) of ann, bob`."""
    count = counted["count"]
    states = ", ".join(f"{number:,} {state}" for state, number in sorted(counted["states"].items()))
    users = sorted(counted["users"], key=lambda user: (-counted["users"][user], user))
    owners = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
    return f"{count:,} job{'' if count == 1 else 's'} ({states}) of {owners}"


def _tell(session: Session, answer: Mapping[str, Any]) -> int:
    if session.json:
        session.print_json(answer)
        return 0
    done = _DONE[answer["action"]]
    if not answer["count"]:
        print(
            f"no job is {done}: none that lives is meant" if not answer["unchanged"] else f"no job is {done}"
        )
    elif answer["dry_run"]:
        print(f"{_spell(answer)} would be {done}")
    else:
        print(f"{answer['count']:,} job{' is' if answer['count'] == 1 else 's are'} {done}")
    for why, number in sorted(answer["unchanged"].items()):
        print(f"{number:,} left as {'it is' if number == 1 else 'they are'}: {why}", file=sys.stderr)
    return 0
