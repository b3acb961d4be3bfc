"""Whose a port is: the task's that was given it, or a stranger's. Reads the process table, where there is one.

Where it cannot be told it is taken for the task's: a check that passes must not end what is well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dray.agent.supervisor.processes.identity import find_members, snapshot_processes
from dray.agent.supervisor.processes.marks import VARIABLE
from dray.agent.tasks.addresses import is_free

_LISTENS = "0A"


def find_thief(port: int, leader: int, uid: str) -> str:
    """Who listens on a port of an attempt without being of it; empty where nobody does, or it cannot be told."""
    sockets = _find_sockets(port)
    if not sockets:
        return ""
    table = snapshot_processes()
    own = [info.pid for info in find_members(leader, table)]
    if any(_has_one(pid, sockets) for pid in own):
        return ""
    for pid in sorted(table.keys() - {*own}):
        # What has left its session still carries the mark of its attempt.
        if _has_one(pid, sockets):
            return "" if _is_marked(pid, uid) else f"process {pid} ({_name_of(pid)})"
    return ""


def find_taken(ports: Sequence[int]) -> int:
    """One of the ports of a task that is gone on which somebody listens all the same; 0 where there is none."""
    return next((port for port in ports if not is_free(port)), 0)


def _find_sockets(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        found |= {
            f"socket:[{row[9]}]"
            for row in rows
            if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port
        }
    return found


def _has_one(pid: int, sockets: set[str]) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            names = [entry.path for entry in entries]
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(name) in sockets:
                return True
        except OSError:
            continue
    return False


def _is_marked(pid: int, uid: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return True
    start, end = f"{VARIABLE}=".encode(), f".{uid}".encode()
    return any(word.startswith(start) and word.endswith(end) for word in words)


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"
