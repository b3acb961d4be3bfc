"""Whose a TCP connection of this machine is at its other end, as the kernel says: who listens there, who took it.

Asked by netlink, which answers in microseconds; where there is none, read from the tables in /proc, which takes
milliseconds because all connections of the machine pass by. Knows nothing about hubs. Surprising rule: the end of a
connection that nobody has accepted yet is shown as root's, so it proves nothing without its listener.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

LISTEN, ESTABLISHED = 10, 1
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_MAPPED = bytes(10) + b"\xff\xff"
_ANY = (bytes(16), _MAPPED + bytes(4))
# The kernel's numbers: linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h.
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _DUMP = 4, 20, 0x1, 0x300
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_UID_AND_INODE = struct.Struct("=II")
_UID_AT = 4 + 48 + 12
_ANSWER_BYTES = 1 << 16
Place = tuple[bytes, int]


class Owners(NamedTuple):
    """Accounts of the listeners that could have taken a connection, and of its end there."""

    listeners: list[int]
    ends: list[int]


class _Row(NamedTuple):
    local: Place
    remote: Place
    state: int
    uid: int
    inode: int


def find_owners(sock: socket.socket) -> Owners | None:
    """Look up the other end of a connection; None where this system does not tell."""
    theirs, ours = _place(sock.getpeername()), _place(sock.getsockname())
    rows = ask_kernel(theirs, ours)
    if rows is None:
        rows = read_tables(theirs[1])
    if rows is None:
        return None
    listeners = [row.uid for row in rows if row.state == LISTEN and row.local[0] in (theirs[0], *_ANY)]
    ends = [row.uid for row in rows if row.state == ESTABLISHED and (row.local, row.remote) == (theirs, ours)]
    return Owners(listeners, ends)


def find_listening(port: int) -> set[int]:
    """The inodes of all sockets of this machine that listen on a port; none where this system does not tell."""
    rows = ask_kernel((bytes(16), port), None)
    if rows is None:
        rows = read_tables(port) or []
    return {row.inode for row in rows if row.state == LISTEN}


def ask_kernel(theirs: Place, ours: Place | None) -> list[_Row] | None:
    """Rows of the listeners on a port and of one connection to it, if one is named; None where there is no netlink for
    that.
    """
    if not hasattr(socket, "AF_NETLINK"):
        return None
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as line:
            line.settimeout(5)
            rows: list[_Row] = []
            nowhere = (bytes(16), 0)
            for family in (socket.AF_INET, socket.AF_INET6):
                rows += _ask(line, family, LISTEN, (bytes(16), theirs[1]), nowhere, _REQUEST | _DUMP)
            if ours is not None:
                mapped = theirs[0].startswith(_MAPPED)
                rows += _ask(
                    line, socket.AF_INET if mapped else socket.AF_INET6, ESTABLISHED, theirs, ours, _REQUEST
                )
    except OSError:
        return None
    return [row for row in rows if row.local[1] == theirs[1]]


def _ask(
    line: socket.socket, family: int, state: int, local: Place, remote: Place, flags: int
) -> Iterator[_Row]:
    (source, target) = (
        place[0].removeprefix(_MAPPED).ljust(16, b"\0") if family == socket.AF_INET else place[0]
        for place in (local, remote)
    )
    named = struct.pack("!HH", local[1], remote[1]) + source + target + bytes(4) + b"\xff" * 8
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 1 << state) + named
    line.sendto(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, flags, 1, 0) + request, (0, 0))
    more = True
    while more:
        data, at = line.recv(_ANSWER_BYTES), 0
        more = bool(flags & _DUMP)
        while at + _HEADER.size <= len(data):
            size, kind, *_ = _HEADER.unpack_from(data, at)
            if kind == _DONE:
                return
            body = data[at + _HEADER.size : at + size]
            if kind == _ERROR:
                (code,) = struct.unpack_from("=i", body)
                if flags & _DUMP or code != -2:  # a single one that is not there is an answer too
                    raise OSError(-code, os.strerror(-code))
                return
            yield _read_row(body)
            at += (size + 3) & ~3


def _read_row(body: bytes) -> _Row:
    """What linux/inet_diag.h calls inet_diag_msg."""
    near, far = struct.unpack_from("!HH", body, 4)
    uid, inode = _UID_AND_INODE.unpack_from(body, _UID_AT)
    is_wide = body[0] == socket.AF_INET6
    source, target = (body[at : at + 16] if is_wide else _MAPPED + body[at : at + 4] for at in (8, 24))
    return _Row((source, near), (target, far), body[1], uid, inode)


def read_tables(port: int) -> list[_Row] | None:
    """The same from the kernel's tables: all connections whose end here has this port."""
    wanted, rows, seen = f":{port:04X} ", [], False
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), open(table) as lines:
            seen = True
            for line in lines:
                if wanted in line:
                    _, local, remote, state, _, _, _, uid, _, inode, *_ = line.split()
                    row = _Row(_parse(local), _parse(remote), int(state, 16), int(uid), int(inode))
                    rows.append(row)
    return [row for row in rows if row.local[1] == port] if seen else None


def _parse(text: str) -> Place:
    """An address as the tables spell it: words in the machine's own order."""
    spelled, _, port = text.partition(":")
    words = [spelled[at : at + 8] for at in range(0, len(spelled), 8)]
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    return packed if len(packed) == 16 else _MAPPED + packed, int(port, 16)


def _place(address: tuple[str, int]) -> Place:
    host, port = address[0].partition("%")[0], address[1]
    if ":" in host:
        return socket.inet_pton(socket.AF_INET6, host), port
    return _MAPPED + socket.inet_aton(host), port
