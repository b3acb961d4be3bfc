"""The process table as far as use goes: whose processes there are, and what they have taken of cores and memory.

One look for all attempts, read from /proc; where there is none, nothing is known. Memory of several processes that
share pages is counted by their parts of them, which takes the kernel a while: that is asked for only where the plain
sum would be a new peak.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dray.processes import HAS_PROC

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUse(NamedTuple):
    """One process; `cpu_s` with that of its children that have ended."""

    pid: int
    parent: int
    session: int
    cpu_s: float
    rss_bytes: int


def read_table() -> list[ProcessUse]:
    """Every process now."""
    if not HAS_PROC:
        return []
    found = (_read(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def _read(name: str) -> ProcessUse | None:
    try:
        fd = os.open(f"/proc/{name}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.read(fd, 1024)
        # The command name may hold blanks and brackets: only the last bracket ends it.
        fields = data[data.rindex(b")") + 2 :].split(None, 22)
        ticks = int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
        rss_bytes = int(fields[21]) * _PAGE_BYTES
        return ProcessUse(int(name), int(fields[1]), int(fields[3]), ticks / _TICKS_PER_S, rss_bytes)
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(fd)


def find_owners(table: Iterable[ProcessUse], leaders: Mapping[int, str]) -> dict[str, list[ProcessUse]]:
    """The processes of each attempt, by the pid of its leader: those of the leader's session and their descendants."""
    found: dict[str, list[ProcessUse]] = {}
    children: dict[int, list[ProcessUse]] = {}
    owner: dict[int, str] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process)
        uid = leaders.get(process.pid) or leaders.get(process.session)
        if uid is not None:
            owner[process.pid] = uid
            found.setdefault(uid, []).append(process)
    unseen = list(owner)
    while unseen:
        pid = unseen.pop()
        for child in children.get(pid, ()):
            if child.pid not in owner:
                owner[child.pid] = owner[pid]
                found[owner[pid]].append(child)
                unseen.append(child.pid)
    return found


def measure_shared(processes: Iterable[ProcessUse]) -> int:
    """The memory of some processes together, pages that they share counted once; of one that tells nobody, all."""
    return sum(_read_part(process) for process in processes)


def _read_part(process: ProcessUse) -> int:
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return process.rss_bytes
