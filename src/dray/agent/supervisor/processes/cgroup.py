"""Memory limits by control group, where the host allows it, and the proof that the kernel killed for memory.

Owns the groups below `<own group>/dray-<tag>`, one per attempt that asks for a limit. Knows version 2 (a delegated
group) and the memory hierarchy of version 1. Nothing here may fail a task: without groups it runs without a limit.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dray.agent.supervisor.processes.timers import Timers

CGROUP_ROOT = "/sys/fs/cgroup"
REMOVAL_S = 0.2


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def read_counter(text: str, name: str) -> int:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return int(words[1])
    return 0


class Group:
    """One attempt's group."""

    __slots__ = ("_version", "path")

    def __init__(self, path: str, version: int) -> None:
        self.path = path
        self._version = version

    def limit(self, memory_bytes: int) -> None:
        if self._version == 2:
            _write(f"{self.path}/memory.max", str(memory_bytes))
            extra = f"{self.path}/memory.swap.max", "0"
        else:
            _write(f"{self.path}/memory.limit_in_bytes", str(memory_bytes))
            extra = f"{self.path}/memory.memsw.limit_in_bytes", str(memory_bytes)
        try:
            _write(*extra)
        except OSError:
            return  # no swap accounting here: the limit on memory itself stands

    def add(self, pid: int) -> None:
        _write(f"{self.path}/cgroup.procs", str(pid))

    def count_oom_kills(self) -> int:
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        return read_counter(_read(f"{self.path}/{name}"), "oom_kill")

    def pids(self) -> list[int]:
        return [int(word) for word in _read(f"{self.path}/cgroup.procs").split()]

    def kill_all(self) -> None:
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def remove(self) -> bool:
        """False while something still lives in it."""
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


class Groups:
    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._version, self._own = _find_own_group()
        self._base = ""
        self._own_kills = self._count_own_kills()
        self.why_not = "" if self._version else "no memory control group on this host"

    def create(self, uid: str, memory_bytes: int) -> Group | None:
        """A limited group, or None (see `why_not`) where the host does not allow one."""
        if not self._version:
            return None
        group = None
        try:
            self._prepare()
            group = Group(f"{self._base}/{uid}", self._version)
            try:
                os.mkdir(group.path)
            except FileExistsError:
                group.remove()
                os.mkdir(group.path)
            group.limit(memory_bytes)
        except OSError as error:
            self.why_not = f"memory limits are not enforced here: {error}"
            if group is not None:
                group.remove()
            return None
        return group

    def open(self, path: str) -> Group:
        """A group named by the journal of an earlier run."""
        return Group(path, self._version or 1)

    def _prepare(self) -> None:
        if self._base:
            return
        base = f"{self._own}/dray-{self._tag}"
        if self._version == 2:
            _enable_memory(self._own)
        os.makedirs(base, exist_ok=True)
        if self._version == 2:
            _write(f"{base}/cgroup.subtree_control", "+memory")
        self._base = base

    def close(self) -> None:
        """Leave no empty folder behind; one that still holds groups stays for the next supervisor."""
        if self._version:
            Group(f"{self._own}/dray-{self._tag}", self._version).remove()

    def own_kills_rose(self) -> bool:
        """Whether the kernel killed for memory in the supervisor's own group since this was last asked."""
        before, self._own_kills = self._own_kills, self._count_own_kills()
        return self._own_kills > before

    def _count_own_kills(self) -> int:
        if self._version == 2:
            # The local file: the other one counts the groups of attempts too.
            return read_counter(_read(f"{self._own}/memory.events.local"), "oom_kill")
        return read_counter(_read(f"{self._own}/memory.oom_control"), "oom_kill") if self._version else 0


def _find_own_group() -> tuple[int, str]:
    """(version, folder) of the memory group this process is in; version 0 where there is none."""
    paths = dict(_read_own_paths())
    if "memory" in paths:
        folder = f"{CGROUP_ROOT}/memory{paths['memory'].rstrip('/')}"
        if os.access(f"{folder}/memory.oom_control", os.R_OK):
            return 1, folder
    for root in (CGROUP_ROOT, f"{CGROUP_ROOT}/unified"):
        folder = f"{root}{paths.get('', '/').rstrip('/')}"
        if "memory" in _read(f"{folder}/cgroup.controllers").split():
            return 2, folder
    return 0, ""


def _read_own_paths() -> Iterator[tuple[str, str]]:
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def remove_soon(group: Group, timers: Timers) -> None:
    """A group can be removed only a moment after its last process: keep at it, killing what is left."""
    if not group.remove():
        group.kill_all()
        timers.at(time.monotonic() + REMOVAL_S, functools.partial(remove_soon, group, timers))


def _enable_memory(own: str) -> None:
    """Hand the memory controller down; a delegated group may first have to be emptied into a leaf."""
    control = f"{own}/cgroup.subtree_control"
    if "memory" in _read(control).split():
        return
    try:
        _write(control, "+memory")
    except OSError as error:
        if error.errno != errno.EBUSY or not _is_delegated(own):
            raise
        leaf = f"{own}/dray-daemons"
        os.makedirs(leaf, exist_ok=True)
        for pid in _read(f"{own}/cgroup.procs").split():
            _write(f"{leaf}/cgroup.procs", pid)
        _write(control, "+memory")


def _is_delegated(own: str) -> bool:
    """Only a group that was given to us as a whole may be rearranged: others' processes may share any other."""
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(own, name) == b"1":
                return True
        except OSError:
            continue
    return False
