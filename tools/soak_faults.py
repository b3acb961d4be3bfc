"""What befalls the machine under the soaks: disks that are full, processes that stand still, pids that are used up.

Does and undoes faults and keeps the times of each; chooses nothing and judges nothing. A full disk is a small file
system of its own, without a byte to spare, where this program may mount one: in a mount namespace of its own, so that
nothing stays behind however it ends. Where it may not, files of hub and agents cannot grow instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from tests.e2e.cluster import Cluster

from dray.processes import ProcessInfo, look_up

HUB = "hub"
DISK_BYTES = 8 << 30
GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
CLONE_NEWNS, MS_PRIVATE, MS_REC = 0x20000, 1 << 18, 1 << 14


class Window(NamedTuple):
    """A fault from its beginning to its end, in wall time."""

    kind: str
    where: str
    from_s: float
    until_s: float


class Machine:
    """The machine of one cluster; `names` are its workers. `notes` say what could not be had here."""

    def __init__(self, cluster: Cluster, names: tuple[str, ...]) -> None:
        self._cluster, self._names = cluster, names
        self.windows: list[Window] = []
        self.notes: list[str] = []
        self._since: dict[tuple[str, str], float] = {}
        self._limited: dict[str, list[int]] = {}
        self._mounts: list[Path] = []
        self._mount_disks()
        self._group = self._make_group()

    def _mount_disks(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if os.geteuid() != 0 or library.unshare(CLONE_NEWNS) != 0:
            self.notes.append("full disks are played by a limit on the size of files: mounting needs root")
            return
        library.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        for name in (HUB, *self._names):
            folder = self._home(name)
            folder.mkdir(exist_ok=True)
            words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "none", str(folder)]
            subprocess.run(words, check=True)
            self._mounts.append(folder)

    def _home(self, name: str) -> Path:
        agent = self._cluster.agents.get(name)
        if agent is not None:
            return agent.home
        return self._cluster.home if name == HUB else self._cluster.folder / name

    def _make_group(self) -> Path | None:
        for root in GROUPS:
            group = root / f"dray-soak-{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            if (group / "pids.max").exists():
                with contextlib.suppress(OSError):
                    (group / "cgroup.subtree_control").write_text("+pids")
                return group
            group.rmdir()
        self.notes.append("pids are not used up: there is no cgroup for them that may be written")
        return None

    # --- full disks ---------------------------------------------------------------------------------------------------

    def fill(self, name: str) -> None:
        """Leave no byte on the disk of the hub or of a worker."""
        self._begin("full", name)
        if not self._mounts:
            process = self._cluster.hub if name == HUB else self._cluster.agents[name].process
            if process is not None:
                self._limited.setdefault(name, []).append(process.pid)
                _limit_files(process.pid, 0)
            return
        # By making the disk no larger than what is on it: that fills any size at once, and takes no memory.
        while True:
            found = os.statvfs(self._home(name))
            if _resize(self._home(name), (found.f_blocks - found.f_bfree) * found.f_frsize):
                return

    def free(self, name: str) -> None:
        """Give the room back."""
        if self._mounts and not _resize(self._home(name), DISK_BYTES):
            raise OSError(f"the disk under {self._home(name)} cannot be made larger again")
        for pid in self._limited.pop(name, []):
            _limit_files(pid, resource.RLIM_INFINITY)
        self._end("full", name)

    # --- stopped processes --------------------------------------------------------------------------------------------

    def freeze(self, who: str, pid: int) -> ProcessInfo | None:
        """Stop a process where it stands; None if it is not there any more."""
        found = look_up(pid)
        if found is None or not found.alive:
            return None
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return None
        self._begin("frozen", who)
        return found

    def thaw(self, who: str, frozen: ProcessInfo) -> None:
        """Let it go on, if it was not killed meanwhile."""
        now = look_up(frozen.pid)
        if now is not None and now.start == frozen.start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(frozen.pid, signal.SIGCONT)
        self._end("frozen", who)

    # --- pids ---------------------------------------------------------------------------------------------------------

    @property
    def has_pids(self) -> bool:
        return self._group is not None

    def adopt(self, name: str, pid: int) -> None:
        """Let a worker's agent, and all that comes of it, count against the worker's pids."""
        if self._group is not None:
            group = self._group / name
            group.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(pid))

    def exhaust(self, name: str) -> None:
        """Let the worker start no process and no thread any more."""
        if self._group is not None:
            group = self._group / name
            (group / "pids.max").write_text((group / "pids.current").read_text())
            self._begin("pids", name)

    def relieve(self, name: str) -> None:
        if self._group is not None:
            (self._group / name / "pids.max").write_text("max")
            self._end("pids", name)

    # --- times, and the end -------------------------------------------------------------------------------------------

    def _begin(self, kind: str, where: str) -> None:
        self._since.setdefault((kind, where), time.time())

    def _end(self, kind: str, where: str) -> None:
        began = self._since.pop((kind, where), None)
        if began is not None:
            self.windows.append(Window(kind, where, began, time.time()))

    def was(self, kind: str, where: str, from_s: float, until_s: float) -> bool:
        """Whether such a fault lay in this time."""
        return any(
            window.kind == kind
            and window.where == where
            and window.from_s <= until_s
            and from_s <= window.until_s
            for window in self.windows
        )

    def close(self) -> None:
        """Take everything back. Before the cluster's folder is removed, and whatever still runs in it."""
        for folder in self._mounts:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        if self._group is not None:
            for group in [*self._group.iterdir(), self._group]:
                _remove_group(group)


def _resize(folder: Path, size: int) -> bool:
    words = ["mount", "-o", f"remount,size={size}", str(folder)]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


def _limit_files(pid: int, size: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def _remove_group(group: Path) -> None:
    """A group goes when nobody is in it: what still runs goes back to the one above."""
    if not group.is_dir():
        return
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent.parent / "cgroup.procs").write_text(pid)
        group.rmdir()
