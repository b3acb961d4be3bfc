"""Who a process is: pid, start time and boot together, because a pid alone is handed out again.

Reads the process table of this machine with the standard library alone; knows nothing of what dray runs and signals
nobody.
"""

from __future__ import annotations

import os

HAS_PROC = os.path.exists("/proc/self/stat")


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
