"""Deliberate bugs, each one edit of one or two functions: the simulation must catch every one of them.

An edit names the text that it replaces, which must occur exactly once: when the code moves on, its mutant says so
instead of testing nothing. The code object is exchanged, so tables and imports that hold the function see the bug.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """Replace `old` by `new` in one function, named as module:qualified.name."""

    where: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One bug and what it does, in a sentence."""

    name: str
    sentence: str
    edits: tuple[Edit, ...]


def find_function(where: str) -> FunctionType:
    """Find the plain function behind a name, a method or a property."""
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    assert isinstance(found, FunctionType), f"{where} is no function"
    return found


def mutate(function: FunctionType, edits: list[Edit]) -> CodeType:
    """Compile a function anew with its edits."""
    source = textwrap.dedent(inspect.getsource(function)).removeprefix("@property\n")
    for edit in edits:
        if source.count(edit.old) != 1:
            raise ValueError(f"{edit.where} has {source.count(edit.old)} times, not once: {edit.old!r}")
        source = source.replace(edit.old, edit.new)
    flags = __future__.annotations.compiler_flag
    built: dict[str, Any] = {}
    exec(  # noqa: S102  # the text is this project's own source with one edit of the table
        compile(source, function.__code__.co_filename, "exec", flags=flags, dont_inherit=True),
        dict(function.__globals__),
        built,
    )
    (made,) = [value for value in built.values() if isinstance(value, FunctionType)]
    return made.__code__


@contextmanager
def _exchanged(function: FunctionType, code: CodeType) -> Iterator[None]:
    before = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Live with the bug inside the block."""
    by_place: dict[str, list[Edit]] = {}
    for edit in mutant.edits:
        by_place.setdefault(edit.where, []).append(edit)
    with ExitStack() as stack:
        for where, edits in by_place.items():
            function = find_function(where)
            stack.enter_context(_exchanged(function, mutate(function, edits)))
        yield
