"""Reaching a hub without taking whoever holds its port for it: its unix socket, or a listener whose account is known.

A port of this machine belongs to nobody: once a hub has died, any account may take it. So a program in the hub's home
talks to the socket there, and plain TCP carries a token only to a listener of one's own account, of root, or of the one
that `hub_user` names. Surprising rule: the account is looked up after the connection stands, of the listener and of its
end of this very connection, because whoever listened before may be somebody else by then. Beyond this machine TLS
proves who answers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from dray.errors import HubUnavailable, InvalidConfig, InvalidInput
from dray.wire.reach.listeners import find_owners

if TYPE_CHECKING:
    import ssl

SOCKET_NAME = "hub.sock"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# What the hub last said of its turns, given back to it: see `hub/engine/told_turns.py`.
TURN_HEADER = "Dray-Turn"
# The last turn that an answer knows of, and the one that a hub must have reached before it answers by itself.
SEQ_HEADER, MIN_SEQ_HEADER = "Dray-Seq", "Dray-Min-Seq"
# What every system takes as the path of a socket, its closing zero included.
PATH_BYTES = 104


Trust = Callable[[], "ssl.SSLContext | None"]


class Way(NamedTuple):
    """Where a hub is. `socket` is the path of its unix socket, `hub_user` an account beside one's own to be trusted."""

    url: str
    socket: str = ""
    hub_user: str = ""


class Line(NamedTuple):
    """A connection over which a token may go. `local`: by the unix socket. `uid`: who listens, -1 beyond TLS.

    `context` must prove the peer before anything is sent, where there is one.
    """

    sock: socket.socket
    local: bool
    uid: int
    context: ssl.SSLContext | None = None


class Stranger(HubUnavailable):
    """Somebody else listens where the hub should be; nothing was sent."""


class WrongCertificate(InvalidConfig):
    """What answers shows another certificate than the pinned one; nothing was sent."""


def read_fingerprint(text: str) -> str:
    """Read `sha256:HEX`, with or without colons between the bytes, as plain lower-case hex."""
    plain = text.lower().removeprefix("sha256:").replace(":", "")
    if len(plain) != 64 or set(plain) - set("0123456789abcdef"):
        raise InvalidInput(f"{text!r} is not a fingerprint: write sha256: and 64 hex digits")
    return plain


def tell_broken(fault: BaseException) -> WrongCertificate | None:
    """What is to be told of a connection that broke because of its certificate; None where it broke otherwise."""
    told = getattr(fault, "told", None)
    return told if isinstance(told, WrongCertificate) else None


def open_line(way: Way, limit_s: float | None, trust: Trust) -> Line:
    """Connect, and know to whom. Blocks; raises `OSError` where nobody answers, `Stranger` where the wrong one does.

    `trust` gives what TLS must prove. It is asked where the connection leaves this machine, and before it is made.
    """
    trusted = _trusted(way.hub_user)
    if way.socket:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError, PermissionError):
            return _by_socket(way.socket, trusted, limit_s)
        # A task of another account may not open it, and one that was swept away is no reason to give up.
    parts = urlsplit(way.url)
    secure = parts.scheme == "https"
    address = parts.hostname or "", parts.port or (443 if secure else 80)
    context = trust() if secure else None
    if secure and context is None:
        raise InvalidConfig(f"nothing says what TLS must prove at {way.url}")
    sock = socket.create_connection(address, limit_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Line(sock, False, -1 if secure else _check_listener(sock, way.url, trusted), context)
    except BaseException:
        sock.close()
        raise


class Opening:
    """A line that a thread opens for a loop. Who stops waiting does not stop the thread: then nobody has the line,
    and whichever of the two comes second closes it.
    """

    def __init__(self, way: Way, limit_s: float | None, trust: Trust) -> None:
        self._asked = way, limit_s, trust
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._dropped = False

    async def wait(self, aside: Callable[[Callable[[], Line]], Awaitable[Line]]) -> Line:
        """The line, opened in a thread that `aside` lends; raises what `open_line` does."""
        try:
            return await aside(self._open)
        except BaseException:
            with self._lock:
                self._dropped = True
                if self._line is not None:
                    self._line.sock.close()
            raise

    def _open(self) -> Line:
        line = open_line(*self._asked)
        with self._lock:
            self._line = line
            if self._dropped:
                line.sock.close()
        return line


def check_url(url: str) -> None:
    """Refuse an address that is none, or that would carry the token in the clear beyond this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as fault:
        raise InvalidConfig(f"{url!r} is not the address of a hub: {fault}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidConfig(
            f"{url!r} is not the address of a hub: write http://127.0.0.1:7373 or https://HOST:PORT"
        )
    if parts.scheme == "http" and host not in LOOPBACK:
        raise InvalidConfig(
            f"{url} would send the token in the clear: plain http is for this machine only, use https://{parts.netloc}"
        )


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """The path of a socket as the system takes it, which of a long one is the way by its folder."""
    if len(os.fsencode(path)) < PATH_BYTES:
        yield path
        return
    if not os.path.isdir("/proc/self/fd"):
        raise FileNotFoundError(f"{path} is too long for a socket")
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def tell_account(uid: int) -> str:
    """An account as people call it."""
    try:
        import pwd

        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except (ImportError, KeyError):
        return f"uid {uid}"


def _trusted(hub_user: str) -> frozenset[int]:
    own = {os.geteuid(), 0} if hasattr(os, "geteuid") else set()
    if not hub_user:
        return frozenset(own)
    if hub_user.isascii() and hub_user.isdigit():
        return frozenset({*own, int(hub_user)})
    try:
        import pwd

        return frozenset({*own, pwd.getpwnam(hub_user).pw_uid})
    except (ImportError, KeyError):
        raise InvalidConfig(
            f"hub_user {hub_user!r} is no account of this machine: give a name or a number, or leave it out"
        ) from None


# --- by the unix socket ---------------------------------------------------------------------------------------------


def _by_socket(path: str, trusted: frozenset[int], limit_s: float | None) -> Line:
    folder, found = os.path.dirname(path), os.lstat(path)
    for place, uid in ((folder, os.stat(folder).st_uid), (path, found.st_uid)):
        if uid not in trusted:
            raise Stranger(_tell_stranger(place, "belongs to", uid))
    if not stat.S_ISSOCK(found.st_mode):
        raise Stranger(f"{path} is no socket: nothing was sent. Start the hub of this home again (dray up)")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(limit_s)
        with short_path(path) as spelled:
            sock.connect(spelled)
        uid = _peer_uid(sock)
        if uid not in trusted:
            raise Stranger(_tell_stranger(path, "is listened to by", uid))
    except BaseException:
        sock.close()
        raise
    return Line(sock, True, uid)


def _peer_uid(sock: socket.socket) -> int:
    """Who listens at the other end, as the system says."""
    if sys.platform == "linux":
        _, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(uid)
    local_peercred = 1
    _, uid = struct.unpack_from("II", sock.getsockopt(0, local_peercred, 76))
    return int(uid)


# --- by TCP -----------------------------------------------------------------------------------------------------------


def _check_listener(sock: socket.socket, url: str, trusted: frozenset[int]) -> int:
    """Find out who listens there; raises `Stranger` unless it is somebody trusted."""
    found = find_owners(sock)
    if found is None:
        raise InvalidConfig(
            f"this system does not tell who listens at {url}, and a token goes to nobody unknown: reach the hub by its "
            "home (DRAY_HOME), or by https with its fingerprint (DRAY_FINGERPRINT)"
        )
    if not found.listeners:
        raise Stranger(
            f"who listens at {url} cannot be seen from here: nothing was sent. Reach the hub by its home (DRAY_HOME), "
            "or by https with its fingerprint (DRAY_FINGERPRINT)"
        )
    for uid in (*found.listeners, *found.ends):
        if uid not in trusted:
            raise Stranger(_tell_stranger(url, "is held by", uid))
    return found.listeners[0]


def _tell_stranger(what: str, how: str, uid: int) -> str:
    return (
        f"{what} {how} {tell_account(uid)}, who is neither you nor root: nothing was sent. If that account runs the "
        f"hub, set DRAY_HUB_USER={uid}; if not, somebody has taken the hub's place: start the hub again (dray up), or "
        "reach it by https with its fingerprint (DRAY_FINGERPRINT)"
    )
