"""Processes that left their parents: on Linux they become children of this supervisor, which knows whose they are.

A program that forks twice leaves a process that belongs to nobody; made a subreaper, the supervisor inherits it,
however it has changed session and environment. Whose it is, is told by its session, its mark or its output; where it
has given up all of them, it may be of any attempt that ran when it was born, and ends with the last of these.
Surprising rule: every child of ours that leads no attempt, and nothing beside one, is such a process: nothing else is
ever forked here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from dray.agent.supervisor.processes.identity import find_members, kill_exactly, snapshot_processes
from dray.agent.supervisor.processes.marks import VARIABLE
from dray.processes import HAS_PROC, look_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dray.agent.supervisor.attempts.attempt import Attempt
    from dray.processes import ProcessInfo

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Have this process inherit what its descendants leave behind; False where the system does not do that."""
    if sys.platform != "linux" or not HAS_PROC:
        return False
    import ctypes  # late: only a process that serves needs it

    return bool(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


class Orphan:
    """One inherited process. `owners`: the attempts that it may be of; `certain`: it is known to be of the only one."""

    __slots__ = ("certain", "info", "owners")

    def __init__(self, info: ProcessInfo, owners: frozenset[str], certain: bool) -> None:
        self.info = info
        self.owners = owners
        self.certain = certain


class Orphans:
    """All that were inherited and live. `on`: this process inherits at all. `beside`: who leads what was started beside
    an attempt, by pid.
    """

    def __init__(self, token: str, on: bool, beside: Mapping[int, str]) -> None:
        self._mark = f"{VARIABLE}={token}.".encode()
        self.on = on
        self._beside = beside
        self.known: dict[int, Orphan] = {}

    def look(self, attempts: Mapping[str, Attempt]) -> list[Orphan]:
        """Take over what came since the last look, and bury the dead; gives those that are new."""
        if not self.on:
            return []
        leaders = {a.process.pid: a.uid for a in attempts.values() if a.process is not None}
        leaders |= self._beside
        children = [pid for pid in _list_children() if pid not in leaders]
        if not children and not self.known:
            return []
        fresh: list[Orphan] = []
        for pid in children:
            info = look_up(pid)
            if info is None or not info.alive:
                _bury(pid)
            elif pid not in self.known or self.known[pid].info.start != info.start:
                orphan = self.known[pid] = self._recognise(info, leaders, attempts)
                fresh.append(orphan)
        living = {*children}
        for pid in [pid for pid in self.known if pid not in living or not self._lives(pid)]:
            del self.known[pid]
        return fresh

    def _lives(self, pid: int) -> bool:
        info = look_up(pid)
        return info is not None and info.alive and info.start == self.known[pid].info.start

    def _recognise(
        self, info: ProcessInfo, leaders: Mapping[int, str], attempts: Mapping[str, Attempt]
    ) -> Orphan:
        uid = leaders.get(info.session) or self._read_mark(info.pid)
        if uid is None:
            uid = _read_output(info.pid, attempts)
        if uid is not None:
            return Orphan(info, frozenset([uid]), certain=True)
        older = [a.uid for a in attempts.values() if a.process is not None and a.process.start <= info.start]
        return Orphan(info, frozenset(older), certain=False)

    def _read_mark(self, pid: int) -> str | None:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            return None
        found = next((word for word in words if word.startswith(self._mark)), None)
        return found[len(self._mark) :].decode(errors="replace") if found is not None else None

    def of(self, uid: str, attempts: Mapping[str, Attempt]) -> list[ProcessInfo]:
        """What is left of an attempt, and of no other that still runs."""
        return [
            o.info
            for o in self.known.values()
            if uid in o.owners and not (o.owners - {uid}) & attempts.keys()
        ]

    def end_unowned(self, attempts: Mapping[str, Attempt]) -> None:
        """End what no attempt is left for."""
        left = [orphan.info for orphan in self.known.values() if not orphan.owners & attempts.keys()]
        if left:
            kill_exactly(with_kin(left, snapshot_processes()))


def with_kin(roots: list[ProcessInfo], table: dict[int, ProcessInfo]) -> list[ProcessInfo]:
    """These processes with their sessions and descendants, as far as they live."""
    found = {info.pid: info for root in roots for info in find_members(root.pid, table)}
    return list(found.values())


def _list_children() -> list[int]:
    """All children of this process, which has one thread."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        # A kernel without that list.
        return [info.pid for info in snapshot_processes().values() if info.parent == pid]


def _bury(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _read_output(pid: int, attempts: Mapping[str, Attempt]) -> str | None:
    """Whose output it still writes to."""
    pipes: dict[str, str] = {}
    for attempt in attempts.values():
        for fd in attempt.process.pipes if attempt.process is not None else ():
            if fd >= 0:
                pipes[f"pipe:[{os.fstat(fd).st_ino}]"] = attempt.uid
    for number in (1, 2):
        try:
            uid = pipes.get(os.readlink(f"/proc/{pid}/fd/{number}"))
        except OSError:
            continue
        if uid is not None:
            return uid
    return None
