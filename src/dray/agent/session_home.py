"""Where tasks find their agent: one unix socket per home, and the secret by which an attempt proves which one it is.

Both outlive the agent, since tasks do: the next agent listens at the same path and derives the same keys, so that
nothing of them has to be written down per attempt. Surprising rule: the folder of the socket is remembered in the home
when the home's own path is too long for a socket, or closed to the user that tasks run as.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pwd
import secrets
import socket
import stat
import tempfile
from pathlib import Path

SOCKET_PATH_MAX_BYTES = 100
KEY_BYTES = 32
BACKLOG = 128


class SessionHome:
    """One agent's socket and secret. `task_user` is whom tasks run as, empty for the agent's own user."""

    def __init__(self, home: Path, task_user: str = "") -> None:
        self._home, self._task_user = home, task_user
        self._secret = _read_secret(home / "session.key")
        self.path = self._choose_path()

    def key(self, uid: str) -> str:
        """The key of one attempt: no other task can work it out."""
        return hmac.new(self._secret, uid.encode(), hashlib.sha256).hexdigest()

    def listen(self) -> socket.socket:
        """Bind the socket, mode 0600, for whoever tasks run as; what an earlier agent left there gives way."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(self.path)
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
        if self._task_user:
            os.chown(self.path, pwd.getpwnam(self._task_user).pw_uid, -1)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener

    def _choose_path(self) -> str:
        plain = os.path.abspath(self._home / "session.sock")
        if not self._is_foreign() and len(os.fsencode(plain)) <= SOCKET_PATH_MAX_BYTES:
            return plain
        note = self._home / "session.path"
        with contextlib.suppress(OSError):
            known = note.read_text()
            if _is_ours(os.path.dirname(known)):
                return known
        path = os.path.join(self._make_folder(), "s.sock")
        note.write_text(path)
        return path

    def _make_folder(self) -> str:
        if not self._is_foreign():
            return tempfile.mkdtemp(prefix="dray-", dir=_find_parent(0))
        folder = tempfile.mkdtemp(prefix="dray-", dir=_find_parent(stat.S_IXOTH))
        # Others may pass through to the socket, which is the task user's alone; they cannot list what is here.
        os.chmod(folder, 0o711)  # noqa: S103 - the reason stands above
        return folder

    def _is_foreign(self) -> bool:
        return bool(self._task_user) and pwd.getpwnam(self._task_user).pw_uid != os.geteuid()


def _find_parent(needed: int) -> str:
    """A folder that is short, writable, and open to others where that is needed."""
    wished = (
        ("/run", "/tmp") if needed else (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")
    )
    for parent in wished:
        with contextlib.suppress(OSError):
            short = 0 < len(os.fsencode(parent)) <= 60
            if short and os.access(parent, os.W_OK) and os.stat(parent).st_mode & needed == needed:
                return parent
    raise OSError(f"none of {', '.join(filter(None, wished))} can hold a socket for tasks")


def _is_ours(folder: str) -> bool:
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _read_secret(path: Path) -> bytes:
    """Read the home's secret; made at the first start, whole or not at all."""
    with contextlib.suppress(FileNotFoundError):
        found = path.read_bytes()
        if len(found) == KEY_BYTES:
            return found
    fresh = path.with_suffix(".new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        secret = secrets.token_bytes(KEY_BYTES)
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    return secret
