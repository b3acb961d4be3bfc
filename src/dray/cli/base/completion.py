"""Completion in the shell: ids of jobs and workers, asked of the hub, and nothing at all where it does not answer."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from dray.cli.base.exit_codes import ENDED
from dray.cli.base.invocation import HubCommand, Session

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "_DRAY_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
ASK_S = 2.0
STATES = ("pending", "running", *ENDED)


def complete_job(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Jobs whose id begins so, newest first, with their name and state."""
    del parameter
    jobs = _ask(context, "/jobs", {"limit": 100}, "jobs")
    words = ((job["id"], f"{job.get('state')} {job.get('name') or ''}".strip()) for job in jobs)
    return [CompletionItem(name, help=text) for name, text in words if name.startswith(incomplete)]


def complete_state(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """States that begin so; of several with commas the last."""
    del context, parameter
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(before + comma + state) for state in STATES if state.startswith(last)]


def complete_worker(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Workers whose id begins so."""
    del parameter
    workers = _ask(context, "/workers", {}, "workers")
    return [
        CompletionItem(worker["id"], help=str(worker.get("status", "")))
        for worker in workers
        if str(worker["id"]).startswith(incomplete)
    ]


def _ask(context: click.Context, path: str, query: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    # Whatever fails here must not write into the line that somebody types.
    with contextlib.suppress(Exception):
        session = context.find_object(Session) or Session()
        hub = session.hub
        hub.config = dataclasses.replace(hub.config, timeout_s=ASK_S, away_s=0.0)
        yield from hub.get(path, query).get(key) or []


@click.command("completion", cls=HubCommand)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands, flags, ids of jobs, states and names of workers.

    \b
    bash   eval "$(dray completion bash)"           in ~/.bashrc
    zsh    eval "$(dray completion zsh)"            in ~/.zshrc
    fish   dray completion fish | source            in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None, shell
    root = click.get_current_context().find_root()
    print(made(root.command, {}, "dray", VARIABLE).source())
