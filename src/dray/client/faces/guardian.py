"""A program that keeps a private hub and its worker for as long as another program lives, and no longer.

Run as a file with the standard library alone. It holds the read end of a pipe whose other end is the owner's: however
the owner ends, also by kill -9, the pipe closes. Then everything that descends from here is ended and the home removed.
Surprising rule: it makes itself the parent of orphans, so that tasks which left their session are found as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ROUNDS = 200
Prctl = Callable[[int, int], int]


def main(home: str, python: str) -> None:
    """Start both, wait for the owner's end, clear up."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # Ctrl-C at the owner's terminal is the owner's to answer.
        signal.signal(number, signal.SIG_IGN)
    prctl = _find_prctl()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    daemons = [
        _start(home, python, "hub", ["hub", "--home", home, "--port", "0"], prctl),
        _start(home, python, "agent", ["worker", "start", "--home", home], prctl),
    ]
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    for daemon in daemons:
        daemon.kill()
    _end_all()
    shutil.rmtree(home, ignore_errors=True)


def _start(home: str, python: str, role: str, words: list[str], prctl: Prctl) -> subprocess.Popen[bytes]:
    folder = os.path.join(home, "log")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{role}.log"), "ab") as log:
        return subprocess.Popen(
            [python, "-P", "-m", "dray.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Should this program itself be killed, its daemons must not stay behind.
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 - there are no threads here
        )


def _find_prctl() -> Prctl:
    if not sys.platform.startswith("linux"):
        return lambda _option, _value: 0
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    return lambda option, value: int(library.prctl(option, value))


def _end_all() -> None:
    """Kill every descendant, again and again until there is none: one may have forked meanwhile."""
    for _ in range(ROUNDS):
        found = _descendants(os.getpid())
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not found:
            return
        time.sleep(0.005)


def _descendants(root: int) -> list[int]:
    parents = _list_parents()
    found, front = [], [root]
    while front:
        above = front.pop()
        below = [pid for pid, parent in parents.items() if parent == above]
        found += below
        front += below
    return found


def _list_parents() -> dict[int, int]:
    """The parent of every process that is not a zombie."""
    if not os.path.isdir("/proc/self"):
        listed = subprocess.run(
            ["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False
        )
        rows = [line.split() for line in listed.stdout.splitlines()]
        return {int(row[0]): int(row[1]) for row in rows if len(row) > 2 and "Z" not in row[2]}
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/stat", "rb") as file,
            ):
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    parents[int(name)] = int(fields[1])
    return parents


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
