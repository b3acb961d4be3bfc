"""What each call prints, apart from what the others print: files behind the descriptors 1 and 2.

A call that has printed something leaves its file behind under its own name and a fresh one takes its place, so that
whatever it started and left running goes on writing to the output of that call. A call that prints nothing costs two
looks at a file position.
"""

from __future__ import annotations

import contextlib
import os
import sys

from dray.wire.local.runner_frames import STDERR, STDOUT

STREAMS = ((1, "stdout", STDOUT), (2, "stderr", STDERR))


class Outputs:
    """The two files of a runner. `folder` holds what the present call prints, `ended` what those before it did."""

    def __init__(self, folder: str, ended: str) -> None:
        self._folder, self._ended = folder, ended
        for number, name, _ in STREAMS:
            self._open(number, name)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                # What a long call prints should be seen while it runs.
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # asked for on the line above
        self._stdout, self._stderr = sys.stdout, sys.stderr

    def _open(self, number: int, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(f"{self._folder}/{name}.0", flags, 0o600)
        if descriptor == number:  # the call had closed it
            os.set_inheritable(number, True)
        else:
            os.dup2(descriptor, number)
            os.close(descriptor)

    def print_failure(self, text: str) -> None:
        """Put the traceback of a call where that of a program would be: at the end of what it said on stderr."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="replace"))

    def collect(self, lane: str, index: int) -> int:
        """After a call: put aside what it has printed; which streams that were, as flags of its result."""
        try:
            self._stdout.flush()
            self._stderr.flush()
            if sys.stdout is not self._stdout or sys.stderr is not self._stderr:
                sys.stdout, sys.stderr = self._stdout, self._stderr
            if not os.lseek(1, 0, os.SEEK_CUR) and not os.lseek(2, 0, os.SEEK_CUR):
                return 0
        except (OSError, ValueError):
            # The call has closed them, or put something else in their place: all of it is made anew.
            flags = self._put_aside(lane, index)
            self._stdout = sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - kept
            self._stderr = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - kept
            return flags
        return self._put_aside(lane, index)

    def _put_aside(self, lane: str, index: int) -> int:
        flags = 0
        target = f"{self._ended}/{lane}.{index}"
        for number, name, flag in STREAMS:
            for file in os.listdir(self._folder):
                # Not always `stdout.0`: the agent cuts what has grown too large, and names it by what went before.
                if file.startswith(f"{name}.") and os.stat(f"{self._folder}/{file}").st_size:
                    os.makedirs(target, 0o700, exist_ok=True)
                    os.rename(f"{self._folder}/{file}", f"{target}/{file}")
                    flags |= flag
            self._open(number, name)
        return flags
