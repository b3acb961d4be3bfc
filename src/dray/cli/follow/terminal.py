"""The terminal that a person sits at, lent to a program elsewhere: raw meanwhile, and as it was afterwards.

Knows nothing of hubs. In raw mode each key, Ctrl-C included, is a byte for the other side; the one exception is the
escape, after a line break and as in ssh: `~.` leaves, `~~` is a tilde.
"""

from __future__ import annotations

import os
import sys
import termios
import tty
from typing import Self

ESCAPE, LEAVE = ord("~"), ord(".")
LINE_BREAKS = b"\r\n"
DEFAULT_SIZE = (24, 80)


class Escapes:
    """Looks for the escape in what is typed. What may become one is held until the next key."""

    def __init__(self) -> None:
        self._at_start, self._held = True, False

    def read(self, data: bytes) -> tuple[bytes, bool]:
        """What is to be sent, and whether the person wants to leave."""
        sent = bytearray()
        for key in data:
            if self._held:
                self._held = False
                if key == LEAVE:
                    return bytes(sent), True
                if key != ESCAPE:
                    sent.append(ESCAPE)
            elif key == ESCAPE and self._at_start:
                self._held = True
                continue
            sent.append(key)
            self._at_start = key in LINE_BREAKS
        return bytes(sent), False


class RawTerminal:
    """Raw from `enter` to `leave`. Whatever ends the command in between, it goes through `leave`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before = termios.tcgetattr(fd)

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def take(self) -> None:
        """Make it raw; again after the shell had it meanwhile."""
        tty.setraw(self._fd, termios.TCSADRAIN)


def read_size() -> tuple[int, int]:
    """Rows and columns of the terminal of this command; the customary ones without one."""
    for stream in (sys.__stdout__, sys.__stdin__, sys.__stderr__):
        try:
            if stream is not None:
                size = os.get_terminal_size(stream.fileno())
                return size.lines or DEFAULT_SIZE[0], size.columns or DEFAULT_SIZE[1]
        except (OSError, ValueError):
            continue
    return DEFAULT_SIZE
