"""The agent's end of one process beside a task: asks the supervisor for it, and holds what it was given.

Blocking, to be used in a thread: it takes two small messages over a socket of this machine. Closing the line hangs the
process up.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, NamedTuple

from dray.agent.supervisor.client import find_socket
from dray.agent.supervisor.records.home import peer_of

ANSWER_BYTES = 4096
MOST_FDS = 3


class ExecRefused(Exception):
    """The supervisor does not start it: a sentence that says why."""


class ExecLine(NamedTuple):
    """`fds`: the other side of its terminal, or the other ends of its input, output and errors."""

    sock: socket.socket
    pid: int
    fds: list[int]


def open_exec(directory: str, request: dict[str, Any], timeout_s: float, op: str = "exec") -> ExecLine:
    """Start a process beside a task, or go to its terminal (`attach`); raises ExecRefused where that is not to be."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.settimeout(timeout_s)
        with find_socket(directory) as (path, _):
            line.connect(path)
        peer = peer_of(line)
        if peer is not None and peer[1] not in (os.geteuid(), 0):
            raise ExecRefused("the supervisor of this worker is somebody else's")
        ready, _ = _receive(line)
        if ready.get("ev") != "ready":
            raise ExecRefused("another agent drives the supervisor of this worker")
        line.sendall(json.dumps({"op": op, **request}).encode() + b"\n")
        answer, fds = _receive(line)
        if answer.get("ev") != "opened":
            raise ExecRefused(str(answer.get("error") or "the supervisor of this worker has closed the line"))
        return ExecLine(line, int(answer["pid"]), fds)
    except OSError as fault:
        line.close()
        raise ExecRefused(f"the supervisor of this worker does not answer: {fault}") from None
    except ExecRefused:
        line.close()
        raise


def _receive(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One message, and the descriptors that came with it. Nothing follows it before the next request."""
    data, fds, _, _ = socket.recv_fds(line, ANSWER_BYTES, MOST_FDS)
    while data and not data.endswith(b"\n"):
        more = line.recv(ANSWER_BYTES)
        if not more:
            data = b""
        data += more
    for fd in fds:
        os.set_inheritable(fd, False)
    return (json.loads(data), fds) if data else ({}, fds)
