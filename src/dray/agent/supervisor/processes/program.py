"""The program a task names: found on the task's own PATH, and described in words where it cannot be run."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from dray.agent.supervisor.records.journal import Record

    Started = TypeVar("Started")

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
# The host has no room for another process: says nothing about the program.
HOST_ERRORS = (errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE)


def find_program(argv: list[str], env: dict[str, str], begin: Callable[[str], Started]) -> Started:
    """Begin the program by the first path that works, searching the PATH of the environment given and no other."""
    program = argv[0]
    if "/" in program:
        return begin(program)
    refused: OSError | None = None
    paths = [f"{folder or '.'}/{program}" for folder in env.get("PATH", DEFAULT_PATH).split(":")]
    for path in paths:
        # Asking first is cheaper than a failing exec, which has to encode the whole environment.
        if not os.access(path, os.X_OK):
            continue
        try:
            return begin(path)
        except OSError as error:
            if error.errno in HOST_ERRORS:
                raise
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                refused = refused or error
    if refused is None and any(map(os.path.isfile, paths)):
        refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)


def describe_failure(
    failure: Record, argv: list[str], env: dict[str, str], cwd: str | None
) -> tuple[str, int, str]:
    """(exit class, exit code, words) for a child that never became its program."""
    number, text = failure["errno"], failure["text"]
    reason = os.strerror(number) if number else text
    if failure["kind"] == "workdir":
        return "workdir", 125, f"working directory {cwd!r} cannot be used on this worker: {reason}"
    if failure["kind"] != "exec":
        return "not_executable", 126, f"the task could not be set up: {text}"
    program = argv[0]
    if number in (errno.ENOENT, errno.ENOTDIR):
        if "/" in program:
            if failure.get("there"):
                return "not_found", 127, f"the interpreter of {program!r} was not found on this worker"
            return "not_found", 127, f"program {program!r} was not found on this worker"
        path = env.get("PATH", DEFAULT_PATH)
        return "not_found", 127, f"program {program!r} was not found on this worker (PATH={path})"
    hint = " (a script needs a first line like #!/bin/sh)" if number == errno.ENOEXEC else ""
    return "not_executable", 126, f"program {program!r} cannot be executed on this worker: {reason}{hint}"
