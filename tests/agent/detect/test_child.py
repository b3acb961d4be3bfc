"""Probes that answer, crash, hang and talk nonsense, each in a real child process."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from dray.agent.detect.child import probe_in_child


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "some_probe.py"


def test_the_last_line_is_the_answer_whatever_a_driver_prints(probe: Path) -> None:
    probe.write_text("""print("banner"); print('{"cards": [{"index": 0, "name": "Card X"}]}')""")
    assert [card.name for card in probe_in_child("some_probe", "some", 20).cards] == ["Card X"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.abort()", "was killed by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
        ("raise RuntimeError('driver is broken')", "exit code 1: RuntimeError: driver is broken"),
        ("print('banner only')", "cannot be read"),
        ("pass", "cannot be read"),
    ],
)
def test_a_probe_that_dies_or_babbles_is_a_note(probe: Path, code: str, words: str) -> None:
    probe.write_text(code)
    answer = probe_in_child("some_probe", "some", 20)
    assert answer.cards == []
    assert len(answer.notes) == 1
    assert words in answer.notes[0]


def test_a_probe_that_hangs_is_ended_with_its_children(probe: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    probe.write_text(
        "import os, pathlib, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(f'{{os.getpid()}} {{inner.pid}}')\n"
        "signal.pause()\n"
    )
    # On a busy machine the probe may not get as far as its own hang within the first limit.
    for timeout_s in (1, 5, 25):
        answer = probe_in_child("some_probe", "some", timeout_s)
        assert f"did not answer within {timeout_s} s" in answer.notes[0]
        if pid_file.exists() and len(pid_file.read_text().split()) == 2:
            break
    processes = [int(pid) for pid in pid_file.read_text().split()]
    assert len(processes) == 2
    deadline = time.monotonic() + 60
    while any(map(_runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [pid for pid in processes if _runs(pid)] == []


def _runs(pid: int) -> bool:
    """Whether the process lives; one that is dead and not yet reaped by init does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
