"""A process that outlives the suite fails it: shown by a small suite of its own that leaves one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dray.processes import look_up

CONFTEST = """
import tests.leftovers

tests.leftovers.GRACE_S = 0.5

def pytest_configure(config):
    config.pluginmanager.register(tests.leftovers.Leftovers(), "leftovers")
"""
LEAVES = """
import os

def test_leaves(tmp_path):
    os.chdir(tmp_path)
    pid = os.posix_spawnp("sleep", ["sleep", "60"], {"PATH": os.environ["PATH"]})
    print("left", pid, "end")
"""


def test_a_process_that_outlives_the_suite_fails_it_and_is_ended(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    pid = ran.stdout.partition("left ")[2].split()[0]
    assert f"{pid}: sleep 60" in ran.stdout
    assert "1 passed, 1 error" in ran.stdout.splitlines()[-1]
    info = look_up(int(pid))
    assert info is None or not info.alive
