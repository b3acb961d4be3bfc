"""The check of who reads the store: it holds for the project, sees a new read, and a listed one that is gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(*arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "check_reads.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "src/dray/hub", tmp_path / "dray/hub", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


def test_a_copy_that_reads_where_it_says_so_passes(source: Path) -> None:
    assert check(source).returncode == 0


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("decisions/commands", "def peek(store):\n    return store.find_job('a')"),
        ("answers/site", "class Peek:\n    def look(self):\n        return self._store.find_key('u', 'k')"),
        ("workers/inbound", "def peek(hub):\n    return list(map(hub.store.find_attempt, ['1-1']))"),
        ("engine/new", "def peek(old_store):\n    return old_store.find_results('a', 0, 1)"),
    ],
)
def test_a_new_read_is_refused(source: Path, module: str, text: str) -> None:
    with (source / f"dray/hub/{module}.py").open("a") as file:
        file.write(f"\n\n{text}\n")
    done = check(source)
    assert done.returncode == 1
    assert module in done.stdout


def test_what_no_longer_reads_is_struck_off(source: Path) -> None:
    (source / "dray/hub/calls/arguments.py").write_text("")
    done = check(source)
    assert done.returncode == 1
    assert "dray.hub.calls.arguments does not read by find_args any more" in done.stdout
