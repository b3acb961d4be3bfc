"""A child of the supervisor: its pid and start time, its output pipes, and how it is watched, signalled and reaped.

Knows nothing of attempts. Surprising rule: it stays unreaped until its session is settled.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from dray.agent.supervisor.processes.identity import HAS_PIDFD

if TYPE_CHECKING:
    import resource


class Pipes:
    """The two output pipes of a child to come. Their numbers are known before it exists, so they tell it apart."""

    __slots__ = ("read_fds", "write_fds")

    def __init__(self) -> None:
        """Raises OSError when there are no descriptors left."""
        out = os.pipe()
        try:
            err = os.pipe()
        except OSError:
            for fd in out:
                os.close(fd)
            raise
        self.read_fds = [out[0], err[0]]
        self.write_fds = (out[1], err[1])

    def read_inodes(self) -> list[int]:
        return [os.fstat(fd).st_ino for fd in self.read_fds]

    def close_writers(self) -> None:
        for fd in self.write_fds:
            os.close(fd)

    def close(self) -> None:
        self.close_writers()
        for fd in self.read_fds:
            os.close(fd)


class Process:
    """A child of ours. It stays unreaped until its session is settled, so its pid cannot be handed out meanwhile."""

    __slots__ = ("barred", "pid", "pidfd", "pipes", "reaped", "start")

    def __init__(self, pid: int, start: int, pipes: list[int], barred: bool) -> None:
        self.pid = pid
        self.start = start
        self.barred = barred
        self.pidfd = -1
        self.pipes = pipes
        self.reaped: tuple[int, resource.struct_rusage] | None = None

    def unblock(self) -> None:
        for fd in self.pipes:
            os.set_blocking(fd, False)

    def close_pipes(self) -> None:
        for fd in self.pipes:
            os.close(fd)
        self.pipes = [-1] * len(self.pipes)

    def prepare_watch(self) -> None:
        """Open what the loop listens on. Not done at the fork: see Runner.watch_launched."""
        self.unblock()
        if HAS_PIDFD:
            self.pidfd = os.pidfd_open(self.pid)

    def poll_exit(self) -> bool:
        """Whether it has ended, for systems without pidfds; where waiting without reaping is missing too, it reaps."""
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid:
            self.reaped = (status, usage)
        return pid != 0

    def has_ended_at_once(self) -> bool:
        """Whether it was started at once and has ended since."""
        return not self.barred and self.poll_exit()

    def reap(self) -> tuple[int, resource.struct_rusage]:
        if self.reaped is None:
            _, status, usage = os.wait4(self.pid, 0)
            self.reaped = (status, usage)
        return self.reaped

    def has_group(self) -> bool:
        """Whether anybody is left in its group; only tells something once the leader is reaped."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def signal_group(self, number: int) -> None:
        """To the whole group. Only valid while the process is unreaped."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # A child just forked has not yet made its group: it alone is meant, and gets the signal once it has.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        except PermissionError:
            return
