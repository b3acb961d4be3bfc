"""Where tasks find their agent: a unix socket, and the secret by which an attempt proves which one it is.

Both outlive the agent, since tasks do: the next agent listens at the same path and derives the same keys, so that
nothing of them has to be written down per attempt. Surprising rule: the folder of the sockets is remembered in the home
when the home's own path is too long for a socket, or closed to the users that tasks run as; each of them has a socket
there that no other can open.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import stat
import tempfile
from pathlib import Path

from dray.agent.tasks.accounts import Account, Accounts

SOCKET_PATH_MAX_BYTES = 100
KEY_BYTES = 32
BACKLOG = 128


class SessionHome:
    """One agent's sockets and secret. `accounts` are those that tasks run in."""

    def __init__(self, home: Path, accounts: Accounts) -> None:
        self._home, self.accounts, self._foreign = home, accounts, accounts.are_foreign
        self._secret = _read_secret(home / "session.key")
        self.folder, self._name = os.path.split(self._choose_path())

    def path(self, account: Account) -> str:
        """Where the tasks of an account find their agent."""
        return f"{self.folder}/{f'{account.uid}.sock' if account.is_foreign else self._name}"

    def key(self, uid: str) -> str:
        """The key of one attempt: no other task can work it out."""
        return hmac.new(self._secret, uid.encode(), hashlib.sha256).hexdigest()

    def listen(self, account: Account) -> socket.socket:
        """Bind an account's socket, mode 0600 and that account's; what an earlier agent left there gives way."""
        return listen_for(account, self.path(account))

    def _choose_path(self) -> str:
        plain = os.path.abspath(self._home / "session.sock")
        if not self._foreign and len(os.fsencode(plain)) <= SOCKET_PATH_MAX_BYTES:
            return plain
        note = self._home / "session.path"
        with contextlib.suppress(OSError):
            known = note.read_text()
            if self._is_fit(os.path.dirname(known)):
                return known
        path = os.path.join(self._make_folder(), "s.sock")
        note.write_text(path)
        return path

    def _make_folder(self) -> str:
        if not self._foreign:
            return tempfile.mkdtemp(prefix="dray-", dir=_find_parent(0))
        folder = tempfile.mkdtemp(prefix="dray-", dir=_find_parent(stat.S_IXOTH))
        # Others may pass through to the sockets, each of which is one user's alone; they cannot list what is here.
        os.chmod(folder, 0o711)  # noqa: S103 - the reason stands above
        return folder

    def _is_fit(self, folder: str) -> bool:
        """Whether a folder made earlier is ours alone to change, and open to whom it must be."""
        found = os.lstat(folder)
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
        return ours and (not self._foreign or bool(found.st_mode & stat.S_IXOTH))


def listen_for(account: Account, path: str) -> socket.socket:
    """A socket that listens at a path, which only the account's programs, and root, can reach."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    if account.is_foreign:
        os.chown(path, account.uid, -1)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def _find_parent(needed: int) -> str:
    """A folder that is short, writable, and open to others where that is needed."""
    # What tasks of others leave for their agent lies there too: not in memory, where there is a choice.
    wished = (
        ("/var/lib", "/run", "/tmp")
        if needed
        else (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")
    )
    for parent in wished:
        with contextlib.suppress(OSError):
            short = 0 < len(os.fsencode(parent)) <= 60
            if short and os.access(parent, os.W_OK) and os.stat(parent).st_mode & needed == needed:
                return parent
    raise OSError(f"none of {', '.join(filter(None, wished))} can hold a socket for tasks")


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
