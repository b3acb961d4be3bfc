"""How a child is known whose pid was never recorded: by what it was given before it existed.

A start is put on record with two marks: a variable in the child's environment and the numbers of its output pipes. One
is lost by a program that empties its environment, the other by one that redirects its output; either is enough. Marks
are made anew by each supervisor, so nobody else's process carries them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dray.agent.supervisor.processes.identity import find_members, snapshot_processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dray.agent.supervisor.records.journal import Record
    from dray.processes import ProcessInfo

VARIABLE = "DRAY_START"
# A start is dated in ticks before it happens; the kernel may round a newborn's down.
ROUNDING_TICKS = 1


def make_token() -> str:
    return os.urandom(8).hex()


def make_mark(token: str, uid: str) -> str:
    return f"{token}.{uid}"


def find_marked(starts: Iterable[Record]) -> dict[str, list[ProcessInfo]]:
    """By attempt, the living that carry a mark of these records, with all of their sessions and descendants."""
    variables: dict[bytes, Record] = {}
    pipes: dict[str, Record] = {}
    for record in starts:
        variables[f"{VARIABLE}={make_mark(record['token'], record['uid'])}".encode()] = record
        pipes.update((f"pipe:[{inode}]", record) for inode in record["pipes"])
    table = snapshot_processes()
    found: dict[str, dict[int, ProcessInfo]] = {}
    for info in table.values():
        if info.pid == os.getpid() or not info.alive:
            continue
        start = _read_variable(info.pid, variables) or _read_output(info.pid, pipes)
        if start is not None and info.start >= start["ticks"] - ROUNDING_TICKS:
            members = found.setdefault(start["uid"], {})
            members.update((member.pid, member) for member in _find_kin(info, start["ticks"], table))
    return {uid: list(members.values()) for uid, members in found.items()}


def _find_kin(info: ProcessInfo, ticks: int, table: dict[int, ProcessInfo]) -> Iterator[ProcessInfo]:
    """Its descendants, and its session with theirs: a session cannot be entered from outside."""
    yield from find_members(info.pid, table)
    born = ticks - ROUNDING_TICKS
    leader = table.get(info.session)
    if leader is not None and leader.start < born:
        return  # not a session that a start has made
    for other in table.values():
        if other.session == info.session and other.start >= born:
            yield from find_members(other.pid, table)


def _read_variable(pid: int, variables: dict[bytes, Record]) -> Record | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return None
    return next((variables[word] for word in words if word in variables), None)


def _read_output(pid: int, pipes: dict[str, Record]) -> Record | None:
    for number in (1, 2):
        try:
            record = pipes.get(os.readlink(f"/proc/{pid}/fd/{number}"))
        except OSError:
            continue
        if record is not None:
            return record
    return None
