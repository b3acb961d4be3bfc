"""A person at a terminal: a command in a pseudo-terminal of this process, read and typed into."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

DEADLINE_S = 60.0
# Takes the terminal that it finds as its input for its own, and becomes the command.
TAKE = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """One command at one terminal. `shown` is all that it has shown."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], rows: int, columns: int) -> None:
        self._master, self._slave = os.openpty()
        self.resize(rows, columns)
        self.shown = b""
        self.process = subprocess.Popen(
            [words[0], "-c", TAKE, *words],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**env, "TERM": "xterm"},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    @property
    def modes(self) -> list[Any]:
        """How the terminal is set: as it was before, or raw."""
        return termios.tcgetattr(self._slave)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait(self, text: bytes) -> bytes:
        """Wait until it has shown that; gives all that it has shown up to there since the last wait."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} is not shown: {self.shown!r}"
            self.shown += os.read(self._master, 65536)
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def end(self) -> int:
        """The exit code, once it has ended; what it showed until then is read."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.shown!r}"
            ready, _, _ = select.select([self._master], [], [], 0.05)
            if ready:
                self.shown += os.read(self._master, 65536)
        while select.select([self._master], [], [], 0)[0]:
            self.shown += os.read(self._master, 65536)
        return self.process.returncode
