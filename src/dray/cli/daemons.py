"""The hub and the agent of one home as processes: start them, find them again, stop them.

Owns the pid files' meaning and signals; knows nothing about jobs. The surprising rule: a pid in a file proves nothing,
since numbers are used again after a crash, so a process is signalled only if it looks like dray.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from dray.client.discovery import read_hub_file
from dray.config import environment_of_pair
from dray.errors import DrayError

PID_FILES = {"hub": "hub.json", "agent": "agent.json"}
READY_S = 20.0
STOP_S = 20.0
_POLL_S = 0.01


class DaemonFailed(DrayError):
    """A hub or an agent that did not start."""

    code = "start_failed"


def read_pid(home: Path, role: str) -> int:
    """The pid of a live daemon of this home, or 0."""
    try:
        document = json.loads((home / PID_FILES[role]).read_bytes())
        pid = document["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return pid if isinstance(pid, int) and looks_like_dray(pid) else 0


def looks_like_dray(pid: int) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return any("dray" in part for part in process.cmdline())
    except psutil.Error:
        return False


def note_agent(home: Path, name: str) -> Path:
    """Write down that this process is the agent of this home."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = home / PID_FILES["agent"]
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"pid": os.getpid(), "name": name}))
    draft.replace(path)
    return path


def forget_agent(path: Path) -> None:
    """Undo `note_agent`, unless another agent has taken over since."""
    try:
        if json.loads(path.read_bytes()).get("pid") == os.getpid():
            path.unlink()
    except (OSError, ValueError):
        return


def start_daemon(home: Path, role: str, arguments: Sequence[str], to_file: bool) -> subprocess.Popen[bytes]:
    """Start a daemon in its own session, so that Ctrl-C reaches it only through whoever watches over it."""
    command = ["hub"] if role == "hub" else ["worker", "start"]
    env = environment_of_pair()
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
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path.open("ab")


def wait_for_hub(home: Path, hub: subprocess.Popen[bytes], limit_s: float = READY_S) -> dict[str, Any]:
    """Wait until this very hub listens; its own file says so, with its own pid in it."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        note = read_hub_file(home)
        if note.get("pid") == hub.pid:
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


def stop_daemon(pid: int, limit_s: float = STOP_S) -> bool:
    """Ask a daemon to end and wait for it; tell whether it did. Never forced: it may be writing."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if not looks_like_dray(pid):
            return True
        time.sleep(_POLL_S * 2)
    return False
