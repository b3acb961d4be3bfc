"""What a process beside a task reads and writes: three pipes, or a pseudo-terminal.

Made here and handed over: whoever asked for the process holds the outer ends, and this side keeps none of them, so
that it is never held up by what goes through.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.agent.supervisor.processes.spawn import Identity

MOST_CELLS = 10_000
DEFAULT_SIZE = (24, 80)


class Stdio:
    """`inner`: the standard descriptors of the process to come; `outer`: the other side of its terminal, or the other
    ends of its input, output and errors.
    """

    __slots__ = ("inner", "is_terminal", "outer")

    def __init__(self, size: tuple[int, int] | None, identity: Identity | None) -> None:
        """With a size (rows, columns) a terminal. Raises OSError when there are no descriptors, or terminals, left."""
        self.is_terminal = size is not None
        self.outer: list[int] = []
        self.inner: tuple[int, int, int] = (-1, -1, -1)
        if size is not None:
            master, slave = os.openpty()
            set_size(master, *size)
            if identity is not None and os.geteuid() == 0:
                # Programs open their terminal by its name too.
                os.fchown(slave, identity.uid, identity.gid)
            self.outer, self.inner = [master], (slave, slave, slave)
            return
        made: list[int] = []
        try:
            for _ in range(3):
                made += os.pipe()
        except OSError:
            for fd in made:
                os.close(fd)
            raise
        self.outer, self.inner = [made[1], made[2], made[4]], (made[0], made[3], made[5])

    def close_inner(self) -> None:
        for fd in {*self.inner}:
            os.close(fd)

    def close_outer(self) -> None:
        for fd in self.outer:
            os.close(fd)


def take_terminal(fd: int) -> None:
    """Make it the terminal of this session, of which the caller is the leader."""
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)


def set_size(fd: int, rows: int, columns: int) -> None:
    """Tell a terminal how large it is; its programs hear of it."""
    rows, columns = (min(max(1, cells), MOST_CELLS) for cells in (rows, columns))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
