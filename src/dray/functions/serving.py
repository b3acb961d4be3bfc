"""A function as a service: packed into the variables of a command, opened and called by the process that it becomes.

Runs on both sides, and on neither of those that must not open what others have packed. A service outlives whoever
started it, so that nothing may be fetched later: what does not fit beside the command is refused. The function is given
its port where it takes an argument, and finds it in DRAY_PORT in any case. The surprising rule: a function that returns
has ended, and is started again as a command would be.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from dray.errors import DrayError, InvalidInput
from dray.functions.envelope import find_mismatch, open_function, read_envelope, seal
from dray.functions.modules import add_paths

VARIABLE = "DRAY_FUNCTION"
# No system takes more in one variable.
MOST_BYTES = 120_000
MISFIT = 78


def pack_service(function: Callable[..., Any], env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command that serves by a function, and the variables that it needs beside `env`.

    It runs under the interpreter of this program, or that of the venv which `env` names.
    """
    sealed = seal(function)
    _check_signature(function, sealed.name)
    packed = base64.b85encode(zlib.compress(sealed.function, 9)).decode()
    if sealed.blob is not None or sealed.refs or len(packed) > MOST_BYTES:
        size = sealed.blob.size if sealed.blob is not None else len(packed)
        raise InvalidInput(
            f"the function {sealed.name}() takes {size} bytes packed, of {MOST_BYTES} that a service can bring along: "
            "load what is large inside of it, from a file or a store that the worker has"
        )
    venv = env.get("VIRTUAL_ENV", "")
    python = os.path.join(venv, "bin", "python") if venv else sys.executable
    return [python, "-m", "dray.functions.serving", sealed.name], {VARIABLE: packed}


def _check_signature(function: Callable[..., Any], name: str) -> None:
    try:
        needed = [one for one in inspect.signature(function).parameters.values() if _is_needed(one)]
    except (TypeError, ValueError):
        return
    if len(needed) > 1:
        raise InvalidInput(
            f"the function {name}() needs {len(needed)} arguments, and as a service it is given its port: bind the "
            "others (functools.partial)"
        )


def _is_needed(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return not variadic and parameter.default is inspect.Parameter.empty


def takes_port(function: Callable[..., Any]) -> bool:
    """Whether a function has an argument to be given its port in."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = next(iter(parameters), None)
    return first is not None and (first.kind in positional or first.kind is inspect.Parameter.VAR_POSITIONAL)


def main() -> int:
    """Open the function that this process was started for, and call it."""
    # Its own children have no use for it.
    packed = os.environ.pop(VARIABLE, "")
    try:
        envelope = read_envelope(zlib.decompress(base64.b85decode(packed)))
    except (DrayError, ValueError, zlib.error) as fault:
        return _misfit(f"there is no function to serve by: {fault}")
    if mismatch := find_mismatch(envelope):
        return _misfit(mismatch)
    add_paths(envelope.paths)
    function = open_function(envelope.body)
    port = os.environ.get("DRAY_PORT", "")
    result = function(int(port)) if port and takes_port(function) else function()
    if inspect.iscoroutine(result):
        asyncio.run(result)
    return 0


def _misfit(words: str) -> int:
    sys.stderr.write(f"dray: {words}\n")
    return MISFIT


if __name__ == "__main__":
    sys.exit(main())
