"""Commands that ask the hub about one job, or a few by name, and return: show, cancel, why."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import click

from dray.cli.base.completion import complete_job
from dray.cli.base.exit_codes import has_ended
from dray.cli.base.hub import Hub, HubRefusal, job_path
from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.jobs.bulk import act_on_selected, selection_options, selects
from dray.core.model.ids import split_task_id
from dray.errors import DrayError

T = TypeVar("T")
ETA_S = 20.0
NOT_FOUND = 404


def split_id(text: str) -> tuple[str, int]:
    """Read ID or ID/INDEX as people type it."""
    parts = split_task_id(text)
    if parts is None:
        raise click.UsageError(f"{text!r} is not the id of a job (ID) or a task (ID/INDEX)")
    return parts


def find_task(hub: Hub, job_id: str, index: int) -> dict[str, Any]:
    """One task of a job: the list is ordered by index, and its cursor is the index to begin with."""
    page = hub.get(job_path(job_id, "/tasks"), {"cursor": index, "limit": 1})
    for task in page.get("tasks") or []:
        # The first goes by its job's own id, without a number, where it was the only one at the start.
        if max(0, int(task["index"])) == index:
            return dict(task)
    raise TaskNotFound(f"job {job_id} has no task {index}")


class TaskNotFound(DrayError):
    """The job is there, the index is not."""

    code = "not_found"


@click.command("show", cls=HubCommand)
@click.argument("job", shell_complete=complete_job)
@pass_session
def show(session: Session, job: str) -> None:
    """Show a job with all its attempts, or one task of it (ID/INDEX)."""
    from dray.cli.jobs.job_views import draw_job, draw_task

    job_id, index = split_id(job)
    document = session.hub.get(job_path(job_id)) if index < 0 else find_task(session.hub, job_id, index)
    if session.json:
        session.print_json(document)
        return
    from dray.cli.jobs.preemption_views import tell_receipts
    from dray.cli.jobs.preemptions import receipts_of

    told = tell_receipts(receipts_of(session.hub, job_id), job_id, "" if index < 0 else document["id"])
    print(draw_job(document, told) if index < 0 else draw_task(document, told))


@click.command("cancel", cls=HubCommand)
@click.argument("jobs", nargs=-1, shell_complete=complete_job, metavar="[ID[/INDEX]]...")
@selection_options
@click.option("--grace", metavar="TIME", help="Time between TERM and KILL.  [default: that of the tier]")
@pass_session
def cancel(session: Session, jobs: tuple[str, ...], grace: str | None, **given: Any) -> int:
    """Cancel jobs or single tasks (ID/INDEX), or all jobs that are what flags say; what has ended stays as it is.

    \b
      dray cancel ID OTHER/3
      dray cancel --state pending --label sweep=7
      dray cancel --name 'eval-*' --dry-run
    """
    if selects(given, jobs):
        return act_on_selected(session, "cancel", given, **_read_grace(grace))

    def ask(job_id: str, index: int) -> Mapping[str, Any]:
        return request_cancel(session.hub, job_id, index, grace, given["dry_run"])

    return change_each(session, jobs, ask, _tell_cancel)


def change_each(
    session: Session,
    jobs: tuple[str, ...],
    ask: Callable[[str, int], Mapping[str, Any]],
    tell: Callable[[Mapping[str, Any]], str],
) -> int:
    """Ask for each job and tell it, of a dry run its sentence.

    One wrong id, or one that cannot be changed, must not keep the others from it.
    """
    wanted = [(text, *split_id(text)) for text in jobs]
    documents, failed = [], 0
    for text, job_id, index in wanted:
        try:
            document = dict(ask(job_id, index))
        except HubRefusal as refusal:
            print(f"dray: {text}: {refusal.message} ({refusal.code})", file=sys.stderr)
            failed = 1
            continue
        documents.append(document)
        if not session.json:
            preview = document.get("preview")
            print(f"{text}: {preview['sentence'] if preview else tell(document)}")
    if session.json:
        session.print_json(documents[0] if len(jobs) == 1 and documents else {"jobs": documents})
    return failed


def request_cancel(
    hub: Hub, job_id: str, index: int = -1, grace: str | None = None, dry_run: bool = False
) -> dict[str, Any]:
    """Ask the hub to stop a job, or one task of it; or what that would do."""
    body = _read_grace(grace) | ({"task": index} if index >= 0 else {})
    return dict(hub.call("POST", job_path(job_id, preview_of("/cancel", dry_run)), body=body))


def preview_of(path: str, dry_run: bool) -> str:
    """The path of a change, or of what it would do."""
    return f"{path}?dry_run=1" if dry_run else path


def _read_grace(grace: str | None) -> dict[str, Any]:
    from dray.core.model.units import parse_seconds

    return {} if grace is None else {"grace_s": parse_seconds(grace)}


def _tell_cancel(job: Mapping[str, Any]) -> str:
    if job.get("note"):
        return str(job["note"])
    return str(job.get("state")) if has_ended(job) else "cancel requested"


def ask_named(hub: Hub, text: str, ask: Callable[[str], T]) -> tuple[str, T]:
    """Ask about a job, or one of its tasks, by an id, or by the name of a service where there is no such job: the id
    that was meant, and the answer.
    """
    job_id, _ = split_id(text)
    try:
        return job_id, ask(job_id)
    except HubRefusal as refusal:
        if refusal.status != NOT_FOUND:
            raise
        try:
            found = str(hub.get(f"/services/{quote(job_id, safe='')}")["id"])
        except HubRefusal:
            raise refusal from None
        if found == job_id:
            raise
    return found, ask(found)


@click.command("why", cls=HubCommand)
@click.argument("job", shell_complete=complete_job)
@click.option("--fast", is_flag=True, help="Do not look for the smallest change that would start it.")
@click.option("--eta", is_flag=True, help="Wait for an estimate of its start, some seconds at most.")
@pass_session
def why(session: Session, job: str, fast: bool, eta: bool) -> None:
    """Say why a job does not run: every blocker at once, per worker, and the smallest change that would start it.

    JOB is an id, or the name of a service: of that it is said which replicas wait, keep ending or are not well.
    """
    query: dict[str, Any] = {"fix": "false"} if fast else {}
    if eta:
        query["eta_s"] = ETA_S
    extra_s = ETA_S if eta else 0
    job_id, answer = ask_named(
        session.hub, job, lambda found: session.hub.get(job_path(found, "/why"), query, extra_s=extra_s)
    )
    if session.json:
        session.print_json(answer)
        return
    from dray.cli.jobs.reason_views import draw_why

    print(draw_why(job_id, answer))
