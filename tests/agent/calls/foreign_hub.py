"""A hub for tests of calls whose agent is root and runs them as another user, who can reach what a runner needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from tests.agent.calls.call_hub import CallHub

import dray

VISITOR = "nobody"


class ForeignHub(CallHub):
    """As its parent; `private` is a folder that only root may enter."""

    def __init__(self) -> None:
        super().__init__()
        self.folder.chmod(0o711)
        # The checkout may lie in a home that nobody else may enter.
        for package in (dray, cloudpickle):
            source = Path(package.__file__ or "").parent
            target = self.folder / "code" / source.name
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        self.venv = self.folder / "venv"
        (self.venv / "bin").mkdir(parents=True)
        (self.venv / "bin" / "python").symlink_to(find_interpreter())
        self.private = self.folder / "private"
        self.private.mkdir(0o700)

    def start(self, **env: str) -> None:
        as_visitor = {"DRAY_WORKER_TASK_USER": VISITOR, "DRAY_WORKER_RUNNERS": "0"}
        self.start_agent(1, **(as_visitor | {"PYTHONPATH": f"{self.folder}/code"} | env))

    def call(self, function: Callable[..., Any] | bytes, *args: Any, **spec: Any) -> tuple[str, Any, Any]:
        return super().call(function, *args, **{"env": {"VIRTUAL_ENV": str(self.venv)}, **spec})

    @property
    def shared(self) -> Path:
        """Where agent and runners meet."""
        return Path((self.folder / "h" / "worker" / "session.path").read_text()).parent

    def printed(self) -> bytes:
        """What the last call has printed to stdout, as far as it has arrived."""
        return self.output.get(f"{self.last_job}/0 stdout", b"")


def find_interpreter() -> str:
    """A Python like this one that the other user can run; skips where there is none."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    ask = "import sys; sys.exit(f'{sys.version_info[0]}.{sys.version_info[1]}' != sys.argv[1])"
    for path in (
        os.path.realpath(sys.executable),
        f"/usr/bin/python{version}",
        f"/usr/local/bin/python{version}",
    ):
        try:
            words = [path, "-c", ask, version]
            if not subprocess.run(words, user=VISITOR, check=False, capture_output=True, cwd="/").returncode:
                return path
        except OSError:
            continue
    pytest.skip(f"no Python {version} that {VISITOR} may run")
