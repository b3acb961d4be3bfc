"""Opening values that others have made: how much a program lets a result do to it.

A packed value is a pickle, and opening one runs what is in it. `Opener` is how a client opens results: anything, or
plain data only (`safe_results: json`), which is what JSON can say, bytes, tuples and sets. Plain data is read by an
unpickler that knows no names, so there is nothing that it could call, but those of what `dray map` gives, which hold
data and do nothing with it. `describe` says what a value is without opening it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from dray.functions import commands
from dray.functions.failures import unpack_failure
from dray.functions.values import DamagedValue, Part, UnsafeValue, cut, unpack

_HARMLESS = {kind.__name__: kind for kind in (commands.Output, commands.CommandFailed)}


class Opener(NamedTuple):
    """How values and what calls have raised are opened."""

    value: Callable[[Part], Any]
    failure: Callable[..., BaseException]


class _PlainUnpickler(pickle.Unpickler):
    """Makes numbers, texts and what holds them. Whatever a pickle names is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if module == commands.__name__ and name in _HARMLESS:
            return _HARMLESS[name]
        raise UnsafeValue(
            f"the value names {module}.{name}, and only plain data is opened here (safe_results is json): let the "
            "function return numbers, texts, bytes, lists and dicts, or leave safe_results out where every worker may "
            "run code in this program",
            f"{module}.{name}",
        )

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafeValue("the value refers to something outside of it, and only plain data is opened here")


def unpack_plain(data: Part) -> Any:
    """The value, if it is plain data; raises `UnsafeValue` otherwise, and has run nothing."""
    stream, buffers = cut(data)
    try:
        return _PlainUnpickler(io.BytesIO(stream), buffers=buffers).load()
    except (UnsafeValue, MemoryError):
        raise
    except Exception as fault:  # noqa: BLE001 - a damaged pickle may raise anything
        raise DamagedValue(f"these bytes are no packed value: {fault}") from None


def unpack_plain_failure(data: Part, task_id: str = "") -> BaseException:
    """What a call raised, told in words: reviving the exception itself would run its class's code."""
    return unpack_failure(data, task_id, unpack_plain)


ANYTHING = Opener(unpack, unpack_failure)
PLAIN = Opener(unpack_plain, unpack_plain_failure)


def choose_opener(safe_results: str) -> Opener:
    """The opener that a client's settings ask for."""
    return PLAIN if safe_results else ANYTHING


def describe(data: Part) -> str:
    """What a value is, by its bytes alone: the type of plain data, else the first name that opening it would use."""
    try:
        return type(unpack_plain(data)).__name__
    except UnsafeValue as refusal:
        return f"pickle of {refusal.named}" if refusal.named else "pickle"
    except DamagedValue:
        return "no value"
