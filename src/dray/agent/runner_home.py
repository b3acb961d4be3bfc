"""Where runners live on disk: a folder each, the socket by which they reach their agent, the interpreter they run in.

Knows paths and nothing of calls. Surprising rule: where tasks run as another user the folders lie beside the tasks'
socket, outside of the home, which that user may not enter.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pwd
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import dray
from dray.agent.environment import FALLBACK_PATH, KEPT
from dray.agent.session_home import SessionHome

FOLDERS = ("live", "ended", "values")
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(dray.__file__)), "runner", "__main__.py")


class RunnerHome:
    """The runners' part of an agent's home. `session` tells where tasks may reach it, and makes their keys."""

    def __init__(self, home: Path, session: SessionHome, task_user: str, near: str) -> None:
        self._home, self._session, self._user = home, session, task_user
        foreign = bool(task_user) and pwd.getpwnam(task_user).pw_uid != os.geteuid()
        self._owner = pwd.getpwnam(task_user).pw_uid if foreign else -1
        self.is_foreign = foreign
        # Where the hub of the same home keeps its blobs; another user may not look there.
        self.near = "" if foreign else near
        base = Path(os.path.dirname(session.path)) if foreign else home
        self.runners, self.blobs = base / "runners", base / "blobs"
        self.socket_path = os.path.join(os.path.dirname(session.path), "runners.sock")
        for folder in (self.runners, self.blobs):
            folder.mkdir(mode=0o711 if foreign else 0o700, exist_ok=True)

    def key(self, uid: str) -> str:
        """By which a runner proves which one it is."""
        return self._session.key(uid)

    def folder(self, uid: str) -> str:
        return f"{self.runners}/{uid}"

    def open_socket(self) -> None:
        """Let the tasks' user reach the runners' socket."""
        os.chmod(self.socket_path, 0o600)
        if self._owner >= 0:
            os.chown(self.socket_path, self._owner, -1)

    def make_task(self, uid: str, venv: str, memory_bytes: int, own: dict[str, str]) -> dict[str, Any]:
        """Make a runner's folder, and spell its start as the supervisor's `run` entry."""
        folder = self.folder(uid)
        for name in ("", *FOLDERS):
            os.makedirs(f"{folder}/{name}", 0o700, exist_ok=True)
            if self._owner >= 0:
                os.chown(f"{folder}/{name}", self._owner, -1)
        given = {
            "socket": self.socket_path,
            "uid": uid,
            "key": self.key(uid),
            "folder": folder,
            "blobs": [str(self.blobs), *([self.near] if self.near else [])],
        }
        environment = {name: own[name] for name in KEPT if name in own}
        environment.setdefault("PATH", FALLBACK_PATH)
        environment |= {"DRAY_RUNNER": json.dumps(given), "DRAY_CLOUDPICKLE": find_cloudpickle()}
        return {
            "uid": uid,
            "task_id": uid,
            "argv": [self.find_python(venv), "-P", PROGRAM],
            "env": environment,
            "cwd": folder,
            "grace_s": 0.0,
            "memory_bytes": memory_bytes,
            "user": self._user or None,
            "meta": {"runner": True},
        }

    def find_python(self, venv: str) -> str:
        """The interpreter of an environment: a path, or the name of one under `venvs` in this home."""
        if not venv:
            return sys.executable
        folder = venv if os.path.isabs(venv) else f"{self._home}/venvs/{venv}"
        return f"{folder}/bin/python"

    def put_live_aside(self, uid: str, name: str) -> str:
        """What a dead runner's last call had printed, moved to where the output of ended calls lies; empty: nothing."""
        target = f"{self.folder(uid)}/ended/{name}"
        found = ""
        for file, size in self.list_live(uid):
            with contextlib.suppress(OSError):
                if size:
                    os.makedirs(target, 0o700, exist_ok=True)
                    os.rename(f"{self.folder(uid)}/live/{file}", f"{target}/{file}")
                    found = target
        return found

    def list_live(self, uid: str) -> list[tuple[str, int]]:
        """The files that a runner's present call prints to, with their sizes."""
        try:
            return [(entry.name, entry.stat().st_size) for entry in os.scandir(f"{self.folder(uid)}/live")]
        except OSError:
            return []

    def cut_live(self, uid: str, cap_bytes: int) -> None:
        """Empty what has grown too large; the writer goes on at the start of the file, which is named by its offset.

        What was not shipped by then is a gap: output may be lost, a disk that is full costs everybody.
        """
        for file, size in self.list_live(uid):
            if size > cap_bytes:
                stream, _, start = file.partition(".")
                path = f"{self.folder(uid)}/live/{file}"
                with contextlib.suppress(OSError):
                    os.truncate(path, 0)
                    os.rename(path, f"{self.folder(uid)}/live/{stream}.{int(start) + size}")

    def remove(self, uid: str) -> None:
        """Forget a runner's folder, whatever is left in it."""
        shutil.rmtree(self.folder(uid), ignore_errors=True)

    def sweep(self, kept: Collection[str]) -> None:
        """Remove the folders of all other runners: of earlier agents, and of nobody."""
        for name in os.listdir(self.runners):
            if name not in kept:
                self.remove(name)


def find_cloudpickle() -> str:
    """Where this environment's cloudpickle lies, for environments that have none. Only looked for, never loaded."""
    spec = importlib.util.find_spec("cloudpickle")
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
