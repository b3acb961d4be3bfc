"""Who a process is: pid, start time and boot together, because a pid alone is handed out again.

Owns all reading of the process table. Nothing here signals a process that it has not recognised first; a signal goes
through a pidfd checked after opening, so that a pid recycled in between is never hit.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HAS_PROC = os.path.exists("/proc/self/stat")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")


class ProcessInfo:
    __slots__ = ("parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, parent: int, session: int, start: int, state: str) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.start = start
        self.state = state

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def read_boot_id() -> str:
    if HAS_PROC:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    import ctypes  # as in _look_up_darwin

    size = ctypes.c_size_t(64)
    buffer = ctypes.create_string_buffer(64)
    if ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, 0) != 0:
        raise OSError("this system tells no boot id: attempts could not be told from recycled pids")
    return buffer.value.decode()


def now_ticks() -> int:
    """Now, on the scale of `ProcessInfo.start`."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * TICKS_PER_S // 1_000_000_000
    return int(time.time() * 1_000_000)


def parse_stat(pid: int, data: bytes) -> ProcessInfo:
    # The command name may hold blanks and brackets: only the last bracket ends it.
    fields = data[data.rindex(b")") + 2 :].split()
    return ProcessInfo(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0].decode())


def look_up(pid: int) -> ProcessInfo | None:
    if not HAS_PROC:
        return _look_up_darwin(pid)
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        return parse_stat(pid, os.read(fd, 1024))
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(fd)


def _look_up_darwin(pid: int) -> ProcessInfo | None:
    import ctypes  # only where there is no /proc: it would double the size of the supervisor elsewhere

    library = ctypes.CDLL("/usr/lib/libproc.dylib")
    buffer = ctypes.create_string_buffer(136)
    bsd_info_flavor = 3
    if library.proc_pidinfo(pid, bsd_info_flavor, ctypes.c_uint64(0), buffer, 136) != 136:
        return None
    word = memoryview(buffer.raw).cast("I")
    seconds, micros = (memoryview(buffer.raw)[at : at + 8].cast("Q")[0] for at in (120, 128))
    zombie_status = 5
    try:
        session = os.getsid(pid)
    except OSError:
        session = 0
    return ProcessInfo(
        pid, word[4], session, seconds * 1_000_000 + micros, "Z" if word[1] == zombie_status else "R"
    )


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


def kill_exactly(victims: Iterable[ProcessInfo]) -> None:
    for victim in victims:
        try:
            if HAS_PIDFD:
                _kill_by_pidfd(victim)
            elif (now := look_up(victim.pid)) is not None and now.start == victim.start:
                os.kill(victim.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _kill_by_pidfd(victim: ProcessInfo) -> None:
    fd = os.pidfd_open(victim.pid)
    try:
        now = look_up(victim.pid)
        if now is not None and now.start == victim.start:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
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
