"""The command `map`: one command per item, as one array of calls; output as it comes, a bar on a terminal.

Surprising rule: Ctrl-C cancels what has not ended, as it does for `run`, and so does a reader of the output that leaves
(`dray map … | head`); with `--detach` nothing is waited for and the job goes on by itself.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dray.cli.asks.fields import read_asks
from dray.cli.asks.flags import job_options, name_flags, read_flags, settle_surroundings
from dray.cli.asks.submission import SubmitCommand
from dray.cli.base.exit_codes import INTERRUPTED, NOT_RUN, exit_code
from dray.cli.base.invocation import Session, pass_session
from dray.cli.base.outage import say
from dray.errors import DrayError

if TYPE_CHECKING:
    from dray.client.calls.maps import MapResults

SEPARATOR = ":::"
_SHOWN = 10
# What the runner of a call is told apart from, or what has no meaning for a whole array.
_NOT_TERMS = ("command", "env", "workdir", "array", "after", "node_count")


@click.command("map", cls=SubmitCommand)
@click.option("-j", "--jobs", "limit", type=click.IntRange(1), metavar="N", help="At most N at once.")
@click.option("-k", "--keep-order", is_flag=True, help="Print output in the order of the items.")
@click.option("-0", "--null", is_flag=True, help="Items on stdin end with a zero byte, not with a line.")
@click.option("--detach", is_flag=True, help="Print the job's id and return once all is submitted.")
@job_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]... [::: ITEMS...]")
@pass_session
def map_items(session: Session, words: tuple[str, ...], limit: int | None, **flags: Any) -> int:
    """Run a command once per item, {} replaced by the item; items come after ::: or line by line from stdin.

    \b
      dray map -- gzip -9 {} ::: *.csv
      find . -name '*.wav' | dray map -c 2 -- python transcribe.py {}
      seq 100 | dray map -j 8 --retries 2 -- python evaluate.py --seed {}
    Exit codes: 0 when all succeeded; else that of the first item, in order, that did not;
    125 dray could not run it; 130 after Ctrl-C, which cancels the rest, as does a reader that leaves.
    """
    context = click.get_current_context()
    command, items = split_items(context, words, flags.pop("null"))
    keep_order, detach = flags.pop("keep_order"), flags.pop("detach")
    terms, surroundings = _read_terms(context, command, flags)
    try:
        return _Map(session, command, items, terms, surroundings).run(limit or 0, keep_order, detach)
    except DrayError as error:
        return session.report(error, NOT_RUN)


def split_items(
    context: click.Context, words: tuple[str, ...], null: bool
) -> tuple[list[str], Iterator[str] | list[str]]:
    """The command, and the items: those after `:::`, else what stdin holds."""
    if SEPARATOR in words:
        place = words.index(SEPARATOR)
        command, items = list(words[:place]), list(words[place + 1 :])
        if not command:
            raise click.UsageError("give a command before :::", context)
        return command, items
    if not words:
        raise click.UsageError("give a command after `--`, then ::: and items, or items on stdin", context)
    if sys.stdin.isatty():
        raise click.UsageError("give items after :::, or on stdin", context)
    return list(words), _read_items(b"\0" if null else b"\n")


def _read_items(end: bytes) -> Iterator[str]:
    """Items as they arrive, so that work begins before the last one is known."""
    if end == b"\n":
        for line in sys.stdin.buffer:
            if text := line.rstrip(b"\r\n").decode(errors="surrogateescape"):
                yield text
        return
    yield from filter(None, sys.stdin.buffer.read().decode(errors="surrogateescape").split("\0"))


def _read_terms(
    context: click.Context, command: list[str], flags: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    given, problems = read_flags(flags)
    asks = read_asks({**given, "command": command})
    problems = [*problems, *asks.problems]
    if problems:
        lines = [f"{problem.where}: {problem.what}" for problem in name_flags(problems, asks)]
        raise click.UsageError("\n  ".join(["", *lines]), context)
    for field, flag in (("array", "--array"), ("after", "--after"), ("node_count", "--nodes")):
        if asks.spec.get(field):
            raise click.UsageError(f"{flag} has no meaning for map: use submit", context)
    settle_surroundings(asks.spec)
    terms = {name: value for name, value in asks.spec.items() if name not in _NOT_TERMS}
    terms.setdefault("name", command[0].rpartition("/")[2][:64])
    return terms, {"env": asks.spec.get("env") or {}, "workdir": asks.spec.get("workdir") or ""}


class _Map:
    """One `map` from its first call to its last result."""

    def __init__(
        self,
        session: Session,
        command: list[str],
        items: Iterator[str] | list[str],
        terms: dict[str, Any],
        surroundings: dict[str, Any],
    ) -> None:
        self._session, self._terms = session, terms
        self._items: list[str] = []
        self._source = items
        self._command, self._surroundings = command, surroundings
        self._failed: dict[int, int] = {}
        self._rows: list[dict[str, Any]] = []

    def run(self, limit: int, keep_order: bool, detach: bool) -> int:
        from dray.client.faces.hub import Hub
        from dray.functions.commands import run_command

        work = functools.partial(
            run_command, self._command, self._surroundings["env"], self._surroundings["workdir"]
        )
        # What commands give is plain data: nothing that a worker sends instead is opened here.
        with Hub(replace(self._session.config, safe_results="json")) as hub:
            known = len(self._source) if isinstance(self._source, list) else None
            results = hub.map(
                work,
                self._note_items(),
                ordered=keep_order,
                return_exceptions=True,
                limit=limit,
                total=known,
                window=1 << 40 if detach else None,
                **self._terms,
            )
            if detach:
                results.await_recorded()
                if self._session.json:
                    self._session.print_json({"job": results.job, "total": len(self._items)})
                else:
                    print(results.job)
                return 0
            try:
                return self._follow(results)
            except KeyboardInterrupt:
                say(f"interrupted: cancelling what has not ended of {results.job}")
                results.cancel()
                hub.wait(results.job, timeout=30)
                return INTERRUPTED
            except BrokenPipeError:
                # Nobody reads any more. Leaving the hub sends what was asked of it, and waits for no work to end.
                results.cancel()
                raise

    def _note_items(self) -> Iterator[str]:
        for item in self._source:
            self._items.append(item)
            yield item

    def _follow(self, results: MapResults[Any]) -> int:
        for value in results:
            self._show(results.place, value)
        total = len(self._items)
        if self._session.json:
            rows = sorted(self._rows, key=lambda row: int(row["index"]))
            self._session.print_json(
                {"job": results.job, "total": total, "failed": len(self._failed), "items": rows}
            )
        if not self._failed:
            return 0
        places = sorted(self._failed)
        listed = ", ".join(self._items[place] for place in places[:_SHOWN])
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        say(f"{len(places)} of {total} did not succeed: {listed}{more} (job {results.job})")
        return self._failed[places[0]]

    def _show(self, place: int, value: Any) -> None:
        code, said = 0, ""
        output = value
        if isinstance(value, BaseException):
            output, said = getattr(value, "output", None), str(value)
            code = self._failed[place] = _exit_code(value)
            if output is None:
                say(f"{self._items[place]}: {said}")
        if self._session.json:
            row = {"index": place, "item": self._items[place], "exit_code": code}
            self._rows.append({**row, "error": said} if said else row)
            return
        if output is not None:
            _copy(sys.stdout, output.stdout)
            _copy(sys.stderr, output.stderr)


def _exit_code(fault: BaseException) -> int:
    """That of a command which has ended; else what `run` would make of how its call ended."""
    code = getattr(fault, "code", None)
    if isinstance(code, int):
        return code
    state, exit_class = getattr(fault, "state", ""), getattr(fault, "exit_class", "")
    return exit_code({"state": state, "exit_class": exit_class}) if state else NOT_RUN


def _copy(stream: Any, data: bytes) -> None:
    """Through the stream on a terminal, where a bar may stand in the way; byte for byte elsewhere."""
    if not data:
        return
    if stream.isatty():
        stream.write(data.decode(errors="replace"))
    else:
        stream.flush()
        stream.buffer.write(data)
    stream.flush()
