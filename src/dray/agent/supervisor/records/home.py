"""The folder of one agent's supervisor: paths, the lock, the socket's address and a bounded log.

The lock is what makes one supervisor per home; the address file only tells where it listens. The lock file also carries
the last moment the supervisor was known to be alive, in ticks since boot (see identity.find_orphans). Surprising rule:
once claimed, a home is the folder itself and not its path. One that is moved keeps its supervisor, whatever comes to
lie in its old place; and what a copy says of processes and sockets is the original's, and is not believed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import time
import zlib
from typing import TYPE_CHECKING

from dray.processes import HAS_PROC

if TYPE_CHECKING:
    from dray.agent.supervisor.records.journal import Record

SOCKET = "supervisor.sock"
SOCKET_PATH_MAX_BYTES = 100
LOG_MAX_BYTES = 1 << 20
ADDRESS_BYTES = 512
LOCKED_CODE = 3  # how a starter exits when another supervisor owns the home


class HomeLocked(Exception):
    """Another supervisor owns this home."""


class Home:
    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self.lock_fd = -1
        self.inode: list[int] = []
        self.alive_ticks = 0
        self._log_fd = -1
        self._settle(self.directory)

    def _settle(self, place: str) -> None:
        self.place = place
        self.attempts = os.path.join(place, "attempts")
        self.log_path = os.path.join(place, "supervisor.log")
        self._lock = os.path.join(place, "supervisor.lock")
        self._address = os.path.join(place, "supervisor.json")

    @property
    def tag(self) -> str:
        return f"{zlib.crc32(os.fsencode(self.directory)):08x}"

    def attempt_directory(self, uid: str) -> str:
        return os.path.join(self.attempts, uid)

    def claim(self) -> None:
        """Become the one supervisor of this home; raises HomeLocked when there is one."""
        os.makedirs(self.directory, 0o700, exist_ok=True)
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        self.inode = read_inode(folder)
        if HAS_PROC:
            self._settle(f"/proc/self/fd/{folder}")
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise HomeLocked(f"another supervisor already serves {self.directory}") from None
        text = os.pread(fd, 32, 0).strip()
        self.alive_ticks = int(text) if text.isdigit() else 0
        self.lock_fd = fd

    def note_alive(self, ticks: int) -> None:
        """Keep the last moment at which this supervisor lived; on a full disk the one before has to do."""
        with contextlib.suppress(OSError):
            os.pwrite(self.lock_fd, b"%-20d\n" % ticks, 0)

    @property
    def is_linked(self) -> bool:
        """Whether the lock is that of another home too, of which this one is a copy by hard links."""
        try:
            return os.stat(self._lock).st_nlink > 1
        except OSError:
            return False

    @property
    def lost(self) -> bool:
        """Whether the folder was removed, or its lock replaced, under whoever claimed it."""
        try:
            found = os.stat(self._lock)
        except FileNotFoundError:
            return True
        return not os.path.samestat(found, os.fstat(self.lock_fd))

    def listen(self) -> tuple[socket.socket, str]:
        path = os.path.join(self.place, SOCKET)
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
        """Written in place and of one size: on a disk that is full by now a new file could not be made.

        A reader that sees half of it takes it for none, and looks again.
        """
        fd = os.open(self._address, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            data = json.dumps(address).encode().ljust(ADDRESS_BYTES)
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
        finally:
            os.close(fd)

    def read_address(self) -> Record | None:
        try:
            with open(self._address) as file:
                address = json.load(file)
        except (OSError, ValueError):
            return None
        return address if isinstance(address, dict) else None

    def forget_copied(self) -> bool:
        """Whether this folder is a copy; what it says of where its original can be reached is removed then."""
        address = self.read_address()
        if address is None or address.get("home", []) in ([], read_inode(self.directory)):
            return False
        for name in ("supervisor.json", "session.path"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, name))
        return True

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


def read_inode(folder: str | int) -> list[int]:
    """Which folder this is, by whatever path it was reached."""
    found = os.stat(folder)
    return [found.st_dev, found.st_ino]


def peer_of(sock: socket.socket) -> tuple[int, int] | None:
    """(pid, uid) of the process at the other end; None where this system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def _make_runtime_directory() -> str:
    import tempfile  # late, for the same reason

    parent = os.environ.get("XDG_RUNTIME_DIR", "")
    if not parent or not os.access(parent, os.W_OK) or len(os.fsencode(parent)) > 60:
        parent = "/tmp" if len(os.fsencode(tempfile.gettempdir())) > 60 else tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="dray-", dir=parent)
