"""The folder of one agent's supervisor: paths, the lock, the socket's address and a bounded log.

The lock is what makes one supervisor per home; the address file only tells where it listens. The lock file also carries
the last moment the supervisor was known to be alive, in ticks since boot (see identity.find_orphans).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .journal import Record

SOCKET_PATH_MAX_BYTES = 100
LOG_MAX_BYTES = 1 << 20
LOCKED_CODE = 3  # how a starter exits when another supervisor owns the home


class HomeLocked(Exception):
    """Another supervisor owns this home."""


class Home:
    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self.attempts = os.path.join(self.directory, "attempts")
        self.log_path = os.path.join(self.directory, "supervisor.log")
        self.lock_fd = -1
        self.alive_ticks = 0
        self._address = os.path.join(self.directory, "supervisor.json")
        self._log_fd = -1

    @property
    def tag(self) -> str:
        return f"{zlib.crc32(os.fsencode(self.directory)):08x}"

    def attempt_directory(self, uid: str) -> str:
        return os.path.join(self.attempts, uid)

    def claim(self) -> None:
        """Become the one supervisor of this home; raises HomeLocked when there is one."""
        os.makedirs(self.directory, 0o700, exist_ok=True)
        path = os.path.join(self.directory, "supervisor.lock")
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise HomeLocked(f"another supervisor already serves {self.directory}") from None
        text = os.pread(fd, 32, 0).strip()
        self.alive_ticks = int(text) if text.isdigit() else 0
        self.lock_fd = fd

    def note_alive(self, ticks: int) -> None:
        os.pwrite(self.lock_fd, b"%-20d\n" % ticks, 0)

    def listen(self) -> tuple[socket.socket, str]:
        path = os.path.join(self.directory, "supervisor.sock")
        if len(os.fsencode(path)) > SOCKET_PATH_MAX_BYTES:
            path = os.path.join(_make_runtime_directory(), "s.sock")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(8)
        listener.setblocking(False)
        return listener, path

    def publish(self, address: Record) -> None:
        """Written beside and renamed, so that a reader sees the old address or the new, never half of one."""
        fresh = self._address + ".new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w") as file:
            json.dump(address, file)
        os.rename(fresh, self._address)

    def read_address(self) -> Record | None:
        try:
            with open(self._address) as file:
                address = json.load(file)
        except (OSError, ValueError):
            return None
        return address if isinstance(address, dict) else None

    def log(self, text: str) -> None:
        """One line; a log that cannot be written is no reason to stop anything."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        try:
            if self._log_fd < 0:
                self._log_fd = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(self._log_fd, f"{stamp} {text}\n".encode(errors="backslashreplace"))
            if os.fstat(self._log_fd).st_size > LOG_MAX_BYTES:
                os.close(self._log_fd)
                self._log_fd = -1
                os.replace(self.log_path, self.log_path + ".1")
        except OSError:
            return

    def log_exception(self, doing: str) -> None:
        import traceback  # late: it drags the tokenizer into a process that is forked all day

        self.log(f"error while {doing}: {traceback.format_exc()}")


def _make_runtime_directory() -> str:
    import tempfile  # late, for the same reason

    parent = os.environ.get("XDG_RUNTIME_DIR", "")
    if not parent or not os.access(parent, os.W_OK) or len(os.fsencode(parent)) > 60:
        parent = "/tmp" if len(os.fsencode(tempfile.gettempdir())) > 60 else tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="dray-", dir=parent)
