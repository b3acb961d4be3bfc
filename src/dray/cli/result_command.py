"""The command `result`: what a call of a function gave, long after the program that asked for it has ended.

Values are opened here, on the user's own side, and nowhere on the way: opening one runs what is in it. So this shows
only results that the hub keeps for this user, and `--file` takes the bytes away unopened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dray.cli.connection import Hub, Stream, job_path
from dray.cli.exit_codes import is_numbered
from dray.cli.job_commands import split_id
from dray.cli.outage import say
from dray.cli.session import HubCommand, Session, pass_session
from dray.errors import DrayError, InvalidInput

PAGE = 1000


class Ended(DrayError):
    """A call that left no value to show."""

    code = "not_found"


@click.command("result", cls=HubCommand)
@click.argument("name", metavar="ID[/INDEX]")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the packed bytes here, unopened.",
)
@pass_session
def result(session: Session, name: str, path: Path | None) -> int:
    """Print what a call gave: text and bytes as they are, anything else as Python writes it.

    \b
      dray result 7xk2              of a single call
      dray result 7xk2/17           of one call of a map
      dray result 7xk2              of a map: one line per call that has ended
    Exit codes: 0; 1 when the call failed or has no result. What it raised goes to stderr.
    """
    job_id, index = split_id(name)
    if path is not None:
        with _open_value(session.hub, job_id, index) as stream, path.open("wb") as file:
            file.writelines(stream.chunks())
        return 0
    job = session.hub.get(job_path(job_id))
    if index < 0 and (is_numbered(job) or (job.get("spec") or {}).get("array")):
        return _show_all(session, job_id)
    return _show_one(session, job_id, index)


def _show_one(session: Session, job_id: str, index: int) -> int:
    state, value = _read(session.hub, job_id, index)
    if session.json:
        session.print_json({"id": job_id, "state": state, **_spell_json(state, value)})
        return 0 if state == "succeeded" else 1
    if state != "succeeded":
        say(_tell_failure(value))
        return 1
    if isinstance(value, (bytes, bytearray, memoryview)):
        sys.stdout.buffer.write(value)
    else:
        print(value if isinstance(value, str) else repr(value))
    return 0


def _show_all(session: Session, job_id: str) -> int:
    worst = 0
    for task in _ended_tasks(session.hub, job_id):
        number = int(task["index"])
        try:
            state, value = _read(session.hub, job_id, number)
        except DrayError as error:
            if error.code != "not_found":
                raise
            state, value = str(task["state"]), Ended(str(task["error"] or f"ended as {task['state']}"))
        if session.json:
            session.print_json({"id": f"{job_id}/{number}", "state": state, **_spell_json(state, value)})
        elif state == "succeeded":
            print(f"{number}\t{value!r}")
        else:
            say(f"{number}: {type(value).__name__}: {value}")
        worst = worst if state == "succeeded" else 1
    return worst


def _ended_tasks(hub: Hub, job_id: str) -> Iterator[dict[str, Any]]:
    cursor = ""
    while True:
        page = hub.get(job_path(job_id, "/tasks"), {"cursor": cursor, "limit": PAGE})
        yield from (task for task in page["tasks"] if task["state"] not in ("pending", "running"))
        cursor = page["next_cursor"]
        if not cursor:
            return


def _read(hub: Hub, job_id: str, index: int) -> tuple[str, Any]:
    """The state of a call and its value, or what it raised."""
    from dray.functions.failures import unpack_failure
    from dray.functions.values import unpack

    with _open_value(hub, job_id, index) as stream:
        state = stream.header("x-dray-state") or "succeeded"
        packed = bytearray()
        for piece in stream.chunks():
            packed += piece
    try:
        return state, unpack(packed) if state == "succeeded" else unpack_failure(packed)
    except DrayError:
        raise
    except Exception as fault:  # noqa: BLE001 - whatever its classes do when they are opened where their code is not
        raise InvalidInput(
            f"the value cannot be opened here ({type(fault).__name__}: {fault}): open it where its code is installed, "
            "or take it unopened with --file"
        ) from None


def _open_value(hub: Hub, job_id: str, index: int) -> Stream:
    return hub.stream(job_path(job_id, "/value"), {"task": index} if index >= 0 else None)


def _spell_json(state: str, value: Any) -> dict[str, Any]:
    import json

    if state != "succeeded":
        return {"error": f"{type(value).__name__}: {value}"}
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return {"repr": repr(value)}
    return {"value": value}


def _tell_failure(fault: Any) -> str:
    cause = getattr(fault, "__cause__", None)
    return str(cause).rstrip() if cause is not None else f"{type(fault).__name__}: {fault}"
