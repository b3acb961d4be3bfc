"""Cells on the cluster: `%load_ext dray`, then `%%dray --gpus 1` above a cell runs it there.

The cell travels as text, with those of the notebook's names that it reads; what it prints comes back as it is printed,
and the value of its last line as its result. Surprising rule: names that a cell binds stay where it ran. A cell that
changed the notebook from afar would do so also when it was cancelled half way.
"""

from __future__ import annotations

import ast
import codecs
import linecache
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dray.client.display.live import show
from dray.client.faces.default_hub import default_hub
from dray.client.faces.hub import Hub
from dray.errors import DrayError, InvalidInput

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from dray.client.futures.futures import CallFuture

CELL = "<cell on the cluster>"
# The letters of `dray submit`, and the one word that Python spells out.
LETTERS = {"c": "cpus", "G": "gpus", "t": "time_limit", "J": "name"}
SPELLED = {"mem": "memory", "time": "time_limit"}
USAGE = "%%dray [--to NAME] [--cpus 2] [--gpus A100:1] [--memory 8g] [--time 2h] and all other keywords of hub.submit"


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by IPython for `%load_ext dray`."""

    def dray(line: str, cell: str) -> Any:
        return run_magic(shell, line, cell)

    dray.__doc__ = f"Run this cell on the cluster: {USAGE}. The value of its last line is the result."
    register: Any = shell.register_magic_function  # its type hides its parameters
    register(dray, "cell", "dray")


def run_magic(shell: InteractiveShell, line: str, cell: str) -> Any:
    """Run a cell there, show its output, give its value or put it into the name after `--to`."""
    terms = read_options(line)
    target = terms.pop("to", "")
    if target and not str(target).isidentifier():
        raise InvalidInput(f"--to {target}: that is no name of a variable")
    tree = ast.parse(cell, CELL)
    given = find_names(tree, shell.user_ns)
    hub, owner = _find_hub(shell.user_ns), object()
    future = hub.submit_plain(run_cell, (cell, given), {}, {"name": "cell", **terms}, owner)
    hub.end_owner(owner)
    view = show(future)
    try:
        copy_output(future)
        value = future.result()
    except KeyboardInterrupt:
        future.cancel()
        sys.stderr.write(f"cancelled {future.id}\n")
        raise
    finally:
        if view is not None:
            # Nobody holds the future from here on: this is the last picture.
            view.refresh()
    if target:
        shell.user_ns[target] = value
        return None
    return value


def read_options(line: str) -> dict[str, Any]:
    """Read `-c 2 --memory 8g --retries=1` as keywords of `hub.submit`."""
    terms: dict[str, Any] = {}
    words = iter(shlex.split(line))
    for word in words:
        name, mark, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            raise InvalidInput(f"{word!r} is no option: {USAGE}")
        if not word.startswith("--"):
            if name[:1] not in LETTERS:
                raise InvalidInput(f"{word!r} is no option: {USAGE}")
            name, mark, value = LETTERS[name[0]], name[1:], name[1:]
        if not mark:
            value = next(words, "")
            if not value:
                raise InvalidInput(f"{word} has no value: {USAGE}")
        key = name.replace("-", "_")
        terms[SPELLED.get(key, key)] = _plain(value)
    return terms


def find_names(tree: ast.AST, space: Mapping[str, Any]) -> dict[str, Any]:
    """Those names of the notebook that a cell reads, with their values."""
    read = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return {name: space[name] for name in sorted(read & space.keys())}


def run_cell(source: str, given: dict[str, Any]) -> Any:
    """On the worker: run a cell among the names that came along; the value of its last line."""
    linecache.cache[CELL] = (len(source), None, source.splitlines(keepends=True), CELL)
    tree = ast.parse(source, CELL)
    last = tree.body[-1] if tree.body else None
    space = {"__name__": "__main__", **given}
    if not isinstance(last, ast.Expr):
        exec(compile(tree, CELL, "exec"), space)  # noqa: S102 - the user's own cell, which they sent here to be run
        return None
    tree.body.pop()
    exec(compile(tree, CELL, "exec"), space)  # noqa: S102 - the same
    return eval(compile(ast.Expression(last.value), CELL, "eval"), space)  # noqa: S307 - the same


def copy_output(future: CallFuture[Any]) -> None:
    """Show what a call prints, as it comes; whatever keeps that from coming shows in its result."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        for piece in future.logs(follow=True):
            sys.stdout.write(decoder.decode(piece))
            sys.stdout.flush()
    except DrayError as fault:
        sys.stderr.write(f"the output broke off: {fault.message}\n")


def _find_hub(space: Mapping[str, Any]) -> Hub:
    """The notebook's own `hub`, where it has one; else the one that `dray.connect()` finds."""
    found = space.get("hub")
    return found if isinstance(found, Hub) else default_hub()


def _plain(text: str) -> Any:
    """Numbers as numbers: some keywords take nothing else."""
    try:
        return int(text)
    except ValueError:
        return text
