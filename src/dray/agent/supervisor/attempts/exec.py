"""A process that somebody asked for beside a task, as the task's attempt knows it.

It is of its kin: it carries the mark, counts for the group and ends with the attempt; its own end ends nothing else.
"""

from __future__ import annotations

import functools
import signal
import time
from typing import TYPE_CHECKING

from dray.agent.supervisor.processes.identity import find_members, kill_exactly, snapshot_processes
from dray.processes import ProcessInfo

if TYPE_CHECKING:
    from dray.agent.supervisor.processes.process import Process
    from dray.agent.supervisor.processes.timers import Timer, Timers

# What ignores the hang-up of its line is ended.
HANG_UP_S = 2.0


class Exec:
    __slots__ = ("_timers", "argv", "info", "kill_timer", "process", "uid")

    def __init__(self, uid: str, argv: list[str], process: Process, timers: Timers) -> None:
        self.uid = uid
        self.argv = argv
        self.process = process
        self.info = ProcessInfo(process.pid, 0, process.pid, process.start, "R")
        self.kill_timer: Timer | None = None
        self._timers = timers

    def hang_up(self) -> None:
        """Whoever asked for it is gone, or the task is about to end."""
        if self.kill_timer is None:
            self._signal_all(signal.SIGHUP)
            self._signal_all(signal.SIGCONT)  # a stopped process would sit it out
            kill = functools.partial(self._signal_all, signal.SIGKILL)
            self.kill_timer = self._timers.at(time.monotonic() + HANG_UP_S, kill)

    def _signal_all(self, number: int) -> None:
        """To its session and what descends from it: a shell gives every job a group of its own."""
        self.process.signal_group(number)
        members = find_members(self.process.pid, snapshot_processes())
        kill_exactly([info for info in members if info.pid != self.process.pid], number)

    def ended(self) -> None:
        self._timers.cancel(self.kill_timer)
