"""Commands that change a job after its submit: hold, release, requeue, set."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import click

from dray.cli.base.completion import complete_job
from dray.cli.base.exit_codes import UNSUCCESSFUL, is_numbered
from dray.cli.base.hub import HubRefusal, job_path
from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.jobs.bulk import act_on_selected, selection_options, selects
from dray.cli.jobs.jobs import change_each, preview_of, split_id
from dray.cli.jobs.listing import MANY, page_tasks

_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_MAPS = ("labels", "env", "resources")
_LISTS = ("require", "prefer")
_SWITCHES = ("hold", "at_most_once", "mixed_backends")


def _told(done: str) -> Callable[[Mapping[str, Any]], str]:
    """What to say of a change: the hub's own words where it has any."""
    return lambda document: str(document.get("note") or done)


def _whole(job_id: str, index: int, verb: str) -> str:
    if index >= 0:
        raise click.UsageError(f"a job is {verb} whole: write {job_id}, not {job_id}/{index}")
    return job_id


@click.command("hold", cls=HubCommand)
@click.argument("jobs", nargs=-1, metavar="[ID]...", shell_complete=complete_job)
@selection_options
@pass_session
def hold(session: Session, jobs: tuple[str, ...], **given: Any) -> int:
    """Keep jobs from starting until they are released: these, or all that are what flags say. What runs goes on."""
    if selects(given, jobs):
        return act_on_selected(session, "hold", given)

    def ask(job_id: str, index: int) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = session.hub.call(
            "POST", job_path(_whole(job_id, index, "held"), preview_of("/hold", given["dry_run"]))
        )
        return answer

    return change_each(session, jobs, ask, _told("held"))


@click.command("release", cls=HubCommand)
@click.argument("jobs", nargs=-1, metavar="[ID]...", shell_complete=complete_job)
@selection_options
@pass_session
def release(session: Session, jobs: tuple[str, ...], **given: Any) -> int:
    """Let held jobs start, these or all that are what flags say; they keep the place in the queue that they had."""
    if selects(given, jobs):
        return act_on_selected(session, "release", given)

    def ask(job_id: str, index: int) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = session.hub.call(
            "POST", job_path(_whole(job_id, index, "released"), preview_of("/release", given["dry_run"]))
        )
        return answer

    return change_each(session, jobs, ask, _told("released"))


@click.command("requeue", cls=HubCommand)
@click.argument("jobs", nargs=-1, metavar="[ID[/INDEX]]...", shell_complete=complete_job)
@selection_options
@click.option("--failed", is_flag=True, help="Run the tasks that failed again, as a new job; prints its id.")
@pass_session
def requeue(session: Session, jobs: tuple[str, ...], failed: bool, **given: Any) -> int:
    """Stop what runs of jobs or single tasks (ID/INDEX) and queue it again, in its old place.

    It uses up neither retries nor losses. A job that has ended stays as it is: `dray submit --from ID` runs it again,
    and --failed those of its tasks that did not succeed, as a new job.
    """
    if failed:
        return _run_failed_again(session, jobs)
    if selects(given, jobs):
        return act_on_selected(session, "requeue", given)

    def ask(job_id: str, index: int) -> Mapping[str, Any]:
        body = {"task": index} if index >= 0 else {}
        answer: Mapping[str, Any] = session.hub.call(
            "POST", job_path(job_id, preview_of("/requeue", given["dry_run"])), body=body
        )
        return answer

    return change_each(session, jobs, ask, _told("stopping; it is queued again once it is gone"))


def _run_failed_again(session: Session, jobs: tuple[str, ...]) -> int:
    """Submit what failed of each job anew; the id of the new one is all that stdout gets, as of a submit."""
    from dray.cli.asks.submission import Submission, send
    from dray.core.model.specs.again import again_spec

    if not jobs:
        raise click.UsageError("give the ids of the jobs whose failed tasks are to run again")
    made = []
    for job_id in [_whole(*split_id(job), "looked through") for job in jobs]:
        document = session.hub.get(job_path(job_id))
        if document.get("calls"):
            raise click.UsageError(f"job {job_id} runs a function: call it again from Python")
        indices = None
        if is_numbered(document) and (document.get("spec") or {}).get("array"):
            listed = page_tasks(session.hub, job_id, list(UNSUCCESSFUL), MANY)
            indices = [int(task["array_index"]) for task in listed.items]
        if not (indices if indices is not None else document["state"] in UNSUCCESSFUL):
            print(f"{job_id}: no task of it failed: nothing is to run again", file=sys.stderr)
            continue
        spec = again_spec(document["spec"], indices)
        made += send(session.hub, Submission([spec], uuid.uuid4().hex, None))
        if not session.json:
            told = f"{len(indices)} of its {document['tasks']['total']} tasks run" if indices else "it runs"
            print(f"{job_id}: {told} again as {made[-1]['id']}", file=sys.stderr)
            print(made[-1]["id"])
    if session.json:
        session.print_json(made[0] if len(made) == 1 else {"jobs": made})
    return 0


@click.command("set", cls=HubCommand)
@click.argument("job", metavar="ID")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Only say what that would change.")
@pass_session
def set_job(session: Session, job: str, changes: tuple[str, ...], dry_run: bool) -> int:
    """Change a job that waits. Keys are those of a job file; an empty value takes one back to its default.

    \b
      dray set ID priority=5 queue=night
      dray set ID gpus=1 time=2h mem=16g
      dray set ID after=ok:OTHER limit=4

    Once a task of it was placed, only priority (higher wins), queue, name, labels, limit, queue_timeout, deadline,
    expected_runtime_s, hold and after can be changed.
    """
    from dray.cli.asks.fields import FIELD_OF, read_changes
    from dray.errors import Problem

    job_id = _whole(*split_id(job), "changed")
    given, problems = _read_changes(changes)
    nodes = 1
    if "gpus" in given:
        # The job's total: what each task gets depends on how many nodes the job has.
        nodes = int((session.hub.get(job_path(job_id)).get("spec") or {}).get("node_count", 1))
    asks = read_changes({key: value for key, value in given.items() if value is not None}, nodes)
    problems += asks.problems
    if problems:
        raise click.UsageError("; ".join(f"{problem.where}: {problem.what}" for problem in problems))
    fields = asks.spec | {FIELD_OF.get(key, key): None for key, value in given.items() if value is None}
    try:
        document = dict(session.hub.call("PATCH", job_path(job_id, preview_of("", dry_run)), body=fields))
    except HubRefusal as refusal:
        refusal.problems = tuple(
            Problem(asks.sources.get(problem.where, problem.where), problem.what)
            for problem in refusal.problems
        )
        raise
    if session.json:
        session.print_json(document)
    else:
        preview = document.get("preview")
        print(f"{job_id}: {preview['sentence'] if preview else document.get('note') or 'changed'}")
    return 0


def _read_changes(words: tuple[str, ...]) -> tuple[dict[str, Any], list[Any]]:
    from dray.errors import Problem

    given: dict[str, Any] = {}
    problems: list[Any] = []
    for word in words:
        key, mark, text = word.partition("=")
        key = key.replace("-", "_")
        if not mark or not key:
            problems.append(Problem(word, "is no change: write KEY=VALUE"))
        elif key in given:
            problems.append(Problem(key, "is given twice"))
        else:
            try:
                key, value = _read_value(key, text)
            except ValueError as fault:
                problems.append(Problem(key, str(fault)))
            else:
                given[key] = value
    return given, problems


def _read_value(key: str, text: str) -> tuple[str, Any]:
    """Read a value as a job file would; what is empty takes the key back to its default."""
    if key == "limit":
        return "array", {"limit": _number(text or "0")}
    if not text:
        return key, [] if key == "after" else None
    if key in _SWITCHES:
        if text.lower() not in _FLAGS:
            raise ValueError(f"must be true or false, got {text!r}")
        return key, _FLAGS[text.lower()]
    if key in _LISTS:
        return key, [part.strip() for part in text.split(",") if part.strip()]
    if key in _MAPS:
        pairs = [part.partition("=") for part in text.split(",")]
        if not all(mark and name for name, mark, _ in pairs):
            raise ValueError(f"must be K=V, several with commas, got {text!r}")
        return key, {name: _number(value) if key == "resources" else value for name, _, value in pairs}
    return key, _number(text) if _is_number(text) and key not in ("name", "queue", "time") else text


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"must be a number, got {text!r}") from None
