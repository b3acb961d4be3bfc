"""Whose a port is: the task's that was given it, or a stranger's. Reads the process table, where there is one.

Where it cannot be told it is taken for the task's: a check that passes must not end what is well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dray.agent.supervisor.processes.identity import find_members, snapshot_processes
from dray.agent.supervisor.processes.marks import VARIABLE
from dray.agent.tasks.addresses import is_free
from dray.wire.reach.listeners import find_listening


def find_thief(port: int, leader: int, uid: str) -> str:
    """Who listens on a port of an attempt without being of it; empty where nobody does, or it cannot be told."""
    sockets = {f"socket:[{inode}]" for inode in find_listening(port)}
    # Nearly always it is the leader itself, and nobody else need be looked at.
    if not sockets or _has_one(leader, sockets):
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
