"""A start tried for its own sake: files in the worker's own folders, and a program that does nothing.

The program goes the way of every task (journal, fork, user, folder), so that it fails where they would. Decides
nothing: decide/machine.py says when to try, and what follows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

from dray.agent.decide.effects import Probe
from dray.agent.tasks.environment import FALLBACK_PATH

FILE = ".probe"
BYTES = 4096
LIMIT_S = 10.0


def try_folders(folders: Iterable[str]) -> str:
    """Write a small file into each, down to the disk, making the folder where it is gone; gives the fault, if any."""
    for folder in folders:
        path = os.path.join(folder, FILE)
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(descriptor, bytes(BYTES))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as fault:
            return f"nothing can be written in {folder}: {fault.strerror}"
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
    return ""


def make_trial(probe: Probe, work: str, task_user: str) -> dict[str, Any]:
    """The program that does nothing, as the supervisor's `run` entry."""
    return {
        "uid": probe.uid,
        "task_id": probe.uid,
        "argv": ["true"],
        "env": {"PATH": FALLBACK_PATH},
        "cwd": work,
        "own_cwd": True,
        "grace_s": 0.0,
        "limit_s": LIMIT_S,
        "start_by": probe.start_by_ms / 1000,
        "user": task_user or None,
        "meta": {"probe": True},
    }
