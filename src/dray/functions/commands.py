"""A command as a function: how `dray map` runs one command per item through the runners. Runs in the runner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

NOT_EXECUTABLE, NOT_FOUND, SIGNALLED = 126, 127, 128


class Output(NamedTuple):
    """What a command wrote."""

    stdout: bytes
    stderr: bytes


class CommandFailed(Exception):
    """A command that did not end with 0; `code` is as a shell tells it."""

    def __init__(self, message: str, code: int, output: Output) -> None:
        super().__init__(message)
        self.message, self.code, self.output = message, code, output

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.code, self.output)


def run_command(template: Sequence[str], env: Mapping[str, str], workdir: str, item: str) -> Output:
    """Run one command, its `{}` replaced by the item. What it writes is part of the call's output and its result."""
    words = fill_template(template, item)
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, **env},
            cwd=workdir or None,
            check=False,
        )
    except OSError as fault:
        if fault.filename == workdir:
            raise CommandFailed(
                f"there is no folder {workdir} here", NOT_EXECUTABLE, Output(b"", b"")
            ) from None
        code = NOT_FOUND if isinstance(fault, FileNotFoundError) else NOT_EXECUTABLE
        raise CommandFailed(f"{words[0]}: {fault.strerror}", code, Output(b"", b"")) from None
    for stream, data in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
        stream.flush()
        stream.buffer.write(data)
        stream.flush()
    output = Output(done.stdout, done.stderr)
    if done.returncode < 0:
        name = signal.strsignal(-done.returncode) or str(-done.returncode)
        raise CommandFailed(f"ended by a signal: {name}", SIGNALLED - done.returncode, output)
    if done.returncode:
        raise CommandFailed(f"exit code {done.returncode}", done.returncode, output)
    return output


def fill_template(template: Sequence[str], item: str) -> list[str]:
    """Put the item where `{}` stands, or behind the last word where it stands nowhere."""
    if not any("{}" in word for word in template):
        return [*template, item]
    return [word.replace("{}", item) for word in template]
