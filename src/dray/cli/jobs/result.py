"""The command `result`: what a call of a function gave, long after the program that asked for it has ended.

Values are opened here, on the user's own side, and nowhere on the way: opening one runs what is in it. So what a value
is, how large and who made it is said first, one of another user's job stays closed without `--trust`, and `--file`
takes the bytes away unopened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dray.cli.base.exit_codes import is_numbered
from dray.cli.base.hub import job_path
from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.cli.base.outage import say
from dray.cli.jobs.jobs import split_id
from dray.errors import DrayError, InvalidInput

if TYPE_CHECKING:
    from dray.client.calls.recorded import Recorded
    from dray.client.faces.hub import Hub


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
@click.option(
    "--trust", is_flag=True, help="Open values of another user's job, which may run code of theirs."
)
@pass_session
def result(session: Session, name: str, path: Path | None, trust: bool) -> int:
    """Print what a call gave: text and bytes as they are, anything else as Python writes it.

    \b
      dray result 7xk2              of a single call
      dray result 7xk2/17           of one call of a map
      dray result 7xk2              of a map: one line per call that has ended
    What it is, its size, its worker and its user go to stderr first, since opening a value runs what is in it.
    Exit codes: 0; 1 when the call failed or has no result. What it raised goes to stderr.
    """
    job_id, index = split_id(name)
    if path is not None:
        query = {"task": index} if index >= 0 else None
        with session.hub.stream(job_path(job_id, "/value"), query) as stream, path.open("wb") as file:
            file.writelines(stream.chunks())
        return 0
    job = session.hub.get(job_path(job_id))
    from dray.client.faces.hub import Hub

    with Hub(session.config) as hub:
        shown = _Results(session, hub, str(job.get("user") or ""), trust)
        if index < 0 and (is_numbered(job) or (job.get("spec") or {}).get("array")):
            return shown.show_all(job_id)
        return shown.show_one(job_id, index)


class _Results:
    """What is recorded of one job, shown."""

    def __init__(self, session: Session, hub: Hub, user: str, trust: bool) -> None:
        self._session, self._hub, self._user = session, hub, user
        own = hub.ping()["user"]
        self._is_closed = user != own and not trust
        self._warning = (
            f"this is a job of {user} and you are {own}: opening a value runs what is in it, with your rights. Open it "
            "with --trust if you trust them with that, or take it unopened with --file"
        )

    def show_one(self, job_id: str, index: int) -> int:
        name = f"{job_id}/{index}" if index >= 0 else job_id
        rows = self._hub.recorded(name)
        if not rows:
            raise Ended(f"{name} has no result yet: it is {self._hub.status(name).state.value}")
        row = self._hub.load_recorded(rows[0])
        kind, size = _describe(row)
        if self._session.json:
            self._session.print_json({"id": job_id, **self._spell_json(row)})
        else:
            say(f"{kind}, {size} bytes, made by {row.worker or 'nobody'} for {self._user}")
        if self._is_closed:
            say(self._warning)
            return 1
        if self._session.json:
            return 0 if row.state == "succeeded" else 1
        value = self._open(row)
        if row.state != "succeeded":
            say(_tell_failure(value))
            return 1
        if isinstance(value, (bytes, bytearray, memoryview)):
            sys.stdout.buffer.write(value)
        else:
            print(value if isinstance(value, str) else repr(value))
        return 0

    def show_all(self, job_id: str) -> int:
        worst, makers = 0, set[str]()
        for row in self._rows(job_id):
            number = row.task_id.rpartition("/")[2]
            if row.worker not in makers and not self._session.json:
                makers.add(row.worker)
                say(f"results made by {row.worker or 'nobody'} for {self._user}")
            if self._session.json:
                self._session.print_json({"id": row.task_id, **self._spell_json(row)})
            elif self._is_closed:
                kind, size = _describe(row)
                print(f"{number}\t{kind}\t{size}\t{row.worker}")
            elif row.state == "succeeded":
                print(f"{number}\t{self._open(row)!r}")
            else:
                fault = self._open(row)
                say(f"{number}: {type(fault).__name__}: {fault}")
            worst = worst if row.state == "succeeded" else 1
        if self._is_closed:
            say(self._warning)
            return 1
        return worst

    def _rows(self, job_id: str) -> Iterator[Recorded]:
        for page in self._hub.recorded_pages(job_id):
            yield from map(self._hub.load_recorded, page)

    def _open(self, row: Recorded) -> Any:
        """The value of a call, or what it raised."""
        try:
            return self._hub.open_recorded(row)
        except DrayError as fault:
            if row.state == "succeeded":
                raise
            return fault
        except Exception as fault:  # noqa: BLE001 - what it raised, or whatever its classes do where their code is not
            if row.state != "succeeded":
                return fault
            raise InvalidInput(
                f"the value cannot be opened here ({type(fault).__name__}: {fault}): open it where its code is "
                "installed, or take it unopened with --file"
            ) from None

    def _spell_json(self, row: Recorded) -> dict[str, Any]:
        import json

        kind, size = _describe(row)
        spelled = {"state": row.state, "type": kind, "bytes": size, "worker": row.worker, "user": self._user}
        if self._is_closed:
            return spelled
        value = self._open(row)
        if row.state != "succeeded":
            return {**spelled, "error": f"{type(value).__name__}: {value}"}
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            return {**spelled, "repr": repr(value)}
        return {**spelled, "value": value}


def _describe(row: Recorded) -> tuple[str, int]:
    """What a value is, unopened, and its size in bytes."""
    from dray.functions.opening import describe

    if row.value is None:
        return "nothing", 0
    return describe(row.value) if row.state == "succeeded" else "an exception", len(row.value)


def _tell_failure(fault: Any) -> str:
    cause = getattr(fault, "__cause__", None)
    return str(cause).rstrip() if cause is not None else f"{type(fault).__name__}: {fault}"
