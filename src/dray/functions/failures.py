"""Exceptions as bytes: what a call raised, with the traceback of where it was raised, told again at the caller's side.

Surprising rule: an exception is sent as itself only if it also comes back to life here; many forget to pass their
arguments on to `Exception` and would fail at the caller's side instead, where nobody could tell what had happened.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from dray.errors import DrayError
from dray.functions.values import INLINE_BYTES, Packed, Part, pack, unpack

TEXT_BYTES = 16 << 10


class CallFailed(DrayError):
    """A call that ended without a result. `exit_class` says how: crashed, oom, time_limit, environment and so on."""

    code = "call_failed"

    def __init__(self, message: str, exit_class: str = "", state: str = "failed", task_id: str = "") -> None:
        super().__init__(message)
        self.exit_class, self.state, self.task_id = exit_class, state, task_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.exit_class, self.state, self.task_id)


class RemoteError(CallFailed):
    """An exception of a call that could not travel, or must not be raised here: its type's name and its words."""

    code = "remote_error"


class RemoteTraceback(Exception):
    """Where an exception was raised, on the worker; the cause of the exception that the caller sees."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def pack_failure(fault: BaseException, told: tuple[str, str] | None = None) -> Packed:
    """Pack what a call raised; never fails and is always small enough to travel inside a message.

    `told`: its words and its traceback, where somebody has them already (`tell_failure`).
    """
    kind = f"{type(fault).__module__}.{type(fault).__qualname__}".removeprefix("builtins.")
    words, text = told or tell_failure(fault)
    try:
        alone = pack(fault)
        revived = unpack(alone.join())
        if type(revived).__qualname__ == type(fault).__qualname__ and alone.size <= INLINE_BYTES // 2:
            return pack((kind, words, text, alone.join()))
    except Exception:  # noqa: BLE001 - an exception's own code may raise anything; its words travel instead
        pass
    return pack((kind, words, text, b""))


def unpack_failure(data: Part, task_id: str = "", opened: Callable[[Part], Any] = unpack) -> BaseException:
    """The exception as it was, its traceback as its cause; `RemoteError` where it could not travel, or be `opened`.

    What would end the program of whoever asks for the result (SystemExit, KeyboardInterrupt) is told as one too.
    """
    kind, words, text, alone = opened(data)
    try:
        fault: BaseException = opened(alone) if alone else _retell(kind, words, task_id)
    except Exception:  # noqa: BLE001 - a class that is not to be had at this side
        fault = _retell(kind, words, task_id)
    if not isinstance(fault, Exception):
        fault = _retell(kind, words, task_id)
    fault.__cause__ = RemoteTraceback(text)
    return fault


def _retell(kind: str, words: str, task_id: str) -> RemoteError:
    return RemoteError(f"{kind}: {words}" if words else kind, "raised", "failed", task_id)


def tell_failure(fault: BaseException) -> tuple[str, str]:
    """The words of an exception and its traceback, each cut to what travels; its own code may fail, this does not."""
    try:
        words = str(fault)
    except Exception as second:  # noqa: BLE001 - the user's own __str__
        words = f"(its message cannot be had: {type(second).__name__})"
    try:
        text = "".join(traceback.format_exception(fault))
    except Exception:  # noqa: BLE001 - the same
        text = "".join(traceback.format_tb(fault.__traceback__)) + f"{type(fault).__name__}\n"
    return _cut(words), _cut(text)


def _cut(text: str) -> str:
    """The beginning and the end: an endless recursion repeats itself in between."""
    if len(text) <= TEXT_BYTES:
        return text
    half = TEXT_BYTES // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
