"""The hub and the agent of one home as processes: start them, find them again, stop them.

Knows nothing about jobs; which process is the daemon of a home is known to `dray.presence` alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from dray.client.reach.discovery import read_hub_file
from dray.config import environment_of_pair
from dray.errors import DrayError
from dray.presence import describe_process, find_holder, stop

READY_S = 20.0
STOP_S = 20.0
_POLL_S = 0.01


class DaemonFailed(DrayError):
    """A hub or an agent that did not start."""

    code = "start_failed"


def start_daemon(home: Path, role: str, arguments: Sequence[str], to_file: bool) -> subprocess.Popen[bytes]:
    """Start a daemon in its own session, so that Ctrl-C reaches it only through whoever watches over it."""
    command = ["hub"] if role == "hub" else ["worker", "start"]
    if to_file:
        # What it says before it has taken its log over goes there as well.
        arguments = ["--log-file", str(log_path(home, role)), *arguments]
    env = environment_of_pair(role)
    output: IO[bytes] | None = _open_log(home, role) if to_file else None
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "dray.cli.main", *command, "--home", str(home), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output if output is not None else sys.stderr,
            stderr=output if output is not None else sys.stderr,
            env=env,
            start_new_session=True,
        )
    finally:
        if output is not None:
            output.close()


def log_path(home: Path, role: str) -> Path:
    return home / "log" / f"{role}.log"


def _open_log(home: Path, role: str) -> IO[bytes]:
    path = log_path(home, role)
    make_folder(home, path.parent)
    try:
        return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
    except OSError as fault:
        raise _unusable(home, fault) from None


def make_folder(home: Path, folder: Path) -> None:
    """Make the home, or a folder in it; one that cannot be made is told in words."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as fault:
        raise _unusable(home, fault) from None


def _unusable(home: Path, fault: OSError) -> DaemonFailed:
    from dray.hub.store.sqlite.errors import tell_unusable

    return DaemonFailed(tell_unusable(home, fault))


def wait_for_hub(home: Path, hub: subprocess.Popen[bytes], limit_s: float = READY_S) -> dict[str, Any]:
    """Wait until this very hub listens; its own file says so."""
    mark = describe_process(hub.pid)
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        note = read_hub_file(home)
        # Not by its pid alone: in a container the one before may have had the same.
        if mark and mark.items() <= note.items():
            return note
        if hub.poll() is not None:
            raise DaemonFailed(f"the hub ended at once (exit code {hub.returncode}){read_tail(home, 'hub')}")
        time.sleep(_POLL_S)
    raise DaemonFailed(f"the hub was not ready after {limit_s:g} s{read_tail(home, 'hub')}")


def read_tail(home: Path, role: str, lines: int = 8) -> str:
    """The last lines of a log, to be put behind a message; empty where there is none."""
    path = log_path(home, role)
    try:
        text = path.read_bytes()[-8192:].decode("utf-8", "replace").strip()
    except OSError:
        return ""
    listed = "\n  ".join(text.splitlines()[-lines:])
    return f"; the last lines of {path}:\n  {listed}" if listed else ""


def stop_daemon(home: Path, role: str, limit_s: float = STOP_S) -> bool:
    """Ask the daemon of this home to end and wait for it; tell whether it did. Never forced: it may be writing."""
    holder = find_holder(home, role)
    if holder is None:
        return True
    if not stop(holder):
        return False
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if not holder.alive:
            return True
        time.sleep(_POLL_S * 2)
    return False


def end_child(process: subprocess.Popen[bytes]) -> bool:
    """The same for a daemon that was started here and may not hold the home yet."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        return False
    return True
