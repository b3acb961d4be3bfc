"""A daemon's log as a file of its own that never grows without end.

Both standard streams go where the log goes, so that nothing a library or the interpreter prints is lost. Surprising
rule: the size is looked at after each line of the log, so what is printed past it is only held to the bound by the next
line. A disk that is full costs lines, never the daemon.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path


class RotatingOutput(logging.StreamHandler):  # type: ignore[type-arg]  # generic in its stub alone
    """Writes to a file that is put aside when it is full; the oldest of `kept` old ones goes."""

    def __init__(self, path: Path, most_bytes: int, kept: int) -> None:
        super().__init__(sys.stderr)
        self._path, self._most, self._kept = path, most_bytes, kept
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_over()
        self._look()

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self._look()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is the library's
        """Say nothing of a line that could not be written: there is nowhere to say it."""

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            if os.fstat(sys.stderr.fileno()).st_size >= self._most:
                self._rotate()

    def _rotate(self) -> None:
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n + 1}") for n in range(self._kept))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._take_over()

    def _take_over(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file, stream.fileno())
        os.close(file)


def make_handler(path: Path | None, most_bytes: int, kept: int) -> logging.Handler:
    """Where a daemon's log goes: a file of its own, or standard error, for whoever started it to keep."""
    return logging.StreamHandler(sys.stderr) if path is None else RotatingOutput(path, most_bytes, kept)
