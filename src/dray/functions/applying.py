"""One function that calls others: for executors, whose calls of all functions share one array.

Runs in the runner. What it has opened it keeps, by its bytes; an initialiser runs once per process and executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

from dray.functions.envelope import open_function, read_envelope, seal

_KEPT = 64
_opened: dict[bytes, Callable[..., Any]] = {}
_initialised: dict[str, str] = {}

Initialiser = tuple[bytes, tuple[Any, ...]]


class InitializerFailed(BrokenExecutor):
    """The initialiser of an executor has raised: none of its calls can run."""


def prepare(
    function: Callable[..., Any], initializer: Initialiser | None, owner: str
) -> tuple[bytes, tuple[Initialiser, str] | None]:
    """What `apply` needs beside the arguments."""
    sealed = seal(function)
    packed = sealed.blob.join() if sealed.blob is not None else bytes(read_envelope(sealed.function).body)
    return packed, None if initializer is None else (initializer, owner)


def apply(
    packed: bytes,
    first: tuple[Initialiser, str] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Open the function, or take it as it was opened before, and call it."""
    if first is not None:
        _initialise(*first)
    function = _opened.get(packed)
    if function is None:
        if len(_opened) >= _KEPT:
            _opened.clear()
        function = _opened[packed] = open_function(packed)
    return function(*args, **kwargs)


def run_batch(batch: Callable[[], Any]) -> Any:
    """Run a batch that knows its own functions and arguments."""
    return batch()


def _initialise(initializer: Initialiser, owner: str) -> None:
    fault = _initialised.get(owner)
    if fault is None:
        sealed, initargs = initializer
        try:
            open_function(read_envelope(sealed).body)(*initargs)
            fault = ""
        except Exception as raised:  # noqa: BLE001 - whatever it was, no call of this executor can run here
            fault = f"the initializer raised {type(raised).__name__}: {raised}"
        _initialised[owner] = fault
    if fault:
        raise InitializerFailed(fault)
