"""Who holds a home: the lock that its hub and its agent each keep for as long as they live.

The one way to tell whether a daemon of a home runs and which process it is. A held lock is the proof: it goes with its
process, however that ends, and a copy of the home has locks of its own. What stands in the lock file only says whom to
signal, and is believed of a process that was started at that moment of this boot: a pid alone is handed out again,
after a crash as in the next container. The surprising rule: asking takes the lock for a moment, so whoever wants to
hold it tries for a while before it believes in another holder that it cannot see.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dray.errors import Conflict, StoreError
from dray.processes import look_up, read_boot_id

LOCKS = {"hub": "hub.lock", "agent": "agent.lock"}
ID_FILE = "hub.id"
PATIENCE_S = 1.0
# What of a home is for its owner alone: the folders, and whatever is a secret or holds one.
_FOLDERS = (".", "worker", "log", "output", "blobs", "reports", "tls", "secrets")
_SECRETS = (
    "token",
    "config.*",
    "secrets/*",
    "notifications.sqlite*",
    "hub.json",
    "hub.sqlite*",
    "task_secret",
    "tls/*",
    "log/*",
    "worker/token",
    "worker/session.key",
    "worker/journal*",
    "worker/supervisor.json",
)
_POLL_S = 0.01
_MARK_BYTES = 512


class Holder(NamedTuple):
    """The live daemon of a home. `pid` is 0 where its process cannot be seen from here; `words` say who it is."""

    pid: int
    start: int
    words: str

    @property
    def alive(self) -> bool:
        """Whether that very process still runs; what is not seen from here is not judged."""
        info = look_up(self.pid) if self.pid else None
        return info is not None and info.alive and info.start == self.start


def describe_self(home: Path) -> dict[str, Any]:
    """What makes this process, and the home that it speaks for, known again."""
    return {**describe_process(os.getpid()), "inode": _inode(home)}


def describe_process(pid: int) -> dict[str, Any]:
    """What makes the process of this pid known again to others on this machine; empty where there is none."""
    info = look_up(pid)
    return {} if info is None else {"pid": pid, "start": info.start, "boot": read_boot_id()}


class Hold:
    """A lock that is held."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    def is_lost(self) -> bool:
        """Whether the home was removed or replaced meanwhile. One that was moved goes on under its new name."""
        found = os.fstat(self._descriptor)
        if found.st_nlink == 0:
            return True
        try:
            return not os.path.samestat(self._path.stat(), found)
        except OSError:
            return False


@contextlib.contextmanager
def hold(home: Path, role: str) -> Iterator[Hold]:
    """Be the hub or the agent of this home, the only one; raises Conflict, with words, when there is one."""
    path = home / LOCKS[role]
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as fault:
        raise StoreError(f"{path} cannot be made ({fault.strerror}): the home must be writable") from None
    try:
        _lock(descriptor, home, role)
        mark = {**describe_self(home), "host": socket.gethostname()}
        # In place and of one size, so that it needs no room on a disk that is full by now. Where it cannot be written
        # the lock holds all the same, though nobody can be told by whom.
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, json.dumps(mark).encode().ljust(_MARK_BYTES), 0)
        yield Hold(path, descriptor)
    finally:
        os.close(descriptor)


def keep_private(home: Path) -> list[str]:
    """Take a home that was there before from everybody else's sight; says what it changed, and what it could not.

    Only what belongs to this account, and no folder that many write to, which is no home whatever it was named.
    """
    said = []
    for path, mode in _private_parts(home):
        try:
            status = path.lstat()
            if not stat.S_IMODE(status.st_mode) & 0o077 or stat.S_ISLNK(status.st_mode):
                continue
            was = f"{path} had the mode {stat.S_IMODE(status.st_mode):04o}"
            if status.st_uid != os.geteuid() or status.st_mode & stat.S_ISVTX:
                said.append(f"{was}, and is not this account's alone: others may read what is in it")
                continue
            path.chmod(mode)
            said.append(f"{was}, which let others in: it is {mode:04o} now")
        except FileNotFoundError:
            continue
        except OSError as fault:
            said.append(f"{path} could not be made private: {fault.strerror}")
    return said


def _private_parts(home: Path) -> Iterator[tuple[Path, int]]:
    yield from ((home / name, 0o700) for name in _FOLDERS)
    for name in _SECRETS:
        yield from ((path, 0o600) for path in sorted(home.glob(name)) if path.is_file())


def _lock(descriptor: int, home: Path, role: str) -> None:
    import fcntl

    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            mark = _read_mark(descriptor)
            holder = _recognise(mark)
            if not _speaks_for(mark, home):
                raise Conflict(
                    f"{home} was copied by hard links, and the {role} of the other home holds the lock of both: "
                    "make a real copy (cp -a), or use another --home"
                ) from None
            if (holder is not None and holder.pid) or time.monotonic() > deadline:
                words = holder.words if holder is not None else "it is just ending"
                article = "an" if role == "agent" else "a"
                raise Conflict(
                    f"{article} {role} already runs with {home} ({words}): stop it, or use another --home"
                ) from None
        except OSError as fault:
            raise StoreError(
                f"{home / LOCKS[role]} cannot be locked ({fault.strerror}): put the home on a file system with locks"
            ) from None
        time.sleep(_POLL_S)


def find_holder(home: Path, role: str) -> Holder | None:
    """The live hub or agent of this home; None where there is none."""
    try:
        import fcntl

        descriptor = os.open(home / LOCKS[role], os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        mark = _read_mark(descriptor)
        # A home copied by hard links shares the lock of another: whoever holds that is not the daemon of this one.
        return _recognise(mark) if _speaks_for(mark, home) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def stop(holder: Holder) -> bool:
    """Send SIGTERM to that very process; False where it cannot be reached from here."""
    if not holder.pid:
        return False
    try:
        if not hasattr(os, "pidfd_open"):
            if holder.alive:
                os.kill(holder.pid, signal.SIGTERM)
            return True
        descriptor = os.pidfd_open(holder.pid)
        try:
            # Checked after opening: a number that was handed out again in between is never hit.
            if holder.alive:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        finally:
            os.close(descriptor)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def ensure_id(home: Path) -> str:
    """The name of a home among the hubs of one store, drawn where there is none."""
    path = home / ID_FILE
    with contextlib.suppress(OSError):
        if (found := path.read_text("ascii", "replace").strip()) and found.isalnum():
            return found[:16]
    drawn = secrets.token_hex(4)
    path.write_text(f"{drawn}\n")
    return drawn


def read_hub_note(home: Path) -> dict[str, Any]:
    """What the hub of this home wrote when it began to listen; empty where there is none.

    A copy of a home says nothing: its note is that of the original's hub.
    """
    try:
        document = json.loads((home / "hub.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return document if isinstance(document, dict) and _speaks_for(document, home) else {}


def _speaks_for(mark: dict[str, Any], home: Path) -> bool:
    """Whether a mark was written in this folder. The number of its disk is left out: other machines have other ones."""
    return mark.get("inode") in (None, _inode(home))


def _inode(home: Path) -> int:
    return home.stat().st_ino


def _read_mark(descriptor: int) -> dict[str, Any]:
    try:
        document = json.loads(os.pread(descriptor, _MARK_BYTES, 0))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _recognise(mark: dict[str, Any]) -> Holder | None:
    """Who wrote this mark; None for one that is just ending, whose threads may hold the lock a moment longer."""
    pid, start = mark.get("pid"), mark.get("start")
    if not isinstance(pid, int) or not isinstance(start, int):
        return Holder(0, 0, "its process is not known")
    info = look_up(pid) if mark.get("boot") == read_boot_id() else None
    if info is not None and info.start == start:
        return Holder(pid, start, f"process {pid}") if info.alive else None
    host = mark.get("host", "another machine")
    return Holder(0, 0, f"process {pid} of {host}, which cannot be seen from here")
