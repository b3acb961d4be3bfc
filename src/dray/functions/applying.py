"""One function that calls others: for executors, whose calls of all functions share one array, and for batches.

Runs in the runner. What it has opened it keeps, by its bytes. An initialiser runs once per process and executor; one
that travels by value travels with each function, since only what is packed together shares its global names, and then
runs once for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any, NamedTuple

from dray.errors import InvalidInput
from dray.functions.values import Unpicklable, hidden_modules, pack, unpack

_KEPT = 64
_opened: dict[bytes, tuple[Callable[..., Any], Callable[..., Any] | None, tuple[Any, ...]]] = {}
_initialised: dict[str | bytes, str] = {}


class InitializerFailed(BrokenExecutor):
    """The initialiser of an executor has raised: none of its calls can run."""


class Initialiser(NamedTuple):
    """What runs before the first call, for whom."""

    owner: str
    function: Callable[..., object]
    args: tuple[Any, ...]


def prepare(function: Callable[..., Any], first: Initialiser | None) -> tuple[bytes, str]:
    """What `apply` needs beside the arguments: the function, packed, and under which name its initialiser ran."""
    try:
        whole = pack((function, first and first.function, first.args if first else ()))
    except Unpicklable as fault:
        raise Unpicklable(
            f"the function {getattr(function, '__name__', function)!s}() {fault.message}"
        ) from fault
    if whole.refs:
        raise InvalidInput(
            f"{getattr(function, '__name__', 'the function')!s}() or its initializer holds a future: give it as an "
            "argument of the call, where it stands for its result"
        )
    packed = whole.join()
    if first is None:
        return packed, ""
    module = getattr(first.function, "__module__", None)
    alone = module == "__main__" or hidden_modules.holds(module)
    return packed, f"{first.owner}{'+' if alone else ''}"


def apply(packed: bytes, owner: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Open the function, or take it as it was opened before, and call it."""
    found = _opened.get(packed)
    if found is None:
        if len(_opened) >= _KEPT:
            _opened.clear()
        found = _opened[packed] = unpack(packed)
    function, initializer, initargs = found
    if initializer is not None:
        _initialise(packed if owner.endswith("+") else owner, initializer, initargs)
    return function(*args, **kwargs)


def run_batch(batch: Callable[[], Any]) -> Any:
    """Run a batch that knows its own functions and arguments."""
    return batch()


def _initialise(name: str | bytes, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
    fault = _initialised.get(name)
    if fault is None:
        try:
            initializer(*initargs)
            fault = ""
        except Exception as raised:  # noqa: BLE001 - whatever it was, no call of this executor can run here
            fault = f"the initializer raised {type(raised).__name__}: {raised}"
        _initialised[name] = fault
    if fault:
        raise InitializerFailed(fault)
