"""Which processes belong to an attempt, and their end.

Nothing here signals a process that it has not recognised first (see `dray.processes`); a signal goes through a pidfd
checked after opening, so that a pid recycled in between is never hit.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from dray.processes import HAS_PROC, look_up

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dray.processes import ProcessInfo

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")


def now_ticks() -> int:
    """Now, on the scale of `ProcessInfo.start`."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * TICKS_PER_S // 1_000_000_000
    return int(time.time() * 1_000_000)


def snapshot_processes() -> dict[int, ProcessInfo]:
    """Every process now; empty where the system has no /proc."""
    if not HAS_PROC:
        return {}
    found = (look_up(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {info.pid: info for info in found if info is not None}


def find_members(leader: int, table: dict[int, ProcessInfo]) -> list[ProcessInfo]:
    """The living of the leader's session and their descendants, the leader itself included."""
    inside = {info.pid for info in table.values() if leader in (info.session, info.pid)}
    grew = True
    while grew:
        fresh = {info.pid for info in table.values() if info.parent in inside} - inside
        inside |= fresh
        grew = bool(fresh)
    return [table[pid] for pid in sorted(inside) if table[pid].alive]


def kill_exactly(victims: Iterable[ProcessInfo], number: int = signal.SIGKILL) -> None:
    for victim in victims:
        try:
            if HAS_PIDFD:
                _signal_by_pidfd(victim, number)
            elif (now := look_up(victim.pid)) is not None and now.start == victim.start:
                os.kill(victim.pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _signal_by_pidfd(victim: ProcessInfo, number: int) -> None:
    fd = os.pidfd_open(victim.pid)
    try:
        now = look_up(victim.pid)
        if now is not None and now.start == victim.start:
            signal.pidfd_send_signal(fd, signal.Signals(number))
    finally:
        os.close(fd)


def find_orphans(pid: int, start: int, alive_ticks: int) -> list[ProcessInfo]:
    """What is left of a session whose supervisor died; nothing at all if the pid belongs to somebody else now.

    With the leader gone the session is still recognised by a member born before `alive_ticks`, the last moment at which
    the supervisor is known to have held the leader unreaped: a number in use as a session is not handed out again.
    """
    if not HAS_PROC:
        info = look_up(pid)
        return [info] if info is not None and info.start == start and info.alive else []
    table = snapshot_processes()
    leader = table.get(pid)
    if leader is not None:
        return find_members(pid, table) if leader.start == start else []
    members = find_members(pid, table)
    return members if any(start <= member.start <= alive_ticks for member in members) else []
