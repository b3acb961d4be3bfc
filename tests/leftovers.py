"""What one run of the suite leaves behind: every process that it started must be gone at its end.

All that a run writes lies in one folder, which TMPDIR names for every process on the way: whatever still has that
folder in its arguments, environment, or as its place is the run's own. It is named, ended, and fails the run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

# What was told to end at the end of the last test may take a moment on a busy machine.
GRACE_S = 20.0
POLL_S = 0.1
SHORT = 20


class Leftovers:
    """A plugin of the process that leads the run; its helpers find TMPDIR set."""

    def __init__(self) -> None:
        # Short, for the sockets in it; open, for the tests that run as another user.
        given = tempfile.gettempdir()
        self._root = tempfile.mkdtemp(prefix="dt", dir=given if len(given) <= SHORT else "/tmp")
        os.chmod(self._root, 0o711)  # noqa: S103 - the reason stands above
        os.environ["TMPDIR"] = self._root
        tempfile.tempdir = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """After the helpers have gone, and before the summary is written."""
        deadline = time.monotonic() + GRACE_S
        while (left := self._find()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if left:
            self._report(session, left)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if session.exitstatus == pytest.ExitCode.OK:
            shutil.rmtree(self._root, ignore_errors=True)

    def _find(self) -> dict[int, str]:
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            pid = int(entry.name)
            if pid == os.getpid():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                traces = [words, (entry / "environ").read_bytes(), os.fsencode(os.readlink(entry / "cwd"))]
                if words and any(self._root.encode() in trace for trace in traces):
                    found[pid] = words.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    def _report(self, session: pytest.Session, left: dict[int, str]) -> None:
        lines = [f"{pid}: {words}" for pid, words in sorted(left.items())]
        report = pytest.TestReport(
            nodeid="processes left behind",
            location=("tests/leftovers.py", 0, "processes left behind"),
            keywords={},
            outcome="failed",
            longrepr="\n".join(["these processes of the suite outlived it:", *lines]),
            when="teardown",
        )
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.stats.setdefault("error", []).append(report)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
